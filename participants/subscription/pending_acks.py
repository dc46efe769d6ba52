"""The pending-ack store of one subscription on one segment: who has reserved what until a transaction is decided.

This is what each one promises, as `tests/participants/subscription/test_pending_acks.py` asks all of them;
`memory_pending_acks` has the one that is built in, and `participants.broker.providers` says how a namespace gets
another one.
Together with the cursor it is the state machine of PIP-31 (DESIGN §5.10), for every message:

    PENDING ──reserve──▶ PENDING_ACK ──the transaction commits──▶ DELETED
       ▲                      │
       └──released, aborted───┘

The owner of the segment decides conflicts here, in memory, before anything is sent: an acknowledgement is reserved,
then its operation is stored, and only a definite failure releases it. So the loser of a conflict leaves no trace in
the store, and what is in the store never conflicts.

One transaction holds two sets that live and end independently: single ranges, and everything up to a place. Several
of its writers may acknowledge the same message; each one leaves an operation of its own, because which of them count
is only known at the commit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.subscription.cursor import Cursor
from participants.subscription.places import START, Place, Span, entry_span, message_span
from participants.subscription.ranges import RangeSet


@dataclass(frozen=True, slots=True)
class Ack:
    """One acknowledgement: of message `index` of an entry that holds `size`, or of the whole entry when there is no
    index; a cumulative one of everything before it too."""

    position: Position
    index: int | None = None
    size: int | None = None
    cumulative: bool = False
    writer: str | None = None

    @property
    def span(self) -> Span:
        if self.index is None:
            named = entry_span(self.position)
        else:
            assert self.size is not None
            named = message_span(self.position, self.index, self.size)
        return Span(START, named.end) if self.cumulative else named


class AckState(Enum):
    """Of the operation behind an acknowledgement. Only a stored one may be answered without sending it again."""

    SENT = auto()
    STORED = auto()
    UNKNOWN = auto()


class AckConflict(Exception):
    """The acknowledgement loses. `holder` is the transaction that has it, None when it is acknowledged already."""

    def __init__(self, place: Place, reason: str, holder: TxnId | None = None) -> None:
        super().__init__(reason)
        self.place = place
        self.reason = reason
        self.holder = holder


@dataclass(slots=True, eq=False)
class PendingTransaction:
    """What one undecided transaction has reserved here."""

    txn_id: TxnId
    acks: dict[Ack, AckState] = field(default_factory=dict)
    ranges: RangeSet = field(default_factory=RangeSet)
    """Of its single acknowledgements."""
    cumulative: Place | None = None
    """Everything before it is reserved by its cumulative ones."""

    def spans(self) -> Iterable[Span]:
        """All of it, nothing twice."""
        if self.cumulative is None:
            return self.ranges
        return RangeSet([*self.ranges, Span(START, self.cumulative)])


class PendingAckStore(ABC):
    """Of one subscription on one segment. Calls come from one event loop; none may wait for anything. See the module
    docstring."""

    @abstractmethod
    def __iter__(self) -> Iterator[PendingTransaction]:
        """All transactions that hold something; the caller may change the store meanwhile."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def get(self, txn_id: TxnId) -> PendingTransaction | None: ...

    @abstractmethod
    def holder(self, place: Place) -> TxnId | None:
        """The transaction that has reserved the message; None when it is not PENDING_ACK."""

    @abstractmethod
    def check(self, txn_id: TxnId | None, ack: Ack, cursor: Cursor) -> None:
        """Raises `AckConflict` when `ack`, of this transaction or outside of any, loses. Changes nothing."""

    @abstractmethod
    def reserve(self, txn_id: TxnId, ack: Ack) -> None:
        """After `check`: until its operation is known to be stored, or not."""

    @abstractmethod
    def stored(self, txn_id: TxnId, ack: Ack) -> None:
        """Its operation is in the store. The transaction may have ended meanwhile."""

    @abstractmethod
    def restore(self, txn_id: TxnId, ack: Ack) -> None:
        """Recovery found its operation."""

    @abstractmethod
    def unknown(self, txn_id: TxnId, ack: Ack) -> None:
        """Its operation may be in the store: the reservation stays."""

    @abstractmethod
    def release(self, txn_id: TxnId, ack: Ack) -> None:
        """Its operation is certainly not in the store. It stays if an earlier attempt may have left one."""

    @abstractmethod
    def state(self, txn_id: TxnId, ack: Ack) -> AckState | None:
        """None when nothing of it is reserved."""

    @abstractmethod
    def end(self, txn_id: TxnId) -> PendingTransaction | None:
        """The transaction is over: whatever it held is free, unless it has been deleted or another one holds it."""


OpenPendingAcks = Callable[[str, str], PendingAckStore]
"""Of a segment, by its id, and a subscription, by its name."""
