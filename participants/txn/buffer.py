"""The transaction buffer of one segment: which transactions are undecided here, how far readers may go, and what they
must skip.

This module states what every buffer promises, and `tests/participants/txn/test_buffer.py` tests all buffers for it. The
built-in one is in `memory_buffer`; `participants.broker.providers` describes how a namespace gets another one.

A transaction passes through the buffer like this (DESIGN §5.3-5):

    track ──▶ pin at `after` ──covered──▶ append begun ──▶ … ──decision──▶ close ──appends drained──▶ release
                 │                           │
                 └─ refused: unpin           └─ the pin moves up to just below the first frame

An append is covered by a stored intent (DESIGN §5.3), its own or an earlier one of its writer.
`max_read_position` is the lowest pin of all transactions that are not released, or the last durable position if there
are none. The pin exists before anything is asked of the store, so nothing becomes visible while an append is in flight.
`max_read_position` never moves backwards, because a new pin is never below the last durable position of its time.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from metastore.txn.records.operations import Outcome
from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position


@dataclass(slots=True, eq=False)
class TrackedTransaction:
    """A transaction that has an intent, a frame or an operation record on this segment.

    `decision` is set as soon as the header is seen to be final; from then on no append may begin. `maybe_stored` tells
    that the answer to an intent was lost: such a transaction is tracked until its decision, so that an operation record
    that arrives late is still deleted. `announced` belongs to the publisher: for each writer the intent of its first
    entry, which is done with True once the record is stored, and with False if it is not known to be. `announcements`
    counts those that were stored, or were to be, before there was an entry.
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
    announced: dict[str | None, asyncio.Future[bool]] = field(default_factory=dict)
    announcements: int = 0

    @property
    def intents_sent(self) -> tuple[int, int]:
        """A value that changes with each intent that is sent."""
        return self.last_intent, self.announcements

    @property
    def is_sending_intents(self) -> bool:
        """Whether the answer to an intent has not come yet, or its entry has no position yet."""
        return bool(self.intents) or not all(each.done() for each in self.announced.values())

    @property
    def pin(self) -> Position | None:
        """The position up to which readers may read. Once a frame has a position, all later frames of this transaction
        are after it."""
        if self.first_frame is not None:
            return self.first_frame.before
        return min(self.intents.values(), default=None)


@dataclass(frozen=True, slots=True)
class Decision:
    """A final header. `header` is None if a linearizable read found none: then the decision was collected long ago, and
    nothing is left to hide except what the outcome records say."""

    header: Header | None

    def outcome(self, transaction: TrackedTransaction) -> Outcome | None:
        """What must be remembered about the frames of `transaction` on this segment, or None if it is simply
        committed."""
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
    """The transaction buffer of one segment. It is called from one event loop, and none of its methods may wait for
    anything. See the module docstring."""

    # -- transactions ------------------------------------------------------------------------------------------

    @abstractmethod
    def get(self, txn_id: TxnId) -> TrackedTransaction | None: ...

    @abstractmethod
    def track(self, txn_id: TxnId, now_ms: int) -> TrackedTransaction:
        """Return the transaction, tracking it from `now_ms` on if it was not tracked."""

    @abstractmethod
    def tracked(self) -> Iterator[TrackedTransaction]:
        """All tracked transactions. The caller may change the buffer while iterating."""

    @abstractmethod
    def undecided(self) -> list[TrackedTransaction]:
        """The tracked transactions that have no decision."""

    @abstractmethod
    def pin(self, transaction: TrackedTransaction, after: Position) -> int:
        """Hold readers at `after`. Call this before an intent is sent. Returns a token for the intent.

        `after` must stay a lower bound of the frame's position, so it is a durable position: one that was only assigned
        is given out again if there was no space for its append.
        """

    @abstractmethod
    def unpin(self, transaction: TrackedTransaction, intent: int, *, maybe_stored: bool) -> None:
        """Drop a pin: the intent will have no frame, because it was refused, its answer was lost, or the decision came
        first."""

    @abstractmethod
    def append_begun(
        self, transaction: TrackedTransaction, intent: int, position: Position, writer: str | None
    ) -> None:
        """A frame of the transaction was given its position. This never happens after the decision (DESIGN §5.5)."""

    @abstractmethod
    def append_ended(self, transaction: TrackedTransaction) -> None:
        """The append is durable, or certainly did not happen."""

    @abstractmethod
    def recovered_frame(self, transaction: TrackedTransaction, position: Position, writer: str | None) -> None:
        """Recovery found a frame of the transaction in a sealed ledger."""

    @abstractmethod
    def close(self, transaction: TrackedTransaction, decision: Decision) -> None:
        """The decision is known: from now on no append of the transaction may begin."""

    @abstractmethod
    def release(self, transaction: TrackedTransaction) -> Outcome | None:
        """Remember what readers must skip, and only *then* let `max_read_position` advance. Call this once the appends
        of the transaction are drained.

        An outcome that recovery has found is kept: it was determined from every frame, whereas some of the operation
        records that lead to those frames may be deleted by now.
        """

    @abstractmethod
    def forget(self, transaction: TrackedTransaction) -> None:
        """Stop tracking the transaction: its outcome is durable and its operation records are deleted."""

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
        """The position up to which readers may read. It never moves backwards."""

    @property
    @abstractmethod
    def pinned_by(self) -> TrackedTransaction | None:
        """The transaction that holds readers back, or None."""

    @abstractmethod
    def restore_outcome(self, txn_id: TxnId, outcome: Outcome) -> None:
        """Recovery found the record of this outcome."""

    @abstractmethod
    def prune(self, trimmed: Position) -> None:
        """Forget the outcomes that only hide entries up to `trimmed`, which can no longer be read."""

    @abstractmethod
    def hides(self, txn_id: TxnId, writer: str | None) -> bool:
        """Whether a frame at or below `max_read_position` must be skipped. Unknown means committed (DESIGN §5.6)."""

    def outcomes(self) -> Mapping[TxnId, Outcome]:
        """All known outcomes. Those of a buffer that does not tell them stay until their entries are trimmed."""
        return {}

    def drop(self, txn_ids: Iterable[TxnId]) -> None:
        """Forget these outcomes: their records are deleted, because indexes of ledgers say what is hidden. A buffer
        that tells its outcomes must implement this."""
        raise NotImplementedError

    @property
    @abstractmethod
    def aborted_count(self) -> int:
        """The number of known outcomes that hide a whole transaction."""


OpenBuffer = Callable[[str, Position], TransactionBuffer]
"""Open the buffer of a segment, given its id and the position up to which it is readable while nothing else is
known."""
