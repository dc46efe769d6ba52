"""A set of places, stored as sorted, disjoint ranges that do not touch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sortedcontainers import SortedDict

from participants.subscription.places import Place, Span


class RangeSet:
    """A set of places. Its memory depends on the number of gaps, not on the number of places."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._ends: SortedDict[Place, Place] = SortedDict()
        for span in spans:
            self.add(span)

    def __len__(self) -> int:
        """The number of ranges."""
        return len(self._ends)

    def __iter__(self) -> Iterator[Span]:
        return (Span(start, end) for start, end in self._ends.items())

    def __contains__(self, place: Place) -> bool:
        at = self._ends.bisect_right(place) - 1
        return at >= 0 and self._at(at).end > place

    def end_of(self, place: Place) -> Place:
        """The end of the range that contains `place`, or `place` if none does."""
        at = self._ends.bisect_right(place) - 1
        return max(place, self._at(at).end) if at >= 0 else place

    def first(self) -> Span | None:
        return self._at(0) if self._ends else None

    def covers(self, span: Span) -> bool:
        at = self._ends.bisect_right(span.start) - 1
        return at >= 0 and self._at(at).end >= span.end

    def overlaps(self, span: Span) -> bool:
        return self.count(span.start, span.end) > 0

    def count(self, start: Place, end: Place | None) -> int:
        """The number of ranges that have a place at or after `start` and before `end` (None means no bound)."""
        return self._before(end) - self._reaching(start)

    def between(self, start: Place, end: Place | None) -> list[Span]:
        """The ranges from `start` up to `end`, cut at these bounds."""
        found = [self._at(at) for at in range(self._reaching(start), self._before(end))]
        return [Span(max(a, start), b if end is None else min(b, end)) for a, b in found]

    def add(self, span: Span) -> tuple[Span, list[Place]]:
        """Add `span`. Returns the range that now contains it, and the starts of the ranges that were merged into it."""
        start, end = span
        swallowed = []
        at = self._ends.bisect_left(start)
        if at and self._at(at - 1).end >= start:
            at -= 1
        while at < len(self._ends) and self._at(at).start <= end:
            known = Span(*self._ends.popitem(at))
            swallowed.append(known.start)
            start, end = min(start, known.start), max(end, known.end)
        self._ends[start] = end
        return Span(start, end), swallowed

    def remove_before(self, place: Place) -> None:
        while self._ends and self._at(0).start < place:
            _, end = self._ends.popitem(0)
            if end > place:
                self._ends[place] = end

    def _at(self, number: int) -> Span:
        return Span(*self._ends.peekitem(number))

    def _reaching(self, start: Place) -> int:
        """The index of the first range that has a place at or after `start`."""
        at = self._ends.bisect_left(start)
        return at - 1 if at and self._at(at - 1).end > start else at

    def _before(self, end: Place | None) -> int:
        return len(self._ends) if end is None else self._ends.bisect_left(end)
