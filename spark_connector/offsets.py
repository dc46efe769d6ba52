"""The progress of a streaming read, and how far its next micro-batch may go. Pure functions: no I/O, no clock.

An offset is JSON that Spark keeps in its checkpoint:

    {"read_up_to": {"segment://public/default/orders/0000-ffff-0": "3:17"}, "since": {"segment://…-0": "3:9"}}

`since` is where the batch that ends here began, also in the segments that it enters: entries after that place that are
trimmed before its tasks read them are lost. It is also needed because Spark does not store where its first batch began:
it asks again after a crash, and by then `latest` is a different place. Offsets of earlier versions lack the beginnings
in segments that are entered. The place of a drained segment remains until its children take its place.

Keys are read in the order in which they were written, across splits and merges: a child is not read before its parents
have been read to their end, in an earlier batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from metatxn.horizons import SegmentHorizon
from metatxn.wire.names import number_of_segment, topic_of_segment
from spark_connector.options import OptionError
from spark_connector.places import order
from spark_connector.topics import Topic

Places = dict[str, str]


@dataclass(frozen=True, slots=True)
class Offset:
    """The progress of a read. `since` is None if nothing has been read yet."""

    read_up_to: Places
    since: Places | None = None

    def begun(self, start: Offset) -> Places:
        """The beginning of the batch that ends here, for which Spark gives `start` as its beginning; see the module's
        docstring."""
        if start.since is None and self.since is not None:
            return self.since
        return {**(self.since or {}), **start.read_up_to}

    def to_json(self) -> dict[str, Any]:
        said = {"read_up_to": self.read_up_to}
        return said if self.since is None else {**said, "since": self.since}

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> Self:
        """The offset in a checkpoint. Raises `OptionError` for one that another source has written."""
        if not isinstance(said, dict) or "read_up_to" not in said:
            raise OptionError(f"Option checkpointLocation leads to offsets of another source: {str(said)[:100]}.")
        return cls(said["read_up_to"], said.get("since"))


class Lineage:
    """Parents and children among the segments of all subscribed topics. Those that were removed from a topic are known
    as long as they have children there."""

    def __init__(self, topics: Iterable[Topic]) -> None:
        self._segments = {each.id: each for topic in topics for each in topic.segments}
        self._heirs: dict[str, tuple[str, ...]] = {}
        for each in self._segments.values():
            for parent in each.parents:
                self._heirs[parent] = (*self._heirs.get(parent, ()), each.id)

    def __contains__(self, segment: str) -> bool:
        return segment in self._segments or segment in self._heirs

    def parents(self, segment: str) -> tuple[str, ...]:
        return self._segments[segment].parents if segment in self._segments else ()

    def children(self, segment: str) -> tuple[str, ...]:
        return self._segments[segment].children if segment in self._segments else self._heirs.get(segment, ())

    def missed(self, segment: str, places: Mapping[str, str]) -> list[str]:
        """The parents of a segment that were created since a reader began to read the topic, and removed from it before
        the reader came there: without a place, which it would keep until their children have one."""
        topic = topic_of_segment(segment)
        begun = [number_of_segment(each) for each in places if topic_of_segment(each) == topic]
        removed = set(self.parents(segment)) - self._segments.keys() - places.keys()
        return sorted(each for each in removed if begun and number_of_segment(each) > max(begun))

    def unseen(self, places: Mapping[str, str]) -> set[str]:
        """Segments that must still be read and have no place yet. Segments before one that has a place were already
        read."""
        passed: set[str] = set()
        left = list(places)
        while left:
            parents = set(self.parents(left.pop())) - passed
            passed |= parents
            left += parents
        return self._segments.keys() - places.keys() - passed


def is_trimmed(place: str, horizon: SegmentHorizon) -> bool:
    """Whether entries after `place` are gone. A segment may also begin further on because there were no entries
    before."""
    if not horizon.trimmed:
        return False
    return order(place) < order(horizon.trimmed_up_to or horizon.start)  # earlier brokers do not send it


@dataclass(frozen=True, slots=True)
class Readable:
    """`due` are segments that may be read further, `entering` those of them that have no place yet, and `news` those of
    them that have something to read. `drained` are segments that were read to their final end."""

    due: set[str]
    entering: set[str]
    news: set[str]
    drained: set[str]


def readable(places: Places, lineage: Lineage, horizons: Mapping[str, SegmentHorizon]) -> Readable:
    """What can be read. `horizons` has every segment that has a place or is unseen, requested for what follows its
    place."""
    drained = {each for each, place in places.items() if horizons[each].ended and horizons[each].end == place}
    unseen = lineage.unseen(places) & horizons.keys()
    waited_for = (places.keys() - drained) | unseen
    due = {each for each in waited_for if waited_for.isdisjoint(lineage.parents(each))}
    # A child that was sealed empty has nothing to read, but its own children wait until it is passed.
    news = {
        each
        for each in due
        if horizons[each].end != places.get(each, horizons[each].start) or (each in unseen and horizons[each].ended)
    }
    return Readable(due, due & unseen, news, drained)


def entered(found: Readable, ends: Mapping[str, str], horizons: Mapping[str, SegmentHorizon]) -> Places:
    """Where a batch that reads the segments of `ends` begins in the segments that it enters: all children at once."""
    return {} if found.entering.isdisjoint(ends) else {each: horizons[each].start for each in found.entering}


def next_places(places: Places, found: Readable, ends: Mapping[str, str], lineage: Lineage) -> Places:
    """The places after a batch that reads the segments of `ends` up to those ends; `places` includes the segments that
    it enters."""
    places = {**places, **ends}
    replaced = {
        each for each in found.drained if lineage.children(each) and places.keys() >= set(lineage.children(each))
    }
    return {each: places[each] for each in sorted(places.keys() - replaced)}


def shares(counts: Mapping[str, int], limit: int) -> dict[str, int]:
    """`limit` divided among segments with these numbers of rows: none gets more than it has, and, while another one
    wants more, none gets more than that one."""
    divided, left = {}, limit
    for number, (segment, count) in enumerate(sorted(counts.items(), key=lambda item: item[1])):
        divided[segment] = min(count, left // (len(counts) - number))
        left -= divided[segment]
    return divided
