"""Topics and their records: create, list, describe, and the schema that the first write sets."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from metastore.api import MetadataStore
from metastore.errors import CheckFailed
from metastore.keys import prefix_end
from metastore.txn import paths
from metastore.txn.forgetting import beginning
from metastore.txn.records.segments import OwnerRecord, SegmentRecord
from metastore.txn.records.topics import ExclusiveProducerRecord, SchemaHistory, TopicRecord
from metastore.types import Batch, Record
from metastore.versions import ClusterVersion, Feature
from metatxn.service.patience import Patience
from metatxn.service.versions import require
from metatxn.wire import errors
from metatxn.wire.broker import HASH_RANGE_END, ExclusiveProducerInfo, HashRange, SegmentInfo, TopicCount, TopicInfo
from metatxn.wire.listeners import address_for
from metatxn.wire.names import SegmentParts, TopicFormat
from metatxn.wire.names import segment_id as new_segment_id
from participants.messages import schemas

KEYS_PER_READ = 100
"""The number of records that every store reads at one moment."""
TOPICS_PER_READ = 1_000


@dataclass(frozen=True, slots=True)
class StoredTopic:
    record: Record
    topic: TopicRecord


class Topics:
    def __init__(self, store: MetadataStore, version: ClusterVersion | None = None) -> None:
        self._store = store
        self._version = version or ClusterVersion()

    async def create(
        self,
        name: str,
        segments: int,
        schema: pa.Schema | None,
        storage: str,
        created_ms: int,
        format: TopicFormat | None = None,
    ) -> TopicRecord:
        """Create the topic and its segments in one apply. The segments belong to `storage` from the start. A topic that
        was deleted continues with its numbers of segments.

        Raises ALREADY_EXISTS, UPGRADE_PENDING, and STORE_UNAVAILABLE while an earlier topic of this name is being
        deleted.
        """
        if format is not None:
            feature = Feature.KAFKA if format == "kafka" else Feature.PULSAR
            await require(self._store, self._version, feature)
        width = (HASH_RANGE_END + 1) / segments
        bounds = [round(width * index) for index in range(segments + 1)]
        ranges = [(low, high - 1) for low, high in pairwise(bounds)]
        patience = Patience()
        while await patience.lasts():
            batch = self._store.batch()
            tombstone = await self._store.get(paths.topic(name))
            if tombstone is not None:
                first = _next_segment(name, tombstone)
            else:
                first, unchanged = await beginning(self._store)
                batch.check(unchanged)
            ids = tuple(new_segment_id(name, low, high, first + number) for number, (low, high) in enumerate(ranges))
            topic = TopicRecord(
                name=name,
                segments=ids,
                next_segment=first + segments,
                created_ms=created_ms,
                arrow_schema=schemas.encode_schema(schema) if schema is not None else None,
                format=format,
                schema_history=SchemaHistory(version=1, created_ms=created_ms) if schema is not None else None,
            )
            if tombstone is not None:
                batch.replace(tombstone, topic.encode())
            else:
                batch.create(paths.topic(name), topic.encode())
            like = SegmentRecord(
                topic=name,
                range=ranges[0],
                storage=storage,
                next_offset=0 if format == "kafka" else None,
                created_ms=created_ms,
            )
            _create_segments(batch, ids, ranges, like)
            try:
                await self._store.apply(batch)
            except CheckFailed:  # it was created or forgotten meanwhile, or another one was forgotten
                continue
            return topic
        raise patience.over(f"topic {name}")

    async def add_partitions(self, stored: StoredTopic, count: int, storage: str, now_ms: int) -> TopicRecord:
        """Give a topic with the format `kafka` this many more partitions, as segments that belong to `storage`, in one
        apply (DESIGN §5.20). Returns the topic with them. Raises `CheckFailed` if it was changed since it was read."""
        topic = stored.topic
        first = topic.next_segment
        end = max(SegmentParts.parse(each).range[1] for each in topic.segments)
        ranges = [(end + number, end + number) for number in range(1, count + 1)]
        added = tuple(new_segment_id(topic.name, *each, first + number) for number, each in enumerate(ranges))
        grown = topic.model_copy(update={"segments": (*topic.segments, *added), "next_segment": first + count})
        batch = self._store.batch()
        batch.replace(stored.record, grown.encode())
        like = SegmentRecord(topic=topic.name, range=ranges[0], storage=storage, next_offset=0, created_ms=now_ms)
        _create_segments(batch, added, ranges, like)
        await self._store.apply(batch)
        return grown

    async def get(self, name: str) -> StoredTopic:
        """The topic. Raises NOT_FOUND."""
        stored = await self.get_or_tombstone(name)
        if stored is None or stored.topic.deleted:
            raise not_found(name)
        return stored

    async def get_or_tombstone(self, name: str) -> StoredTopic | None:
        record = await self._store.get(paths.topic(name))
        return StoredTopic(record, TopicRecord.decode(record.value)) if record else None

    async def page(self, after: str | None, limit: int) -> tuple[list[TopicRecord], bool]:
        """The topics after the one named `after` in the order of the keys, including tombstones; and whether there are
        more."""
        start = paths.topic(after) + "\0" if after is not None else paths.TOPICS
        found = await self._store.range(start, prefix_end(paths.TOPICS), limit=limit)
        return [TopicRecord.decode(record.value) for record in found.records], found.more

    async def count(self, is_counted: Callable[[TopicRecord], bool], most: int) -> TopicCount:
        """The topics of which `is_counted` is true, among the first `most` records, which include tombstones."""
        topics, looked_at, after, more = 0, 0, None, True
        while more and looked_at < most:
            found, more = await self.page(after, min(TOPICS_PER_READ, most - looked_at))
            topics += sum(map(is_counted, found))
            looked_at += len(found)
            after = found[-1].name if found else after
        return TopicCount(topics=topics, more=more)

    async def describe(self, topic: TopicRecord, listener: str | None = None) -> TopicInfo:
        """The topic in its REST form, with owners as a client of this listener reaches them. Segments may have been
        removed since it was read; then it is read again. Raises NOT_FOUND if it was deleted."""
        patience = Patience()
        while await patience.lasts():
            found = await self._described(topic, listener)
            if found is not None:
                return found
            before, topic = topic, (await self.get(topic.name)).topic
            if topic.segments == before.segments:
                raise not_found(topic.name)
        raise patience.over(f"topic {topic.name}")

    async def describe_each(self, topics: Sequence[TopicRecord], listener: str | None = None) -> list[TopicInfo]:
        """The topics as `describe` describes them, with a read of the store for many of them; without those that were
        deleted meanwhile."""
        described = []
        for together in _read_together(topics):
            records = (await self._store.get_many([key for topic in together for key in _keys_of(topic)])).records
            for topic in together:
                with suppress(errors.NotFound):
                    described.append(_described(topic, records, listener) or await self.describe(topic, listener))
        return described

    async def _described(self, topic: TopicRecord, listener: str | None) -> TopicInfo | None:
        return _described(topic, (await self._store.get_many(_keys_of(topic))).records, listener)


def _keys_of(topic: TopicRecord) -> list[str]:
    """The records of which the description of a topic is made."""
    of_segments = [key(segment) for segment in topic.segments for key in (paths.segment, paths.segment_owner)]
    return [paths.exclusive_producer(topic.name), *of_segments]


def _read_together(topics: Sequence[TopicRecord]) -> Iterator[list[TopicRecord]]:
    """Parts of the topics, whose records are so few that a read shows all of them at one moment; or one topic."""
    part: list[TopicRecord] = []
    keys = 0
    for topic in topics:
        more = len(_keys_of(topic))
        if part and keys + more > KEYS_PER_READ:
            yield part
            part, keys = [], 0
        part.append(topic)
        keys += more
    if part:
        yield part


def _described(topic: TopicRecord, records: Mapping[str, Record | None], listener: str | None) -> TopicInfo | None:
    """The owners of the segments, or None if one of the segments no longer exists."""
    segments = []
    hold = records[paths.exclusive_producer(topic.name)]
    for segment in topic.segments:
        stored, owner = records[paths.segment(segment)], records[paths.segment_owner(segment)]
        record = SegmentRecord.decode(stored.value) if stored is not None else None
        if record is None or record.state == "deleted":
            return None
        segments.append(
            SegmentInfo(
                segment=segment,
                range=record.range,
                state=record.state,
                parents=list(record.parents),
                children=list(record.children),
                owner=_address(listener, OwnerRecord.decode(owner.value)) if owner else None,
                created_ms=record.created_ms,
                sealed_ms=record.sealed_ms,
            )
        )
    schema = schemas.to_wire(topic.arrow_schema) if topic.arrow_schema else None
    return TopicInfo(
        name=topic.name,
        topic_schema=schema,
        schema_version=topic.schema_version or None,
        segments=segments,
        format=topic.format,
        exclusive_producer=shown_producer(ExclusiveProducerRecord.decode(hold.value)) if hold is not None else None,
    )


def shown_producer(hold: ExclusiveProducerRecord) -> ExclusiveProducerInfo | None:
    """The exclusive producer of a topic, or None if it has none."""
    if not hold.held:
        return None
    assert hold.claimed_ms is not None and hold.until_ms is not None
    return ExclusiveProducerInfo(
        epoch=hold.epoch, producer=hold.producer, claimed_ms=hold.claimed_ms, until_ms=hold.until_ms
    )


def _address(listener: str | None, owner: OwnerRecord) -> str:
    return address_for(listener, owner.url, owner.listeners)


def segment_not_found(segment_id: str) -> errors.MetatxnError:
    return errors.NotFound(f"segment {segment_id} does not exist", segment=segment_id)


def not_found(name: str) -> errors.MetatxnError:
    return errors.NotFound(
        f"topic {name} does not exist",
        action=f"Create it first: metatxn topic create {shlex.quote(name)}",
        topic=name,
    )


def _next_segment(name: str, stored: Record) -> int:
    """The number of the first segment of a topic that is to be created again."""
    topic = TopicRecord.decode(stored.value)
    if not topic.deleted:
        raise _exists(name)
    if topic.segments:
        raise errors.StoreUnavailable(
            f"topic {name} is being deleted",
            action="Try again in a moment. If the error persists, delete the topic once more.",
            topic=name,
        )
    return topic.next_segment


def _exists(name: str) -> errors.MetatxnError:
    return errors.AlreadyExists(f"topic {name} exists", topic=name)


def _create_segments(batch: Batch, ids: Sequence[str], ranges: Sequence[HashRange], like: SegmentRecord) -> None:
    """Create a segment for each of these ranges, apart from that like `like`."""
    for created, hash_range in zip(ids, ranges, strict=True):
        batch.create(paths.segment(created), like.model_copy(update={"range": hash_range}).encode())
