"""Wake-ups for those who wait until something has changed."""

from __future__ import annotations

import asyncio


class Signal:
    """`next` is a future that the next `notify` completes. Take it *before* looking at the state: then a change
    between the look and the wait is not missed."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None

    def notify(self) -> None:
        if self._next is not None:
            self._next.set_result(None)
            self._next = None

    def next(self) -> asyncio.Future[None]:
        """Shared by all who wait: give it to `asyncio.wait`, or `await signal.wait()`, but never cancel it."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        return self._next

    async def wait(self) -> None:
        """Until the next `notify`. Safe right after a look at the state with no await in between."""
        await asyncio.shield(self.next())
