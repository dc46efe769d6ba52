"""Where the console is served. It is a client of the services that happens to live here, and is handed in: the
coordinator knows nothing about it except how to pass a request on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from starlette.routing import Match, Mount
from starlette.types import Receive, Scope, Send

from metatxn.service import audit

PATH = "/console"


class ConsoleApp(Protocol):
    """An ASGI application that asks for tokens itself."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    async def close(self) -> None:
        """End what is still being answered, so that the server can stop."""


MakeConsole = Callable[[str, Callable[..., None]], ConsoleApp]
"""Makes a console, given the URL of this coordinator and what writes a line of the audit log."""


class ConsoleRoute(Mount):
    """All paths of the console. They are one route in the metrics."""

    methods = frozenset({"GET", "HEAD", "POST"})

    def __init__(self, make: MakeConsole) -> None:
        super().__init__(PATH, self._serve)
        self._make = make
        self._console: ConsoleApp | None = None

    def open(self, url: str) -> None:
        """Call this once the URL of the coordinator is known."""
        self._console = self._make(url, audit.record)

    async def close(self) -> None:
        if self._console is not None:
            await self._console.close()

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches(scope)
        return match, {**found, "route": self} if match is Match.FULL else found

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert self._console is not None, "it is opened before requests are accepted"
        await self._console(scope, receive, send)
