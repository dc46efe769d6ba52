"""An owned segment and the decisions of its transactions: the entries are hidden or shown, and then that is made
durable.

The horizon is released once a decision is known and the begun appends have ended (DESIGN §5.5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from metastore.api import MetadataStore
from metastore.clock import Clock
from metastore.errors import CheckFailed, MetastoreError
from metastore.txn import paths
from metastore.txn.records.operations import Outcome
from metastore.txn.records.segments import SegmentRecord
from metastore.txn.records.transactions import Header
from metastore.types import AtVersion, Revision, Version
from metatxn.service.lifecycle import Lifecycle, tell
from metatxn.service.retry import until_it_succeeds
from metatxn.wire import errors
from metatxn.wire.broker import Isolation
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.common.metrics import BrokerMetrics
from participants.common.signal import Signal
from participants.common.traffic import SegmentTraffic
from participants.ledger.chain import LedgerChain
from participants.ledger.offsets import OpenOffsets
from participants.segment.dedup import DedupTable
from participants.segment.hidden import HiddenEntries
from participants.txn.buffer import Decision, TrackedTransaction, TransactionBuffer
from participants.txn.header_mirror import Follower, HeaderMirror
from participants.txn.shared_materializing import SharedMaterializing

log = structlog.get_logger()
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ownership:
    """This broker owns the segment as long as `check` holds; every apply contains it (DESIGN §5.2)."""

    generation: int
    check: AtVersion
    former: str | None = None
    """The broker that owned it before and has not given it up, if it was another one."""


@dataclass(frozen=True, slots=True)
class UnknownTrim:
    """A trim up to `up_to` that may have replaced the version `replaces` of the segment's record, or may yet."""

    up_to: Position
    replaces: Version


class OwnedSegment:
    """An owned segment. Used only from the event loop of its process. It has only what decides what readers may see:
    its buffer, its ledgers and the headers. `Segment` adds publishing."""

    def __init__(
        self,
        segment_id: str,
        record: SegmentRecord,
        ownership: Ownership,
        ledgers: LedgerChain,
        buffer: TransactionBuffer,
        *,
        store: MetadataStore,
        mirror: HeaderMirror,
        materializing: SharedMaterializing,
        clock: Clock,
        metrics: BrokerMetrics,
        hidden: HiddenEntries,
    ) -> None:
        self.id = segment_id
        self.hidden = hidden
        self.compacted_at: Revision = 0
        """The revision of the last compaction: what was replaced by then may be left out (DESIGN §5.19)."""
        self.record = record
        self.recorded_at: Version = 0
        """The version at which the store had `record`; 0 while that of the opening is not known."""
        self.unknown_trim: UnknownTrim | None = None
        """The trim whose answer was lost, until a later version of the record shows whether it took effect."""
        self.trims_in_flight: list[Position] = []
        """The end of the trims that have no answer yet."""
        self.ownership = ownership
        self.ledgers = ledgers
        self.buffer = buffer
        self.dedup = DedupTable(record.range)
        self.changed = Signal()
        """Notified when `read_committed` may find more, or the segment no longer serves as before."""
        self.appended = Signal()
        """Notified when `read_uncommitted` may find more."""
        self.open_offsets: OpenOffsets | None = None
        """The offsets of the open ledger, in a segment of a topic with the format `kafka` (DESIGN §5.20)."""
        self._readable: Position | None = None
        """The horizon that readers were told last."""
        self.lost: str | None = None
        """The reason why this object must not be used any more (the broker was deposed, or the ledger failed), or None
        while it serves."""
        self.store = store
        self.mirror = mirror
        self._shared = materializing
        self._headers = Follower(mirror, self._on_final)
        self.clock = clock
        self._metrics = metrics
        self.traffic = SegmentTraffic(metrics.traffic.of(record.topic))
        self.work = metrics.work
        self.beginning: set[TxnId] = set()
        """The transactions that begin with an intent here, until that is answered. That they have no header proves
        nothing meanwhile."""
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def record(self) -> SegmentRecord:
        return self._record

    @record.setter
    def record(self, record: SegmentRecord) -> None:
        self._record = record
        if record.compaction is not None:
            self.compacted_at = max(self.compacted_at, record.compaction.revision)
        self.hidden.learn(record)

    def recorded(self, record: SegmentRecord, version: Version) -> None:
        """The store has had `record` at this version. A later one may be known already, whose answer came earlier; then
        this one says nothing new, and must take nothing back. Ledgers that the latest one does not list are no longer
        read."""
        if version >= self.recorded_at:
            self.recorded_at = version
            self.record = record
        record = self.record
        listed = {ledger.id for ledger in record.ledgers}
        self.ledgers = LedgerChain(
            [ledger for ledger in self.ledgers.sealed if ledger.id in listed], self.ledgers.open, record.trimmed_up_to
        )
        if self.unknown_trim is not None and self.recorded_at > self.unknown_trim.replaces:
            self.unknown_trim = None
        self.hidden.keep_only({ledger.id for ledger in self.ledgers.ledgers})

    # -- decisions ---------------------------------------------------------------------------------------------

    def track(self, txn_id: TxnId) -> TrackedTransaction:
        """Track the transaction and follow its header. Call this before anything is stored for the transaction, so that
        no decision can be missed."""
        transaction = self.buffer.track(txn_id, self.clock())
        self._headers.follow(txn_id)
        return transaction

    def unfollow(self, txn_id: TxnId) -> None:
        """Forget a transaction: nothing of it is left on this segment."""
        self._headers.unfollow(txn_id)

    def follow_recovered(self, txn_id: TxnId) -> None:
        """Recovery found operation records of the transaction."""
        self.track(txn_id).stored = True

    def begun_at(self, txn_id: TxnId, created_ms: int) -> None:
        """Recovery read the header of an open transaction, which is older than this object knows."""
        transaction = self.buffer.get(txn_id)
        if transaction is not None:
            transaction.since_ms = min(transaction.since_ms, created_ms)

    def decide_recovered(self, txn_id: TxnId, decision: Decision) -> None:
        """Apply a decision that recovery read. The watch may have been faster; then everything is done by now, and
        perhaps forgotten."""
        transaction = self.buffer.get(txn_id)
        if transaction is not None:
            self.decide(transaction, decision)

    def _on_final(self, txn_id: TxnId, header: Header) -> None:
        transaction = self.buffer.get(txn_id)
        if transaction is not None:
            self.decide(transaction, Decision(header))

    def decide(self, transaction: TrackedTransaction, decision: Decision) -> None:
        """Close the transaction, and release it once its appends have ended. One that was forgotten since, because
        nothing of it had been stored, is left alone: by now another object may know what it has written (DESIGN
        §5.5)."""
        if transaction.decision is None and self.buffer.get(transaction.txn_id) is transaction:
            self.buffer.close(transaction, decision)
            self.release_if_drained(transaction)

    def release_if_drained(self, transaction: TrackedTransaction) -> None:
        """Release the transaction in memory: first hide what must be hidden, then advance the horizon. The outcome is
        made durable in the background.

        A lost segment releases nothing: it may not know every frame, and recovery does it again.
        """
        if transaction.decision is None or transaction.unfinished_appends or transaction.released or self.lost:
            return
        outcome = self.buffer.release(transaction)
        self.dedup.forget_transaction(transaction.txn_id)
        now_ms, header = self.clock(), transaction.decision.header
        if header is not None and header.finalized_ms is not None:
            self._metrics.decision_to_visible.observe(max(0, now_ms - header.finalized_ms) / 1000)
        self._metrics.work.took_effect(transaction.txn_id, self.id, now_ms)
        self._readable = None  # who waits for the release itself must hear of it, wherever the horizon is
        self.advanced()
        self.spawn(self._materialize(transaction, outcome))

    async def _materialize(self, transaction: TrackedTransaction, outcome: Outcome | None) -> None:
        async def once() -> None:
            try:
                await self._shared.materialize(self.id, self.ownership.check, transaction.txn_id, outcome)
                if outcome is not None:
                    await self._delete_if_trimmed(transaction.txn_id, outcome)
            except CheckFailed as lost:
                self.deposed_by(lost)

        await until_it_succeeds(
            once, MetastoreError, lambda error: log.warning("materialize again", segment=self.id, error=str(error))
        )
        if not self.lost:
            self.buffer.forget(transaction)
            self._headers.unfollow(transaction.txn_id)

    async def _delete_if_trimmed(self, txn_id: TxnId, outcome: Outcome) -> None:
        """Delete the outcome if all that it hides is trimmed: the trim did not find it, because it was stored later.
        Memory has forgotten it, so nothing else would. Raises `CheckFailed` if this broker was deposed."""
        if not _is_trimmed(self.record, outcome):
            return
        stored = await self.store.get(paths.outcome(self.id, txn_id))
        if stored is None:
            return
        try:
            await self.store.apply(self.store.batch().check(self.ownership.check).remove(stored))
        except CheckFailed as lost:
            if lost.check == self.ownership.check:
                raise

    # -- life --------------------------------------------------------------------------------------------------

    def lose(self, reason: str) -> None:
        """Stop serving at once, because the broker was deposed or the ledger failed. The broker opens the segment
        again."""
        if self.lost is None:
            tell(Lifecycle.SEGMENT_LOST, segment=self.id, generation=self.ownership.generation, reason=reason)
            self.leave(reason)

    def leave(self, reason: str) -> None:
        """Stop serving, as planned."""
        if self.lost is None:
            self.lost = reason
            self._metrics.segments_lost.inc()
            self.changed.notify()

    def advanced(self) -> None:
        """Readers may see more, or their lag is known for the first time. Those of committed entries are woken only
        once the horizon has moved: each entry of an open transaction would wake them for nothing."""
        readable = self.buffer.max_read_position
        self._metrics.horizon_lags.tell(self.id, self.ledgers.entries_between(readable, self.buffer.last_durable))
        self.appended.notify()
        if readable != self._readable:
            self._readable = readable
            self.changed.notify()

    def next_changes(self, isolation: Isolation) -> list[asyncio.Future[None]]:
        """Futures, one of which completes when a read of this kind may find more; see `Signal.next`."""
        signals = [self.changed, self.appended] if isolation == "read_uncommitted" else [self.changed]
        return [signal.next() for signal in signals]

    def assert_serving(self) -> None:
        if self.lost:
            raise self.not_serving()

    def not_serving(self) -> errors.MetatxnError:
        return errors.StoreUnavailable(
            f"segment {self.id} is being opened again: {self.lost}",
            action="Try again in a moment; nothing happened.",
            segment=self.id,
        )

    def deposed_by(self, lost: CheckFailed) -> None:
        if lost.check != self.ownership.check:
            raise lost
        self.lose("another generation owns it now")

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` to its end, even if the caller is cancelled. If the segment closes, the work ends, and its
        outcome is unknown."""
        return await self.answer(self.spawn(work))

    async def answer(self, work: asyncio.Future[T]) -> T:
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if not work.cancelled():
                raise
            raise errors.OutcomeUnknown(
                f"segment {self.id} was closed before the request was finished",
                action="Send it again, with the same sequence if it has one, or abort the transaction.",
                segment=self.id,
            ) from None


def _is_trimmed(record: SegmentRecord, outcome: Outcome) -> bool:
    up_to = record.trimmed_up_to
    return up_to is not None and Position.parse(outcome.highest) <= up_to
