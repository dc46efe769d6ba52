"""How often the messages of one segment were delivered, as far as it outlives their broker: what is stored for a
subscription that gives messages up.

There is no I/O. One record says two things (DESIGN §5.10):

    through   nothing at or after this place was ever delivered
    counts    ranges of places, each with how often every unacknowledged message in it was delivered at least; what is
              in no range was perhaps delivered once

Both are stored before the delivery that they announce. `through` is moved ahead by many entries at once, so a first
delivery seldom waits for a write. Every later one has a range, and all of one request are written together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from metastore.txn.records.subscriptions import DeliveryCountsRecord
from metatxn.wire.position import Position
from participants.subscription.places import START, Place

ENTRIES_AHEAD = 100
"""The number of entries by which `through` is moved ahead. As many messages may count as perhaps delivered after a
crash."""
MAX_RANGES = 256
"""The most ranges. A range is at most 120 bytes of JSON, so the record stays below 32 KiB."""


class Counted(NamedTuple):
    """Every unacknowledged message from `start` up to `end` was delivered `times` times."""

    start: Place
    end: Place
    times: int


class DeliveryCounts:
    def __init__(self, through: Place = START, counts: Iterable[Counted] = ()) -> None:
        """New counts, or those that earlier owners of the segment have stored."""
        self.through = through
        self.stored_through = through
        self.changes = 0
        """The number of changes that must be stored."""
        self._earlier = list(counts)
        self._earlier_through = through
        self._counts = self._earlier
        self._dirty = False

    @classmethod
    def decode(cls, content: bytes) -> DeliveryCounts:
        record = DeliveryCountsRecord.decode(content)
        counts = (Counted(Place.parse(start), Place.parse(end), times) for start, end, times in record.counts)
        return cls(Place.parse(record.through), counts)

    # -- what earlier owners have delivered --------------------------------------------------------------------

    def perhaps_given(self, position: Position) -> bool:
        """Whether an earlier owner may have delivered messages of this entry."""
        return Place.at(position) < self._earlier_through

    def given_before(self, place: Place) -> int:
        """How often earlier owners have delivered the message, at least."""
        at = bisect_right(self._earlier, place, key=lambda counted: counted.start) - 1
        return self._earlier[at].times if at >= 0 and place < self._earlier[at].end else 0

    # -- what is about to be delivered -------------------------------------------------------------------------

    def announces(self, position: Position) -> bool:
        """Whether the messages of this entry may be delivered for the first time."""
        return Place.behind(position) <= self.stored_through

    def announce(self, position: Position, entries: int) -> None:
        """Messages of this entry, and of up to `entries` from there on, are about to be delivered for the first
        time."""
        if Place.behind(position) > self.through:
            self.through = Place(position.ledger, position.entry + max(entries, ENTRIES_AHEAD), 0)
            self._change()

    def count(self, counts: Iterable[Counted], unread: Place) -> None:
        """These are the counts of everything before `unread`; after it those of earlier owners still count. If there
        are too many ranges, the highest counts are kept: those messages are given up first."""
        left = (each._replace(start=max(each.start, unread)) for each in self._earlier if each.end > unread)
        counted = [each for each in [*counts, *left] if each.times]
        highest = sorted(counted, key=lambda each: -each.times)[:MAX_RANGES]
        self._counts = sorted(highest)
        self._change()

    def _change(self) -> None:
        self.changes += 1
        self._dirty = True

    # -- the record --------------------------------------------------------------------------------------------

    def take_changes(self) -> DeliveryCountsRecord | None:
        """The record, if it must be stored. Call `stored` once it is, or `untake`."""
        if not self._dirty:
            return None
        self._dirty = False
        counts = tuple((str(each.start), str(each.end), each.times) for each in self._counts)
        return DeliveryCountsRecord(through=str(self.through), counts=counts)

    def stored(self, record: DeliveryCountsRecord | None) -> None:
        if record is not None:
            self.stored_through = Place.parse(record.through)

    def untake(self, record: DeliveryCountsRecord | None) -> None:
        self._dirty |= record is not None
