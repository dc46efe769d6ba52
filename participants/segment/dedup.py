"""Exactly-once appends: a retried sequence finds the position of its entry, or joins the append while it is in flight.

The scope of a sequence is (transaction, writer, producer) inside a transaction and (producer) outside. The table
contains only what durable frames contain (DESIGN §5.13), and nothing from intents, so that recovery can build the same
table again.

Inside a transaction every sequence is remembered until the transaction is decided. Outside, there is a window: the last
`REMEMBERED_SEQUENCES` of each producer, and at most `REMEMBERED_IN_ALL` of all producers together, of which those of
the producer that was silent for longest are forgotten first. A retry must arrive within that window.

A child inherits the sequences of its parents: each one for the part of the hash range in which a parent appended it,
and with the segment that contains it. In the child of a split all of them count. In the child of a merge, a sequence
that only one parent has seen says nothing about messages in the range of the other parent. The child then accepts
those, so there may be several entries under one sequence, for different hashes.

A producer that numbers its messages itself has entries with the sequence of their last message. An entry of it is
appended only after the one that its sender knows as the last (`NotTheNext`).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from metatxn.wire import errors
from metatxn.wire.broker import HashRange
from metatxn.wire.frames import NO_SEQUENCE, Behind, Entry
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position

REMEMBERED_SEQUENCES = 1_000
REMEMBERED_IN_ALL = 100_000

KeyHashes = Callable[[], frozenset[int] | None]
"""The hashes of the keys of an entry, or None if they are unknown. They are only used if something was appended
under its sequence, because looking at them means reading every message."""


def unknown_hashes() -> frozenset[int] | None:
    return None


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of sequences. Frames of one scope are appended in the order in which they arrived."""

    txn_id: TxnId | None
    writer: str | None
    producer: str | None


@dataclass(frozen=True, slots=True)
class Remembered:
    """An entry of `count` messages that was appended under a sequence: it contains all messages that were sent under it
    and whose keys hash into `ranges`. `segment` is the segment that contains it, from which this one took over, or None
    for this one."""

    position: Position
    count: int
    ranges: tuple[HashRange, ...]
    segment: str | None = None

    def tells_of(self, hashed: int) -> bool:
        return any(low <= hashed <= high for low, high in self.ranges)

    def inherited(self, parent: str, hashes: HashRange) -> Remembered | None:
        """What a child with the range `hashes` inherits of this entry from `parent`."""
        parts = ((max(low, hashes[0]), min(high, hashes[1])) for low, high in self.ranges)
        found = tuple(part for part in parts if part[0] <= part[1])
        return replace(self, ranges=found, segment=self.segment or parent) if found else None

    def wire(self) -> dict[str, Any]:
        return {
            "segment": self.segment,
            "position": str(self.position),
            "count": self.count,
            "ranges": [list(part) for part in self.ranges],
        }

    @classmethod
    def parse(cls, wire: Mapping[str, Any]) -> Remembered:
        ranges = tuple((low, high) for low, high in wire["ranges"])
        return cls(Position.parse(wire["position"]), wire["count"], ranges, wire["segment"])


class AppendedBefore(errors.InvalidArgument):
    """Messages of an entry were already appended under its sequence, but not by one entry of this segment. `parts`
    describes them, and each part names its segment. Nothing was appended now."""

    def __init__(self, sequence: int | None, parts: Sequence[Remembered], *, complete: bool) -> None:
        where = ", ".join(f"{part.segment} at {part.position}" for part in parts)
        super().__init__(
            f"sequence: {sequence} was used for {'this' if complete else 'a part of these messages'}: {where}",
            action="Publish them to the topic: the broker finds those that exist, and appends the others.",
            field="sequence",
            appended=[part.wire() for part in parts],
        )
        self.parts = parts
        self.complete = complete
        """Whether the parts contain all messages of the entry."""


class NotTheNext(errors.InvalidArgument):
    """Another sequence is the highest of a producer that numbers its messages itself. Nothing was appended now."""

    def __init__(self, segment: str, entry: Entry, known: Sequence[tuple[int, Remembered]]) -> None:
        parts = [(sequence, replace(each, segment=each.segment or segment)) for sequence, each in known]
        super().__init__(
            f"previous_sequence: producer {entry.producer} has appended other entries than the sender knows of",
            action="Leave out the messages that `appended` names, and publish the others after them.",
            field="previous_sequence",
            appended=[part.wire() | {"sequence": sequence} for sequence, part in parts],
        )


def sequence_used(sequence: int | None, before: int, now: int) -> errors.MetatxnError:
    """The error for a sequence whose entry has another number of messages."""
    return errors.InvalidArgument(
        f"sequence: {sequence} was used for an entry of {before} messages, this one has {now}",
        action="Send a retry unchanged, and something new under the next sequence.",
        field="sequence",
    )


def joined(ranges: Iterable[HashRange]) -> tuple[HashRange, ...]:
    """The same hashes in order, in as few ranges as possible."""
    found: list[HashRange] = []
    for low, high in sorted(ranges):
        if found and low <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return tuple(found)


def without(whole: HashRange, ranges: Iterable[HashRange]) -> tuple[HashRange, ...]:
    """The hashes of `whole` that are not in `ranges`."""
    found: list[HashRange] = []
    first = whole[0]
    for low, high in joined(ranges):
        if first < low:
            found.append((first, low - 1))
        first = high + 1
    if first <= whole[1]:
        found.append((first, whole[1]))
    return tuple(found)


class DedupTable:
    def __init__(self, own: HashRange) -> None:
        """The table of a segment with the range `own`."""
        self.own = own
        self._all_of_it = (own,)
        self._producers: OrderedDict[Scope, dict[int, tuple[Remembered, ...]]] = OrderedDict()
        self._remembered = 0
        self._transactions: dict[TxnId, dict[Scope, dict[int, tuple[Remembered, ...]]]] = {}
        self._in_flight: dict[tuple[Scope, int], asyncio.Future[Position]] = {}

    def knows(self, scope: Scope, sequence: int) -> bool:
        """Whether any entry was appended under the sequence."""
        return sequence in self._scope(scope)

    def find(self, scope: Scope, sequence: int, hashes: frozenset[int] | None) -> tuple[Remembered, ...]:
        """The entries that were appended under the sequence and may contain messages with these key hashes. If `hashes`
        is None they are unknown; then the entry must contain everything that the segment can contain of them."""
        found = self._scope(scope).get(sequence, ())
        if hashes is None:
            return found if joined(part for each in found for part in each.ranges) == self._all_of_it else ()
        return tuple(each for each in found if any(map(each.tells_of, hashes)))

    def last_of(self, producer: str) -> tuple[int, int] | None:
        """The sequence of the entry that this producer appended last, and its number of messages; None if nothing of it
        is remembered. Inside a transaction it is remembered until the decision. Entries that became durable together
        are not always remembered in their order."""
        scopes = [self._scope(Scope(None, None, producer))]
        scopes += [self._scope(Scope(txn_id, None, producer)) for txn_id in self._transactions]
        entries = ((each[-1], sequence) for scope in scopes for sequence, each in scope.items())
        last = max(((entry.position, sequence, entry.count) for entry, sequence in entries), default=None)
        return None if last is None else last[1:]

    def all_of(self, scope: Scope) -> list[tuple[int, Remembered]]:
        """Every entry of the scope that is remembered, with its sequence."""
        return [(sequence, each) for sequence, entries in self._scope(scope).items() for each in entries]

    def last(self, scope: Scope) -> Behind:
        """The highest sequences of the scope that are remembered."""
        highest = {True: NO_SEQUENCE, False: NO_SEQUENCE}
        for sequence, each in self.all_of(scope):
            own = each.segment is None
            highest[own] = max(highest[own], sequence)
        return Behind(highest[True], highest[False])

    def all_in_flight(self, scope: Scope) -> list[asyncio.Future[Position]]:
        return [publish for (its_scope, _), publish in self._in_flight.items() if its_scope == scope]

    def in_flight(self, scope: Scope, sequence: int) -> asyncio.Future[Position] | None:
        return self._in_flight.get((scope, sequence))

    def begin(self, scope: Scope, sequence: int, publish: asyncio.Future[Position]) -> None:
        key = (scope, sequence)
        self._in_flight[key] = publish
        publish.add_done_callback(lambda _: self._in_flight.pop(key, None))

    def durable(self, scope: Scope, sequence: int, position: Position, count: int) -> None:
        """A frame of `count` messages with this sequence is durable at `position`. It contains all messages that were
        sent under the sequence, except those that were already appended."""
        others = [each for each in self._scope(scope).get(sequence, ()) if each.segment is not None]
        ranges = without(self.own, (part for each in others for part in each.ranges)) if others else self._all_of_it
        self.restore(scope, sequence, Remembered(position, count, ranges))

    def restore(self, scope: Scope, sequence: int, remembered: Remembered) -> None:
        """Remember an entry, in addition to what other segments have appended under the sequence. Call this in the
        order of the appends, because the oldest are forgotten first."""
        if scope.txn_id is not None:
            _add(self._transactions.setdefault(scope.txn_id, {}).setdefault(scope, {}), sequence, remembered)
            return
        sequences = self._producers.setdefault(scope, {})
        self._producers.move_to_end(scope)
        self._remembered += sequence not in sequences
        _add(sequences, sequence, remembered)
        if len(sequences) > REMEMBERED_SEQUENCES:
            del sequences[next(iter(sequences))]
            self._remembered -= 1
        while self._remembered > REMEMBERED_IN_ALL:
            self._remembered -= len(self._producers.popitem(last=False)[1])

    def forget_transaction(self, txn_id: TxnId) -> None:
        """The transaction is decided, so no publish of it can succeed any more."""
        self._transactions.pop(txn_id, None)

    @property
    def transactions(self) -> list[TxnId]:
        """The transactions with remembered sequences."""
        return list(self._transactions)

    def __iter__(self) -> Iterator[tuple[Scope, int, Remembered]]:
        """Everything that is remembered, in an order in which `restore` builds the same table."""
        scopes = list(self._producers.items())
        for transaction in self._transactions.values():
            scopes += transaction.items()
        for scope, sequences in scopes:
            for sequence, entries in sequences.items():
                for remembered in entries:
                    yield scope, sequence, remembered

    def _scope(self, scope: Scope) -> dict[int, tuple[Remembered, ...]]:
        if scope.txn_id is not None:
            return self._transactions.get(scope.txn_id, {}).get(scope, {})
        return self._producers.get(scope, {})


def _add(sequences: dict[int, tuple[Remembered, ...]], sequence: int, new: Remembered) -> None:
    """Add an entry as the latest one. It replaces an earlier one of the segment itself; an entry of another segment may
    be inherited in several pieces."""
    others = []
    for each in sequences.pop(sequence, ()):
        if each.segment != new.segment:
            others.append(each)
        elif new.segment is not None and each.position == new.position:
            new = replace(new, ranges=joined((*each.ranges, *new.ranges)))
        elif new.segment is not None:
            others.append(each)
    sequences[sequence] = (*others, new)
