"""Whether the client still waits for an answer. Long operations check this before each further step."""

from __future__ import annotations

from contextvars import ContextVar

from starlette.requests import Request
from starlette.types import Receive

ASKED: ContextVar[Receive] = ContextVar("asked")
"""The source of the current request, once its body has been read."""


async def caller_left() -> bool:
    """Whether the client of the current request has closed its connection. False outside requests."""
    receive = ASKED.get(None)
    return receive is not None and await Request({"type": "http"}, receive).is_disconnected()
