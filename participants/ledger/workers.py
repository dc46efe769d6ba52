"""The threads that wait for the device, and the calls that run in them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from participants.ledger.storage import LedgerStopped

_T = TypeVar("_T")
CALLS_AT_ONCE = 8
"""The most calls that are handed to a thread together. Each handing over takes the loop a tenth of a millisecond, and
what the first of these calls has done is heard of with the last one."""


@dataclass(frozen=True, slots=True)
class _Due:
    future: asyncio.Future[Any]
    call: Callable[..., Any]
    args: tuple[Any, ...]


class Workers:
    """Runs blocking calls for one event loop. A begun call is finished, even if no one waits for it."""

    def __init__(self, executor: Executor | None, threads: int) -> None:
        """`executor` replaces the pool of threads (the simulator runs the calls in place); it is not shut down here."""
        self._own = ThreadPoolExecutor(threads, thread_name_prefix="ledger") if executor is None else None
        self._executor = executor or self._own
        self._threads = threads
        self._due: list[_Due] = []
        self._running: set[asyncio.Future[Any]] = set()
        self._closed = False

    def begin(self, call: Callable[..., _T], *args: Any) -> asyncio.Future[_T]:
        """Start a call. Do not cancel the future: that would not stop the thread, only hide it.

        Raises `LedgerStopped` after `close`.
        """
        self._assert_open()
        return self._begun(asyncio.get_running_loop().run_in_executor(self._executor, call, *args))

    def begin_with_others(self, call: Callable[..., _T], *args: Any) -> asyncio.Future[_T]:
        """Start a call after this step of the loop. If more calls were started so in one step than there are threads,
        each thread gets several at once. See `begin`."""
        self._assert_open()
        loop = asyncio.get_running_loop()
        if not self._due:
            loop.call_soon(self._hand_over)
        future: asyncio.Future[_T] = loop.create_future()
        self._due.append(_Due(future, call, args))
        return self._begun(future)

    async def run(self, call: Callable[..., _T], *args: Any) -> _T:
        return await asyncio.shield(self.begin(call, *args))

    async def close(self) -> None:
        """Wait for the running calls. No new call begins."""
        self._closed = True
        while self._running:
            await asyncio.wait(self._running)
        if self._own is not None:
            self._own.shutdown(wait=False)

    def _assert_open(self) -> None:
        if self._closed:
            raise LedgerStopped("this storage was closed")

    def _begun(self, future: asyncio.Future[_T]) -> asyncio.Future[_T]:
        self._running.add(future)
        future.add_done_callback(self._ended)
        return future

    def _hand_over(self) -> None:
        due, self._due = self._due, []
        size = min(CALLS_AT_ONCE, -(-len(due) // self._threads))
        for start in range(0, len(due), size):
            part = due[start : start + size]
            try:
                called = asyncio.get_running_loop().run_in_executor(self._executor, _call_all, part)
            except RuntimeError as error:  # the system gives no thread
                _fail(part, error)
            else:
                called.add_done_callback(partial(_tell, part))

    def _ended(self, future: asyncio.Future[Any]) -> None:
        self._running.discard(future)
        if not future.cancelled():
            future.exception()  # retrieved, because the caller may have been cancelled


def _call_all(part: Sequence[_Due]) -> list[tuple[Any, Exception | None]]:
    """The result or the error of each call."""
    return [_called(each) for each in part]


def _called(due: _Due) -> tuple[Any, Exception | None]:
    try:
        return due.call(*due.args), None
    except Exception as error:  # noqa: BLE001 - the one who waits hears of it
        return None, error


def _tell(part: Sequence[_Due], called: asyncio.Future[list[tuple[Any, Exception | None]]]) -> None:
    if (failure := called.exception()) is not None:
        _fail(part, failure)
        return
    for due, (result, error) in zip(part, called.result(), strict=True):
        if error is not None:
            _fail([due], error)
        elif not due.future.done():  # it was not cancelled
            due.future.set_result(result)


def _fail(part: Sequence[_Due], error: BaseException) -> None:
    for due in part:
        if not due.future.done():
            due.future.set_exception(error)
