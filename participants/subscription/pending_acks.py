"""The pending-ack store of one subscription on one segment: what transactions have reserved until they are decided.

This module states what every store promises, and `tests/participants/subscription/test_pending_acks.py` tests all
stores for it. The built-in one is in `memory_pending_acks`; `participants.broker.providers` describes how a namespace
gets another one. Together with the cursor it is the state machine of PIP-31 (DESIGN §5.10), for every message:

    PENDING ──reserve──▶ PENDING_ACK ──the transaction commits──▶ DELETED
       ▲                      │
       └──released, aborted───┘

The owner of the segment decides conflicts here, in memory, before anything is sent: an acknowledgement is reserved,
then its operation is stored, and only a definite failure releases it. So the loser of a conflict leaves no trace in
the store, and what is in the store never conflicts.

A transaction has two independent sets: single ranges, and everything up to a place. Several of its writers may
acknowledge the same message. Each stores an operation of its own, because only the commit says which writers count.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.subscription.cursor import Cursor
from participants.subscription.places import START, Place, Span, entry_span, message_span
from participants.subscription.ranges import RangeSet


@dataclass(frozen=True, slots=True)
class Ack:
    """An acknowledgement of message `index` of an entry that has `size` messages, of all messages from it up to `last`,
    or of the whole entry if there is no index. A cumulative one includes everything before it."""

    position: Position
    index: int | None = None
    size: int | None = None
    cumulative: bool = False
    writer: str | None = None
    last: int | None = None

    @property
    def span(self) -> Span:
        if self.index is None:
            named = entry_span(self.position)
        else:
            assert self.size is not None
            named = message_span(self.position, self.index, self.size, self.last)
        return Span(START, named.end) if self.cumulative else named

    def each(self) -> Iterator[Ack]:
        """An acknowledgement of each message that it names, unless it is of a whole entry or cumulative."""
        if self.index is None or self.last is None:
            yield self
        else:
            for index in range(self.index, self.last + 1):
                yield replace(self, index=index, last=None)


class AckState(Enum):
    """The state of the operation of an acknowledgement. Only a stored one may be acknowledged again without sending
    it."""

    SENT = auto()
    STORED = auto()
    UNKNOWN = auto()


class AckConflict(Exception):
    """The acknowledgement conflicts. `holder` is the transaction that has reserved the message, or None if it is
    already acknowledged."""

    def __init__(self, place: Place, reason: str, holder: TxnId | None = None) -> None:
        super().__init__(reason)
        self.place = place
        self.reason = reason
        self.holder = holder


@dataclass(slots=True, eq=False)
class PendingTransaction:
    """What one undecided transaction has reserved on this segment."""

    txn_id: TxnId
    acks: dict[Ack, AckState] = field(default_factory=dict)
    ranges: RangeSet = field(default_factory=RangeSet)
    """The ranges of its single acknowledgements."""
    cumulative: Place | None = None
    """Everything before this place is reserved by its cumulative acknowledgements."""

    def spans(self) -> Iterable[Span]:
        """All reserved ranges, without overlaps."""
        if self.cumulative is None:
            return self.ranges
        return RangeSet([*self.ranges, Span(START, self.cumulative)])


class PendingAckStore(ABC):
    """The pending-ack store of one subscription on one segment. It is called from one event loop, and none of its
    methods may wait for anything. See the module docstring."""

    @abstractmethod
    def __iter__(self) -> Iterator[PendingTransaction]:
        """All transactions that have reserved something. The caller may change the store while iterating."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def get(self, txn_id: TxnId) -> PendingTransaction | None: ...

    @abstractmethod
    def holder(self, place: Place) -> TxnId | None:
        """The transaction that has reserved the message, or None if it is not PENDING_ACK."""

    @abstractmethod
    def check(self, txn_id: TxnId | None, ack: Ack, cursor: Cursor) -> None:
        """Raises `AckConflict` if `ack`, of this transaction or of none, conflicts. Changes nothing."""

    @abstractmethod
    def reserve(self, txn_id: TxnId, ack: Ack) -> None:
        """Reserve the acknowledgement, after `check`, until it is known whether its operation is stored."""

    @abstractmethod
    def stored(self, txn_id: TxnId, ack: Ack) -> None:
        """The operation of an acknowledgement is stored. The transaction may have ended meanwhile."""

    @abstractmethod
    def restore(self, txn_id: TxnId, ack: Ack) -> None:
        """Recovery found the operation of an acknowledgement."""

    @abstractmethod
    def unknown(self, txn_id: TxnId, ack: Ack) -> None:
        """The operation of an acknowledgement may be stored, so the reservation stays."""

    @abstractmethod
    def release(self, txn_id: TxnId, ack: Ack) -> None:
        """The operation is certainly not stored. The reservation stays if an earlier attempt may have stored one."""

    @abstractmethod
    def state(self, txn_id: TxnId, ack: Ack) -> AckState | None:
        """The state of the acknowledgement, or None if nothing of it is reserved."""

    @abstractmethod
    def end(self, txn_id: TxnId) -> PendingTransaction | None:
        """The transaction has ended. Everything that it had reserved is free, unless it has been deleted or another
        transaction has reserved it."""


OpenPendingAcks = Callable[[str, str], PendingAckStore]
"""Open the store of a subscription on a segment, given the segment's id and the subscription's name."""
