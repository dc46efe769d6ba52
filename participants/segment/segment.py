"""One owned segment: it admits publishes, in one ledger after another, until it is sealed. `OwnedSegment` carries
decisions into its transaction buffer, and `SegmentReader` answers readers.

Touched only from the event loop of its process. The order of steps is the protocol (DESIGN §5.3-5):

    pin ─▶ intent (one guarded apply) ─▶ not decided meanwhile? ─▶ append begun ─▶ durable ─▶ acknowledged

Between "not decided meanwhile?" and "append begun" nothing is awaited. A decision may overtake the reply to our own
intent; then the publish is refused although its intent was stored, and the record is deleted by the materializer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import structlog

from metastore.api import MetadataStore
from metastore.errors import CheckFailed, MetastoreError
from metastore.keys import prefix_end
from metastore.txn import paths
from metastore.txn.records.operations import WriteOp
from metastore.txn.records.segments import SegmentRecord
from metastore.txn.records.transactions import Header
from metastore.txn.store import put_write_op
from metastore.types import FirstVersion
from metatxn.wire import errors
from metatxn.wire.frames import MAX_PAYLOAD_BYTES, PayloadKind
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.common.metrics import BrokerMetrics
from participants.ledger.chain import LedgerChain
from participants.ledger.storage import (
    Append,
    LedgerError,
    LedgerFenced,
    LedgerStopped,
    OpenLedger,
    SealedLedger,
    StorageFull,
)
from participants.segment.dedup import AppendedBefore, Scope, sequence_used
from participants.segment.owned import Clock, OwnedSegment, Ownership
from participants.segment.reading import SegmentReader
from participants.txn.buffer import Decision, TrackedTransaction, TransactionBuffer
from participants.txn.header_mirror import HeaderMirror
from participants.txn.refusals import prepared, refusal

log = structlog.get_logger()
T = TypeVar("T")
MAX_LEDGER_ENTRIES = 50_000
"""However small they are: a restart looks at each entry of the last ledger."""
MANY_LEDGERS = 1_000
"""With each so many a segment's ledgers become larger by what they were at first: their list is one record."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry to append. `writer` and `sequence` as in DESIGN §5.12-13. `hashes` are those of its keys; None: nobody
    looked."""

    payload: bytes | memoryview
    kind: PayloadKind
    count: int
    txn_id: TxnId | None = None
    writer: str | None = None
    producer: str | None = None
    sequence: int | None = None
    hashes: frozenset[int] | None = None


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
        self.attached: Attached | None = None
        """What its opener has attached to it."""
        self._publishes: set[asyncio.Task[Position]] = set()
        self._begun: set[asyncio.Task[Any]] = set()
        """Those of them whose append was begun: what it ends with is not written down yet."""
        self.sealing = asyncio.Lock()
        self.max_ledger_bytes: int | None = None
        """At this size the open ledger is full, or with `MAX_LEDGER_ENTRIES`; None: never."""
        self.on_full: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._rolling: asyncio.Task[None] | None = None
        self._appending = asyncio.Lock()
        """Held to begin an append, and while the open ledger changes. It is fair: the order of arrival stays."""
        self._closing = False
        self._seal_problem: str | None = None
        self._arrivals: dict[Scope, asyncio.Future[None]] = {}
        self._next_op = 0
        if ledgers.open is not None:
            ledgers.open.on_durable = self._on_durable

    # -- publishing --------------------------------------------------------------------------------------------

    async def publish(self, entry: Entry) -> tuple[Position, bool]:
        """Append one entry; answers its position and whether it was there already (a retried sequence).

        When this returns the entry is durable. Raises `errors.MetatxnError`: TXN_NOT_FOUND, TXN_CONFLICT,
        EXPIRED_TRANSACTION, PAYLOAD_TOO_LARGE, STORAGE_FULL, STORE_UNAVAILABLE, SEGMENT_SEALED: nothing was appended,
        nothing of it will ever be visible. OUTCOME_UNKNOWN: retry with the same sequence, or abort the transaction.
        `AppendedBefore`: it was there already, or a part of it, and not, or not only, in this segment.
        """
        self.assert_serving()
        if len(entry.payload) > MAX_PAYLOAD_BYTES:
            raise errors.PayloadTooLarge(
                f"an entry holds at most {MAX_PAYLOAD_BYTES} bytes",
                limit_bytes=MAX_PAYLOAD_BYTES,
            )
        scope = Scope(entry.txn_id, entry.writer, entry.producer)
        if entry.sequence is not None:
            if (position := self._appended_before(entry, entry.sequence)) is not None:
                return position, True
            if (in_flight := self.dedup.in_flight(scope, entry.sequence)) is not None:
                position = await self._answer(in_flight)
                return self._appended_before(entry, entry.sequence) or position, True
        if self._closing or self.ledgers.open is None:
            raise await self._sealed()
        publish = self.spawn(self._publish(entry, scope))
        self._publishes.add(publish)
        publish.add_done_callback(self._publishes.discard)
        if entry.sequence is not None:
            self.dedup.begin(scope, entry.sequence, publish)
        return await self._answer(publish), False

    def _appended_before(self, entry: Entry, sequence: int) -> Position | None:
        """Where the entry stands, if it was appended here before; an entry of which nobody knows the hashes is rather
        taken for one of this segment than for one that was inherited. Raises `AppendedBefore`, INVALID_ARGUMENT."""
        found = self.dedup.find(Scope(entry.txn_id, entry.writer, entry.producer), sequence, entry.hashes)
        own = next((each for each in found if each.segment is None), None)
        if own is not None and (len(found) == 1 or entry.hashes is None):
            if own.count != entry.count:
                raise sequence_used(sequence, own.count, entry.count)
            return own.position
        if not found:
            return None
        told = all(any(each.tells_of(hashed) for each in found) for hashed in entry.hashes or ())
        parts = [replace(each, segment=each.segment or self.id) for each in found]
        raise AppendedBefore(sequence, parts, complete=told)

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """A caller that goes away does not end the work; a segment that closes does, with nothing known."""
        return await self._answer(self.spawn(work))

    async def _answer(self, work: asyncio.Task[T]) -> T:
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if not work.cancelled():
                raise
            raise errors.OutcomeUnknown(
                f"segment {self.id} was closed before it was done",
                action="Send it again, with the same sequence if it has one, or abort the transaction.",
                segment=self.id,
            ) from None

    async def _publish(self, entry: Entry, scope: Scope) -> Position:
        if entry.txn_id is None:
            async with self._appending:
                append = self._begin_append(entry)
            return await self._until_durable(append, entry, scope, None)
        if (final := self.mirror.final(entry.txn_id)) is not None:
            raise refusal(entry.txn_id, final[0])
        transaction = self._track(entry.txn_id)
        if transaction.decision is not None:
            raise refusal(entry.txn_id, transaction.decision.header)
        previous, arrived = self._arrive(scope)
        try:
            intent = self.buffer.pin(transaction, self.buffer.last_durable)
            await self._put_intent(transaction, intent, entry)
            if previous is not None:
                await asyncio.shield(previous)
            async with self._appending:
                append = self._begin_append_of(transaction, intent, entry)
        finally:
            self._has_arrived(scope, previous, arrived)
        return await self._until_durable(append, entry, scope, transaction)

    async def _put_intent(self, transaction: TrackedTransaction, intent: int, entry: Entry) -> None:
        """The guarded operation record. On any failure the pin is dropped (DESIGN §5.3)."""
        self._next_op += 1
        op = WriteOp(
            segment=self.id,
            after=str(transaction.intents[intent]),
            count=entry.count,
            writer=entry.writer,
            sequence=entry.sequence,
        )
        batch = self.store.batch().check(self.ownership.check)
        put_write_op(batch, transaction.txn_id, self.ownership.generation, self._next_op, op)
        try:
            await self.store.apply(batch)
        except BaseException as error:
            definite = isinstance(error, MetastoreError) and error.definite
            self._drop_intent(transaction, intent, maybe_stored=not definite)
            if isinstance(error, CheckFailed):
                raise self._refused(transaction, error) from None
            raise
        self._metrics.op_writes.inc()

    def _begin_append_of(self, transaction: TrackedTransaction, intent: int, entry: Entry) -> Append:
        """The last look at the decision and the begin of the append, with no await in between (DESIGN §5.5)."""
        try:
            self.assert_serving()
            if transaction.decision is not None:
                raise refusal(transaction.txn_id, transaction.decision.header)
            append = self._begin_append(entry)
        except BaseException:
            self._drop_intent(transaction, intent, maybe_stored=True)
            raise
        self.buffer.append_begun(transaction, intent, append.position, entry.writer)
        return append

    def _begin_append(self, entry: Entry) -> Append:
        assert self.ledgers.open is not None, "the drain before a seal waits for every publish"
        try:
            return self.ledgers.open.append(
                entry.payload,
                kind=entry.kind,
                count=entry.count,
                publish_ms=self._clock(),
                txn_id=entry.txn_id,
                writer=entry.writer,
                producer=entry.producer,
                sequence=entry.sequence,
            )
        except LedgerStopped as error:
            self.lose(f"its ledger is stopped: {error}")
            raise self.not_serving() from None

    async def _until_durable(
        self, append: Append, entry: Entry, scope: Scope, transaction: TrackedTransaction | None
    ) -> Position:
        publish = asyncio.current_task()
        assert publish is not None
        self._begun.add(publish)
        publish.add_done_callback(self._begun.discard)
        try:
            await asyncio.shield(append.durable)
        except StorageFull as error:
            self._append_ended(transaction)
            raise errors.StorageFull(str(error), segment=self.id) from None
        except LedgerFenced as error:
            self.lose(str(error))
            raise self.not_serving() from None
        except LedgerError as error:
            # Unknown: the transaction is never released by this object; recovery re-reads the ledger.
            self.lose(f"an append failed: {error}")
            raise errors.OutcomeUnknown(str(error), segment=self.id) from None
        if entry.sequence is not None:
            self.dedup.durable(scope, entry.sequence, append.position, entry.count)
        self._append_ended(transaction)
        return append.position

    def _append_ended(self, transaction: TrackedTransaction | None) -> None:
        if transaction is not None:
            self.buffer.append_ended(transaction)
            self._release_if_drained(transaction)

    def _drop_intent(self, transaction: TrackedTransaction, intent: int, *, maybe_stored: bool) -> None:
        self.buffer.unpin(transaction, intent, maybe_stored=maybe_stored)
        if self.buffer.get(transaction.txn_id) is None:
            self._headers.unfollow(transaction.txn_id)
        self.advanced()

    def _arrive(self, scope: Scope) -> tuple[asyncio.Future[None] | None, asyncio.Future[None]]:
        """Frames of one scope are appended in the order of arrival, whatever order the store answers in."""
        previous = self._arrivals.get(scope)
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrivals[scope] = arrived
        return previous, arrived

    def _has_arrived(self, scope: Scope, previous: asyncio.Future[None] | None, arrived: asyncio.Future[None]) -> None:
        """One that failed early must not let those behind it overtake those before it."""

        def pass_on(_: object) -> None:
            arrived.set_result(None)
            if self._arrivals.get(scope) is arrived:
                del self._arrivals[scope]

        if previous is None or previous.done():
            pass_on(previous)
        else:
            previous.add_done_callback(pass_on)

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
                self._track(txn_id).maybe_stored = True
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
        return not (self.lost or self._closing or self.ledgers.open is None)

    @property
    def is_ending(self) -> bool:
        """It is being sealed."""
        return self._closing and not self.lost and self.ledgers.open is not None

    async def change_over(self, record: SegmentRecord, ledger: OpenLedger) -> OpenLedger:
        """Appends go to `ledger` from now on; answers the one before. All of its appends are durable by then, and the
        dedup table has all of their sequences: the snapshot that is recorded with its seal is taken from there.

        They wait meanwhile, for those that were begun. Raises STORE_UNAVAILABLE when one of these has failed.
        """
        async with self._appending:
            self.assert_serving()
            before = self.ledgers.open
            assert before is not None
            await before.close()
            while self._begun:
                await asyncio.wait(self._begun)
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

    async def drain(self) -> None:
        """Admit nothing any more, and wait until what was admitted is durable or has failed (DESIGN §5.14).

        There is no way back: the segment is sealed next, or this object is lost.
        """
        self._closing = True
        while self._publishes:
            await asyncio.wait(self._publishes)

    def seal_delayed(self, reason: str) -> None:
        """The seal does not come at once: those who wait for it should not wait here."""
        self._seal_problem = reason
        self.changed.notify()

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

    async def _sealed(self) -> errors.MetatxnError:
        """Why no append is admitted. A seal that goes on is awaited, unless it takes longer than it should."""
        while self.ledgers.open is not None:
            self.assert_serving()
            if self._seal_problem is not None:
                return self._sealing(f"is being sealed: {self._seal_problem}")
            await self.changed.wait()
        self.assert_serving()
        if self.record.merge is not None:
            await self._reread()
        if self.record.merge is not None:
            return self._sealing(f"is being merged with {self.record.merge.other}")
        return errors.SegmentSealed(
            f"segment {self.id} is sealed",
            action=None if self.record.children else "It was sealed for good: write to another segment or topic.",
            segment=self.id,
            children=list(self.record.children),
        )

    def _sealing(self, what: str) -> errors.MetatxnError:
        return errors.StoreUnavailable(
            f"segment {self.id} {what}",
            action="Try again in a moment; nothing happened.",
            segment=self.id,
        )

    async def _reread(self) -> None:
        """Whoever ends a merge need not be the owner of both segments."""
        stored = await self.store.get(paths.segment(self.id))
        if stored is not None:
            record = SegmentRecord.decode(stored.value)
            self.record = self.record.model_copy(update={"children": record.children, "merge": record.merge})

    def _refused(self, transaction: TrackedTransaction, lost: CheckFailed) -> Exception:
        """What a guard of the intent that did not hold means to the publisher."""
        txn_id = transaction.txn_id
        if lost.check == self.ownership.check:
            self.deposed_by(lost)
            return self.not_serving()
        if isinstance(lost.check, FirstVersion):
            header = Header.decode(lost.current.value) if lost.current else None
            if header is not None and self.buffer.get(txn_id) is transaction:
                self.decide(transaction, Decision(header))
            return refusal(txn_id, header)
        return prepared(txn_id)
