"""Forgetting records of which only a counter is left (DESIGN §5.26).

    forgotten   the record goes, and /gc/first-number is above its counter      one apply
    begun       the record is absent: its counter begins at /gc/first-number    one apply, which checks both

So the counters of segments, incarnations and epochs never give out a number twice under one name, although the store
does not remember every name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from metastore.api import MetadataStore
from metastore.incarnation import recovered_ms
from metastore.txn import paths
from metastore.txn.records.segments import OwnerRecord
from metastore.txn.records.topics import TopicRecord
from metastore.txn.records.transactions import FirstNumber
from metastore.types import Absent, AtVersion, Check, Record
from metatxn.wire.names import SegmentParts, number_of_segment


class Beginning(NamedTuple):
    """Where a counter begins that the store does not know, and what the apply that begins it must check."""

    number: int
    check: Check


class Counter(NamedTuple):
    """A record to forget, and the highest number that its counter has given out."""

    record: Record
    last: int


async def beginning(store: MetadataStore) -> Beginning:
    """Where unknown counters begin: above what was forgotten, and above what a counter of the same name may have given
    out before the store was restored (DESIGN §10). It is 0 in a store that was never restored and has forgotten
    nothing. Raises the store's errors."""
    records = (await store.get_many([paths.FIRST_NUMBER, paths.INCARNATION])).records
    stored, incarnation = records[paths.FIRST_NUMBER], records[paths.INCARNATION]
    return Beginning(max(_number(stored), recovered_ms(incarnation)), _unchanged(stored))


async def forget(store: MetadataStore, counters: Sequence[Counter]) -> None:
    """Forget the records in one apply. Raises `CheckFailed` if one of them has changed, and the store's errors."""
    stored = await store.get(paths.FIRST_NUMBER)
    above = FirstNumber(number=max(counter.last for counter in counters) + 1)
    batch = store.batch()
    for counter in counters:
        batch.remove(counter.record)
    if stored is None:
        batch.create(paths.FIRST_NUMBER, above.encode())
    elif _number(stored) < above.number:
        batch.replace(stored, above.encode())
    await store.apply(batch)


async def was_deleted(store: MetadataStore, segment_id: str) -> bool:
    """Whether a segment that the store does not know was deleted, so that bytes of it are left over; or else it was
    lost with a restore, or it was never there. Raises the store's errors."""
    try:
        parts = SegmentParts.parse(segment_id)
    except ValueError:
        return False
    topic_key, owner_key = paths.topic(parts.topic), paths.segment_owner(segment_id)
    records = (await store.get_many([topic_key, owner_key, paths.FIRST_NUMBER])).records
    owner, topic = records[owner_key], records[topic_key]
    if owner is not None and OwnerRecord.decode(owner.value).deleted:
        return True
    return parts.number < (_first_of(topic) if topic is not None else _number(records[paths.FIRST_NUMBER]))


def _first_of(stored: Record) -> int:
    """The lowest number of a segment that can still belong to the topic."""
    topic = TopicRecord.decode(stored.value)
    if topic.deleted:
        return topic.next_segment
    if topic.first_segment is not None:
        return topic.first_segment
    return min(map(number_of_segment, topic.segments), default=0)


def _number(stored: Record | None) -> int:
    return FirstNumber.decode(stored.value).number if stored is not None else 0


def _unchanged(stored: Record | None) -> Check:
    return AtVersion(stored.key, stored.version) if stored is not None else Absent(paths.FIRST_NUMBER)
