"""Calls that wait for a thread of the store in an SQLite file, and are handed to it together."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from metastore.api import is_telling
from metastore.errors import OutcomeUnknown, StoreUnavailable
from metastore.types import Applied, Batch
from metastore.watches import Written

MAX_GROUP_APPLIES = 1_000

T = TypeVar("T")

Plan = Callable[[sqlite3.Connection], Batch]
"""Makes a batch of what the transaction finds, when it is the turn of the write."""


# eq=False: jobs are distinguished by identity. kw_only: a kind of job adds what it needs.
@dataclass(slots=True, eq=False, kw_only=True)
class SqliteJob(Generic[T]):
    """A call in a lane. `outcome` is set in the lane's thread, `future` on the loop."""

    future: asyncio.Future[T]
    outcome: T | Exception | None = None
    begun: bool = False
    telling: bool = field(default_factory=is_telling)

    def answer(self, failure: BaseException | None) -> None:
        """Wake the caller, with `failure` if the lane found no outcome."""
        if self.outcome is None:
            self.future.set_exception(failure or AssertionError("a job without outcome"))
        elif isinstance(self.outcome, Exception):
            self.future.set_exception(self.outcome)
        else:
            self.future.set_result(self.outcome)


@dataclass(slots=True, eq=False, kw_only=True)
class SqliteWrite(SqliteJob[Applied]):
    """A write of a batch, or of the one that `plan` makes when it is the job's turn, inside the group's transaction."""

    batch: Batch | Plan
    ephemeral: bool = False
    changes: Written | None = None


@dataclass(slots=True, eq=False, kw_only=True)
class SqliteRead(SqliteJob[T]):
    """A read: of the records with these keys, or `query`."""

    query: Callable[[sqlite3.Connection], T] | tuple[str, ...]


J = TypeVar("J", bound=SqliteJob[Any])


class SqliteLane(Generic[J]):
    """One thread, and the jobs that gather while it works: they are handed to it together once it is free.

    `work` runs in the thread and sets outcomes; `done` runs on the loop before the callers wake.
    """

    def __init__(
        self, name: str, work: Callable[[list[J]], None], done: Callable[[list[J]], None] = lambda group: None
    ) -> None:
        self._work = work
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, name)
        self._waiting: deque[J] = deque()
        self._flush_is_due = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._working = False

    def submit(self, job: J) -> None:
        self._waiting.append(job)
        self._idle.clear()
        self._flush_soon()

    async def call(self, function: Callable[[], T]) -> T:
        """Run `function` alone in this lane's thread, after the work that was already given to it."""
        return await self._loop.run_in_executor(self._thread, function)

    async def idle(self) -> None:
        """Wait until everything submitted has been answered."""
        await self._idle.wait()

    def stop(self) -> None:
        self._thread.shutdown(wait=False)

    def _flush_soon(self) -> None:
        # Not at once, so that callers that were woken in this turn of the loop join the same group.
        if not (self._flush_is_due or self._working):
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        group: list[J] = []
        while self._waiting and len(group) < MAX_GROUP_APPLIES:
            job = self._waiting.popleft()
            if not job.future.done():
                job.begun = True
                group.append(job)
        if not group:
            self._idle.set()
            return
        self._working = True
        self._thread.submit(self._run, group)

    def _run(self, group: list[J]) -> None:
        failure: BaseException | None = None
        try:
            self._work(group)
        except BaseException as error:  # noqa: BLE001 - a bug, and its place is with the callers
            failure = error
        self._loop.call_soon_threadsafe(self._answer, group, failure)

    def _answer(self, group: list[J], failure: BaseException | None) -> None:
        self._working = False
        try:
            self._done(group)
        finally:
            for job in group:
                if not job.future.done():
                    job.answer(failure)
            self._flush_soon()


def too_late_to_write(job: SqliteJob[Any]) -> None:
    """The deadline of a write has passed."""
    if job.future.done():
        return
    if job.begun:
        job.future.set_exception(OutcomeUnknown("the disk did not confirm the commit within the deadline"))
    else:
        job.future.set_exception(StoreUnavailable("the disk was busy with other commits until the deadline"))


def too_late_to_read(job: SqliteJob[Any]) -> None:
    """The deadline of a read has passed."""
    if not job.future.done():
        job.future.set_exception(StoreUnavailable("the disk did not answer within the deadline"))
