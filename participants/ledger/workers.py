"""The threads that wait for the device, and the calls that run in them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any, TypeVar

from participants.ledger.storage import LedgerStopped

_T = TypeVar("_T")


class Workers:
    """Runs blocking calls for one event loop. A begun call is finished, even if no one waits for it."""

    def __init__(self, executor: Executor | None, threads: int) -> None:
        """`executor` replaces the pool of threads (the simulator runs the calls in place); it is not shut down here."""
        self._own = ThreadPoolExecutor(threads, thread_name_prefix="ledger") if executor is None else None
        self._executor = executor or self._own
        self._running: set[asyncio.Future[Any]] = set()
        self._closed = False

    def begin(self, call: Callable[..., _T], *args: Any) -> asyncio.Future[_T]:
        """Start a call. Do not cancel the future: that would not stop the thread, only hide it.

        Raises `LedgerStopped` after `close`.
        """
        if self._closed:
            raise LedgerStopped("this storage was closed")
        future = asyncio.get_running_loop().run_in_executor(self._executor, call, *args)
        self._running.add(future)
        future.add_done_callback(self._ended)
        return future

    async def run(self, call: Callable[..., _T], *args: Any) -> _T:
        return await asyncio.shield(self.begin(call, *args))

    async def close(self) -> None:
        """Wait for the running calls. No new call begins."""
        self._closed = True
        while self._running:
            await asyncio.wait(self._running)
        if self._own is not None:
            self._own.shutdown(wait=False)

    def _ended(self, future: asyncio.Future[Any]) -> None:
        self._running.discard(future)
        if not future.cancelled():
            future.exception()  # retrieved, because the caller may have been cancelled
