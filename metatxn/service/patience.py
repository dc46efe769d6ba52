"""How long a request keeps trying. No loop over the store runs without end, whatever the store or other requests do.

Being overtaken once or twice is normal, so the first rounds follow each other immediately. After that the pauses grow,
so that competing requests let each other through, and so that a request that can never succeed costs the store some
dozens of requests instead of hundreds per second. The pauses are random: otherwise requests that lost to the same
winner would collide again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from metastore.clock import Clock
from metatxn.service.departure import caller_left
from metatxn.wire import errors

Pause = Callable[[float], Awaitable[None]]
"""Wait for a number of seconds."""

PATIENCE_MS = 10_000
LEAST_ROUNDS = 3
"""This many even if the time is over: a process that was frozen for long still finds out what happened to its
request."""
MOST_ROUNDS = 30
"""No more than this even if the clock is set back."""
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0


class Patience:
    """`while await patience.lasts():` repeats its body until it returns or raises; after the loop comes the error for
    the case that it never did."""

    def __init__(self, clock: Clock | None = None, pause: Pause = asyncio.sleep) -> None:
        """By default the clock is that of the event loop."""
        self._clock = clock or _time_of_loop_ms
        self._pause = pause
        self._until_ms = self._clock() + PATIENCE_MS
        self._next_pause_s = _FIRST_PAUSE_S
        self.rounds = 0

    async def lasts(self) -> bool:
        """Whether to try once more; waits before it returns. Also False if the client no longer waits for the
        answer."""
        if self.rounds >= LEAST_ROUNDS:
            if self.rounds >= MOST_ROUNDS or self._clock() >= self._until_ms:
                return False
            await self._pause(self._next_pause_s * random.uniform(0.5, 1.0))
            self._next_pause_s = min(self._next_pause_s * 2, _LONGEST_PAUSE_S)
        if self.rounds and await caller_left():
            return False
        self.rounds += 1
        return True

    def over(self, what: str) -> errors.MetatxnError:
        """The error for a request whose records, `what`, were changed by others each time."""
        detail = f"{what} was changed by others each of the {self.rounds} times that this was tried"
        return errors.StoreUnavailable(detail)


def _time_of_loop_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)
