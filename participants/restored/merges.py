"""Merges in progress at the time of the backup are given up, because their child may have been created since.

Neither segment is claimed any more. One that was sealed for the merge gets its own child, as when its brokers give up a
merge (see `participants.topic.layout`).
"""

from __future__ import annotations

from metastore.api import MetadataStore
from metastore.check import dump
from metastore.keys import unescape
from metastore.txn import paths
from metastore.txn.records.segments import SegmentRecord
from metastore.txn.records.topics import TopicRecord
from metatxn.wire.names import segment_id as new_segment_id


async def give_up_merges(store: MetadataStore) -> None:
    """Give up all merges. After `CheckFailed` (another process writes meanwhile) or an error of the store the call can
    be repeated."""
    stored = {unescape(record.key.removeprefix(paths.SEGMENTS)): record async for record in dump(store, paths.SEGMENTS)}
    records = {segment: SegmentRecord.decode(record.value) for segment, record in stored.items()}
    for one, claimed in records.items():
        if claimed.merge is None or one > claimed.merge.other:
            continue
        batch = store.batch()
        topic_record = await store.get(paths.topic(claimed.topic))
        assert topic_record is not None, "a topic is deleted after its segments"
        topic = TopicRecord.decode(topic_record.value)
        for segment in (one, claimed.merge.other):
            record = records[segment].model_copy(update={"merge": None})
            if record.state == "sealed":
                child = new_segment_id(topic.name, *record.range, topic.next_segment)
                segments = (*topic.segments, child)
                topic = topic.model_copy(update={"segments": segments, "next_segment": topic.next_segment + 1})
                batch.create(paths.segment(child), _child(record, segment).encode())
                record = record.model_copy(update={"children": (child,)})
            batch.replace(stored[segment], record.encode())
        batch.replace(topic_record, topic.encode())
        await store.apply(batch)


def _child(parent: SegmentRecord, segment: str) -> SegmentRecord:
    return SegmentRecord(topic=parent.topic, range=parent.range, storage=parent.storage, parents=(segment,))
