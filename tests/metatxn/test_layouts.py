"""Where a client sends the keys of a topic, by the layout that it knows."""

from __future__ import annotations

import concurrent.futures
import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metatxn.outgoing import BATCH_MESSAGES, STICKY_MESSAGES, MessageFormat, Outgoing
from metatxn.topics import Layout
from metatxn.wire.batches import packed_message
from metatxn.wire.broker import HASH_RANGE_END, SegmentInfo, TopicInfo, hash_of_key
from metatxn.wire.errors import NotFound

TOPIC = "public/default/t"


def segment(name: str, state: str, parents: list[str], children: list[str]) -> SegmentInfo:
    low, high, _ = name.split("-")
    return SegmentInfo.model_validate(
        {
            "segment": f"segment://{TOPIC}/{name}",
            "range": [int(low, 16), int(high, 16)],
            "state": state,
            "parents": [f"segment://{TOPIC}/{each}" for each in parents],
            "children": [f"segment://{TOPIC}/{each}" for each in children],
        }
    )


def test_a_segment_that_was_sealed_for_good_does_not_bring_its_parents_back() -> None:
    """The client looped: the parent named its child, and the child was sealed."""
    parent = segment("0000-ffff-0", "sealed", [], ["0000-ffff-1"])
    child = segment("0000-ffff-1", "sealed", ["0000-ffff-0"], [])
    layout = Layout(TopicInfo(name=TOPIC, segments=[parent, child]))
    assert layout.segment_of("k") == child.segment, "its owner knows whether children are yet to come"
    ended = layout.without({child.segment})
    with pytest.raises(NotFound, match="no active segment"):
        ended.segment_of("k")
    with pytest.raises(NotFound, match="no active segment"):
        ended.any_segment(0)


class History:
    """A topic whose segments are split, merged and sealed for good, in the steps in which that can be seen: a merge
    seals one of its parents, then the other one, then there is a child; both children of a split come at once.

    `ended`: sealed for good, of which only their owners know. `cuts`: how many segments there were, after each change.
    Deleting the topic and making it again begins anew.
    """

    def __init__(self) -> None:
        self.begin_again()

    def begin_again(self) -> None:
        self.segments: dict[str, tuple[int, int]] = {}
        self.children: dict[str, list[str]] = {}
        self.parents: dict[str, list[str]] = {}
        self.sealed: set[str] = set()
        self.ended: set[str] = set()
        self.later: list[Callable[[], None]] = []
        """Steps of what has begun, in their order."""
        self.cuts: list[int] = []
        self._add((0, HASH_RANGE_END), parents=[])

    def _add(self, *ranges: tuple[int, int], parents: list[str]) -> None:
        for low, high in ranges:
            name = f"{low:04x}-{high:04x}-{len(self.segments)}"
            self.segments[name], self.children[name], self.parents[name] = (low, high), [], parents
            for parent in parents:
                self.children[parent].append(name)
        self.sealed.update(parents)
        self.cuts.append(len(self.segments))

    def step(self, dice: random.Random) -> None:
        active = sorted(set(self.segments) - self.sealed, key=self.segments.__getitem__)
        kind = dice.choice(["split", "merge", "end", "delete"]) if dice.random() < 0.5 or not self.later else "go on"
        if kind == "go on" or (self.later and kind != "delete"):
            self.later.pop(0)()
        elif kind == "delete":
            if dice.random() < 0.2:
                self.begin_again()
        elif kind == "split" and active and (wide := [each for each in active if len(set(self.segments[each])) == 2]):
            self._split(dice.choice(wide))
        elif kind == "merge":
            pairs = [(a, b) for a, b in pairwise(active) if self.segments[a][1] + 1 == self.segments[b][0]]
            if pairs:
                self._merge(*dice.choice(pairs), first=dice.randrange(2))
        elif kind == "end" and active:
            name = dice.choice(active)
            self.sealed.add(name)
            self.ended.add(name)

    def _split(self, name: str) -> None:
        low, high = self.segments[name]
        middle = (low + high) // 2
        self._add((low, middle), (middle + 1, high), parents=[name])

    def _merge(self, one: str, other: str, first: int) -> None:
        self.sealed.add((one, other)[first])
        self.later = [
            lambda: self.sealed.add((one, other)[1 - first]),
            lambda: self._add((self.segments[one][0], self.segments[other][1]), parents=[one, other]),
        ]

    def seen(self, at: int) -> TopicInfo:
        """As one who reads it sees it: the first `at` segments, read a moment before the others were made."""
        shown = [
            segment(name, "sealed" if name in self.sealed else "active", self.parents[name], self.children[name])
            for name in list(self.segments)[:at]
        ]
        return TopicInfo(name=TOPIC, segments=shown)


@given(seed=st.integers(0, 2**32), steps=st.integers(0, 25))
@settings(max_examples=150, deadline=None)
def test_every_key_has_somebody_but_for_what_was_sealed_for_good(seed: int, steps: int) -> None:
    """However much of the topic is seen: a key's segment covers it, and is one from which the segment that has it now
    took over, or that one itself. Without those that have ended nobody has their keys, and no parent comes back."""
    dice = random.Random(seed)
    history = History()
    for _ in range(steps):
        history.step(dice)
    keys = [str(number) for number in range(12)]
    for at in {dice.choice(history.cuts), history.cuts[-1]}:
        info = history.seen(at)
        layout = Layout(info)
        shown = {each.segment for each in info.segments}
        ended = {name for name in (f"segment://{TOPIC}/{each}" for each in history.ended) if name in shown}
        without = layout.without(ended)
        leaves = {each.segment: each for each in layout.leaves}
        for key in keys:
            found = leaves[layout.segment_of(key)]
            assert found.range[0] <= hash_of_key(key) <= found.range[1]
            assert shown.isdisjoint(found.children), "a child that is seen has taken over"
            if found.segment in ended:
                with pytest.raises(NotFound):
                    without.segment_of(key)
            else:
                assert without.segment_of(key) == found.segment
        ordered = [each.segment for each in layout.in_order()]
        assert all(ordered.index(p) < ordered.index(each.segment) for each in info.segments for p in each.parents)
        assert not (without.names & ended) and layout.names - ended == without.names
        if without.leaves:
            chosen = {without.any_segment(turn) for turn in range(9)}
            running = {each.segment for each in without.leaves if each.state == "active"}
            assert chosen <= (running or without.names), "what has no key waits for nobody while somebody is active"


def test_messages_without_a_key_go_to_the_next_segment_once_an_entry_of_enough_of_them_is_on_its_way() -> None:
    """Few stay together, so that they share entries, and a small transaction needs one intent; none waits for an entry
    forever."""
    names = ["0000-7fff-0", "8000-ffff-1"]
    layout = Layout(TopicInfo(name=TOPIC, segments=[segment(name, "active", [], []) for name in names]))
    form = MessageFormat()

    def sent(count: int, layout: Layout = layout) -> tuple[set[str], list[Outgoing]]:
        messages = [Outgoing(None, *packed_message(7, None, None), concurrent.futures.Future()) for _ in range(count)]
        return {place for each in messages for place, _ in form.split(each, layout)}, messages

    (first,), few = sent(STICKY_MESSAGES - 1)
    form.encode(few)
    (same,), enough = sent(1)
    form.encode(enough)
    (second,), _ = sent(BATCH_MESSAGES)
    assert same == first != second
    assert sent(1)[0] == {first}, "an entry has not more"
    renamed = Layout(TopicInfo(name=TOPIC, segments=[segment("0000-ffff-2", "active", [], [])]))
    assert sent(1, renamed)[0] == set(renamed.names)
