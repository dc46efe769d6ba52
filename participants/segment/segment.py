"""One owned segment, over all of its ledgers, until it is sealed. `OwnedSegment` applies decisions to its transaction
buffer, `Publisher` appends, and `SegmentReader` serves readers.

Used only from the event loop of its process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol, TypeVar

import structlog

from metastore.api import MetadataStore
from metastore.clock import Clock
from metastore.txn import paths
from metastore.txn.records.segments import SegmentRecord
from metastore.txn.records.transactions import Header
from metastore.types import Check, Record, Version
from metatxn.wire import errors
from metatxn.wire.frames import Entry
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.common.metrics import BrokerMetrics
from participants.ledger.chain import LedgerChain
from participants.ledger.form import Form
from participants.ledger.offsets import OpenOffsets
from participants.ledger.storage import OpenLedger, SealedLedger
from participants.segment.damage import DamagedLedgers
from participants.segment.dedup import KeyHashes, unknown_hashes
from participants.segment.hidden import HiddenEntries
from participants.segment.offset_index import OffsetIndex
from participants.segment.owned import OwnedSegment, Ownership
from participants.segment.publishing import Published, Publisher
from participants.segment.reading import SegmentReader
from participants.segment.record_times import RecordTimes
from participants.txn.buffer import Decision, TrackedTransaction, TransactionBuffer
from participants.txn.header_mirror import HeaderMirror
from participants.txn.refusals import refusal
from participants.txn.shared_materializing import SharedMaterializing

log = structlog.get_logger()
T = TypeVar("T")
MAX_LEDGER_ENTRIES = 50_000
"""The most entries in a ledger, however small they are, because a restart reads each entry of the last ledger."""
MANY_LEDGERS = 1_000
"""For every 1,000 ledgers of a segment, its new ledgers become larger by the original size, because their list is one
record."""


@dataclass(frozen=True, slots=True)
class Cleanup:
    """What a policy says about compaction. It counts as long as `checks` hold."""

    delete_retention_ms: int
    checks: tuple[Check, ...]


class Attached(Protocol):
    """A part of a segment that belongs to a higher layer: its subscriptions. It ends when the segment closes."""

    async def recover(self) -> None:
        """Called before the segment is ready. Raises the store's errors."""

    async def acknowledged(self) -> Position | None:
        """Every entry before this position is acknowledged on all subscriptions, durably and not only inside open
        transactions. None if there is no subscription. Raises the store's errors."""

    async def expire(self, before_ms: int) -> None:
        """What was published before this time counts as acknowledged on all subscriptions, unless an open transaction
        has it. Raises STORE_UNAVAILABLE and the store's errors."""

    async def settle(self) -> None:
        """Make durable what was passed over only in memory. Raises the store's errors."""

    def left_out(self, *, committed: bool) -> None:
        """Messages are gone from ledgers that stay: if none of them were `committed`, only those who read all messages
        could read them."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class UndecidedWrites:
    """A transaction that is undecided on a segment, and the intents that were sent for it there: none is under way."""

    segment: Segment
    transaction: TrackedTransaction
    intents_sent: tuple[int, int]


class Segment(OwnedSegment):
    """See the module docstring. Made by `participants.segment.recovery.open_segment`."""

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
        max_ledger_bytes: int,
        shared: bool = False,
    ) -> None:
        """`shared` means that another broker may have taken over the ledgers without this one knowing it."""
        super().__init__(
            segment_id,
            record,
            ownership,
            ledgers,
            buffer,
            store=store,
            mirror=mirror,
            materializing=materializing,
            clock=clock,
            metrics=metrics,
            hidden=hidden,
        )
        self.operations = paths.writes_by_segment(segment_id)
        """The prefix of its operations in their index."""
        self.reader = SegmentReader(self, shared=shared)
        self.offsets = OffsetIndex(self, self.reader)
        """The offsets, in a segment of a topic with the format `kafka`."""
        self.record_times = RecordTimes(self, self.reader)
        """The timestamps of the records, in such a segment."""
        self.publisher = Publisher(self, clock, metrics)
        self.damaged = DamagedLedgers(segment_id, metrics)
        self.attached: Attached | None = None
        """The part that the opener has attached."""
        self.sealing = asyncio.Lock()
        self.max_ledger_bytes = max_ledger_bytes
        """The open ledger is full at this size, or with `MAX_LEDGER_ENTRIES`."""
        self.on_full: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._rolling: asyncio.Task[None] | None = None
        self.appended_at = asyncio.get_running_loop().time()
        """When the last append became durable, or the segment was opened, on the clock of the loop."""
        self.on_tend: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._tending: asyncio.Task[None] | None = None
        self.on_rewrite: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._rewriting: asyncio.Task[None] | None = None
        self._forms = count(1)
        self.cleanup: Cleanup | None = None
        """How the policy of the topic compacts, as far as it was looked at; None: it does not."""
        if ledgers.open is not None and record.next_offset is not None:
            self.open_offsets = OpenOffsets(ledgers.open.id, record.next_offset)
        if ledgers.open is not None:
            ledgers.open.on_durable = self._on_durable

    async def publish(
        self, entry: Entry, hashes: KeyHashes = unknown_hashes, *, misfit: errors.SchemaMismatch | None = None
    ) -> tuple[Position, bool]:
        """See `Publisher.publish`."""
        return await self.publisher.publish(entry, hashes, misfit=misfit)

    async def publish_in_order(self, entries: Sequence[Entry]) -> Published:
        """See `Publisher.publish_in_order`."""
        return await self.publisher.publish_in_order(entries)

    async def learn_producer(self) -> None:
        """See `Publisher.learn_producer`."""
        await self.publisher.learn_producer()

    async def assert_open(self, txn_id: TxnId) -> None:
        """Raises if the transaction accepts no writes, before anything is changed. The guard of the intent has the last
        word."""
        record = (await self.mirror.read([txn_id]))[txn_id]
        if record is None or not record.first:
            raise refusal(txn_id, Header.decode(record.value) if record else None)

    # -- decisions ---------------------------------------------------------------------------------------------

    def adopt(self, txn_ids: Iterable[TxnId]) -> None:
        """A reconcile has found operations of these transactions: track those that are missing in memory (DESIGN
        §5.8)."""
        for txn_id in sorted(txn_ids):
            if not self.lost and self.buffer.get(txn_id) is None:
                self.track(txn_id).maybe_stored = True

    def undecided(self) -> list[UndecidedWrites]:
        """The transactions whose headers a reconcile has to read."""
        if self.lost:
            return []
        return [
            UndecidedWrites(self, each, each.intents_sent)
            for each in self.buffer.undecided()
            if not (each.is_sending_intents or each.txn_id in self.beginning)
        ]

    def found(self, undecided: UndecidedWrites, record: Record | None) -> None:
        """A linearizable read that began after `undecided` was told has found this header. Act on it if it is final or
        absent, never if it is open. It repairs the effect of a lost watch event."""
        transaction = undecided.transaction
        if record is not None and record.first:
            return
        if record is None and transaction.intents_sent != undecided.intents_sent:
            return  # an intent was sent since then: this read proves nothing about it
        if record is None and transaction.txn_id in self.beginning:
            return  # it was read before the transaction has begun
        if transaction.decision is None:
            self._metrics.reconcile_repairs.inc()
            self.decide(transaction, Decision(Header.decode(record.value) if record else None))

    def tend(self) -> None:
        """Begin the upkeep that is not requested (see `indexing` and `rewriting`), unless it is still going on. It is
        asked again soon."""
        if self.on_tend is not None and not self.lost and (self._tending is None or self._tending.done()):
            self._tending = self.spawn(self._tend(self.on_tend))

    async def _tend(self, tend: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the upkeep. Rewriting ledgers may take long, so it does not keep outcomes waiting."""
        await tend()
        if self.on_rewrite is not None and not self.lost and (self._rewriting is None or self._rewriting.done()):
            self._rewriting = self.spawn(self.on_rewrite())

    # -- the end of a ledger -----------------------------------------------------------------------------------

    @property
    def admits(self) -> bool:
        """Whether appends are admitted."""
        return not (self.lost or self.publisher.closing or self.ledgers.open is None)

    @property
    def is_ending(self) -> bool:
        """Whether the segment is being sealed."""
        return self.publisher.closing and not self.lost and self.ledgers.open is not None

    async def change_over(self, record: SegmentRecord, version: Version, ledger: OpenLedger) -> OpenLedger:
        """Direct appends to `ledger` from now on. Returns the previous ledger. All of its appends are durable by then,
        and the dedup table has all of their sequences: the snapshot that is recorded with its seal is taken at this
        point.

        New appends wait meanwhile for those that were begun. Raises STORE_UNAVAILABLE if one of these has failed.
        """
        async with self.publisher.appending:
            self.assert_serving()
            before = self.ledgers.open
            assert before is not None
            await before.close()
            await self.publisher.until_begun_ended()
            self.assert_serving()  # a failed append was undone, or the segment was lost with it
            before.on_durable = None
            if self.open_offsets is not None:
                self.open_offsets = OpenOffsets(ledger.id, self.open_offsets.after(before.last_durable.entry))
            ledger.on_durable = self._on_durable
            self.ledgers = LedgerChain((*self.ledgers.sealed, before), ledger, self.ledgers.trimmed)
            self.recorded(record, version)
            # After all entries, so that the end is never before the start once everything before it is dropped.
            self.buffer.durable_up_to(self.ledgers.last_durable)
        return before

    def next_form(self) -> Form:
        """The name of a new form of a ledger, which has not been used before."""
        return Form(self.ownership.generation, next(self._forms))

    def ledger_recorded(self, record: SegmentRecord, version: Version, sealed: SealedLedger) -> None:
        """The seal of a previous ledger, or another form of it, is recorded."""
        ledgers = [sealed if ledger.id == sealed.id else ledger for ledger in self.ledgers.sealed]
        self.ledgers = LedgerChain(ledgers, self.ledgers.open, self.ledgers.trimmed)
        self.recorded(record, version)

    def recorded(self, record: SegmentRecord, version: Version) -> None:
        super().recorded(record, version)
        self.damaged.keep_only({ledger.id for ledger in self.ledgers.ledgers})

    # -- the end of appending ----------------------------------------------------------------------------------

    def sealed(self, record: SegmentRecord, version: Version, last: SealedLedger) -> None:
        """The seal is recorded. `last` is the sealed form of the open ledger."""
        assert record.state == "sealed"
        self.ledgers = LedgerChain((*self.ledgers.sealed, last), None, self.ledgers.trimmed)
        self.recorded(record, version)
        self.buffer.durable_up_to(self.ledgers.last_durable)  # after all entries, if the last ledger is empty
        self.changed.notify()

    def ended_at(self, position: Position) -> bool:
        """Whether nothing is after `position`, and nothing will be."""
        return self.ledgers.open is None and position >= self.ledgers.last_durable

    def trimmed(self, record: SegmentRecord, version: Version) -> None:
        """The first readable position has moved."""
        self.recorded(record, version)
        if self.ledgers.trimmed is not None:
            self.buffer.prune(self.ledgers.trimmed)

    # -- life --------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop admitting, wait for the begun appends, and stop the background work. Recovery repeats what was not
        finished."""
        self.lost = self.lost or "the broker closes it"
        self.changed.notify()
        self._headers.close()
        if self.attached is not None:
            self.attached.close()
        ledger = self.ledgers.open
        # A failed ledger stays open until recovery seals it, because only this object knows how far it was durable.
        if ledger is not None and ledger.stopped is None:
            await ledger.close()
        if ledger is not None:
            ledger.on_durable = None  # the storage may keep a failed one, and should not keep what was made of it
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        self.damaged.close()
        self._metrics.horizon_lags.forget(self.id)

    def _on_durable(self) -> None:
        assert self.ledgers.open is not None
        self.buffer.durable_up_to(self.ledgers.open.last_durable)
        self.advanced()
        self.appended_at = asyncio.get_running_loop().time()
        if self._is_full(self.ledgers.open):
            self.roll()

    def roll(self) -> None:
        """Begin to continue in a new ledger, unless that is going on, or no more appends are admitted."""
        if self.on_full is not None and self.admits and (self._rolling is None or self._rolling.done()):
            self._rolling = self.spawn(self.on_full())

    @property
    def ledger_scale(self) -> int:
        """How much larger and older than usual a ledger becomes, see `MANY_LEDGERS`."""
        return 1 + len(self.record.ledgers) // MANY_LEDGERS

    def _is_full(self, ledger: OpenLedger) -> bool:
        times = self.ledger_scale
        return ledger.size_bytes >= times * self.max_ledger_bytes or ledger.entries >= times * MAX_LEDGER_ENTRIES
