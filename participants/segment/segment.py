"""One owned segment: admits publishes, carries decisions into the transaction buffer, and answers readers.

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
from metastore.txn.records.operations import Outcome, WriteOp
from metastore.txn.records.segments import SegmentRecord
from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metastore.txn.store import TxnStore, put_write_op
from metastore.types import AtVersion, FirstVersion, Revision
from metatxn.service.retry import until_it_succeeds
from metatxn.wire import errors
from metatxn.wire.frames import MAX_PAYLOAD_BYTES, PayloadKind, RawFrame
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.common.metrics import BrokerMetrics
from participants.common.signal import Signal
from participants.ledger.chain import READ_BYTES, LedgerChain
from participants.ledger.storage import (
    Append,
    LedgerError,
    LedgerFenced,
    LedgerStopped,
    OpenLedger,
    SealedLedger,
    StorageFull,
)
from participants.segment.dedup import AppendedBefore, DedupTable, Scope, sequence_used
from participants.txn.buffer import Decision, TrackedTransaction, TransactionBuffer
from participants.txn.header_mirror import Follower, HeaderMirror
from participants.txn.materializer import materialize
from participants.txn.refusals import prepared, refusal

log = structlog.get_logger()
Clock = Callable[[], int]
T = TypeVar("T")
MAX_LEDGER_ENTRIES = 50_000
"""However small they are: a restart looks at each entry of the last ledger."""
MANY_LEDGERS = 1_000
"""With each so many a segment's ledgers become larger by what they were at first: their list is one record."""
LOOKED_AT_ONCE = 1_000
"""Entries, when the last visible one is looked for."""
STALE_READ_S = 5.0
"""How old a read may be that a broker answers which has lost its segment and does not know it yet."""


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


@dataclass(frozen=True, slots=True)
class Ownership:
    """This broker owns the segment as long as `check` holds; every apply carries it (DESIGN §5.2)."""

    generation: int
    check: AtVersion


@dataclass(slots=True)
class Page:
    """Visible frames; `next` is where to go on; `end` tells that nothing more was readable when it was read."""

    frames: list[RawFrame]
    next: Position
    end: bool
    revision: Revision | None = None


class Attached(Protocol):
    """What serves with a segment and is above it: its subscriptions. It goes when the segment closes."""

    async def recover(self) -> None:
        """Before the segment is ready. Raises the store's errors."""

    async def reconcile(self) -> None:
        """Find what no watch has told. Raises the store's errors."""

    def close(self) -> None: ...


class Segment:
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
        self.id = segment_id
        self.record = record
        self.ownership = ownership
        self.ledgers = ledgers
        self.buffer = buffer
        self.dedup = DedupTable(record.range)
        self.changed = Signal()
        self.lost: str | None = None
        """Why this object must not be used any more (deposed, or its ledger failed); None while it serves."""
        self._store = store
        self._txns = TxnStore(store)
        self._mirror = mirror
        self._headers = Follower(mirror, self._on_final)
        self._clock = clock
        self._metrics = metrics
        self.attached: Attached | None = None
        """What its opener has attached to it."""
        self._tasks: set[asyncio.Task[Any]] = set()
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
        self._last_visible: Position | None = None
        self._looked_up_to = Position(0, -1)
        self._shared = shared
        self._owned_at = asyncio.get_running_loop().time()
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
        if (final := self._mirror.final(entry.txn_id)) is not None:
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
        batch = self._store.batch().check(self.ownership.check)
        put_write_op(batch, transaction.txn_id, self.ownership.generation, self._next_op, op)
        try:
            await self._store.apply(batch)
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
        record = (await self._mirror.read([txn_id]))[txn_id]
        if record is None or not record.first:
            raise refusal(txn_id, Header.decode(record.value) if record else None)

    # -- decisions ---------------------------------------------------------------------------------------------

    def _track(self, txn_id: TxnId) -> TrackedTransaction:
        """Follow the header before anything is stored for the transaction, so that no decision can be missed."""
        transaction = self.buffer.track(txn_id, self._clock())
        self._headers.follow(txn_id)
        return transaction

    def follow_recovered(self, txn_id: TxnId) -> None:
        """Recovery found operation records of the transaction."""
        self._track(txn_id).stored = True

    def begun_at(self, txn_id: TxnId, created_ms: int) -> None:
        """Recovery read the header of an open transaction: it is older than this object knows."""
        transaction = self.buffer.get(txn_id)
        if transaction is not None:
            transaction.since_ms = min(transaction.since_ms, created_ms)

    def decide_recovered(self, txn_id: TxnId, decision: Decision) -> None:
        """What recovery read. The watch may have been faster: then everything is done, even forgotten, by now."""
        transaction = self.buffer.get(txn_id)
        if transaction is not None:
            self._decide(transaction, decision)

    def _on_final(self, txn_id: TxnId, header: Header) -> None:
        transaction = self.buffer.get(txn_id)
        if transaction is not None:
            self._decide(transaction, Decision(header))

    def _decide(self, transaction: TrackedTransaction, decision: Decision) -> None:
        if transaction.decision is None:
            self.buffer.close(transaction, decision)
            self._release_if_drained(transaction)

    def _release_if_drained(self, transaction: TrackedTransaction) -> None:
        """In memory first: what to hide, then the horizon. Making it durable follows in the background.

        A lost segment releases nothing any more: it may not know every frame, and recovery does it again.
        """
        if transaction.decision is None or transaction.unfinished_appends or transaction.released or self.lost:
            return
        outcome = self.buffer.release(transaction)
        self.dedup.forget_transaction(transaction.txn_id)
        header = transaction.decision.header
        if header is not None and header.finalized_ms is not None:
            self._metrics.decision_to_visible.observe(max(0, self._clock() - header.finalized_ms) / 1000)
        self.advanced()
        self.spawn(self._materialize(transaction, outcome))

    async def _materialize(self, transaction: TrackedTransaction, outcome: Outcome | None) -> None:
        async def once() -> None:
            try:
                await materialize(self._store, self.id, self.ownership.check, transaction.txn_id, outcome)
            except CheckFailed as lost:
                self.deposed_by(lost)

        await until_it_succeeds(
            once, MetastoreError, lambda error: log.warning("materialize again", segment=self.id, error=str(error))
        )
        if not self.lost:
            self.buffer.forget(transaction)
            self._headers.unfollow(transaction.txn_id)

    async def reconcile(self) -> None:
        """Act on final or absent headers of what is undecided here, and adopt operations that memory lacks
        (DESIGN §5.8). Never acts on an open header. Repairs what a lost watch event would leave behind."""
        if self.lost:
            return
        prefix = paths.writes_by_segment(self.id)
        with self._metrics.index_query.time():
            entries = await self._store.query_index("writes-by-segment", prefix, prefix_end(prefix))
        for txn_id in {TxnId.parse(entry.split("/")[1]) for entry in entries}:
            if self.buffer.get(txn_id) is None:
                self._track(txn_id).maybe_stored = True
        candidates = [(each, each.last_intent) for each in self.buffer.undecided() if not each.intents]
        headers = await self._mirror.read([transaction.txn_id for transaction, _ in candidates])
        for transaction, last_intent in candidates:
            record = headers[transaction.txn_id]
            if record is not None and record.first:
                continue
            if record is None and transaction.last_intent != last_intent:
                continue  # an intent was sent after the candidates were chosen: this read proves nothing about it
            if transaction.decision is None:
                self._metrics.reconcile_repairs.inc()
                self._decide(transaction, Decision(Header.decode(record.value) if record else None))
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

    # -- reading -----------------------------------------------------------------------------------------------

    async def read_committed(self, after: Position, max_bytes: int) -> Page:
        """Entries up to the horizon of this moment; what is hidden by then stays hidden."""
        horizon = self.buffer.max_read_position
        found = await self._read(after, horizon, max_bytes)
        visible = [frame for frame in found if not self._hides(frame)]
        await self._assert_owned(STALE_READ_S)
        return self._page(visible, found, after, horizon)

    async def read_uncommitted(self, after: Position, max_bytes: int) -> Page:
        """Every durable entry, whatever became of its transaction."""
        end = self.buffer.last_durable
        found = await self._read(after, end, max_bytes)
        await self._assert_owned(STALE_READ_S)
        return self._page(found, found, after, end)

    async def read_snapshot(self, after: Position, max_bytes: int, revision: Revision | None) -> Page:
        """Every transaction decided at or before `revision` and none decided later (DESIGN §7).

        Raises INVALID_ARGUMENT for a revision of the future, and for one so old that headers decided after it may
        have been collected already.
        """
        revision = await self._catch_up(revision)
        end = self.buffer.last_durable
        found = await self._read(after, end, max_bytes)
        decided = await self._decided_by(revision, {f.header.txn_id for f in found if f.header.txn_id is not None})
        if (horizon := await self._txns.gc_horizon()) > revision:
            raise errors.InvalidArgument(
                f"revision: {revision} is too old, decisions up to {horizon} have been collected",
                action="Read again at a newer revision.",
                field="revision",
            )
        await self._assert_owned(0)  # at the end that was read to, so nothing decided by then lies behind it
        self.assert_serving()  # what this object hides is all there is to hide only as long as it is the owner
        self._assert_untrimmed(after)
        visible = [frame for frame in found if self._in_snapshot(frame, decided)]
        page = self._page(visible, found, after, end)
        page.revision = revision
        return page

    async def last_visible(self) -> Position | None:
        """The last entry that `read_committed` shows at this moment, None when it shows none: not one of an open
        transaction or behind it, nor of an aborted one (scenario 97).

        It is looked for backwards, in steps that grow, down to where it was looked for the last time: what is visible
        at or below a horizon stays so. Raises STORE_UNAVAILABLE, store errors.
        """
        while True:
            try:
                found = await self._find_last_visible()
            except errors.PositionTrimmed:
                continue
            else:
                await self._assert_owned(STALE_READ_S)
                return found

    async def _find_last_visible(self) -> Position | None:
        horizon = self.buffer.max_read_position
        found, before, step = None, self.ledgers.last_before(horizon.next), 1
        while found is None and before is not None and before > max(self._looked_up_to, self.ledgers.start):
            first = Position(before.ledger, max(before.entry - step + 1, 0))
            found = await self._last_visible_within(first.before, before)
            before, step = self.ledgers.last_before(first), min(2 * step, LOOKED_AT_ONCE)
        if horizon > self._looked_up_to:
            self._last_visible, self._looked_up_to = found or self._last_visible, horizon
        is_there = self._last_visible is not None and self._last_visible > self.ledgers.start
        return self._last_visible if is_there else None

    async def _last_visible_within(self, after: Position, up_to: Position) -> Position | None:
        found, at = None, max(after, self.ledgers.start)
        while frames := await self._read(at, up_to, READ_BYTES):
            at = frames[-1].header.position
            found = next((f.header.position for f in reversed(frames) if not self._hides(f)), found)
        return found

    async def _assert_owned(self, max_age_s: float) -> None:
        """That this broker was the owner `max_age_s` ago, or later. A broker that was frozen serves its old end until
        it hears that it was deposed; local files cannot be taken from it, so they need no look at the store.

        Raises STORE_UNAVAILABLE (deposed), store errors.
        """
        now = asyncio.get_running_loop().time()
        if not self._shared or (max_age_s and now - self._owned_at <= max_age_s):
            return
        owner = await self._store.get(self.ownership.check.key)
        if owner is None or owner.version != self.ownership.check.version:
            self.lose("another generation owns it now")
            raise self.not_serving()
        self._owned_at = now

    async def _read(self, after: Position, up_to: Position, max_bytes: int) -> list[RawFrame]:
        self._assert_untrimmed(after)
        try:
            found = await self.ledgers.read(after, up_to, max_bytes)
        except LedgerError as error:
            self._assert_untrimmed(after)
            raise errors.StoreUnavailable(
                f"segment {self.id} cannot be read: {error}",
                action="Try again; if it stays so, the broker's storage needs an operator.",
                segment=self.id,
            ) from error
        self._assert_untrimmed(after)  # a trim meanwhile has forgotten what was to be hidden of it (DESIGN §5.6)
        return found

    def _assert_untrimmed(self, after: Position) -> None:
        trimmed = self.ledgers.trimmed
        if trimmed is not None and after < trimmed:
            raise errors.PositionTrimmed(
                f"entries of segment {self.id} up to {trimmed} were trimmed, and {after} is before that",
                segment=self.id,
                first_position=str(trimmed.next),
            )

    async def _catch_up(self, revision: Revision | None) -> Revision:
        """Close and drain everything that was decided at or before `revision`; None: at this moment."""
        if revision is None:
            revision = await self._store.current_revision()
        elif revision > self._mirror.revision and revision > await self._store.current_revision():
            raise errors.InvalidArgument(f"revision: {revision} is in the future", field="revision")
        undecided = self.buffer.undecided()
        headers = await self._mirror.read([transaction.txn_id for transaction in undecided])
        for transaction in undecided:
            record = headers[transaction.txn_id]
            if record is not None and not record.first:
                self._decide(transaction, Decision(Header.decode(record.value)))
        while any(t.decision is not None and not t.released for t in self.buffer.tracked()):
            self.assert_serving()
            await self.changed.wait()
        return revision

    async def _decided_by(self, revision: Revision, txn_ids: set[TxnId]) -> dict[TxnId, Decision | None]:
        """For each transaction: how it was decided at or before `revision`, or None when it was not."""
        judged: dict[TxnId, Decision | None] = {}
        unknown: list[TxnId] = []
        for txn_id in txn_ids:
            final = self._mirror.final(txn_id)
            if final is None:
                unknown.append(txn_id)
            else:
                judged[txn_id] = Decision(final[0]) if final[1] <= revision else None
        for txn_id, record in (await self._mirror.read(unknown)).items():
            if record is None:
                judged[txn_id] = Decision(None)
            elif record.first or record.version > revision:
                judged[txn_id] = None
            else:
                judged[txn_id] = Decision(Header.decode(record.value))
        return judged

    def _in_snapshot(self, frame: RawFrame, decided: dict[TxnId, Decision | None]) -> bool:
        txn_id = frame.header.txn_id
        if txn_id is None:
            return True
        decision = decided[txn_id]
        if decision is None:
            return False
        if decision.header is None:
            return not self._hides(frame)
        if decision.header.state is not TxnState.COMMITTED:
            return False
        counted, writer = decision.header.writers, frame.header.writer
        return counted is None or writer is None or writer in counted

    def _hides(self, frame: RawFrame) -> bool:
        return frame.header.txn_id is not None and self.buffer.hides(frame.header.txn_id, frame.header.writer)

    def _page(self, visible: list[RawFrame], found: list[RawFrame], after: Position, end: Position) -> Page:
        reached = found[-1].header.position if found else max(after, end)
        return Page(visible, reached, end=not found or reached >= end)

    # -- life --------------------------------------------------------------------------------------------------

    def lose(self, reason: str) -> None:
        """Stop serving at once: deposed, or the ledger failed. The broker opens the segment again."""
        if self.lost is None:
            self.lost = reason
            log.warning("segment lost", segment=self.id, reason=reason)
            self.changed.notify()

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

    def advanced(self) -> None:
        """Readers may see more, or how far they are behind is known for the first time."""
        lag = self.ledgers.entries_between(self.buffer.max_read_position, self.buffer.last_durable)
        self._metrics.horizon_lag.labels(self.id).set(lag)
        self.changed.notify()

    def assert_serving(self) -> None:
        if self.lost:
            raise self.not_serving()

    def not_serving(self) -> errors.MetatxnError:
        return errors.StoreUnavailable(
            f"segment {self.id} is being opened again: {self.lost}",
            action="Try again in a moment; nothing happened.",
            segment=self.id,
        )

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
        stored = await self._store.get(paths.segment(self.id))
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
                self._decide(transaction, Decision(header))
            return refusal(txn_id, header)
        return prepared(txn_id)

    def deposed_by(self, lost: CheckFailed) -> None:
        if lost.check != self.ownership.check:
            raise lost
        self.lose("another generation owns it now")

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
