"""A line in the log for each request whose answer came late.

The time that a request asked to wait (a long poll) does not count, nor that of a client to take its answer. If the
store is slow, every request is; so there are at most a few lines a second, and the next line counts those without one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs

from starlette.types import Scope

from metatxn.service.lifecycle import Lifecycle, tell
from metatxn.service.request_metrics import NO_ROUTE, MeasuredRequest

PAUSE_S = 0.1
"""The shortest time between two lines."""


class SlowRequests:
    """The log of slow requests. Used only on the event loop of the service. `clock` is that of the measured
    requests."""

    def __init__(self, slow_ms: int, clock: Callable[[], float]) -> None:
        self._slow_s = slow_ms / 1000
        self._clock = clock
        self._next = 0.0
        self._unlisted = 0

    def end(self, scope: Scope, request: MeasuredRequest, principal: str | None, body: bytes) -> None:
        """The request has ended."""
        now = self._clock()
        seconds = request.seconds_to_answer(now)
        if seconds < self._slow_s or seconds - _asked_to_wait_s(scope, body) < self._slow_s:
            return
        if now < self._next:
            self._unlisted += 1
            return
        tell(
            Lifecycle.SLOW_REQUEST,
            method=scope["method"],
            route=request.route.path if request.route is not None else NO_ROUTE,
            status=request.status,
            seconds=round(seconds, 3),
            principal=principal,
            unlisted=self._unlisted,
        )
        self._next, self._unlisted = now + PAUSE_S, 0


def _asked_to_wait_s(scope: Scope, body: bytes) -> float:
    """The wait that the query or the body asks for."""
    asked: list[Any] = list(parse_qs(scope["query_string"].decode("latin-1")).get("wait_ms", []))
    if b'"wait_ms"' in body:
        asked.append(_member(body))
    return sum(int(each) for each in asked if str(each).isdecimal() and len(str(each)) < 10) / 1000


def _member(body: bytes) -> Any:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value.get("wait_ms") if isinstance(value, dict) else None
