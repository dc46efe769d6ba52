"""The two ledgers of local storage: one that grows by group commit, one that never changes."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from metastore.txn.ids import TxnId
from participants.ledger.frames import Draft, Frame, PayloadKind, draft
from participants.ledger.group_commit import GroupOutcome, write_group
from participants.ledger.local_files import LedgerFiles
from participants.ledger.position import Position
from participants.ledger.recovery import GROUP_BYTES, new_offsets
from participants.ledger.storage import (
    Append,
    LedgerError,
    LedgerStopped,
    OpenLedger,
    ReadableLedger,
    SealedLedger,
    StorageFailed,
    StorageFull,
)
from participants.ledger.workers import Workers


@dataclass(frozen=True, slots=True)
class LedgerMetrics:
    """Called on the loop. `append_seconds`: from `append` to durable, per frame; `fsync_seconds`: per group."""

    append_seconds: Callable[[float], None] | None = None
    fsync_seconds: Callable[[float], None] | None = None
    clock: Callable[[], float] = time.perf_counter


class _LocalLedger(ReadableLedger):
    def __init__(self, files: LedgerFiles, workers: Workers, segment: str, ledger: int) -> None:
        self.id = ledger
        self.segment = segment
        self._files = files
        self._workers = workers

    @property
    @abstractmethod
    def _index(self) -> array[int]:
        """Offsets of what may be read."""

    @property
    def entries(self) -> int:
        return len(self._index) - 1

    @property
    def size_bytes(self) -> int:
        return self._index[-1]

    async def read(self, first_entry: int, max_bytes: int) -> list[memoryview]:
        assert first_entry >= 0, first_entry
        index = self._index
        if first_entry >= self.entries:
            return []
        last = bisect_right(index, index[first_entry] + max_bytes) - 1
        # The thread gets a copy of the slice: the index of an open ledger grows meanwhile. It opens the file on its
        # own, because a descriptor of ours could be closed, and its number used again, before the thread gets to it.
        wanted = index[first_entry : max(last, first_entry + 1) + 1]
        path = self._files.path(self.segment, self.id)
        return await self._workers.run(self._files.read, path, self.id, first_entry, wanted)


class LocalSealedLedger(_LocalLedger, SealedLedger):
    def __init__(self, files: LedgerFiles, workers: Workers, segment: str, ledger: int, offsets: array[int]) -> None:
        super().__init__(files, workers, segment, ledger)
        self._offsets = offsets

    @property
    def _index(self) -> array[int]:
        return self._offsets


@dataclass(slots=True)
class _Pending:
    draft: Draft
    payload: bytes | memoryview
    durable: asyncio.Future[None]
    began: float


class LocalOpenLedger(_LocalLedger, OpenLedger):
    """Appends wait in `_queue` while a group is being written; then all of them are the next group.

        append ──> _queue ──_start_group──> _group (in a thread: one write, one sync) ──_group_ended──> durable
                                               └── one hop to the thread and one back per group, no timer

    The first append of an idle ledger waits for the end of the loop's current step, so that everything published in
    one step shares a sync.

    A frame says how many entries were durable when its group was started. That is the entry with which the group
    begins, because groups do not overlap; recovery relies on both.
    """

    def __init__(
        self,
        files: LedgerFiles,
        workers: Workers,
        writers: Workers,
        segment: str,
        ledger: int,
        fd: int,
        metrics: LedgerMetrics,
        on_ended: Callable[[LocalOpenLedger], None],
    ) -> None:
        super().__init__(files, workers, segment, ledger)
        self._loop = asyncio.get_running_loop()
        self._writers = writers
        self._fd = fd
        self._metrics = metrics
        self._on_ended = on_ended
        self._offsets = new_offsets()
        self._assigned = 0  # entries given out
        self._queue: deque[_Pending] = deque()
        self._group: list[_Pending] = []
        self._start_scheduled = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._failure: StorageFailed | None = None
        self._ending = False
        self._end_lock = asyncio.Lock()
        self._sealed: LocalSealedLedger | None = None

    @property
    def _index(self) -> array[int]:
        return self._offsets

    @property
    def last_assigned(self) -> Position:
        return Position(self.id, self._assigned - 1)

    @property
    def stopped(self) -> LedgerError | None:
        if self._failure is None and self._ending:
            return LedgerStopped(f"ledger {self.id} of {self.segment} was sealed or closed")
        return self._failure

    def append(
        self,
        payload: bytes | memoryview,
        *,
        kind: PayloadKind,
        count: int,
        publish_ms: int,
        txn_id: TxnId | None = None,
        writer: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Append:
        stopped = self.stopped
        if stopped is not None:
            raise LedgerStopped(f"ledger {self.id} of {self.segment} takes no appends: {stopped}") from stopped
        position = Position(self.id, self._assigned)
        frame = draft(Frame(position, payload, kind, count, publish_ms, txn_id, writer, producer, sequence))
        durable = self._loop.create_future()
        self._assigned += 1
        self._queue.append(_Pending(frame, payload, durable, self._metrics.clock()))
        self._idle.clear()
        if not self._group and not self._start_scheduled:
            self._start_scheduled = True
            self._loop.call_soon(self._start_group)
        return Append(position, durable)

    # -- the group commit, on the loop --------------------------------------------------------------------------

    def _start_group(self) -> None:
        self._start_scheduled = False
        assert not self._group
        size = 0
        # Bounded, because recovery relies on how far back an unsynced group can reach.
        while self._queue and size < GROUP_BYTES:
            size += self._queue[0].draft.size
            self._group.append(self._queue.popleft())
        if not self._group:
            self._idle.set()
            return
        frames = [(pending.draft, pending.payload) for pending in self._group]
        write = self._writers.begin(
            write_group, self._files.disk, self._fd, frames, self.entries, self._offsets[-1], self._metrics.clock
        )
        write.add_done_callback(self._group_ended)

    def _group_ended(self, write: asyncio.Future[GroupOutcome]) -> None:
        error = write.exception()  # only a fault in this package, or no memory: nothing is known then
        outcome = GroupOutcome(StorageFailed(f"the writer failed: {error!r}")) if error else write.result()
        group, self._group = self._group, []
        if outcome.error is None:
            for pending in group:
                self._offsets.append(self._offsets[-1] + pending.draft.size)
            self._start_group()  # first of all: the device should not wait for what follows
            self._resolve(group, outcome)
        else:
            self._fail(group, outcome.error)

    def _resolve(self, group: list[_Pending], outcome: GroupOutcome) -> None:
        for pending in group:
            if not pending.durable.done():  # cancelled
                pending.durable.set_result(None)
        metrics = self._metrics
        if metrics.fsync_seconds is not None and outcome.fsync_seconds is not None:
            metrics.fsync_seconds(outcome.fsync_seconds)
        if metrics.append_seconds is not None:
            now = metrics.clock()
            for pending in group:
                metrics.append_seconds(now - pending.began)
        if self.on_durable is not None:
            self.on_durable()

    def _fail(self, group: list[_Pending], error: StorageFull | StorageFailed) -> None:
        """Fail the group and all that waits behind it, in one step: their positions follow those of the group."""
        if isinstance(error, StorageFull):
            self._assigned = self.entries
        else:
            self._failure = error
        failed = [*group, *self._queue]
        self._queue.clear()
        self._idle.set()
        for pending in failed:
            if not pending.durable.done():
                pending.durable.set_exception(type(error)(*error.args))

    # -- the end ------------------------------------------------------------------------------------------------

    async def seal(self) -> SealedLedger:
        await self._end()
        async with self._end_lock:
            if self._sealed is None:
                if self._failure is None:
                    seal = self._workers.begin(self._files.seal_finished, self.segment, self.id, self._offsets)
                else:
                    seal = self._workers.begin(self._files.seal_failed, self.segment, self.id, self._offsets[-1])
                offsets = await asyncio.shield(seal)
                self._sealed = LocalSealedLedger(self._files, self._workers, self.segment, self.id, offsets)
                self._on_ended(self)
        return self._sealed

    async def close(self) -> None:
        await self._end()
        self._on_ended(self)

    async def _end(self) -> None:
        self._ending = True
        await self._idle.wait()
        async with self._end_lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                await self._workers.run(self._files.close, fd)
