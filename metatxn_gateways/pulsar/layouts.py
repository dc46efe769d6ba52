"""The layout of topics as Pulsar's clients watch it: a graph of segments, pushed whenever it changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from metastore.api import MetadataStore
from metastore.keys import unescape
from metastore.txn import paths
from metastore.txn.records.segments import SegmentRecord
from metastore.txn.records.topics import TopicRecord
from metastore.types import Event, Record
from metastore.watches import Mirror
from metatxn.wire.names import SegmentParts, topic_of_segment

ACTIVE, SEALED = 0, 1


@dataclass(frozen=True)
class SegmentGraph:
    """The graph of a topic's segments. `epoch` grows with every change. What is derived from it is made once, for all
    that watch the topic."""

    topic: TopicRecord
    epoch: int
    segments: dict[str, SegmentRecord] = field(default_factory=dict)

    @cached_property
    def shape(self) -> object:
        """What clients see of it, except its age."""
        return [(name, self.is_sealed(name)) for name in self.segments]

    def is_sealed(self, segment_id: str) -> bool:
        """Whether a segment is sealed, and others have its hash range. One that was sealed for a merge is active until
        the child is there: a client that finds no segment for a message gives it up, and one that is refused by a
        sealed segment looks for another one. The record of a parent may be seen later than those of its children."""
        record = self.segments[segment_id]
        if any(segment_id in each.parents for each in self.segments.values()):
            return True
        return record.state != "active" and record.merge is None

    @cached_property
    def described(self) -> dict[str, Any]:
        """The layout as clients get it."""
        return {
            "epoch": self.epoch,
            "segments": [self._described(name, record) for name, record in self.segments.items()],
        }

    def _described(self, segment_id: str, record: SegmentRecord) -> dict[str, Any]:
        children = [name for name, each in self.segments.items() if segment_id in each.parents]
        return {
            "segment_id": SegmentParts.parse(segment_id).number,
            "hash_start": record.range[0],
            "hash_end": record.range[1],
            "state": SEALED if self.is_sealed(segment_id) else ACTIVE,
            "parent_ids": [SegmentParts.parse(each).number for each in record.parents if each in self.segments],
            "child_ids": [SegmentParts.parse(each).number for each in children],
            "created_at_epoch": 0,
            "created_at_ms": self.topic.created_ms,
        }


class SegmentGraphs:
    """Mirrors the records of all topics and segments, and tells the watchers of a topic about its changes. Used only
    from the event loop of its process."""

    def __init__(self, store: MetadataStore) -> None:
        self._topics = Mirror(store, paths.TOPICS, self._topic_changed)
        self._segments = Mirror(store, paths.SEGMENTS, self._segment_changed)
        self._watching: defaultdict[str, list[Callable[[], None]]] = defaultdict(list)
        self._whole: dict[str, SegmentGraph] = {}
        """The last layouts of watched topics whose records fitted together."""
        self._current: dict[str, SegmentGraph | None] = {}
        """What was last returned for watched topics, none of whose records has changed since."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Mirror the records inside this block. Raises the store's errors."""
        async with AsyncExitStack() as stack:
            for mirror in (self._topics, self._segments):
                await stack.enter_async_context(mirror.running())
            yield

    def watch(self, topic: str, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` whenever the layout may have changed, until what is returned is called."""
        self._watching[topic].append(changed)

        def leave() -> None:
            watching = self._watching.get(topic, [])
            if changed in watching:
                watching.remove(changed)
            if not watching:
                self._watching.pop(topic, None)
                self._whole.pop(topic, None)
                self._current.pop(topic, None)

        return leave

    def exists(self, topic: str) -> bool:
        """Whether there is such a topic, as far as it was seen."""
        stored = self._topics.records.get(paths.topic(topic))
        return stored is not None and not TopicRecord.decode(stored.value).deleted

    def get(self, topic: str) -> SegmentGraph | None:
        """The layout as it was last seen, or None if there is no such topic. The records of a topic and of its segments
        are not seen at one moment: as long as they do not fit together, it is the layout before, of a topic that is
        watched, and None of another one."""
        if topic not in self._watching:
            return self._read(topic)
        if topic not in self._current:
            self._current[topic] = self._read(topic)
        return self._current[topic]

    def _read(self, topic: str) -> SegmentGraph | None:
        stored = self._topics.records.get(paths.topic(topic))
        record = TopicRecord.decode(stored.value) if stored is not None else None
        if stored is None or record is None or record.deleted:
            self._whole.pop(topic, None)
            return None
        seen = self._seen(stored, record)
        if seen is None:
            return self._whole.get(topic)
        if topic in self._watching:
            self._whole[topic] = seen
        return seen

    def _seen(self, stored: Record, topic: TopicRecord) -> SegmentGraph | None:
        """The layout, or None if a segment was not seen yet, or a child that is not in the topic yet."""
        epoch, segments = stored.version, {}
        for segment_id in topic.segments:
            found = self._segments.records.get(paths.segment(segment_id))
            if found is None:
                return None
            epoch = max(epoch, found.version)
            segments[segment_id] = SegmentRecord.decode(found.value)
        if any(child not in segments for each in segments.values() for child in each.children):
            return None
        return SegmentGraph(topic, epoch, segments)

    def _topic_changed(self, event: Event) -> None:
        self._tell(unescape(event.key.removeprefix(paths.TOPICS)))

    def _segment_changed(self, event: Event) -> None:
        self._tell(topic_of_segment(unescape(event.key.removeprefix(paths.SEGMENTS))))

    def _tell(self, topic: str) -> None:
        self._current.pop(topic, None)
        for changed in list(self._watching.get(topic, ())):
            changed()
