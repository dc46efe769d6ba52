"""Wake-ups for tasks that wait until something changes."""

from __future__ import annotations

import asyncio


class Signal:
    """`next` is a future that the next `notify` completes. Get it *before* reading the state, so that a change between
    reading and waiting is not missed."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None

    def notify(self) -> None:
        if self._next is not None:
            self._next.set_result(None)
            self._next = None

    def next(self) -> asyncio.Future[None]:
        """The future is shared by all waiters: pass it to `asyncio.wait`, or use `await signal.wait()`, but never
        cancel it."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        return self._next

    async def wait(self) -> None:
        """Wait until the next `notify`. This is safe directly after reading the state, with no await in between."""
        await asyncio.shield(self.next())
