"""One subscription on one owned segment. It acknowledges messages and applies decisions to the cursor; `Dispatch`
delivers its messages.

Used only from the event loop of its process. The order of the steps is the protocol (DESIGN §5.10):

    check ─▶ reserve ─▶ operation (one guarded apply) ─▶ stored ─▶ acknowledged
    decision ─▶ operations read and added to the cursor ─▶ reservations end ─▶ cursor durable ─▶ operations deleted

Between `check` and `reserve` nothing is awaited. What a commit acknowledges is found by a range read that begins after
the decision, never in memory: no operation can be added later. Any step may crash or be repeated, because the header,
the cursor and the operations still contain everything.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import structlog

from metastore.api import MetadataStore
from metastore.errors import CheckFailed, MetastoreError
from metastore.keys import prefix_end
from metastore.slices import slices
from metastore.txn import paths
from metastore.txn.records.operations import AckOp, decode_op
from metastore.txn.records.subscriptions import SubscriptionRecord
from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metastore.txn.store import put_ack_ops
from metastore.types import Absent, Batch, FirstVersion, Record
from metastore.versions import ClusterVersion, Feature
from metatxn.service.retry import until_it_succeeds
from metatxn.wire import errors
from metatxn.wire.broker import ReadMessage
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from metatxn.wire.problems import problem_of
from participants.common.metrics import BrokerMetrics
from participants.common.partial_failures import one_error
from participants.messages.payloads import message_count, read_messages
from participants.segment.segment import Segment
from participants.subscription.attached import AttachedConsumers
from participants.subscription.cursor import Cursor
from participants.subscription.cursor_store import CursorStore
from participants.subscription.definitions import Definition
from participants.subscription.deletion import RECORDS_PER_APPLY, RECORDS_PER_READ, delete_keys
from participants.subscription.deliveries import Deliveries
from participants.subscription.delivery_counts import DeliveryCounts
from participants.subscription.dispatch import Dispatch, Redelivered
from participants.subscription.isolated_view import IsolatedView
from participants.subscription.keyed_deliveries import KeyedDeliveries
from participants.subscription.keyed_dispatch import KeyedDispatch
from participants.subscription.message_counts import MessageCounts
from participants.subscription.pending_acks import Ack, AckConflict, AckState, PendingAckStore
from participants.subscription.places import Place, Span, message_span
from participants.subscription.redelivery import Redelivery
from participants.txn.header_mirror import Follower, HeaderMirror
from participants.txn.refusals import prepared_refusal, refusal

log = structlog.get_logger()
ACK_INDEX = "acks-by-segment-subscription"


class NotGiven(AckConflict):
    """The message was not delivered, as far as this broker knows, so it is not PENDING (the term of PIP-31)."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, "it has not been delivered to any consumer since its segment was opened")


class AckRefused(errors.TransactionConflict):
    """TXN_CONFLICT. `holder` is the undecided transaction that has reserved the message, as far as `part` knows. None
    means that the message is already acknowledged, or was never delivered (`never_given` in the problem)."""

    def __init__(self, part: SegmentSubscription, ack: Ack, conflict: AckConflict) -> None:
        holder = conflict.holder
        super().__init__(
            f"message {conflict.place} of segment {part.segment.id} cannot be acknowledged: {conflict}"
            + (f" in transaction {holder}" if holder is not None else ""),
            action=_action_after(conflict),
            segment=part.segment.id,
            position=str(ack.position),
            holder=str(holder) if holder is not None else None,
            never_given=True if isinstance(conflict, NotGiven) else None,
        )
        self.part = part
        self.holder = holder


@dataclass(frozen=True, slots=True)
class UndecidedAcks:
    """A transaction that is undecided on a subscription, and how much it has acknowledged: nothing is under way."""

    subscription: SegmentSubscription
    txn_id: TxnId
    acks: int


class SegmentSubscription:
    """See the module docstring. Made by `SegmentSubscriptions`."""

    def __init__(
        self,
        segment: Segment,
        definition: Definition,
        cursor: Cursor,
        pending: PendingAckStore,
        counts: DeliveryCounts,
        versions: dict[str, int],
        *,
        store: MetadataStore,
        mirror: HeaderMirror,
        op_numbers: Iterator[int],
        metrics: BrokerMetrics,
        message_counts: MessageCounts,
        version: ClusterVersion,
    ) -> None:
        """`op_numbers` never repeat while this broker owns the segment, even if this object is replaced."""
        self.segment = segment
        self.definition = definition
        self.operations = paths.acks_by_subscription(segment.id, definition.name)
        """The prefix of its operations in their index."""
        self.cursor = cursor
        self.pending = pending
        keyed = definition.record.type == "key_shared"
        counted = definition.record.max_redeliveries is not None and version.allows(Feature.DELIVERY_COUNTS)
        self.deliveries = (KeyedDeliveries if keyed else Deliveries)(
            cursor.mark_delete, Redelivery.of(definition.record), counts
        )
        self.on_dead: Callable[[SegmentSubscription, Sequence[Place]], None] = lambda *_: None
        """Called with messages that were delivered too often. They are `buried` once they are published elsewhere."""
        self._ended: errors.MetatxnError | None = None
        self.dispatch = (KeyedDispatch if keyed else Dispatch)(
            segment,
            definition.name,
            cursor,
            pending,
            self.deliveries,
            message_counts,
            IsolatedView(segment, uncommitted=definition.uncommitted),
            counts if counted else None,
            delays=definition.record.type in ("shared", "key_shared"),
            assert_serving=self.assert_serving,
            on_dead=lambda places: self.on_dead(self, places),
            persist=lambda: self._cursor_store.persist(),
        )
        self.attached = AttachedConsumers(
            segment.id, definition, self.dispatch, self.deliveries, pending, self.assert_serving
        )
        self._store = store
        self._mirror = mirror
        self._headers = Follower(mirror, self._on_final)
        self._op_numbers = op_numbers
        self._metrics = metrics
        self._version = version
        self._cursor_store = CursorStore(
            store,
            segment.id,
            segment.ownership.check,
            definition,
            cursor,
            counts,
            versions,
            spawn=segment.spawn,
            lost=self._guard_lost,
        )
        self._in_flight: dict[tuple[TxnId, Ack], asyncio.Task[None]] = {}
        self._finishing: set[TxnId] = set()
        self._giving_up: set[TxnId] = set()
        """The transactions in which this broker gives messages up."""

    # -- acknowledging -----------------------------------------------------------------------------------------

    async def single_acks(self, ids: Iterable[tuple[Position, int]], writer: str | None) -> list[Ack]:
        """The acknowledgements of these messages. Messages of one entry that follow each other become one
        acknowledgement.

        Raises INVALID_ARGUMENT for a message that cannot be read, and STORE_UNAVAILABLE instead if this broker was
        deposed: another one may have it.
        """
        indexes: dict[Position, set[int]] = defaultdict(set)
        for position, index in ids:
            indexes[position].add(index)
        acks = []
        for position, wanted in indexes.items():
            acks += await self.run_acks(position, _runs(sorted(wanted)), writer)
        return acks

    async def run_acks(self, position: Position, runs: Sequence[range], writer: str | None) -> list[Ack]:
        """The acknowledgements of these messages of an entry, at least one, as runs in their order with a gap between
        any two. Raises as `single_acks`."""
        if self._is_left_out(position):
            return [Ack(position, writer=writer)]
        size = await self._size_of(position, runs[-1][-1])
        if len(runs) == 1 and len(runs[0]) == size:
            return [Ack(position, writer=writer)]
        if not self._version.allows(Feature.ACK_RUNS):
            runs = [range(index, index + 1) for run in runs for index in run]
        return [Ack(position, run[0], size, writer=writer, last=run[-1] if len(run) > 1 else None) for run in runs]

    async def cumulative_ack(self, position: Position, index: int, writer: str | None) -> Ack:
        """The cumulative acknowledgement up to this message. Raises as `single_acks`."""
        if self._is_left_out(position):
            return Ack(position, cumulative=True, writer=writer)
        size = await self._size_of(position, index)
        last = index == size - 1
        return Ack(position, None if last else index, None if last else size, cumulative=True, writer=writer)

    async def acks_up_to(self, place: Position, writer: str | None) -> list[Ack]:
        """The acknowledgement of everything up to a place that readers could see, or none if nothing is before it.

        Raises INVALID_ARGUMENT for a later place, and otherwise as `single_acks`.
        """
        if place > self.dispatch.end:
            await self.segment.reader.assert_owned()
            problem = f"positions: {place} of segment {self.segment.id} is after everything that can be read"
            raise errors.InvalidArgument(problem, field="positions")
        last = self.segment.ledgers.shown(place)
        return [Ack(last, cumulative=True, writer=writer)] if last.entry >= 0 else []

    def _is_left_out(self, position: Position) -> bool:
        """Whether the entry was left out of its ledger, or dropped with it, before this broker could know how many
        messages it had. Nobody gets any of them again."""
        return self.deliveries.size_of(position) is None and self.segment.ledgers.is_left_out(position)

    async def size_of(self, position: Position) -> int:
        """The number of messages of an entry, or 0 of one that cannot be read."""
        size = self.deliveries.size_of(position)
        if size is None:
            frame = await self.dispatch.frame(position)
            size = message_count(frame) if frame is not None else 0
        return size

    async def _size_of(self, position: Position, index: int) -> int:
        size = await self.size_of(position)
        if index >= size:
            await self.segment.reader.assert_owned()
            problem = f"message_ids: segment {self.segment.id} has no message {index} at {position} that can be read"
            raise errors.InvalidArgument(problem, field="message_ids")
        return size

    def check(self, txn_id: TxnId | None, acks: Iterable[Ack], for_all: bool = False, *, dying: bool = False) -> None:
        """Raises `AckRefused` if any of `acks` conflicts, or, unless `for_all`, if it is inside a transaction and the
        message was not delivered; and the error of a transaction that accepts no acknowledgements. With `dying` these
        are messages that the broker gives up. Changes nothing."""
        self.assert_serving()
        if txn_id is not None and (final := self._mirror.final(txn_id)) is not None:
            raise refusal(txn_id, final[0])
        for ack in acks:
            try:
                for each in self._unacknowledged(ack) if txn_id is None else (ack,):
                    self.pending.check(txn_id, each, self.cursor)
                if txn_id is not None and not ack.cumulative and not dying and self.deliveries.has_dead(ack.span):
                    raise AckConflict(ack.span.start, "it is being sent to the dead-letter topic")
                if txn_id is not None and not for_all and not self._was_given(txn_id, ack):
                    raise NotGiven(ack.span.end)
            except AckConflict as conflict:
                raise AckRefused(self, ack, conflict) from None

    def _unacknowledged(self, ack: Ack) -> Iterable[Ack]:
        """The acknowledgements that do not repeat earlier ones."""
        if self.cursor.covers(ack.span):
            return ()
        if self.cursor.overlaps(ack.span):
            return [each for each in ack.each() if not self.cursor.covers(each.span)]
        return (ack,)

    def _was_given(self, txn_id: TxnId, ack: Ack) -> bool:
        """Whether the message was delivered. What this transaction has acknowledged was delivered, perhaps before the
        segment was opened."""
        known = self.pending.get(txn_id)
        if known is not None and (ack in known.acks or known.ranges.covers(ack.span)):
            return True
        return ack.span.end <= self.deliveries.next_read and not self.deliveries.waits(ack.span)

    def reserve(self, txn_id: TxnId, acks: Iterable[Ack]) -> None:
        """Reserve the acknowledgements, directly after `check` and with nothing awaited in between."""
        self._headers.follow(txn_id)  # before anything is stored, so that no decision is missed
        for ack in acks:
            self.pending.reserve(txn_id, ack)
            self.deliveries.reserved(ack.span)

    async def store_acks(self, txn_id: TxnId, acks: Iterable[Ack]) -> None:
        """Store the operations of reserved acknowledgements. Those that are stored or in flight are not sent again.

        Raises `errors.MetatxnError` and the store's errors.
        """
        sent: set[asyncio.Task[None]] = set()
        missing: list[Ack] = []
        for ack in acks:
            if (in_flight := self._in_flight.get((txn_id, ack))) is not None:
                sent.add(in_flight)
            elif self.pending.state(txn_id, ack) is not AckState.STORED:
                missing.append(ack)
        for chunk in slices(self._store, missing, RECORDS_PER_APPLY, partial(self._put_ops, txn_id)):
            task = self.segment.spawn(self._store_ops(txn_id, chunk))
            sent.add(task)
            self._in_flight.update({(txn_id, ack): task for ack in chunk})
        outcomes = await asyncio.gather(*map(asyncio.shield, sent), return_exceptions=True)
        if any(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes):
            raise self._not_durable("the segment was closed")
        if errors := [outcome for outcome in outcomes if isinstance(outcome, BaseException)]:
            raise acks_error(errors, len(outcomes))

    async def _store_ops(self, txn_id: TxnId, acks: Sequence[Ack]) -> None:
        batch = self._store.batch().check(self.segment.ownership.check, self.definition.check)
        self._put_ops(txn_id, batch, *acks)
        try:
            await self._store.apply(batch)
        except BaseException as error:
            if isinstance(error, MetastoreError) and error.definite:
                self._release(txn_id, acks)
            else:
                for ack in acks:
                    self.pending.unknown(txn_id, ack)
            if isinstance(error, CheckFailed):
                raise self._refused(txn_id, error) from None
            raise
        finally:
            for ack in acks:
                del self._in_flight[txn_id, ack]
        self._metrics.op_writes.inc(len(acks))
        self.segment.work.acknowledged(txn_id, self.segment.id, self.definition.name, len(acks), self.segment.clock())
        for ack in acks:
            self.pending.stored(txn_id, ack)

    def _put_ops(self, txn_id: TxnId, batch: Batch, *acks: Ack) -> None:
        put_ack_ops(batch, txn_id, self.segment.ownership.generation, [self._op(ack) for ack in acks])

    def _op(self, ack: Ack) -> tuple[int, AckOp]:
        return next(self._op_numbers), AckOp(
            segment=self.segment.id,
            subscription=self.definition.name,
            incarnation=self.definition.record.incarnation,
            position=str(ack.position),
            batch_index=ack.index,
            batch_size=ack.size,
            batch_last=ack.last,
            cumulative=True if ack.cumulative else None,
            writer=ack.writer,
        )

    def _release(self, txn_id: TxnId, acks: Iterable[Ack]) -> None:
        """Release the acknowledgements, of which nothing is stored. The consumers still have the messages."""
        for ack in acks:
            self.pending.release(txn_id, ack)
        self._settle([ack.span for ack in acks], keep_held=True)
        self._unfollow_unless_needed(txn_id)

    def _unfollow_unless_needed(self, txn_id: TxnId) -> None:
        if self.pending.get(txn_id) is None and txn_id not in self._finishing:
            self._headers.unfollow(txn_id)

    async def acknowledge(self, acks: Iterable[Ack]) -> None:
        """Acknowledge outside transactions, directly after `check`. Returns once the acknowledgements are durable.

        Raises OUTCOME_UNKNOWN if they are not: this broker delivers the messages to no consumer, and keeps trying. If
        this incarnation has ended meanwhile, nothing that it has acknowledged counts, and the error says so.
        """
        for ack in acks:
            self.dispatch.delete(ack.span)
        try:
            await self._cursor_store.persist()
        except MetastoreError as error:
            raise self._ended or self._not_durable(str(error)) from None

    async def has_ended(self) -> bool:
        """Whether consumers may get messages of the segments that take over. Where that depends on acknowledgements,
        they are durable then: those segments may outlive this broker. Raises the store's errors."""
        if not self.dispatch.ended:
            return False
        if self.definition.record.type == "key_shared":
            await self._cursor_store.persist()
        return True

    async def expire(self, end: Place) -> None:
        """Count everything before `end` as acknowledged, up to the first message that an open transaction has
        acknowledged: that one may yet return. Nothing is awaited before it counts, so no transaction reserves anything
        in between. Raises as `acknowledge`."""
        self.assert_serving()
        start = self.cursor.mark_delete
        end = min([end, *(span.start for each in self.pending for span in each.spans())])
        if end <= start:
            return
        self.dispatch.delete(Span(start, end))
        log.info("messages expired", segment=self.segment.id, subscription=self.definition.name, before=str(end))
        await self.acknowledge(())

    async def settle(self) -> None:
        """Make durable what was passed over in memory. Raises the store's errors."""
        await self._cursor_store.persist()

    # -- decisions ---------------------------------------------------------------------------------------------

    async def adopt(self, found: Iterable[TxnId]) -> None:
        """Take up the stored operations of these transactions, as the index told them, that are missing in memory; at
        recovery these are all.

        The headers are followed before they are read, so that no decision falls in between; at the end only those of
        the adopted operations are followed. Other operations, such as those of an earlier subscription of this name,
        may be deleted without a decision, and may be missing in the next listing. Raises the store's errors.
        """
        missing = [txn_id for txn_id in found if self.pending.get(txn_id) is None and txn_id not in self._finishing]
        for txn_id in missing:
            self._headers.follow(txn_id)
        try:
            await self._take_up(missing)
        finally:
            for txn_id in missing:
                self._unfollow_unless_needed(txn_id)

    async def _take_up(self, missing: Sequence[TxnId]) -> None:
        acks = {txn_id: await self._stored_acks(txn_id) for txn_id in missing}
        headers = await self._mirror.read(missing)
        for txn_id, record in headers.items():
            header = Header.decode(record.value) if record is not None else None
            if header is None or header.state is not TxnState.ABORTED:
                for ack in acks[txn_id]:
                    self.pending.restore(txn_id, ack)
                    self.deliveries.reserved(ack.span)
            if header is None or header.state.final:
                self._decide(txn_id, header)
            elif (final := self._mirror.final(txn_id)) is not None:
                self._decide(txn_id, final[0])

    async def _stored_acks(self, txn_id: TxnId, counted: Sequence[str] | None = None) -> list[Ack]:
        """The acknowledgements of the stored operations of this incarnation; with `counted`, only those of these
        writers and of no writer."""
        prefix = paths.ack_ops_of_subscription(txn_id, self.segment.id, self.definition.name)
        start, acks, more = prefix, [], True
        while more:
            found = await self._store.range(start, prefix_end(prefix), limit=RECORDS_PER_READ)
            for record in found.records:
                op = decode_op(record.value)
                assert isinstance(op, AckOp)
                void = counted is not None and op.writer is not None and op.writer not in counted
                if op.incarnation == self.definition.record.incarnation and not void:
                    position = Position.parse(op.position)
                    acks.append(
                        Ack(position, op.batch_index, op.batch_size, bool(op.cumulative), op.writer, op.batch_last)
                    )
                start = record.key + "\0"
            more = found.more
        return acks

    def _on_final(self, txn_id: TxnId, header: Header) -> None:
        if self.pending.get(txn_id) is not None:
            self._decide(txn_id, header)

    async def assure_order(self, txn_id: TxnId, acks: Iterable[Ack]) -> None:
        """Where messages are delivered by key, before these are acknowledged: return what is before them, if it was
        acknowledged in transactions that are aborted by now. Raises the store's errors."""
        for holder in sorted(self.dispatch.holders_before([ack.span for ack in acks if not ack.cumulative]) - {txn_id}):
            await self.freed_by_abort(holder)

    async def redeliver(self, ids: Sequence[tuple[Position, int]] | None) -> Redelivered:
        """See `Dispatch.redeliver`. Where messages are delivered by key, this includes what was acknowledged in
        transactions that are aborted, of which this broker may not have heard yet: the later messages of their keys
        must not come first. Raises the store's errors."""
        if self.definition.record.type == "key_shared":
            for holder in self.dispatch.holders_of(ids):
                await self.freed_by_abort(holder)
        return self.dispatch.redeliver(ids)

    async def freed_by_abort(self, txn_id: TxnId) -> bool:
        """Whether the transaction is aborted, so that it has nothing reserved any more. This reads the store, because
        the mirror may lag behind a decision that others already know. Raises the store's errors."""
        header = await self._learn_decision(txn_id)
        return header is not None and header.state is TxnState.ABORTED

    async def _learn_decision(self, txn_id: TxnId) -> Header | None:
        record = (await self._mirror.read([txn_id]))[txn_id]
        header = Header.decode(record.value) if record is not None else None
        if header is not None and header.state.final:
            self._on_final(txn_id, header)
        return header

    def _decide(self, txn_id: TxnId, header: Header | None) -> None:
        """Apply a decision. `header` is None if it was collected long ago, which counts as committed (DESIGN §5.6)."""
        if header is not None and header.state is TxnState.ABORTED:
            self._end(txn_id)  # repeated, if an acknowledgement that the store will refuse has arrived since
        if txn_id in self._finishing:
            return
        self._finishing.add(txn_id)
        self.segment.spawn(self._finish(txn_id, header))

    async def _finish(self, txn_id: TxnId, header: Header | None) -> None:
        prefix = paths.ack_ops_of_subscription(txn_id, self.segment.id, self.definition.name)

        async def once() -> None:
            if self.is_gone:
                return
            try:
                if header is None or header.state is TxnState.COMMITTED:
                    await self._commit(txn_id, header.writers if header is not None else None)
                name, now_ms = self.definition.name, self.segment.clock()
                self.segment.work.acks_took_effect(txn_id, self.segment.id, name, now_ms)
                await delete_keys(self._store, self.segment.ownership.check, prefix, prefix_end(prefix))
            except CheckFailed as lost:
                if lost.check != self.segment.ownership.check:
                    raise
                self._guard_lost(lost)

        await until_it_succeeds(once, MetastoreError, self._report)
        self._finishing.discard(txn_id)
        self._headers.unfollow(txn_id)

    async def _commit(self, txn_id: TxnId, counted: Sequence[str] | None) -> None:
        """Apply a commit. The cursor is durable before this returns, and only then may the operations be deleted
        (DESIGN §5.10)."""
        for ack in await self._stored_acks(txn_id, counted):
            self.dispatch.delete(ack.span)
        self._end(txn_id)
        await self._cursor_store.persist()

    def _end(self, txn_id: TxnId) -> None:
        """End the reservations of a transaction. Its messages are deleted by now, or return."""
        ended = self.pending.end(txn_id)
        if ended is not None:
            self._settle(ended.spans())

    def _settle(self, spans: Iterable[Span], *, keep_held: bool = False) -> None:
        """Return messages: those that were PENDING_ACK and are not deleted wait for redelivery, unless another
        transaction has reserved them."""
        back = []
        for span in spans:
            for place in self.deliveries.places_in(span):
                delivery = self.deliveries.get(place)
                assert delivery is not None
                if self.pending.holder(place) is None and not (keep_held and delivery.consumer is not None):
                    back.append(place)
        self.dispatch.give_back(back)

    def undecided(self) -> list[UndecidedAcks]:
        """The transactions whose headers a reconcile has to read."""
        if self.is_gone:
            return []
        waiting = [each for each in self.pending if not self._is_sending(each.txn_id)]
        return [UndecidedAcks(self, each.txn_id, len(each.acks)) for each in waiting]

    def found(self, undecided: UndecidedAcks, record: Record | None) -> None:
        """A linearizable read that began after `undecided` was told has found this header (DESIGN §5.8)."""
        txn_id = undecided.txn_id
        known = self.pending.get(txn_id)
        if known is None or (record is not None and record.first):
            return
        if record is None and (self._is_sending(txn_id) or len(known.acks) != undecided.acks):
            return  # an operation was sent since then: this read proves nothing about it
        if txn_id not in self._finishing:
            self._metrics.reconcile_repairs.inc()
        self._decide(txn_id, Header.decode(record.value) if record is not None else None)

    def _is_sending(self, txn_id: TxnId) -> bool:
        return any(txn_id == sending for sending, _ in self._in_flight)

    # -- giving up ---------------------------------------------------------------------------------------------

    def is_dying(self, place: Place) -> bool:
        """Whether the message was delivered too often, and is neither acknowledged nor given up yet."""
        delivery = self.deliveries.get(place)
        return delivery is not None and delivery.dead

    async def message(self, place: Place) -> ReadMessage | None:
        """The message, or None if it can no longer be read."""
        frame = await self.dispatch.frame(place.position)
        return read_messages(self.segment.id, frame, [place.message])[0] if frame is not None else None

    async def forget_unreadable(self, places: Sequence[Place]) -> None:
        """Acknowledge messages that can no longer be read, so that no consumer gets them. Raises the store's errors."""
        for place in places:
            self.dispatch.delete(self._span_of(place))
        await self._cursor_store.persist()

    async def give_up(self, txn_id: TxnId, places: Sequence[Place]) -> None:
        """Acknowledge, in this transaction of the broker, messages that were delivered too often. Raises `AckRefused`
        if one of them was acknowledged meanwhile, and as `store_acks`."""
        acks = []
        for place in places:
            delivery = self.deliveries.get(place)
            size = delivery.size if delivery is not None else place.message + 1
            acks.append(Ack(place.position) if size == 1 else Ack(place.position, place.message, size))
        self.check(txn_id, acks, for_all=True, dying=True)
        self._giving_up.add(txn_id)
        self.reserve(txn_id, acks)
        await self.store_acks(txn_id, acks)

    async def gave_up(self, txn_id: TxnId) -> None:
        """The transaction is decided, or its timeout ends it. Returns once that is carried out here, if it is known."""
        with suppress(MetastoreError):  # then the watch tells
            header = await self._learn_decision(txn_id)
            final = header is not None and header.state.final
            while final and self.pending.get(txn_id) is not None and not self.is_gone:
                await self.segment.changed.wait()
        self._giving_up.discard(txn_id)
        self.segment.changed.notify()

    async def until_given_up(self, txn_id: TxnId | None) -> bool:
        """Wait while this broker gives messages up in this transaction. Returns whether it did so."""
        if txn_id not in self._giving_up:
            return False
        while txn_id in self._giving_up and not self.is_gone:
            await self.segment.changed.wait()
        return True

    def _span_of(self, place: Place) -> Span:
        delivery = self.deliveries.get(place)
        assert delivery is not None
        return message_span(place.position, place.message, delivery.size)

    # -- life --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the subscription. Its tasks belong to the segment and end with it."""
        self._headers.close()
        self.dispatch.close()

    @property
    def is_gone(self) -> bool:
        """Whether it no longer serves."""
        return self.dropped or self.segment.lost is not None

    @property
    def dropped(self) -> bool:
        return self._ended is not None

    def drop(self, current: SubscriptionRecord | None = None) -> None:
        """End this incarnation, of which nothing can be stored any more. `current` is the record of the
        subscription, unless it is dropped."""
        self._ended = self.definition.ended(current)
        self.close()
        self.segment.changed.notify()

    def assert_serving(self) -> None:
        """Raises STORE_UNAVAILABLE if it no longer serves, or the error of an incarnation that has ended."""
        self.segment.assert_serving()
        if self._ended is not None:
            raise self._ended

    def _guard_lost(self, lost: CheckFailed) -> None:
        if lost.check == self.definition.check:
            self.drop(lost.current and SubscriptionRecord.decode(lost.current.value))
        else:
            self.segment.deposed_by(lost)

    def _refused(self, txn_id: TxnId, lost: CheckFailed) -> Exception:
        """The error for the caller when a guard of the operation did not hold."""
        if lost.check == self.segment.ownership.check:
            self._guard_lost(lost)
            return self.segment.not_serving()
        if lost.check == self.definition.check:
            self._guard_lost(lost)
            assert self._ended is not None
            return self._ended
        if isinstance(lost.check, FirstVersion):
            header = Header.decode(lost.current.value) if lost.current else None
            if header is not None:
                self._on_final(txn_id, header)
            return refusal(txn_id, header)
        return prepared_refusal(txn_id) if lost.check == Absent(paths.prepared(txn_id)) else lost

    def _not_durable(self, reason: str) -> errors.MetatxnError:
        return errors.OutcomeUnknown(
            f"the acknowledgement on segment {self.segment.id} may not be durable: {reason}",
            action="Send it again.",
            segment=self.segment.id,
        )

    def _report(self, error: Exception) -> None:
        name = self.definition.name
        log.warning("carry the decision out again", segment=self.segment.id, subscription=name, error=str(error))


def _runs(indexes: Sequence[int]) -> list[range]:
    """The runs of these, which are sorted and different."""
    bounds = [0, *(at for at in range(1, len(indexes)) if indexes[at] != indexes[at - 1] + 1), len(indexes)]
    return [range(indexes[start], indexes[end - 1] + 1) for start, end in pairwise(bounds)]


def _action_after(conflict: AckConflict) -> str:
    if isinstance(conflict, NotGiven):
        return "Abort, receive the message again, and do the work in a new transaction; or set `for_all`."
    if conflict.holder is None:
        return "Abort, and do the work again in a new transaction without this message."
    return "Wait until that transaction ends, or abort."


def acks_error(errors: Sequence[BaseException], parts: int) -> BaseException:
    """The answer to an acknowledgement of which some parts failed. Final errors come first: they mean that the
    transaction must be aborted, or outside transactions that the rest may be acknowledged."""
    return one_error(
        errors,
        parts,
        lambda error: not problem_of(error).retriable,
        "some of the messages are acknowledged",
        "Send the whole request again.",
    )
