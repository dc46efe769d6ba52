"""The cursor of one subscription on one segment: what is acknowledged, and how that is divided into records.

It does no I/O. Everything before `mark_delete` is acknowledged, and some ranges after it. What readers never see
(aborted and void entries, entries without a message) counts as acknowledged once it was passed.

The records are one mark-delete and any number of buckets. Each bucket contains what is acknowledged from its own name
up to the name of the next one, in at most `RANGES_PER_BUCKET` ranges, so that an acknowledgement writes a bounded
number of bytes, however fragmented the rest is. A full bucket is split in the middle, two small neighbours are joined,
and an empty one is deleted.

    mark-delete      bucket 1:5:0                          bucket 1:90:2
    ──────────┤   [1:5:0, 1:6:0) … [1:80:0, 1:81:0)  │  [1:90:2, 1:90:3) …

Splitting and joining moves ranges between records: up, into the upper half of a bucket that was split, or down, from a
bucket that is then deleted. So a write that needs several applies puts the mark-delete first, then the buckets from the
last to the first, and deletes at the end: wherever it stops, nothing that was stored is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sortedcontainers import SortedList

from participants.subscription.places import Place, Span
from participants.subscription.ranges import RangeSet

RANGES_PER_BUCKET = 128
"""The most ranges in a bucket. A range is at most 112 bytes of JSON, so a bucket stays below 16 KiB."""


@dataclass(slots=True)
class CursorChanges:
    """What must be stored: the mark-delete if it has moved, and the buckets to put and to delete, by name."""

    mark_delete: Place | None = None
    puts: dict[Place, list[Span]] = field(default_factory=dict)
    deletes: set[Place] = field(default_factory=set)

    def in_order(self) -> Iterator[tuple[Place | None, list[Span] | None]]:
        """The writes in their order: a bucket and the ranges to put there, or None to delete it; no bucket means the
        mark-delete."""
        if self.mark_delete is not None:
            yield None, None
        for name in sorted(self.puts, reverse=True):
            yield name, self.puts[name]
        for name in self.deletes:
            yield name, None


class Cursor:
    def __init__(self, mark_delete: Place, buckets: Iterable[tuple[Place, Iterable[Span]]] = ()) -> None:
        """A new cursor, or a stored one. Buckets may overlap after a write that was interrupted."""
        self.mark_delete = mark_delete
        self.changes = 0
        """The number of changes that must be stored."""
        self._acked = RangeSet()
        self._buckets: SortedList[Place] = SortedList()
        self._dirty: set[Place] = set()
        self._mark_dirty = False
        for name, spans in buckets:
            self._buckets.add(name)
            for span in spans:
                self._acked.add(span)
        self._advance()
        self._drop_empty()

    # -- what is acknowledged ----------------------------------------------------------------------------------

    def __contains__(self, place: Place) -> bool:
        return place < self.mark_delete or place in self._acked

    def overlaps(self, span: Span) -> bool:
        """Whether any place of `span` is acknowledged."""
        return span.start < self.mark_delete or self._acked.overlaps(span)

    def covers(self, span: Span) -> bool:
        return span.end <= self.mark_delete or self._acked.covers(span)

    def next_left(self, place: Place) -> Place:
        """The first place at or after this one that is not acknowledged."""
        return self._acked.end_of(max(place, self.mark_delete))

    def gaps(self, span: Span) -> Iterator[Span]:
        """The parts of `span` that are not acknowledged, in order."""
        at = max(span.start, self.mark_delete)
        for start, end in self._acked.between(at, max(at, span.end)):
            if at < start:
                yield Span(at, start)
            at = end
        if at < span.end:
            yield Span(at, span.end)

    def add(self, span: Span) -> None:
        """Acknowledge `span`."""
        if self.covers(span):
            return
        self.changes += 1
        span = Span(max(span.start, self.mark_delete), span.end)
        self._acked.add(span)
        if span.start > self.mark_delete:
            self._touch(span)
        else:
            self._advance()
            self._drop_empty()

    def _advance(self) -> None:
        """Move the mark-delete over the ranges that follow it without a gap."""
        while (first := self._acked.first()) is not None and first.start <= self.mark_delete:
            if first.end > self.mark_delete:
                self.mark_delete, self._mark_dirty = first.end, True
            self._acked.remove_before(self.mark_delete)

    # -- records -----------------------------------------------------------------------------------------------

    def take_changes(self) -> CursorChanges:
        """The changes since the last call. Return them with `untake` if they could not be stored."""
        taken = CursorChanges(self.mark_delete if self._mark_dirty else None)
        for name in self._dirty:
            if name in self._buckets:
                taken.puts[name] = self._acked.between(*self._bounds(self._buckets.index(name)))
            else:
                taken.deletes.add(name)
        self._dirty.clear()
        self._mark_dirty = False
        return taken

    def untake(self, changes: CursorChanges) -> None:
        self._mark_dirty |= changes.mark_delete is not None
        self._dirty |= changes.puts.keys() | changes.deletes

    def _bounds(self, number: int) -> tuple[Place, Place | None]:
        following = number + 1
        return self._buckets[number], self._buckets[following] if following < len(self._buckets) else None

    def _size(self, number: int) -> int:
        return self._acked.count(*self._bounds(number))

    def _touch(self, span: Span) -> None:
        """`span` was added, so its buckets must be written, and perhaps split."""
        if not self._buckets or span.start < self._buckets[0]:
            self._buckets.add(span.start)
        first = self._buckets.bisect_right(span.start) - 1
        end = self._buckets.bisect_left(span.end)
        self._dirty.update(self._buckets[first:end])
        for number in reversed(range(max(first - 1, 0), end)):
            self._join_next(number)
        self._cut(self._buckets.bisect_right(span.start) - 1)

    def _join_next(self, number: int) -> None:
        following = number + 1
        if following < len(self._buckets) and self._size(number) + self._size(following) <= RANGES_PER_BUCKET // 2:
            self._dirty |= {self._buckets[number], self._buckets[following]}
            del self._buckets[following]

    def _cut(self, number: int) -> None:
        if self._size(number) > RANGES_PER_BUCKET:
            ranges = self._acked.between(*self._bounds(number))
            upper = ranges[len(ranges) // 2].start
            self._dirty |= {self._buckets[number], upper}
            self._buckets.add(upper)

    def _drop_empty(self) -> None:
        """The mark-delete has moved, so the buckets at the front can have become empty or smaller."""
        while self._buckets and not self._size(0):
            self._dirty.add(self._buckets[0])
            del self._buckets[0]
