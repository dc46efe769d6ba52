"""Another transaction buffer and another pending-ack store, as a package might offer them: lists that are looked
through from the beginning every time. They show that what asks for one needs nothing but what the interface says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from metastore.txn.records.operations import Outcome
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.subscription.cursor import Cursor
from participants.subscription.memory_pending_acks import MemoryPendingAcks
from participants.subscription.pending_acks import Ack, AckConflict, AckState, PendingAckStore, PendingTransaction
from participants.subscription.places import Place, Span
from participants.txn.buffer import Decision, TrackedTransaction, TransactionBuffer
from participants.txn.memory_buffer import MemoryTransactionBuffer


class PlainBuffer(TransactionBuffer):
    def __init__(self, empty_at: Position) -> None:
        self._all: list[TrackedTransaction] = []
        self._outcomes: list[tuple[TxnId, Outcome]] = []
        self._end = empty_at
        self._intents = 0

    def get(self, txn_id: TxnId) -> TrackedTransaction | None:
        return next((each for each in self._all if each.txn_id == txn_id), None)

    def track(self, txn_id: TxnId, now_ms: int) -> TrackedTransaction:
        known = self.get(txn_id)
        if known is None:
            known = TrackedTransaction(txn_id, now_ms)
            self._all.append(known)
        return known

    def tracked(self) -> Iterator[TrackedTransaction]:
        return iter(tuple(self._all))

    def undecided(self) -> list[TrackedTransaction]:
        return [each for each in self._all if each.decision is None]

    def pin(self, transaction: TrackedTransaction, after: Position) -> int:
        self._intents += 1
        transaction.last_intent = self._intents
        transaction.intents[self._intents] = after
        return self._intents

    def unpin(self, transaction: TrackedTransaction, intent: int, *, maybe_stored: bool) -> None:
        transaction.maybe_stored = transaction.maybe_stored or maybe_stored
        del transaction.intents[intent]
        left = (transaction.intents, transaction.first_frame, transaction.decision)
        if not (any(left) or transaction.stored or transaction.maybe_stored):
            self._all.remove(transaction)

    def append_begun(
        self, transaction: TrackedTransaction, intent: int, position: Position, writer: str | None
    ) -> None:
        self.recovered_frame(transaction, position, writer)
        del transaction.intents[intent]
        transaction.stored = True
        transaction.unfinished_appends += 1

    def append_ended(self, transaction: TrackedTransaction) -> None:
        transaction.unfinished_appends -= 1

    def recovered_frame(self, transaction: TrackedTransaction, position: Position, writer: str | None) -> None:
        transaction.first_frame = min(transaction.first_frame or position, position)
        transaction.highest = max(transaction.highest or position, position)
        if writer is not None:
            transaction.writers.add(writer)

    def close(self, transaction: TrackedTransaction, decision: Decision) -> None:
        transaction.decision = transaction.decision or decision

    def release(self, transaction: TrackedTransaction) -> Outcome | None:
        assert transaction.decision is not None
        outcome = dict(self._outcomes).get(transaction.txn_id)
        if outcome is None and (outcome := transaction.decision.outcome(transaction)) is not None:
            self._outcomes.append((transaction.txn_id, outcome))
        transaction.released = True
        return outcome

    def forget(self, transaction: TrackedTransaction) -> None:
        self._all.remove(transaction)

    @property
    def last_durable(self) -> Position:
        return self._end

    def durable_up_to(self, position: Position) -> None:
        self._end = position

    @property
    def max_read_position(self) -> Position:
        return min((pin for pin, _ in self._pins()), default=self._end)

    @property
    def pinned_by(self) -> TrackedTransaction | None:
        pins = sorted(self._pins(), key=lambda each: (each[0], each[1].txn_id))
        return pins[0][1] if pins else None

    def restore_outcome(self, txn_id: TxnId, outcome: Outcome) -> None:
        self._outcomes.append((txn_id, outcome))

    def prune(self, trimmed: Position) -> None:
        self._outcomes = [each for each in self._outcomes if Position.parse(each[1].highest) > trimmed]

    def hides(self, txn_id: TxnId, writer: str | None) -> bool:
        outcome = dict(self._outcomes).get(txn_id)
        if outcome is None or outcome.aborted:
            return outcome is not None
        return writer is not None and writer not in (outcome.counted_writers or ())

    def outcomes(self) -> Mapping[TxnId, Outcome]:
        return dict(self._outcomes)

    def drop(self, txn_ids: Iterable[TxnId]) -> None:
        gone = list(txn_ids)
        self._outcomes = [each for each in self._outcomes if each[0] not in gone]

    @property
    def aborted_count(self) -> int:
        return len([outcome for _, outcome in self._outcomes if outcome.aborted])

    def _pins(self) -> list[tuple[Position, TrackedTransaction]]:
        """Those that hold readers back."""
        pins = ((each.pin, each) for each in self._all if not each.released)
        return [(pin, each) for pin, each in pins if pin is not None and pin < self._end]


class PlainPendingAcks(PendingAckStore):
    def __init__(self) -> None:
        self._all: list[PendingTransaction] = []

    def __iter__(self) -> Iterator[PendingTransaction]:
        return iter(tuple(self._all))

    def __len__(self) -> int:
        return len(self._all)

    def get(self, txn_id: TxnId) -> PendingTransaction | None:
        return next((each for each in self._all if each.txn_id == txn_id), None)

    def holder(self, place: Place) -> TxnId | None:
        held = (known.txn_id for known, ack in self._acks() if ack.span.start <= place < ack.span.end)
        return next(held, None)

    def check(self, txn_id: TxnId | None, ack: Ack, cursor: Cursor) -> None:
        known = self.get(txn_id) if txn_id is not None else None
        own = list(known.acks) if known is not None else []
        if ack in own:
            return
        end = ack.span.end
        done = end <= cursor.mark_delete if ack.cumulative else cursor.overlaps(ack.span)
        if txn_id is not None and done:
            raise AckConflict(ack.span.start, "it is already acknowledged")
        for holder, held in self._acks():
            if holder.txn_id != txn_id:
                both = ack.cumulative and held.cumulative
                conflicts = both or (held.span.start < end and ack.span.start < held.span.end)
            else:
                conflicts = ack.cumulative and held.cumulative and end < held.span.end
            if conflicts:
                raise AckConflict(max(held.span.start, ack.span.start), "it is pending", holder.txn_id)

    def reserve(self, txn_id: TxnId, ack: Ack) -> None:
        if self.state(txn_id, ack) is None:
            self._set(txn_id, ack, AckState.SENT)

    def stored(self, txn_id: TxnId, ack: Ack) -> None:
        if self.get(txn_id) is not None:
            self._set(txn_id, ack, AckState.STORED)

    def restore(self, txn_id: TxnId, ack: Ack) -> None:
        self._set(txn_id, ack, AckState.STORED)

    def unknown(self, txn_id: TxnId, ack: Ack) -> None:
        if self.state(txn_id, ack) is AckState.SENT:
            self._set(txn_id, ack, AckState.UNKNOWN)

    def release(self, txn_id: TxnId, ack: Ack) -> None:
        known = self.get(txn_id)
        if known is None or known.acks.get(ack) is not AckState.SENT:
            return
        self._all.remove(known)
        for each, state in known.acks.items():
            if each != ack:
                self._set(txn_id, each, state)

    def state(self, txn_id: TxnId, ack: Ack) -> AckState | None:
        known = self.get(txn_id)
        return known.acks.get(ack) if known is not None else None

    def end(self, txn_id: TxnId) -> PendingTransaction | None:
        known = self.get(txn_id)
        if known is not None:
            self._all.remove(known)
        return known

    def _acks(self) -> Iterator[tuple[PendingTransaction, Ack]]:
        return ((known, ack) for known in self._all for ack in known.acks)

    def _set(self, txn_id: TxnId, ack: Ack, state: AckState) -> None:
        known = self.get(txn_id)
        if known is None:
            known = PendingTransaction(txn_id)
            self._all.append(known)
        known.acks[ack] = state
        if ack.cumulative:
            known.cumulative = max(known.cumulative or ack.span.end, ack.span.end)
        else:
            known.ranges.add(Span(*ack.span))


def open_plain_buffer(segment: str, empty_at: Position) -> TransactionBuffer:
    """As an entry point names it."""
    return PlainBuffer(empty_at)


def open_plain_pending_acks(segment: str, subscription: str) -> PendingAckStore:
    """As an entry point names it."""
    return PlainPendingAcks()


BUFFERS = {"memory": MemoryTransactionBuffer, "plain": PlainBuffer}
PENDING_ACKS = {"memory": MemoryPendingAcks, "plain": PlainPendingAcks}
