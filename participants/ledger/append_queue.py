"""Appends are queued and written in groups. Every open ledger does this, wherever its bytes are stored.

    append ──> _queue ──_start_groups──> _groups (on their way to the device, `groups_at_once` of them) ──> durable

Groups are acknowledged in order: one that is durable before an earlier one waits for it. The first append of an idle
ledger waits for the end of the current step of the loop, so that everything published in one step shares a group.

A frame says how many entries were durable when its group was started.
"""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from metatxn.wire.frames import Draft, Entry, draft
from metatxn.wire.position import Position
from participants.ledger.recovery import GROUP_BYTES, new_offsets
from participants.ledger.storage import Append, LedgerError, LedgerStopped, OpenLedger, StorageFailed, StorageFull

TraceLabels = dict[str, str] | None
"""The labels that lead from a histogram to a trace, if there is one."""
ObserveTraced = Callable[[float, TraceLabels], None]


@dataclass(frozen=True, slots=True)
class LedgerMetrics:
    """Functions that are called on the loop. `append_seconds` gets the time from `append` to durable for each frame,
    and `fsync_seconds` the time of the sync of each group; both also get what `exemplar` has returned for the append,
    or for one of the group."""

    append_seconds: ObserveTraced | None = None
    fsync_seconds: ObserveTraced | None = None
    exemplar: Callable[[], TraceLabels] = lambda: None
    clock: Callable[[], float] = time.perf_counter


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """`error` is None if the group is durable. `fsync_seconds` is set if a sync was tried."""

    error: LedgerError | None = None
    fsync_seconds: float | None = None


@dataclass(slots=True)
class Pending:
    draft: Draft
    payload: bytes | memoryview
    durable: asyncio.Future[None]
    began: float
    exemplar: TraceLabels


class QueuedLedger(OpenLedger):
    """See the module docstring. A subclass says how a group is written, and how a ledger ends."""

    groups_at_once = 1

    def __init__(self, segment: str, ledger: int, metrics: LedgerMetrics) -> None:
        self.id = ledger
        self.segment = segment
        self.metrics = metrics
        self.offsets = new_offsets()
        self.failure: LedgerError | None = None
        self._loop = asyncio.get_running_loop()
        self._assigned = 0  # the number of entries that have positions
        self._queue: deque[Pending] = deque()
        self._groups: deque[tuple[list[Pending], asyncio.Future[GroupOutcome]]] = deque()
        self._start_scheduled = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._ending = False

    @abstractmethod
    def write(self, group: list[Pending], durable: int) -> asyncio.Future[GroupOutcome]:
        """Begin to write a group, at a time when `durable` entries are durable. Failures of the device are in the
        outcome."""

    def landed(self, group: list[Pending]) -> None:
        """The group and everything before it is durable, so it becomes readable."""
        for pending in group:
            self.offsets.append(self.offsets[-1] + pending.draft.size)

    @property
    def entries(self) -> int:
        return len(self.offsets) - 1

    @property
    def size_bytes(self) -> int:
        return self.offsets[-1]

    @property
    def last_assigned(self) -> Position:
        return Position(self.id, self._assigned - 1)

    @property
    def stopped(self) -> LedgerError | None:
        if self.failure is None and self._ending:
            return LedgerStopped(f"ledger {self.id} of {self.segment} was sealed or closed")
        return self.failure

    def append(self, entry: Entry, publish_ms: int) -> Append:
        stopped = self.stopped
        if stopped is not None:
            raise LedgerStopped(f"ledger {self.id} of {self.segment} takes no appends: {stopped}") from stopped
        position = Position(self.id, self._assigned)
        frame = draft(entry, position, publish_ms)
        durable = self._loop.create_future()
        self._assigned += 1
        self.first_ms = publish_ms if self.first_ms is None else self.first_ms
        self.latest_ms = max(publish_ms, self.latest_ms or 0)
        self._queue.append(Pending(frame, entry.payload, durable, self.metrics.clock(), self.metrics.exemplar()))
        self._idle.clear()
        if len(self._groups) < self.groups_at_once and not self._start_scheduled:
            self._start_scheduled = True
            self._loop.call_soon(self._start_scheduled_groups)
        return Append(position, durable)

    async def no_more_appends(self) -> None:
        """Refuse appends from now on. Returns once all begun appends have ended: every `durable` is done."""
        self._ending = True
        await self._idle.wait()

    def _start_scheduled_groups(self) -> None:
        self._start_scheduled = False
        self._start_groups()
        self._idle_if_done()

    def _start_groups(self) -> None:
        while self._queue and len(self._groups) < self.groups_at_once:
            group: list[Pending] = []
            size = 0
            # Bounded, because recovery relies on how far back an unsynced group can reach.
            while self._queue and size < GROUP_BYTES:
                size += self._queue[0].draft.size
                group.append(self._queue.popleft())
            writing = self.write(group, self.entries)
            self._groups.append((group, writing))
            writing.add_done_callback(self._written)

    def _idle_if_done(self) -> None:
        if not self._groups and not self._queue:
            self._idle.set()

    def _written(self, _: object) -> None:
        while self._groups and self._groups[0][1].done():
            group, writing = self._groups.popleft()
            error = writing.exception()  # a bug of this package, or no memory; then nothing is known
            outcome = GroupOutcome(StorageFailed(f"the writer failed: {error!r}")) if error else writing.result()
            if self.failure is not None:
                continue  # already failed, together with an earlier group
            if outcome.error is not None:
                self._fail(group, outcome.error)
                continue
            self.landed(group)
            self._start_groups()  # this comes first, so that the device need not wait for the rest
            self._resolve(group, outcome)
        self._idle_if_done()

    def _resolve(self, group: list[Pending], outcome: GroupOutcome) -> None:
        for pending in group:
            if not pending.durable.done():  # cancelled
                pending.durable.set_result(None)
        metrics = self.metrics
        if metrics.fsync_seconds is not None and outcome.fsync_seconds is not None:
            traced = (pending.exemplar for pending in group if pending.exemplar is not None)
            metrics.fsync_seconds(outcome.fsync_seconds, next(traced, None))
        if metrics.append_seconds is not None:
            now = metrics.clock()
            for pending in group:
                metrics.append_seconds(now - pending.began, pending.exemplar)
        if self.on_durable is not None:
            self.on_durable()

    def _fail(self, group: list[Pending], error: LedgerError) -> None:
        """Fail the group and everything queued after it, in one step, because their positions follow those of the
        group."""
        if isinstance(error, StorageFull):
            assert not self._groups, "no group is in flight after one that can be undone"
            self._assigned = self.entries
        else:
            self.failure = error
        failed = [*group, *(pending for behind, _ in self._groups for pending in behind), *self._queue]
        self._queue.clear()
        for pending in failed:
            if not pending.durable.done():
                pending.durable.set_exception(type(error)(*error.args))
