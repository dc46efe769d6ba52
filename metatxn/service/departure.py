"""Whether anybody still waits for an answer. What takes long asks before it begins anything more."""

from __future__ import annotations

from contextvars import ContextVar

from starlette.requests import Request
from starlette.types import Receive

ASKED: ContextVar[Receive] = ContextVar("asked")
"""From where the request under way came, once its body has been read."""


async def caller_left() -> bool:
    """Whether the client of the request under way has closed its connection. False outside of requests."""
    receive = ASKED.get(None)
    return receive is not None and await Request({"type": "http"}, receive).is_disconnected()
