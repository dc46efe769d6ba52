"""Exactly-once appends: a retried sequence finds the first one's position, or joins it while it is in flight.

The scope of a sequence is (transaction, writer, producer) inside a transaction and (producer) outside. What is
remembered comes only from durable frames (DESIGN §5.13), never from intents: recovery builds the same table again.

Inside a transaction every sequence is remembered until the transaction is decided. Outside there is a window: the last
`REMEMBERED_SEQUENCES` of a producer, and of all producers together `REMEMBERED_IN_ALL`; those of the producer that
has been silent for longest are forgotten first. A retry must arrive within that window.

A child inherits what its parents remember. Such a sequence counts for the part of the hash range in which the parent
took it: the child of a split lies in its parent's range, so all counts; in the child of a merge a sequence that only
one parent has seen says nothing about messages of the other one's range.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from metastore.txn.ids import TxnId
from participants.ledger.position import Position

REMEMBERED_SEQUENCES = 1_000
REMEMBERED_IN_ALL = 100_000

HashRange = tuple[int, int]
"""The first and the last hash."""


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose sequences these are. Frames of one scope are appended in the order in which they arrived."""

    txn_id: TxnId | None
    writer: str | None
    producer: str | None


@dataclass(frozen=True, slots=True)
class Remembered:
    """Where a sequence was appended, and how many messages it held: a retry must hold as many.

    `inherited`: the position is one in a parent, which took the sequence for these parts of the hash range. The retry
    may hold fewer messages then: those of the parent's entry that fall into the child.
    """

    position: Position
    count: int
    inherited: tuple[HashRange, ...] | None = None

    def covers(self, hashes: HashRange) -> bool:
        return self.inherited is None or any(low <= hashes[0] and hashes[1] <= high for low, high in self.inherited)

    def within(self, hashes: HashRange, own: HashRange) -> Remembered | None:
        """What a child with the range `hashes` inherits of it from a segment with the range `own`."""
        parts = [(max(low, hashes[0]), min(high, hashes[1])) for low, high in self.inherited or (own,)]
        found = tuple(part for part in parts if part[0] <= part[1])
        return replace(self, inherited=found) if found else None

    def joined(self, other: Remembered) -> Remembered:
        """The same sequence, inherited from two parents."""
        return replace(self, inherited=_joined((*(self.inherited or ()), *(other.inherited or ()))))


def _joined(ranges: tuple[HashRange, ...]) -> tuple[HashRange, ...]:
    joined: list[HashRange] = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    return tuple(joined)


class DedupTable:
    def __init__(self) -> None:
        self._producers: OrderedDict[Scope, dict[int, Remembered]] = OrderedDict()
        self._remembered = 0
        self._transactions: dict[TxnId, dict[Scope, dict[int, Remembered]]] = {}
        self._in_flight: dict[tuple[Scope, int], asyncio.Task[Position]] = {}

    def find(self, scope: Scope, sequence: int, hashes: HashRange) -> Remembered | None:
        """Of an entry whose keys have hashes within `hashes`."""
        if scope.txn_id is not None:
            found = self._transactions.get(scope.txn_id, {}).get(scope, {}).get(sequence)
        else:
            found = self._producers.get(scope, {}).get(sequence)
        return found if found is not None and found.covers(hashes) else None

    def in_flight(self, scope: Scope, sequence: int) -> asyncio.Task[Position] | None:
        return self._in_flight.get((scope, sequence))

    def begin(self, scope: Scope, sequence: int, publish: asyncio.Task[Position]) -> None:
        key = (scope, sequence)
        self._in_flight[key] = publish
        publish.add_done_callback(lambda _: self._in_flight.pop(key, None))

    def durable(self, scope: Scope, sequence: int, position: Position, count: int) -> None:
        """A frame of `count` messages with this sequence is durable at `position`."""
        self.restore(scope, sequence, Remembered(position, count))

    def restore(self, scope: Scope, sequence: int, remembered: Remembered) -> None:
        """Call it in the order of the appends: the oldest are forgotten first."""
        if scope.txn_id is not None:
            self._transactions.setdefault(scope.txn_id, {}).setdefault(scope, {})[sequence] = remembered
            return
        sequences = self._producers.setdefault(scope, {})
        self._producers.move_to_end(scope)
        self._remembered += sequence not in sequences
        sequences[sequence] = remembered
        if len(sequences) > REMEMBERED_SEQUENCES:
            del sequences[next(iter(sequences))]
            self._remembered -= 1
        while self._remembered > REMEMBERED_IN_ALL:
            self._remembered -= len(self._producers.popitem(last=False)[1])

    def inherit(self, scope: Scope, sequence: int, remembered: Remembered) -> None:
        """As `restore`, from a parent: what another parent has told stands beside it."""
        known = self._scope(scope).get(sequence)
        self.restore(scope, sequence, remembered.joined(known) if known is not None else remembered)

    def forget_transaction(self, txn_id: TxnId) -> None:
        """The transaction is decided: no publish of it can succeed any more."""
        self._transactions.pop(txn_id, None)

    @property
    def transactions(self) -> list[TxnId]:
        """Those of which sequences are remembered."""
        return list(self._transactions)

    def __iter__(self) -> Iterator[tuple[Scope, int, Remembered]]:
        """Everything that is remembered, in an order in which `restore` makes the same table of it."""
        scopes = list(self._producers.items())
        for transaction in self._transactions.values():
            scopes += transaction.items()
        for scope, sequences in scopes:
            for sequence, remembered in sequences.items():
                yield scope, sequence, remembered

    def _scope(self, scope: Scope) -> dict[int, Remembered]:
        if scope.txn_id is not None:
            return self._transactions.get(scope.txn_id, {}).get(scope, {})
        return self._producers.get(scope, {})
