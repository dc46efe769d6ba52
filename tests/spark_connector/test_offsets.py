"""Goal: splits and merges lose nothing, repeat nothing, and keep the order of every key.

Method: the planning of micro-batches alone, on layouts drawn by hand; `Log` is a topic whose segments hold as many
entries as they are told, and plays the brokers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from metatxn.horizons import SegmentHorizon
from spark_connector.offsets import Lineage, Offset, Places, entered, is_trimmed, next_places, readable, shares
from spark_connector.options import OptionError
from spark_connector.topics import Topic, TopicSegment


@dataclass
class Log:
    entries: dict[str, int] = field(default_factory=dict)
    parents: dict[str, tuple[str, ...]] = field(default_factory=dict)
    sealed: set[str] = field(default_factory=set)

    def segment(self, name: str, entries: int = 0, parents: tuple[str, ...] = ()) -> Log:
        self.entries[name], self.parents[name] = entries, parents
        self.sealed |= set(parents)
        return self

    def children(self, name: str) -> tuple[str, ...]:
        return tuple(child for child, parents in self.parents.items() if name in parents)

    @property
    def lineage(self) -> Lineage:
        segments = tuple(TopicSegment(name, None, self.parents[name], self.children(name)) for name in self.entries)
        return Lineage([Topic("t", None, segments)])

    def horizons(self, places: Places) -> dict[str, SegmentHorizon]:
        return {
            name: SegmentHorizon(
                start="1:-1",
                end=f"1:{self.entries[name] - 1}",
                ended=name in self.sealed,
                children=list(self.children(name)),
            )
            for name in {*places, *self.lineage.unseen(places)}
        }

    def batch(self, places: Places) -> tuple[dict[str, tuple[int, int]], Places]:
        """What the next batch reads, as counts of entries, and where it ends."""
        horizons = self.horizons(places)
        found = readable(places, self.lineage, horizons)
        ends = {each: horizons[each].end for each in found.news}
        begun = {**places, **entered(found, ends, horizons)}
        after = next_places(begun, found, ends, self.lineage) if found.news else places
        return {
            name: (_count(begun[name]), _count(place)) for name, place in after.items() if begun[name] != place
        }, after


def _count(place: str) -> int:
    return int(place.split(":")[1]) + 1


def test_the_children_of_a_split_take_over_without_an_empty_batch() -> None:
    log = Log().segment("a", 3)
    read, places = log.batch({"a": "1:-1"})
    assert read == {"a": (0, 3)}
    log.entries["a"] = 5
    log.segment("b", 2, ("a",)).segment("c", 0, ("a",))
    read, places = log.batch(places)
    assert read == {"a": (3, 5)}, "first the parent to its end"
    assert log.batch(places)[0] == {"b": (0, 2)}
    places = log.batch(places)[1]
    assert places == {"b": "1:1", "c": "1:-1"}, "and nobody looks at the parent again"
    assert log.batch(places) == ({}, places)


def test_a_drained_parent_stays_until_a_child_has_something() -> None:
    log = Log().segment("a", 1)
    places = log.batch({"a": "1:-1"})[1]
    log.segment("b", 0, ("a",)).segment("c", 0, ("a",))
    assert log.batch(places) == ({}, places), "no batch without rows"
    log.entries["c"] = 1
    assert log.batch(places)[1] == {"b": "1:-1", "c": "1:0"}


def test_a_merged_child_waits_for_all_of_its_parents() -> None:
    log = Log().segment("a", 1).segment("b", 1)
    log.batch({"a": "1:-1", "b": "1:-1"})
    places = {"a": "1:0", "b": "1:-1"}
    log.segment("m", 4, ("a", "b"))
    read, places = log.batch(places)
    assert read == {"b": (0, 1)}
    assert places == {"a": "1:0", "b": "1:0"}
    assert log.batch(places) == ({"m": (0, 4)}, {"m": "1:3"})


def test_a_whole_history_is_read_from_its_roots_in_order() -> None:
    """a splits, its halves split and merge crosswise; one of the children was sealed before anything came."""
    log = Log().segment("a", 2).segment("b", 1, ("a",)).segment("c", 0, ("a",))
    log.segment("d", 3, ("b",)).segment("e", 0, ("b",)).segment("m", 5, ("e", "c"))
    seen: list[str] = []
    places = dict.fromkeys(["a"], "1:-1")
    for _ in range(20):
        read, places = log.batch(places)
        seen += [name for name, (start, end) in read.items() if end > start]
    assert sorted(seen) == ["a", "b", "d", "m"], "everything once"
    assert seen.index("a") < seen.index("b") < seen.index("d")
    assert places == {"d": "1:2", "m": "1:4"}


def test_children_that_were_sealed_empty_do_not_stand_in_the_way() -> None:
    log = Log().segment("a", 1)
    places = log.batch({"a": "1:-1"})[1]
    log.segment("b", 0, ("a",)).segment("c", 0, ("a",)).segment("m", 2, ("b", "c"))
    for _ in range(3):
        places = log.batch(places)[1]
    assert places == {"m": "1:1"}


def test_every_segment_at_once_at_the_beginning() -> None:
    """As `startingOffsets` gives it: all segments have a place, and the order holds all the same."""
    log = Log().segment("a", 2).segment("b", 1, ("a",)).segment("c", 1, ("a",))
    read, places = log.batch(dict.fromkeys(["a", "b", "c"], "1:-1"))
    assert read == {"a": (0, 2)}
    assert log.batch(places)[0] == {"b": (0, 1), "c": (0, 1)}


def test_a_new_topic_is_read_from_its_beginning() -> None:
    log = Log().segment("a", 1)
    places = log.batch({"a": "1:-1"})[1]
    log.segment("z", 2)
    assert log.batch(places) == ({"z": (0, 2)}, {"a": "1:0", "z": "1:1"})


@pytest.mark.parametrize(
    ("counts", "limit", "expected"),
    [
        ({"a": 5, "b": 5}, 4, {"a": 2, "b": 2}),
        ({"a": 1, "b": 100, "c": 100}, 21, {"a": 1, "b": 10, "c": 10}),
        ({"a": 3, "b": 3}, 100, {"a": 3, "b": 3}),
        ({"a": 9, "b": 9, "c": 9}, 2, {"a": 0, "b": 1, "c": 1}),
    ],
)
def test_a_limit_is_divided_by_need(counts: dict[str, int], limit: int, expected: dict[str, int]) -> None:
    assert shares(counts, limit) == expected


def test_an_offset_is_what_the_checkpoint_says() -> None:
    offset = Offset({"s": "1:2"}, {"s": "1:0"})
    assert Offset.from_json(offset.to_json()) == offset
    assert Offset({"s": "1:2"}).to_json() == {"read_up_to": {"s": "1:2"}}
    with pytest.raises(OptionError, match="Option checkpointLocation leads to offsets of another source"):
        Offset.from_json({"logOffset": 7})


def test_a_batch_begins_where_it_was_planned_to() -> None:
    """In segments that it enters too. Spark says where it lets a batch begin; of the first one it knows no more than
    where it would begin now; and earlier versions did not tell where they entered a segment."""
    places = {"a": "1:2"}
    assert Offset({"b": "1:5"}, {**places, "b": "1:-1"}).begun(Offset(places, {})) == {"a": "1:2", "b": "1:-1"}
    assert Offset({"a": "1:9"}, {"a": "1:4"}).begun(Offset({"a": "1:7"})) == {"a": "1:4"}
    assert Offset({"a": "1:9"}).begun(Offset({"a": "1:7"})) == {"a": "1:7"}
    assert Offset({"b": "1:5"}, places).begun(Offset(places, {})) == places


def test_what_is_gone_was_trimmed() -> None:
    """A segment that held nothing begins further on after each start of its broker: that is no loss."""
    moved = SegmentHorizon(start="2:-1", end="2:-1")
    assert not is_trimmed("1:-1", moved)
    trimmed = SegmentHorizon(start="5:-1", end="5:3", trimmed=True, trimmed_up_to="1:7")
    assert is_trimmed("1:6", trimmed) and not is_trimmed("1:7", trimmed) and not is_trimmed("3:-1", trimmed)
    from_before = SegmentHorizon(start="5:-1", end="5:3", trimmed=True)
    assert is_trimmed("1:7", from_before) and not is_trimmed("5:-1", from_before)
