"""Goal: the map of a topic's segments shows what followed what, and no two segments in one place.

Method: layouts that are made up, by splits and merges in any order.
"""

from __future__ import annotations

import random

import pytest

from metatxn.console.tree import GAP, HEIGHT, MOST_BOXES, MOST_TIMES, WIDTH, Box, Tree
from metatxn.wire.broker import SegmentInfo
from tests.extent import usually


class Layout:
    def __init__(self, segments: int = 1) -> None:
        size = 65_536 // segments
        self.all: list[SegmentInfo] = []
        for index in range(segments):
            self._add(index * size, (index + 1) * size - 1, [])

    def _add(self, low: int, high: int, parents: list[SegmentInfo]) -> SegmentInfo:
        name = f"segment://public/default/t/{low:04x}-{high:04x}-{len(self.all)}"
        names = [each.segment for each in parents]
        added = SegmentInfo(segment=name, range=(low, high), state="active", parents=names, children=[])
        for parent in parents:
            parent.state = "sealed"
            parent.children.append(name)
        self.all.append(added)
        return added

    @property
    def active(self) -> list[SegmentInfo]:
        return sorted((each for each in self.all if each.state == "active"), key=lambda each: each.range)

    def split(self, segment: SegmentInfo) -> None:
        low, high = segment.range
        middle = (low + high + 1) // 2
        self._add(low, middle - 1, [segment])
        self._add(middle, high, [segment])

    def merge(self, first: SegmentInfo, second: SegmentInfo) -> None:
        self._add(first.range[0], second.range[1], [first, second])


def overlap(one: Box, other: Box) -> bool:
    aside = one.x + one.width <= other.x or other.x + other.width <= one.x
    above = one.y + one.height <= other.y or other.y + other.height <= one.y
    return not aside and not above


def test_a_split_and_a_merge_are_what_they_look_like() -> None:
    layout = Layout(2)
    layout.split(layout.active[0])
    lower, upper, other = layout.active
    layout.merge(upper, other)
    boxes = {box.segment.segment.rpartition("-")[2]: box for box in Tree(layout.all, {}).boxes()}
    column = WIDTH / 3
    assert [(box.x, box.width + GAP) for box in (boxes["0"], boxes["1"], boxes["2"], boxes["3"], boxes["4"])] == [
        pytest.approx(each)
        for each in ((0, column), (0, 2 * column), (column, 2 * column), (column, column), (2 * column, column))
    ]
    assert (boxes["0"].y, boxes["1"].y, boxes["4"].y) == (0, HEIGHT / 2, HEIGHT / 4)
    assert boxes["0"].kind == "sealed" and boxes["2"].kind == "active" and boxes["2"].segment is lower


def test_each_column_says_when_it_begins() -> None:
    layout = Layout(2)
    layout.split(layout.active[0])
    for at_ms, segment in zip((5, 3, 8, 7), layout.all, strict=True):
        segment.created_ms = at_ms
    assert Tree(layout.all, {}).times == [3, 7]
    layout.merge(*layout.active[:2])
    assert Tree(layout.all, {}).times == [3, 7, None], "a release before this one has merged them"
    for segment in layout.all:
        segment.created_ms = None
    assert Tree(layout.all, {}).times == []
    layout.all[0].created_ms = 1
    while len(Tree(layout.all, {}).times) < MOST_TIMES:
        layout.split(layout.active[0])
    layout.split(layout.active[0])
    assert Tree(layout.all, {}).times == [], "there is no room for so many"


@pytest.mark.parametrize("seed", usually(range(20), range(20, 300)))
def test_no_two_segments_are_in_one_place(seed: int) -> None:
    chance = random.Random(seed)
    layout = Layout(chance.randint(1, 4))
    for _ in range(chance.randint(0, 30)):
        active = layout.active
        index = chance.randrange(len(active))
        if index and active[index].range[0] == active[index - 1].range[1] + 1 and chance.random() < 0.4:
            layout.merge(active[index - 1], active[index])
        elif active[index].range[1] > active[index].range[0]:
            layout.split(active[index])
    for gone in chance.sample(layout.all, chance.randint(0, len(layout.all) // 3)):
        if gone.state == "sealed":  # its topic forgets it once nothing is left in it
            layout.all.remove(gone)
    boxes = Tree(layout.all, {}).boxes()
    assert len(boxes) == len(layout.all)
    assert not [(one, other) for index, one in enumerate(boxes) for other in boxes[:index] if overlap(one, other)]
    assert all(
        box.x >= 0 and box.x + box.width <= WIDTH and box.y >= 0 and box.y + box.height <= HEIGHT for box in boxes
    )


def test_partitions_share_the_map_once_some_were_added() -> None:
    layout = Layout(2)
    for number in (0x10000, 0x10001):
        layout._add(number, number, [])
    boxes = Tree(layout.all, {}).boxes()
    assert [(box.x, box.y, box.height + GAP) for box in boxes] == [(0, HEIGHT * n / 4, HEIGHT / 4) for n in range(4)]


def test_of_too_many_the_latest_are_shown() -> None:
    layout = Layout()
    while len(layout.all) <= MOST_BOXES:
        layout.split(max(layout.active, key=lambda each: each.range[1] - each.range[0]))
    boxes = Tree(layout.all, {}).boxes()
    assert len(boxes) == MOST_BOXES and layout.all[0] not in [box.segment for box in boxes]
