"""When the next wave of a producer's batches begins (DESIGN §5.22, rule 6).

A client with several requests on their way sends as many new ones when those of a wave are answered. If the first of
them left alone, the others would follow in a second wave, and so on: with five requests, waves of one and of four
batches in turn. Each wave has an answer of the store and a sync, so half of these would be for one batch.

The clock is that of the event loop. uvloop's has steps of a millisecond, so there is hardly a pause after a wave that
took less.
"""

from __future__ import annotations

import asyncio

LONGEST_PAUSE = 0.5
"""The longest time from the end of a wave to the beginning of the next one, as a share of the time the wave took."""
LONGEST_PAUSE_S = 0.02
"""The same in seconds: a wave may take long because the store or the device did."""


class WavePace:
    """The pace of one producer in one partition. A wave waits for as many batches as were on their way at the end of
    each of the last two waves, unless one of them has failed. So a client that has one request on its way is never kept
    waiting, and one that stops sending is waited for once. One that sends in its own time, and not when it is answered,
    may be waited for again and again."""

    def __init__(self) -> None:
        self._on_their_way = 0
        self._on_their_way_before = 0
        self._began_s = 0.0
        self._latest_s = 0.0
        """The time of the loop after which nothing is waited for."""
        self._enough: tuple[int, asyncio.Future[None]] | None = None

    async def until_enough(self, waiting: int) -> None:
        """Wait for more batches than these, if they are expected, and begin a wave."""
        loop = asyncio.get_running_loop()
        wanted = min(self._on_their_way, self._on_their_way_before)
        if waiting < wanted and loop.time() < self._latest_s:
            enough = loop.create_future()
            self._enough = wanted, enough
            timer = loop.call_at(self._latest_s, _set, enough)
            try:
                await enough
            finally:
                timer.cancel()
                self._enough = None
        self._began_s = loop.time()

    def changed(self, waiting: int) -> None:
        """This many batches are waiting now. If they are enough, or all of them were withdrawn, the pause is over."""
        if self._enough is not None and (waiting >= self._enough[0] or not waiting):
            _set(self._enough[1])

    def ended(self, on_their_way: int) -> None:
        """The wave has ended. This many batches are on their way, with those of the wave; or 0 if nothing is to be
        waited for: the wave was full, so that the next one has enough, or it has failed, so that its client begins
        anew."""
        now_s = asyncio.get_running_loop().time()
        self._on_their_way_before, self._on_their_way = self._on_their_way, on_their_way
        self._latest_s = now_s + min(LONGEST_PAUSE * (now_s - self._began_s), LONGEST_PAUSE_S)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
