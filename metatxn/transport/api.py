"""The seam between what is asked of a service and how it gets there. A simulation and the tests put networks of their
own here.

    Unsent      certainly no byte of the request has left
    └── BadUrl  and none ever will
    NoAnswer    it may have been carried out, or may be yet
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Protocol


class Unsent(Exception):
    """There was no connection, so the request had no effect."""


class BadUrl(Unsent):
    """It is not an HTTP URL."""


class NoAnswer(Exception):
    """The request has begun to leave, and no whole answer came."""


class Headers(dict[str, str]):
    """Headers by name. Their values are not shown, because one may be a token."""

    def __repr__(self) -> str:
        return f"Headers({', '.join(self)})"


@dataclass(slots=True)
class Request:
    """A request. `url` is absolute and already encoded. Times are those of the event loop, in seconds."""

    method: str
    url: str
    headers: Headers
    body: bytes | None
    connect_s: float
    """How long it may take to connect."""
    answer_s: float
    """How long the answer is waited for, from when the request begins to leave."""
    end: float
    """The time at which it is given up in any case."""


@dataclass(slots=True)
class Answer:
    """An answer. `method` and `url` are those of the request. The names of `headers` are in lower case."""

    method: str
    url: str
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | bytearray = b""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    def header(self, name: str) -> str | None:
        return self.headers.get(name.lower())

    def json(self) -> Any:
        """The body as JSON. Raises `ValueError`."""
        return json.loads(self.body)


class Transport(Protocol):
    """Carries any number of requests at once, and repeats none. A request that is cancelled may have been carried
    out."""

    async def send(self, request: Request) -> Answer:
        """The answer, whatever its status; redirects are not followed. Raises `Unsent` and `NoAnswer`."""

    async def close(self) -> None:
        """Close. Requests without an answer fail. Idempotent."""
