"""The transaction buffer of one segment: who is undecided here, how far readers may go, and what they must skip.

This is what each one promises, as `tests/participants/txn/test_buffer.py` asks all of them; `memory_buffer` has the one
that is built in, and `participants.broker.providers` says how a namespace gets another one.

A transaction passes through it like this (DESIGN §5.3-5):

    track ──▶ pin at `after` ──intent stored──▶ append begun ──▶ … ──decision──▶ close ──appends drained──▶ release
                 │                                 │
                 └─ intent refused: unpin          └─ the pin moves up to just below the first frame

`max_read_position` is the lowest pin of any transaction that is not released, else the last durable position. The
pin exists before the intent is sent, so nothing leaks while an append is in flight; it never moves backwards,
because a new pin is never below the last durable position of that moment.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from metastore.txn.records.operations import Outcome
from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position


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


class TransactionBuffer(ABC):
    """Of one segment. Calls come from one event loop; none may wait for anything. See the module docstring."""

    # -- transactions ------------------------------------------------------------------------------------------

    @abstractmethod
    def get(self, txn_id: TxnId) -> TrackedTransaction | None: ...

    @abstractmethod
    def track(self, txn_id: TxnId, now_ms: int) -> TrackedTransaction:
        """The one that is known, or a new one."""

    @abstractmethod
    def tracked(self) -> Iterator[TrackedTransaction]:
        """All of them; the caller may change the buffer meanwhile."""

    @abstractmethod
    def undecided(self) -> list[TrackedTransaction]:
        """Those without a decision."""

    @abstractmethod
    def pin(self, transaction: TrackedTransaction, after: Position) -> int:
        """Before an intent is sent: hold readers at `after`. Answers a token.

        `after` must stay a lower bound of where the frame will land, so it is a durable position: one that was only
        assigned is given out again when there was no space for its append.
        """

    @abstractmethod
    def unpin(self, transaction: TrackedTransaction, intent: int, *, maybe_stored: bool) -> None:
        """The intent will have no frame: it was refused, its answer was lost, or the decision came first."""

    @abstractmethod
    def append_begun(
        self, transaction: TrackedTransaction, intent: int, position: Position, writer: str | None
    ) -> None:
        """A frame of the transaction has been given its position. Never after the decision (DESIGN §5.5)."""

    @abstractmethod
    def append_ended(self, transaction: TrackedTransaction) -> None:
        """That append is durable, or certainly did not happen."""

    @abstractmethod
    def recovered_frame(self, transaction: TrackedTransaction, position: Position, writer: str | None) -> None:
        """Recovery found a frame of the transaction in a sealed ledger."""

    @abstractmethod
    def close(self, transaction: TrackedTransaction, decision: Decision) -> None:
        """The decision is known: from now on no append of the transaction may begin."""

    @abstractmethod
    def release(self, transaction: TrackedTransaction) -> Outcome | None:
        """Once its appends are drained: remember what readers must skip, *then* let the horizon go.

        An outcome that recovery found stands: it was made from every frame, while some of the operations that lead
        to those frames may be gone by now.
        """

    @abstractmethod
    def forget(self, transaction: TrackedTransaction) -> None:
        """Everything about it is durable and its operation records are gone."""

    # -- reading -----------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def last_durable(self) -> Position: ...

    @abstractmethod
    def durable_up_to(self, position: Position) -> None:
        """The durable end has moved forward."""

    @property
    @abstractmethod
    def max_read_position(self) -> Position:
        """The horizon of readers. It never moves back."""

    @property
    @abstractmethod
    def pinned_by(self) -> TrackedTransaction | None:
        """The transaction that holds readers back, if any does."""

    @abstractmethod
    def restore_outcome(self, txn_id: TxnId, outcome: Outcome) -> None:
        """Recovery found the record of it."""

    @abstractmethod
    def prune(self, trimmed: Position) -> None:
        """Forget what to hide of entries up to `trimmed`: they are not read any more."""

    @abstractmethod
    def hides(self, txn_id: TxnId, writer: str | None) -> bool:
        """Whether a frame at or below `max_read_position` must be skipped. Unknown means committed (DESIGN §5.6)."""

    @property
    @abstractmethod
    def aborted_count(self) -> int:
        """How many outcomes are known that hide a whole transaction."""


OpenBuffer = Callable[[str, Position], TransactionBuffer]
"""Of a segment, by its id; readable up to that position before anything is known."""
