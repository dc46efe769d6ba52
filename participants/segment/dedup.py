"""Exactly-once appends: a retried sequence finds the first one's position, or joins it while it is in flight.

The scope of a sequence is (transaction, writer, producer) inside a transaction and (producer) outside. What is
remembered comes only from durable frames (DESIGN §5.13), never from intents: recovery builds the same table again.

Inside a transaction every sequence is remembered until the transaction is decided. Outside, the last
`REMEMBERED_SEQUENCES` of each of the last `REMEMBERED_PRODUCERS` producers are; a retry must arrive within that
window.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from metastore.txn.ids import TxnId
from participants.ledger.position import Position

REMEMBERED_SEQUENCES = 1_000
REMEMBERED_PRODUCERS = 10_000


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose sequences these are. Frames of one scope are appended in the order in which they arrived."""

    txn_id: TxnId | None
    writer: str | None
    producer: str | None


@dataclass(frozen=True, slots=True)
class Remembered:
    """Where a sequence was appended, and how many messages it held: a retry must hold as many."""

    position: Position
    count: int


class DedupTable:
    def __init__(self) -> None:
        self._producers: OrderedDict[Scope, dict[int, Remembered]] = OrderedDict()
        self._transactions: dict[TxnId, dict[Scope, dict[int, Remembered]]] = {}
        self._in_flight: dict[tuple[Scope, int], asyncio.Task[Position]] = {}

    def find(self, scope: Scope, sequence: int) -> Remembered | None:
        if scope.txn_id is not None:
            found = self._transactions.get(scope.txn_id, {}).get(scope)
        else:
            found = self._producers.get(scope)
        return found.get(sequence) if found else None

    def in_flight(self, scope: Scope, sequence: int) -> asyncio.Task[Position] | None:
        return self._in_flight.get((scope, sequence))

    def begin(self, scope: Scope, sequence: int, publish: asyncio.Task[Position]) -> None:
        key = (scope, sequence)
        self._in_flight[key] = publish
        publish.add_done_callback(lambda _: self._in_flight.pop(key, None))

    def durable(self, scope: Scope, sequence: int, position: Position, count: int) -> None:
        """A frame of `count` messages with this sequence is durable at `position`."""
        remembered = Remembered(position, count)
        if scope.txn_id is not None:
            self._transactions.setdefault(scope.txn_id, {}).setdefault(scope, {})[sequence] = remembered
            return
        sequences = self._producers.setdefault(scope, {})
        sequences[sequence] = remembered
        self._producers.move_to_end(scope)
        if len(sequences) > REMEMBERED_SEQUENCES:
            del sequences[next(iter(sequences))]
        if len(self._producers) > REMEMBERED_PRODUCERS:
            self._producers.popitem(last=False)

    def forget_transaction(self, txn_id: TxnId) -> None:
        """The transaction is decided: no publish of it can succeed any more."""
        self._transactions.pop(txn_id, None)
