"""How far the segments of the subscribed topics can be read, according to the brokers that own them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

import metatxn
from metatxn.horizons import HorizonPlace, SegmentHorizon
from metatxn.wire.broker import Isolation
from spark_connector.options import Offsets, OptionError
from spark_connector.places import order
from spark_connector.topics import Topic, full_name

MAX_MOVES = 5
"""How many times segments may have moved to yet another broker while they are looked up."""
ANYWHERE = HorizonPlace()

HorizonPlaces = Mapping[str, HorizonPlace]


@dataclass(slots=True)
class Looked:
    """The result of a look at the horizons. `gone` are segments that were deleted."""

    segments: dict[str, SegmentHorizon] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)


def every_segment(topics: Iterable[Topic]) -> dict[str, HorizonPlace]:
    return {each.id: ANYWHERE for topic in topics for each in topic.segments}


class Horizons:
    """Asks the brokers for horizons. This costs the metadata store nothing, except where a segment has moved."""

    def __init__(self, service: metatxn.Client, isolation: Isolation, topics: Iterable[Topic] = ()) -> None:
        self._service = service
        self._isolation: Literal["read_committed", "read_uncommitted"] = (
            "read_uncommitted" if isolation == "read_uncommitted" else "read_committed"
        )
        self._owners: dict[str, str | None] = {}
        self.know(topics)

    def know(self, topics: Iterable[Topic]) -> None:
        """Remember the owners of the segments."""
        self._owners.update({each.id: each.owner for topic in topics for each in topic.segments})

    def look(self, wanted: HorizonPlaces) -> Looked:
        looked, left = Looked(), dict(wanted)
        for _ in range(MAX_MOVES):
            for group in self.by_broker(left):
                answer = self.ask(group)
                looked.segments |= answer.segments
                looked.gone |= answer.gone
            left = {each: left[each] for each in left if each not in looked.segments and each not in looked.gone}
            if not left:
                return looked
        raise metatxn.NotOwner(f"the brokers redirect requests for segment {min(left)} to each other")

    def by_broker(self, wanted: HorizonPlaces) -> Iterator[dict[str, HorizonPlace]]:
        """One group for each broker, and one for the segments whose broker is not known."""
        groups: dict[str | None, dict[str, HorizonPlace]] = {}
        for segment, place in wanted.items():
            groups.setdefault(self._owners.get(segment), {})[segment] = place
        yield from groups.values()

    def offsets(self, wanted: Offsets, looked: Looked) -> Offsets:
        """The offsets, with a time as the places of the segments: what was published before it is before them, as far
        as it can be read."""
        if not isinstance(wanted, datetime):
            return wanted
        found = {each: self._service.position_at(each, wanted).after for each in looked.segments}
        return {each: min(place, looked.segments[each].end, key=order) for each, place in found.items()}

    def ask(self, group: HorizonPlaces, wait_ms: int = 0) -> Looked:
        """One request to one broker. Segments that the broker does not have are missing in the answer."""
        answer = self._service.horizons(group, self._isolation, wait_ms)
        self._owners.update(answer.elsewhere)
        return Looked(answer.segments, set(answer.gone))


def starting_places(offsets: Offsets, topics: Sequence[Topic], looked: Looked) -> dict[str, str]:
    """The place after which to read, for each segment; a segment that the JSON does not name is read from its
    beginning."""
    return _places("startingOffsets", offsets, topics, looked, "earliest")


def ending_places(offsets: Offsets, topics: Sequence[Topic], looked: Looked) -> dict[str, str]:
    """The last place to read, for each segment; a segment that the JSON does not name is read as far as possible."""
    return _places("endingOffsets", offsets, topics, looked, "latest")


def _places(option: str, offsets: Offsets, topics: Sequence[Topic], looked: Looked, default: str) -> dict[str, str]:
    topic_of = {each.id: topic.name for topic in topics for each in topic.segments if each.id in looked.segments}
    assert not isinstance(offsets, datetime), "see Horizons.offsets"
    given: dict[str, str] = {}
    if isinstance(offsets, str):
        default = offsets
    else:
        given = {name if name.startswith("segment://") else full_name(name): place for name, place in offsets.items()}
    if unknown := sorted(set(given) - topic_of.keys() - set(topic_of.values())):
        raise OptionError(
            f"Option {option} names {unknown[0]}, which is neither a subscribed topic nor a segment of one."
        )
    places = {}
    for segment, topic in topic_of.items():
        place = given.get(segment, given.get(topic, default))
        horizon = looked.segments[segment]
        if place in ("earliest", "latest"):
            places[segment] = horizon.start if place == "earliest" else horizon.end
        elif order(place) > order(horizon.end):
            raise OptionError(f"Option {option} has {place} for {segment}, which can be read up to {horizon.end} only.")
        else:
            places[segment] = place
    return places
