"""One owned segment, from one ledger to the next, until it is sealed. `OwnedSegment` carries decisions into its
transaction buffer, `Publisher` appends, and `SegmentReader` answers readers.

Touched only from the event loop of its process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

import structlog

from metastore.api import MetadataStore
from metastore.clock import Clock
from metastore.keys import prefix_end
from metastore.txn import paths
from metastore.txn.records.segments import SegmentRecord
from metastore.txn.records.transactions import Header
from metatxn.wire.frames import Entry
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.common.metrics import BrokerMetrics
from participants.ledger.chain import LedgerChain
from participants.ledger.storage import OpenLedger, SealedLedger
from participants.segment.owned import OwnedSegment, Ownership
from participants.segment.publishing import Publisher
from participants.segment.reading import SegmentReader
from participants.txn.buffer import Decision, TransactionBuffer
from participants.txn.header_mirror import HeaderMirror
from participants.txn.refusals import refusal

log = structlog.get_logger()
T = TypeVar("T")
MAX_LEDGER_ENTRIES = 50_000
"""However small they are: a restart looks at each entry of the last ledger."""
MANY_LEDGERS = 1_000
"""With each so many a segment's ledgers become larger by what they were at first: their list is one record."""


class Attached(Protocol):
    """What serves with a segment and is above it: its subscriptions. It goes when the segment closes."""

    async def recover(self) -> None:
        """Before the segment is ready. Raises the store's errors."""

    async def reconcile(self) -> None:
        """Find what no watch has told. Raises the store's errors."""

    def close(self) -> None: ...


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
        clock: Clock,
        metrics: BrokerMetrics,
        shared: bool = False,
    ) -> None:
        """`shared`: its ledgers lie where another broker may have taken them over without our knowing."""
        super().__init__(
            segment_id, record, ownership, ledgers, buffer, store=store, mirror=mirror, clock=clock, metrics=metrics
        )
        self.reader = SegmentReader(self, shared=shared)
        self.publisher = Publisher(self, clock, metrics)
        self.attached: Attached | None = None
        """What its opener has attached to it."""
        self.sealing = asyncio.Lock()
        self.max_ledger_bytes: int | None = None
        """At this size the open ledger is full, or with `MAX_LEDGER_ENTRIES`; None: never."""
        self.on_full: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._rolling: asyncio.Task[None] | None = None
        if ledgers.open is not None:
            ledgers.open.on_durable = self._on_durable

    async def publish(self, entry: Entry, hashes: frozenset[int] | None = None) -> tuple[Position, bool]:
        """As `Publisher.publish`."""
        return await self.publisher.publish(entry, hashes)

    async def assert_open(self, txn_id: TxnId) -> None:
        """Fail early, before anything is changed for a transaction that takes no writes; the intent's guard decides."""
        record = (await self.mirror.read([txn_id]))[txn_id]
        if record is None or not record.first:
            raise refusal(txn_id, Header.decode(record.value) if record else None)

    # -- decisions ---------------------------------------------------------------------------------------------

    async def reconcile(self) -> None:
        """Act on final or absent headers of what is undecided here, and adopt operations that memory lacks
        (DESIGN §5.8). Never acts on an open header. Repairs what a lost watch event would leave behind."""
        if self.lost:
            return
        prefix = paths.writes_by_segment(self.id)
        with self._metrics.index_query.time():
            entries = await self.store.query_index("writes-by-segment", prefix, prefix_end(prefix))
        for txn_id in {TxnId.parse(entry.split("/")[1]) for entry in entries}:
            if self.buffer.get(txn_id) is None:
                self.track(txn_id).maybe_stored = True
        candidates = [(each, each.last_intent) for each in self.buffer.undecided() if not each.intents]
        headers = await self.mirror.read([transaction.txn_id for transaction, _ in candidates])
        for transaction, last_intent in candidates:
            record = headers[transaction.txn_id]
            if record is not None and record.first:
                continue
            if record is None and transaction.last_intent != last_intent:
                continue  # an intent was sent after the candidates were chosen: this read proves nothing about it
            if transaction.decision is None:
                self._metrics.reconcile_repairs.inc()
                self.decide(transaction, Decision(Header.decode(record.value) if record else None))
        if self.attached is not None:
            await self.attached.reconcile()

    # -- the end of a ledger -----------------------------------------------------------------------------------

    @property
    def admits(self) -> bool:
        """Appends are taken, and will be."""
        return not (self.lost or self.publisher.closing or self.ledgers.open is None)

    @property
    def is_ending(self) -> bool:
        """It is being sealed."""
        return self.publisher.closing and not self.lost and self.ledgers.open is not None

    async def change_over(self, record: SegmentRecord, ledger: OpenLedger) -> OpenLedger:
        """Appends go to `ledger` from now on; answers the one before. All of its appends are durable by then, and the
        dedup table has all of their sequences: the snapshot that is recorded with its seal is taken from there.

        They wait meanwhile, for those that were begun. Raises STORE_UNAVAILABLE when one of these has failed.
        """
        async with self.publisher.appending:
            self.assert_serving()
            before = self.ledgers.open
            assert before is not None
            await before.close()
            await self.publisher.until_begun_ended()
            if before.last_assigned != before.last_durable:
                self.lose("an append failed")
            self.assert_serving()
            before.on_durable = None
            ledger.on_durable = self._on_durable
            self.record = record
            self.ledgers = LedgerChain((*self.ledgers.sealed, before), ledger, self.ledgers.trimmed)
        return before

    def ledger_sealed(self, record: SegmentRecord, sealed: SealedLedger) -> None:
        """The seal of a ledger that appends have left is recorded."""
        ledgers = [sealed if ledger.id == sealed.id else ledger for ledger in self.ledgers.sealed]
        self.ledgers = LedgerChain(ledgers, self.ledgers.open, self.ledgers.trimmed)
        self.recorded(record)

    def recorded(self, record: SegmentRecord) -> None:
        """`record` is what the store has. Ledgers that it does not list are not read any more."""
        listed = {ledger.id for ledger in record.ledgers}
        # A trim whose answer was lost is in force here, and may not have landed in the store yet.
        trimmed = [up_to for up_to in (self.ledgers.trimmed, record.trimmed_up_to) if up_to is not None]
        self.record = record
        self.ledgers = LedgerChain(
            [ledger for ledger in self.ledgers.sealed if ledger.id in listed],
            self.ledgers.open,
            max(trimmed, default=None),
        )

    # -- the end of appending ----------------------------------------------------------------------------------

    def sealed(self, record: SegmentRecord, last: SealedLedger) -> None:
        """The seal is recorded; `last` is what the open ledger has become."""
        assert record.state == "sealed"
        self.record = record
        self.ledgers = LedgerChain((*self.ledgers.sealed, last), None, self.ledgers.trimmed)
        self.buffer.durable_up_to(self.ledgers.last_durable)  # behind the entries, when the last ledger has none
        self.changed.notify()

    def ended_at(self, position: Position) -> bool:
        """Nothing is behind `position`, and nothing will be."""
        return self.ledgers.open is None and position >= self.ledgers.last_durable

    def trimmed(self, record: SegmentRecord) -> None:
        """The first readable position has moved."""
        self.recorded(record)
        if record.trimmed_up_to is not None:
            self.buffer.prune(record.trimmed_up_to)

    # -- life --------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop admitting, let begun appends end, stop the background work. What is undone is redone by recovery."""
        self.lost = self.lost or "the broker closes it"
        self.changed.notify()
        self._headers.close()
        if self.attached is not None:
            self.attached.close()
        ledger = self.ledgers.open
        # A failed ledger stays as it is until recovery seals it: this object alone knows how far it was durable.
        if ledger is not None and ledger.stopped is None:
            await ledger.close()
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
        self._metrics.horizon_lag.remove(self.id)

    def _on_durable(self) -> None:
        assert self.ledgers.open is not None
        self.buffer.durable_up_to(self.ledgers.open.last_durable)
        self.advanced()
        full = self._is_full(self.ledgers.open)
        if full and self.on_full is not None and self.admits and (self._rolling is None or self._rolling.done()):
            self._rolling = self.spawn(self.on_full())

    def _is_full(self, ledger: OpenLedger) -> bool:
        if self.max_ledger_bytes is None:
            return False
        times = 1 + len(self.record.ledgers) // MANY_LEDGERS
        return ledger.size_bytes >= times * self.max_ledger_bytes or ledger.entries >= times * MAX_LEDGER_ENTRIES
