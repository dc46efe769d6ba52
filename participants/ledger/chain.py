"""The ledgers of one segment as one log: the sealed ones in order, and then the open one, unless the segment is
sealed."""

from __future__ import annotations

from collections.abc import Sequence

from metatxn.wire.frames import RawFrame
from metatxn.wire.position import Position
from participants.ledger.storage import LedgerMissing, OpenLedger, ReadableLedger

READ_BYTES = 1 << 20


class LedgerChain:
    """`sealed` are the ledgers that accept no more appends; the last of them may not be sealed yet.

    `trimmed` is the last entry that must not be read any more. Only the segment knows the reason, so it checks this
    itself.
    """

    def __init__(
        self, sealed: Sequence[ReadableLedger], open_ledger: OpenLedger | None, trimmed: Position | None = None
    ) -> None:
        assert sealed or open_ledger
        self.sealed = tuple(sealed)
        self.open = open_ledger
        self.trimmed = trimmed

    @property
    def ledgers(self) -> tuple[ReadableLedger, ...]:
        return (*self.sealed, self.open) if self.open else self.sealed

    @property
    def start(self) -> Position:
        """The position before the first entry that may be read."""
        first = Position(self.ledgers[0].id, -1)
        return first if self.trimmed is None else max(first, self.trimmed)

    def last_before(self, position: Position) -> Position | None:
        """The last durable entry below `position`, or None."""
        found = None
        for ledger in self.ledgers:
            if ledger.entries and ledger.first < position:
                found = ledger.last if ledger.id < position.ledger else min(ledger.last, position.before)
        return found

    def entries_before(self, position: Position, count: int) -> Position:
        """The first of the last `count` durable entries below `position` that may be read and were not left out of
        their ledger. If there are none, where reading begins."""
        found, start = self.start.next, self.start
        for ledger in reversed(self.ledgers):
            if start.ledger <= ledger.id <= position.ledger:
                first = start.entry + 1 if ledger.id == start.ledger else 0
                end = min(ledger.entries, max(position.entry, 0) if ledger.id == position.ledger else ledger.entries)
                while count and (entry := ledger.kept_below(end)) >= first:
                    found, end, count = Position(ledger.id, entry), entry, count - 1
        return found

    @property
    def last_durable(self) -> Position:
        """The last durable entry of the newest ledger, or the position before its first entry if it is empty."""
        return self.ledgers[-1].last

    def shown(self, position: Position) -> Position:
        """The last entry at or before `position`, to be shown to people: the position before the first entry of a
        ledger is not an entry."""
        while position.entry < 0:
            before = [ledger for ledger in self.ledgers if ledger.id < position.ledger]
            if not before:
                return position
            position = before[-1].last
        return position

    def is_left_out(self, position: Position) -> bool:
        """Whether there was an entry here that is no longer there, or may have been: of ledgers that were dropped from
        between others nobody knows how long they were."""
        for ledger in self.ledgers:
            if ledger.id == position.ledger:
                return 0 <= position.entry < ledger.entries and not ledger.bytes_of(position.entry, position.entry)
        return position.entry >= 0 and self.ledgers[0].id < position.ledger < self.ledgers[-1].id

    @property
    def last_assigned(self) -> Position:
        return self.open.last_assigned if self.open else self.last_durable

    @property
    def entries(self) -> int:
        return sum(ledger.entries for ledger in self.ledgers)

    def entries_between(self, after: Position, up_to: Position) -> int:
        """The number of entries after `after`, up to and including `up_to`."""
        if after.ledger == up_to.ledger:
            return up_to.entry - after.entry
        within = [ledger.entries for ledger in self.ledgers if after.ledger < ledger.id < up_to.ledger]
        rest = [ledger.entries - 1 - after.entry for ledger in self.ledgers if ledger.id == after.ledger]
        return sum(within) + sum(rest) + up_to.entry + 1

    def bytes_between(self, after: Position, up_to: Position) -> int:
        """The size of the entries after `after`, up to and including `up_to`."""
        size = 0
        for ledger in self.ledgers:
            if after.ledger <= ledger.id <= up_to.ledger:
                first = after.entry + 1 if ledger.id == after.ledger else 0
                last = min(up_to.entry, ledger.entries - 1) if ledger.id == up_to.ledger else ledger.entries - 1
                size += ledger.bytes_of(first, last) if first <= last else 0
        return size

    @property
    def size_bytes(self) -> int:
        return sum(ledger.size_bytes for ledger in self.ledgers)

    async def read(self, after: Position, up_to: Position, max_bytes: int = READ_BYTES) -> list[RawFrame]:
        """The frames after `after`, up to and including `up_to`, of one ledger: about `max_bytes`, but at least one
        frame if there is one. The list is empty if there is none in that range; entries that were left out are
        none."""
        for ledger in self.ledgers:
            first = after.entry + 1 if after.ledger == ledger.id else 0
            if ledger.id < after.ledger or first >= ledger.entries or Position(ledger.id, first) > up_to:
                continue
            last = up_to.entry if up_to.ledger == ledger.id else None
            if found := await ledger.read(first, max_bytes, last):
                return found
        return []

    async def read_part(self, position: Position, start: int, end: int) -> memoryview:
        """The bytes of the frame of an entry that was read before. Raises as `ReadableLedger.read_part`."""
        for ledger in self.ledgers:
            if ledger.id == position.ledger and ledger.bytes_of(position.entry, position.entry):
                return await ledger.read_part(position.entry, start, end)
        raise LedgerMissing(f"ledger {position.ledger} was trimmed meanwhile")
