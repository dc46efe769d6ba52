"""What a service has done lately, for people who look at it without a monitoring system.

Its counters are looked at every ten seconds, and what was counted between two looks is remembered for a quarter of an
hour. A monitoring system should scrape `/metrics` instead.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

from metatxn.wire.models import ThroughputAnswer, ThroughputSample

LOOK_EVERY_MS = 10_000
REMEMBERED = 90
"""Samples."""


class Throughput:
    """`counts` returns counters that only grow, by the names of `ThroughputSample`; `now_ms` is the clock. `looks_too`
    is called with each look."""

    def __init__(
        self,
        counts: Callable[[], Mapping[str, int]],
        now_ms: Callable[[], int],
        looks_too: Callable[[], None] = lambda: None,
    ) -> None:
        self._counts = counts
        self._looks_too = looks_too
        self._now_ms = now_ms
        self._before: Mapping[str, int] = {}
        self._samples: deque[ThroughputSample] = deque(maxlen=REMEMBERED)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._before = self._counts()
        self._wait()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> None:
        """Remember what was counted since the last look."""
        counted = self._counts()
        grown = {name: number - self._before.get(name, 0) for name, number in counted.items()}
        self._before = counted
        self._samples.append(ThroughputSample(at_ms=self._now_ms(), **grown))
        self._looks_too()

    def answer(self) -> ThroughputAnswer:
        return ThroughputAnswer(interval_ms=LOOK_EVERY_MS, samples=list(self._samples))

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY_MS / 1000, self._look_and_wait)

    def _look_and_wait(self) -> None:
        self.look()
        self._wait()
