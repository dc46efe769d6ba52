"""The segments of a topic as a map: hashes run from top to bottom, and segments are left of those that followed
them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from metatxn.wire.broker import HASH_RANGE_END, SegmentDetail, SegmentInfo
from metatxn.wire.names import number_of_segment

WIDTH, HEIGHT = 800, 240
MOST_BOXES = 200
MOST_TIMES = 8
GAP = 2
LABEL_HEIGHT, LABEL_WIDTH = 13, 70
"""A box with less space has no words in it."""


@dataclass(frozen=True, slots=True)
class Box:
    """A segment in the map. `kind` chooses the colour: `active`, `sealed`, or `held` if its readers are held back."""

    segment: SegmentInfo
    kind: str
    x: float
    y: float
    width: float
    height: float
    labelled: bool


class Tree:
    """A segment begins to the right of all that it overlaps and follows, and ends where the next ones that overlap it
    begin; one that is active reaches the right end. Those that were deleted leave a space. Of two segments whose ranges
    overlap, the one with the lower number is an ancestor of the other (`SegmentParts`).

    Where partitions were added, which have no hash, all partitions have the same height (DESIGN §5.20)."""

    def __init__(self, segments: Sequence[SegmentInfo], details: Mapping[str, SegmentDetail]) -> None:
        self._all = segments
        self._details = details
        self._shown = sorted(segments, key=lambda each: number_of_segment(each.segment))[-MOST_BOXES:]
        """The segments, or the latest ones if there are too many."""
        self._begins: list[int] = []
        for index, segment in enumerate(self._shown):
            before = [self._begins[at] for at in range(index) if _overlap(self._shown[at], segment)]
            self._begins.append(1 + max(before, default=-1))
        self._columns = max(self._begins, default=0) + 1
        self._as_partitions = any(each.range[0] > HASH_RANGE_END for each in self._shown)

    @property
    def times(self) -> list[int | None]:
        """When the first segment of each column was created, in milliseconds since 1970; nothing if that is not known
        of any, or if there are too many columns."""
        begun: list[list[int]] = [[] for _ in range(self._columns)]
        for begin, segment in zip(self._begins, self._shown, strict=True):
            if segment.created_ms is not None:
                begun[begin].append(segment.created_ms)
        return [min(each, default=None) for each in begun] if any(begun) and len(begun) <= MOST_TIMES else []

    def boxes(self) -> list[Box]:
        return [self._box(index) for index in range(len(self._shown))]

    @property
    def words(self) -> str:
        active = sum(each.state == "active" for each in self._all)
        held = sum(detail.pinned_by is not None for detail in self._details.values())
        return (
            f"Map of {len(self._all)} segments: {active} active, {len(self._all) - active} sealed, "
            f"{held} with readers that are held back. The table below says more about each."
        )

    def _box(self, index: int) -> Box:
        segment, begin, column = self._shown[index], self._begins[index], WIDTH / self._columns
        low, high = (index, index) if self._as_partitions else segment.range
        whole = len(self._shown) if self._as_partitions else HASH_RANGE_END + 1
        y, height = HEIGHT * low / whole, HEIGHT * (high + 1 - low) / whole
        width, shown_height = (self._end(index) - begin) * column - GAP, max(height - GAP, height / 2)
        detail = self._details.get(segment.segment)
        kind = "held" if detail is not None and detail.pinned_by is not None else segment.state
        labelled = shown_height >= LABEL_HEIGHT and width >= LABEL_WIDTH
        return Box(segment, kind, begin * column, y, width, shown_height, labelled)

    def _end(self, index: int) -> int:
        segment = self._shown[index]
        if segment.state == "active":
            return self._columns
        later = range(index + 1, len(self._shown))
        follow = [self._begins[at] for at in later if _overlap(self._shown[at], segment)]
        return min(follow, default=self._begins[index] + 1)


def _overlap(one: SegmentInfo, other: SegmentInfo) -> bool:
    return one.range[0] <= other.range[1] and other.range[0] <= one.range[1]
