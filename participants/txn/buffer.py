"""The transaction buffer of one segment: who is undecided here, how far readers may go, and what they must skip.

Pure: no I/O, no clock, no tasks. The segment feeds it from one event loop, so it needs no locks.

A transaction passes through it like this (DESIGN §5.3-5):

    track ──▶ pin at `after` ──intent stored──▶ append begun ──▶ … ──decision──▶ close ──appends drained──▶ release
                 │                                 │
                 └─ intent refused: unpin          └─ the pin moves up to just below the first frame

`max_read_position` is the lowest pin of any transaction that is not released, else the last durable position. The
pin exists before the intent is sent, so nothing leaks while an append is in flight; it never moves backwards,
because a new pin is never below the last durable position of that moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sortedcontainers import SortedSet

from metastore.txn.ids import TxnId
from metastore.txn.records import Header, Outcome
from metastore.txn.states import TxnState
from participants.ledger.position import Position


@dataclass(slots=True, eq=False)
class TrackedTransaction:
    """One transaction with an intent, a frame or an operation record on this segment.

    `decision` is set at once when the header is seen final (None inside: header absent, see `Decision`); from then
    on no append may begin. `maybe_stored` counts intents whose answer was lost: such a transaction stays tracked
    until its decision, so that an operation record that landed late is still cleaned up.
    """

    txn_id: TxnId
    since_ms: int
    intents: dict[int, Position] = field(default_factory=dict)
    last_intent: int = 0
    first_frame: Position | None = None
    highest: Position | None = None
    writers: set[str] = field(default_factory=set)
    unfinished_appends: int = 0
    stored: bool = False
    maybe_stored: bool = False
    decision: Decision | None = None
    released: bool = False

    @property
    def pin(self) -> Position | None:
        """Readers may see up to here. Once a frame has a position, all others of this transaction land behind it."""
        if self.first_frame is not None:
            return self.first_frame.before
        return min(self.intents.values(), default=None)


@dataclass(frozen=True, slots=True)
class Decision:
    """What the header said when it was final. `header` None: absent in a linearizable read, which means that the
    decision was collected long ago and nothing is left to hide beyond the outcome records."""

    header: Header | None

    def outcome(self, transaction: TrackedTransaction) -> Outcome | None:
        """What must be remembered about the frames of `transaction` here; None when it is simply committed."""
        if self.header is None or transaction.highest is None:
            return None
        highest = str(transaction.highest)
        if self.header.state is TxnState.ABORTED:
            return Outcome(highest=highest, aborted=True)
        counted = self.header.writers
        if counted is not None and not transaction.writers <= set(counted):
            return Outcome(highest=highest, counted_writers=tuple(sorted(transaction.writers & set(counted))))
        return None


class TransactionBuffer:
    """See the module docstring. `empty_at` is the end of a fresh or recovered segment before any durable entry."""

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
        """Before an intent is sent: hold readers at `after`. Answers a token.

        `after` must stay a lower bound of where the frame will land, so it is a durable position: one that was only
        assigned is given out again when there was no space for its append.
        """
        assert transaction.decision is None
        assert after >= self.max_read_position, "a pin would move the horizon backwards"
        self._next_intent += 1
        transaction.last_intent = self._next_intent
        with self._repinned(transaction):
            transaction.intents[self._next_intent] = after
        return self._next_intent

    def unpin(self, transaction: TrackedTransaction, intent: int, *, maybe_stored: bool) -> None:
        """The intent will have no frame: it was refused, its answer was lost, or the decision came first."""
        transaction.maybe_stored |= maybe_stored
        with self._repinned(transaction):
            del transaction.intents[intent]
        if self._forgettable(transaction):
            self._forget(transaction)

    def append_begun(
        self, transaction: TrackedTransaction, intent: int, position: Position, writer: str | None
    ) -> None:
        """A frame of the transaction has been given its position. Never after the decision (DESIGN §5.5)."""
        assert transaction.decision is None
        with self._repinned(transaction):
            del transaction.intents[intent]
            self._add_frame(transaction, position, writer)
        transaction.stored = True
        transaction.unfinished_appends += 1

    def append_ended(self, transaction: TrackedTransaction) -> None:
        """That append is durable, or certainly did not happen."""
        assert transaction.unfinished_appends > 0
        transaction.unfinished_appends -= 1

    def recovered_frame(self, transaction: TrackedTransaction, position: Position, writer: str | None) -> None:
        """Recovery found a frame of the transaction in a sealed ledger."""
        with self._repinned(transaction):
            self._add_frame(transaction, position, writer)

    def close(self, transaction: TrackedTransaction, decision: Decision) -> None:
        """The decision is known: from now on no append of the transaction may begin."""
        if transaction.decision is None:
            transaction.decision = decision

    def release(self, transaction: TrackedTransaction) -> Outcome | None:
        """Once its appends are drained: remember what readers must skip, *then* let the horizon go.

        An outcome that recovery found stands: it was made from every frame, while some of the operations that lead
        to those frames may be gone by now.
        """
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
        """Everything about it is durable and its operation records are gone."""
        assert transaction.released
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
        """The transaction that holds readers back, if any does."""
        if self._pins and self._pins[0][0] < self._last_durable:
            return self._tracked[self._pins[0][1]]
        return None

    def restore_outcome(self, txn_id: TxnId, outcome: Outcome) -> None:
        self._outcomes[txn_id] = outcome

    def prune(self, trimmed: Position) -> None:
        """Forget what to hide of entries up to `trimmed`: they are not read any more."""
        for txn_id, outcome in list(self._outcomes.items()):
            if Position.parse(outcome.highest) <= trimmed:
                del self._outcomes[txn_id]

    def hides(self, txn_id: TxnId, writer: str | None) -> bool:
        """Whether a frame at or below `max_read_position` must be skipped. Unknown means committed (DESIGN §5.6)."""
        outcome = self._outcomes.get(txn_id)
        if outcome is None:
            return False
        if outcome.aborted:
            return True
        return writer is not None and writer not in (outcome.counted_writers or ())

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
    """Moves a transaction's entry among the sorted pins from its old to its new place."""

    __slots__ = ("_before", "_pins", "_transaction")

    def __init__(self, pins: SortedSet[tuple[Position, TxnId]], transaction: TrackedTransaction) -> None:
        self._pins = pins
        self._transaction = transaction

    def __enter__(self) -> None:
        self._before = self._transaction.pin

    def __exit__(self, *_: object) -> None:
        after = self._transaction.pin
        if self._transaction.released or after == self._before:
            return
        if self._before is not None:
            self._pins.discard((self._before, self._transaction.txn_id))
        if after is not None:
            self._pins.add((after, self._transaction.txn_id))
