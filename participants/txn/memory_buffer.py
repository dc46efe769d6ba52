"""The built-in transaction buffer. Its pins are sorted, so the lowest one is found at once.

It is pure: it does no I/O and has no clock and no tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sortedcontainers import SortedSet

from metastore.txn.records.operations import Outcome
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.txn.buffer import Decision, TrackedTransaction, TransactionBuffer


class MemoryTransactionBuffer(TransactionBuffer):
    """A buffer. `empty_at` is the end of a new or recovered segment before any entry is durable."""

    def __init__(self, empty_at: Position) -> None:
        self._tracked: dict[TxnId, TrackedTransaction] = {}
        self._pins: SortedSet[tuple[Position, TxnId]] = SortedSet()
        self._outcomes: dict[TxnId, Outcome] = {}
        self._last_durable = empty_at
        self._next_intent = 0

    # -- transactions ------------------------------------------------------------------------------------------

    def get(self, txn_id: TxnId) -> TrackedTransaction | None:
        return self._tracked.get(txn_id)

    def track(self, txn_id: TxnId, now_ms: int) -> TrackedTransaction:
        known = self._tracked.get(txn_id)
        if known is None:
            known = self._tracked[txn_id] = TrackedTransaction(txn_id, now_ms)
        return known

    def tracked(self) -> Iterator[TrackedTransaction]:
        return iter(list(self._tracked.values()))

    def undecided(self) -> list[TrackedTransaction]:
        return [transaction for transaction in self._tracked.values() if transaction.decision is None]

    def pin(self, transaction: TrackedTransaction, after: Position) -> int:
        assert transaction.decision is None
        assert after >= self.max_read_position, "a pin would move the horizon backwards"
        self._next_intent += 1
        transaction.last_intent = self._next_intent
        with self._repinned(transaction):
            transaction.intents[self._next_intent] = after
        return self._next_intent

    def unpin(self, transaction: TrackedTransaction, intent: int, *, maybe_stored: bool) -> None:
        transaction.maybe_stored |= maybe_stored
        with self._repinned(transaction):
            del transaction.intents[intent]
        if self._forgettable(transaction):
            self._forget(transaction)

    def append_begun(
        self, transaction: TrackedTransaction, intent: int, position: Position, writer: str | None
    ) -> None:
        assert transaction.decision is None
        with self._repinned(transaction):
            del transaction.intents[intent]
            self._add_frame(transaction, position, writer)
        transaction.stored = True
        transaction.unfinished_appends += 1

    def append_ended(self, transaction: TrackedTransaction) -> None:
        assert transaction.unfinished_appends > 0
        transaction.unfinished_appends -= 1

    def recovered_frame(self, transaction: TrackedTransaction, position: Position, writer: str | None) -> None:
        with self._repinned(transaction):
            self._add_frame(transaction, position, writer)

    def close(self, transaction: TrackedTransaction, decision: Decision) -> None:
        if transaction.decision is None:
            transaction.decision = decision

    def release(self, transaction: TrackedTransaction) -> Outcome | None:
        assert transaction.decision is not None
        assert transaction.unfinished_appends == 0
        outcome = self._outcomes.get(transaction.txn_id) or transaction.decision.outcome(transaction)
        if outcome is not None:
            self._outcomes[transaction.txn_id] = outcome
        if not transaction.released:
            transaction.released = True
            if (pin := transaction.pin) is not None:
                self._pins.discard((pin, transaction.txn_id))
        return outcome

    def forget(self, transaction: TrackedTransaction) -> None:
        assert transaction.released
        assert self._tracked.get(transaction.txn_id) is transaction, "it would leave the pin of another object"
        self._forget(transaction)

    # -- reading -----------------------------------------------------------------------------------------------

    @property
    def last_durable(self) -> Position:
        return self._last_durable

    def durable_up_to(self, position: Position) -> None:
        assert position >= self._last_durable, "the durable end moves forward"
        self._last_durable = position

    @property
    def max_read_position(self) -> Position:
        return min(self._pins[0][0], self._last_durable) if self._pins else self._last_durable

    @property
    def pinned_by(self) -> TrackedTransaction | None:
        if self._pins and self._pins[0][0] < self._last_durable:
            return self._tracked[self._pins[0][1]]
        return None

    def restore_outcome(self, txn_id: TxnId, outcome: Outcome) -> None:
        self._outcomes[txn_id] = outcome

    def prune(self, trimmed: Position) -> None:
        for txn_id, outcome in list(self._outcomes.items()):
            if Position.parse(outcome.highest) <= trimmed:
                del self._outcomes[txn_id]

    def hides(self, txn_id: TxnId, writer: str | None) -> bool:
        outcome = self._outcomes.get(txn_id)
        if outcome is None:
            return False
        if outcome.aborted:
            return True
        return writer is not None and writer not in (outcome.counted_writers or ())

    def outcomes(self) -> Mapping[TxnId, Outcome]:
        return self._outcomes

    def drop(self, txn_ids: Iterable[TxnId]) -> None:
        for txn_id in txn_ids:
            self._outcomes.pop(txn_id, None)

    @property
    def aborted_count(self) -> int:
        return sum(1 for outcome in self._outcomes.values() if outcome.aborted)

    # -- inside ------------------------------------------------------------------------------------------------

    def _add_frame(self, transaction: TrackedTransaction, position: Position, writer: str | None) -> None:
        if transaction.first_frame is None or position < transaction.first_frame:
            transaction.first_frame = position
        if transaction.highest is None or position > transaction.highest:
            transaction.highest = position
        if writer is not None:
            transaction.writers.add(writer)

    def _forgettable(self, transaction: TrackedTransaction) -> bool:
        return not (
            transaction.intents
            or transaction.first_frame
            or transaction.stored
            or transaction.maybe_stored
            or transaction.decision
        )

    def _forget(self, transaction: TrackedTransaction) -> None:
        self._tracked.pop(transaction.txn_id, None)

    def _repinned(self, transaction: TrackedTransaction) -> _Repin:
        return _Repin(self._pins, transaction)


class _Repin:
    """Move a transaction's entry among the sorted pins from its old to its new place. It has one place for as long as
    it has the same first frame."""

    __slots__ = ("_before", "_first_frame", "_pins", "_transaction")

    def __init__(self, pins: SortedSet[tuple[Position, TxnId]], transaction: TrackedTransaction) -> None:
        self._pins = pins
        self._transaction = transaction

    def __enter__(self) -> None:
        self._first_frame = self._transaction.first_frame
        self._before = self._transaction.pin if self._first_frame is None else self._first_frame.before

    def __exit__(self, *_: object) -> None:
        if self._first_frame is not None and self._transaction.first_frame is self._first_frame:
            return
        after = self._transaction.pin
        if self._transaction.released or after == self._before:
            return
        if self._before is not None:
            self._pins.discard((self._before, self._transaction.txn_id))
        if after is not None:
            self._pins.add((after, self._transaction.txn_id))


def open_memory_buffer(segment: str, empty_at: Position) -> TransactionBuffer:
    """See `OpenBuffer`."""
    return MemoryTransactionBuffer(empty_at)
