"""The streaming reader: micro-batches of per-segment ranges, bounded by the read-committed horizon of each segment.

Spark creates one for the life of a query, in a Python process on the driver, and asks it for offsets. Others, created
for every plan, are pickled into the tasks and read there. So the state of the driver is created when it is first
needed.

    latestOffset    from memory while nothing has changed (`watch`), else one look at the horizons
    partitions      the ranges between two offsets, whatever has happened to the segments since
    read            one range, in a task
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

import metatxn
from metatxn.horizons import HorizonPlace, SegmentHorizon
from spark_connector.clients import client
from spark_connector.errors import data_lost, one_line
from spark_connector.horizons import Horizons, Looked, every_segment, starting_places
from spark_connector.offsets import (
    Lineage,
    Offset,
    Places,
    Readable,
    entered,
    is_trimmed,
    next_places,
    readable,
    shares,
)
from spark_connector.options import ReadOptions
from spark_connector.segment_rows import SegmentRange, every_entry, rows, wanted_columns
from spark_connector.topics import Topic, find_topic, find_topics, matching_topics
from spark_connector.watch import NewsWatch

FRUITLESS_PAUSE_S = 0.2
"""The pause between looks that find nothing although something has changed: there are at most five per second."""
NEW_TOPICS_S = 60.0
"""How often a pattern is matched against the topics again."""
CHILDREN_S = 1.0
"""The first pause before looking for children of a segment that ended without any. It doubles each time, up to a
minute."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def __reduce__(self) -> tuple[type[StreamReader], tuple[ReadOptions, StructType]]:
        return StreamReader, (self._options, self._schema)

    # -- on the driver -----------------------------------------------------------------------------------------

    @cached_property
    def _planner(self) -> StreamPlanner:
        return StreamPlanner(self._options, self._schema)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        with one_line():
            return self._planner.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        limit = self._options.max_rows
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with one_line():
            self._planner.stop_at_what_is_there()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        with one_line():
            max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            end = self._planner.next_end(Offset.from_json(start), max_rows)
            return start if end is None else end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        ends = self._planner.ends
        return Offset(ends).to_json() if ends else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with one_line():
            return self._planner.partitions(Offset.from_json(start), Offset.from_json(end))

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing to do: the progress of the query is in its checkpoint. The sink acknowledges on subscriptions."""

    def stop(self) -> None:
        if "_planner" in self.__dict__:
            self._planner.stop()

    # -- in the tasks ------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SegmentRange)
        return rows(partition, self._options, self._schema, every_entry)


class StreamPlanner:
    """The driver's knowledge of the subscribed topics. Used from one thread."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self.ends: Places = {}
        """How far each segment could be read when it was last looked at."""
        self._options = options
        self._schema = schema
        self._service = client(options.service)
        self._horizons = Horizons(self._service, options.isolation)
        self._watch = NewsWatch(self._horizons.ask)
        self._targets: Places | None = None
        self._idle_at: Places | None = None
        self._not_before = self._refresh_at = 0.0
        self._childless: set[str] = set()
        self._childless_pause_s = CHILDREN_S
        self._turns: dict[str, int] = {}
        self._turn = 0
        self._topics: list[Topic] = find_topics(self._service, options.topics, options.pattern)
        self._use_topics()

    def stop(self) -> None:
        self._watch.stop()

    # -- offsets -----------------------------------------------------------------------------------------------

    def initial(self) -> Offset:
        looked = self._horizons.look(every_segment(self._topics))
        return Offset(starting_places(self._horizons.offsets(self._options.starting, looked), self._topics, looked))

    def stop_at_what_is_there(self) -> None:
        self._refresh_topics()
        looked = self._horizons.look(every_segment(self._topics))
        self._targets = {segment: horizon.end for segment, horizon in looked.segments.items()}

    def next_end(self, start: Offset, max_rows: int | None) -> Offset | None:
        """The end of the next batch, or None if there is nothing more to read now. The first batch always has one."""
        first = start.since is None
        if not first and self._nothing_new(start.read_up_to):
            return None
        places, horizons = self._look(start.read_up_to)
        found = readable(places, self._lineage, horizons)
        if not found.news:
            self._wait(start.read_up_to, places, found, horizons)
            return Offset(places, start.read_up_to) if first or places != start.read_up_to else None
        self._idle_at = None
        ends = self._limited({each: horizons[each].end for each in found.news}, places, max_rows)
        begun = entered(found, ends, horizons)
        after = next_places({**places, **begun}, found, ends, self._lineage)
        return Offset(after, {**start.read_up_to, **begun})

    def _nothing_new(self, places: Places) -> bool:
        now = time.monotonic()
        if now >= self._refresh_at:
            self._refresh_topics()
            return False
        if places != self._idle_at:
            return False
        return not self._watch.news or now < self._not_before

    def _wait(self, start: Places, places: Places, found: Readable, horizons: dict[str, SegmentHorizon]) -> None:
        if start == self._idle_at:  # something has changed, but nothing that this query reads
            self._not_before = time.monotonic() + FRUITLESS_PAUSE_S
        self._idle_at = start
        self._look_for_children({each for each, horizon in horizons.items() if horizon.ended})
        if self._targets is None:
            waited_for = [each for each in found.due if not horizons[each].ended]
            wanted = {each: HorizonPlace(after=places.get(each, horizons[each].start)) for each in waited_for}
            self._watch.arm(self._horizons.by_broker(wanted))

    def _look_for_children(self, ended: set[str]) -> None:
        """Look for children. A merge ends its parents a little before there is a child; a segment sealed without a
        successor never has one."""
        childless = {each for each in ended if not self._lineage.children(each)}
        if childless != self._childless:
            self._childless, self._childless_pause_s = childless, CHILDREN_S
        look_at = time.monotonic() + self._childless_pause_s
        if childless and look_at < self._refresh_at:
            self._refresh_at = look_at
            self._childless_pause_s = min(2 * self._childless_pause_s, NEW_TOPICS_S)

    def _look(self, places: Places) -> tuple[Places, dict[str, SegmentHorizon]]:
        """The places, without lost data if the user wants to skip it, and the horizons after them."""
        looked = self._look_at(places)
        if any(child not in self._lineage for horizon in looked.segments.values() for child in horizon.children):
            self._refresh_topics()
            looked = self._look_at(places)
        self.ends = {each: horizon.end for each, horizon in looked.segments.items()}
        return self._without_lost(places, looked), looked.segments

    def _look_at(self, places: Places) -> Looked:
        wanted = {each: HorizonPlace(after=place) for each, place in places.items()}
        wanted |= {each: HorizonPlace() for each in self._lineage.unseen(places)}
        if self._targets is not None:
            targets = self._targets
            wanted = {
                each: place.model_copy(update={"up_to": targets.get(each, place.after)})
                for each, place in wanted.items()
                if each in targets or each in places
            }
        return self._horizons.look(wanted)

    def _without_lost(self, places: Places, looked: Looked) -> Places:
        kept = {}
        for segment, place in places.items():
            if segment in looked.gone:
                self._lost(segment, "it was deleted")
            elif segment not in self._lineage:
                self._lost(segment, "its topic is no longer subscribed")
            elif is_trimmed(place, looked.segments[segment]):
                self._lost(segment, f"entries after {place} and up to {looked.segments[segment].start} were trimmed")
                kept[segment] = looked.segments[segment].start
            else:
                kept[segment] = place
        for segment in sorted(looked.segments.keys() - places.keys()):
            if looked.segments[segment].trimmed and self._lineage.parents(segment):
                self._lost(segment, f"entries up to {looked.segments[segment].start} were trimmed")
            for parent in self._lineage.missed(segment, places):
                self._lost(parent, "it was removed from its topic, because all of its entries were trimmed")
        return kept

    def _lost(self, segment: str, reason: str) -> None:
        if self._options.fail_on_data_loss:
            raise data_lost(segment, reason)

    def _limited(self, ends: Places, places: Places, max_rows: int | None) -> Places:
        """The ends of a batch of about `max_rows` rows: an entry is never divided, and at least one is read."""
        if max_rows is None:
            return ends
        counted = self._count(ends, places, dict.fromkeys(ends, max_rows))
        if sum(count for _, count in counted.values()) > max_rows:
            wanted = shares({each: count for each, (_, count) in counted.items()}, max_rows)
            counted = self._count(ends, places, {each: max(1, share) for each, share in wanted.items()})
        taken: Places = {}
        total = 0
        # The segment that has waited longest is first, so that none starves where entries are larger than shares.
        for segment, (end, count) in sorted(counted.items(), key=lambda item: self._turns.get(item[0], 0)):
            if taken and total + count > max_rows:
                continue
            taken[segment], total = end, total + count
            self._turns[segment] = self._turn = self._turn + 1
        return taken

    def _count(self, ends: Places, places: Places, limits: dict[str, int]) -> dict[str, tuple[str, int]]:
        wanted = {
            each: HorizonPlace(after=places.get(each), up_to=ends[each], max_messages=limit)
            for each, limit in limits.items()
        }
        return {each: (found.end, found.messages or 0) for each, found in self._horizons.look(wanted).segments.items()}

    # -- partitions --------------------------------------------------------------------------------------------

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """The partitions of a batch that may have been planned long ago, by another process."""
        begun = end.begun(start)
        topic_of = {each.id: topic for topic in self._topics for each in topic.segments}
        if not end.read_up_to.keys() <= topic_of.keys():
            self._refresh_topics()
            topic_of = {each.id: topic for topic in self._topics for each in topic.segments}
        owners = {each.id: each.owner for topic in self._topics for each in topic.segments}
        found: list[InputPartition] = []
        for segment, place in end.read_up_to.items():
            after = begun.get(segment)
            if after == place:
                continue
            if segment not in topic_of:
                self._lost(segment, "it was deleted")
                continue
            if after is None and (after := self._beginning(segment)) is None:
                continue
            topic = topic_of[segment]
            columns = wanted_columns(self._schema, topic, self._options)
            messages, some = topic.columns is None, topic.has_more_than(columns)
            owner = owners[segment]
            found.append(SegmentRange(topic.name, segment, owner, after, place, None, columns, messages, some))
        return found

    def _beginning(self, segment: str) -> str | None:
        """The beginning of a segment that is entered by a batch whose offset does not contain it, because an earlier
        version planned the batch. None if the segment was deleted."""
        looked = self._horizons.look({segment: HorizonPlace()})
        if segment in looked.gone:
            self._lost(segment, "it was deleted")
            return None
        self._without_lost({}, looked)
        return looked.segments[segment].start

    # -- topics ------------------------------------------------------------------------------------------------

    def _refresh_topics(self) -> None:
        known = {topic.name for topic in self._topics}
        names = self._options.topics
        if self._options.pattern is not None:
            names = tuple(sorted(known | set(matching_topics(self._service, self._options.pattern))))
        self._topics = [topic for name in names if (topic := self._found(name)) is not None]
        self._use_topics()

    def _found(self, name: str) -> Topic | None:
        try:
            return find_topic(self._service, name)
        except metatxn.NotFound:
            self._lost(name, "its topic was deleted")
            return None

    def _use_topics(self) -> None:
        """Read these topics from now on, and decide when to look at them again."""
        self._lineage = Lineage(self._topics)
        self._horizons.know(self._topics)
        pause_s = NEW_TOPICS_S if self._options.pattern is not None else math.inf
        self._refresh_at = time.monotonic() + pause_s
