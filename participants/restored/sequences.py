"""The counters of a restored store are moved far ahead, so that no number that was assigned after the backup is
assigned again.

    /txn-seq/<coordinator>   ids of transactions          /txn-key/…         epochs
    /seq/…                   numbers of `put_sequential`  /segment-owner/…   generations, which also number ledgers
    /topic/…                 numbers of segments          /exclusive-producer/…  epochs

It is not known how many numbers were assigned since. But no counter grows faster than the clock, and ids no faster than
`IDS_PER_MS`, so each counter leaps to the time of the recovery, in these units, unless it is ahead of that. Counters
that were created after the backup begin there, too (`metastore.txn.forgetting.beginning`).
"""

from __future__ import annotations

from collections.abc import Callable

from metastore.api import MetadataStore
from metastore.check import dump
from metastore.incarnation import IDS_PER_MS
from metastore.slices import slices
from metastore.txn import paths
from metastore.txn.records.segments import OwnerRecord
from metastore.txn.records.topics import ExclusiveProducerRecord, TopicRecord
from metastore.txn.records.transactions import TransactionKey

_TOGETHER = 20


async def leap(store: MetadataStore, now_ms: int) -> None:
    """Move all counters. After `CheckFailed` (another process writes meanwhile) or an error of the store the call can
    be repeated."""
    for prefix, leapt in _LEAPS:
        records = [record async for record in dump(store, prefix)]
        for some in slices(store, records, _TOGETHER, lambda batch, record: batch.replace(record, record.value)):
            batch = store.batch()
            for record in some:
                batch.replace(record, leapt(record.value, now_ms))
            await store.apply(batch)


def _counter(value: bytes, now_ms: int) -> bytes:
    return str(max(int(value), now_ms * IDS_PER_MS)).encode()


def _key(value: bytes, now_ms: int) -> bytes:
    key = TransactionKey.decode(value)
    return key.model_copy(update={"epoch": max(key.epoch, now_ms)}).encode()


def _owner(value: bytes, now_ms: int) -> bytes:
    """The owner's record, without an owner and at an unused generation. A deleted one stays deleted."""
    owner = OwnerRecord.decode(value)
    generation = max(owner.generation, now_ms)
    return owner.model_copy(update={"broker": "", "url": "", "generation": generation}).encode()


def _topic(value: bytes, now_ms: int) -> bytes:
    topic = TopicRecord.decode(value)
    return topic.model_copy(update={"next_segment": max(topic.next_segment, now_ms)}).encode()


def _exclusive_producer(value: bytes, now_ms: int) -> bytes:
    """Release the topic: no producer holds it any more, and its producer claims it again."""
    producer = ExclusiveProducerRecord.decode(value).ended
    return producer.model_copy(update={"epoch": max(producer.epoch, now_ms)}).encode()


_LEAPS: tuple[tuple[str, Callable[[bytes, int], bytes]], ...] = (
    (paths.ID_SEQUENCES, _counter),
    ("/seq/", _counter),
    (paths.TRANSACTION_KEYS, _key),
    (paths.SEGMENT_OWNERS, _owner),
    (paths.TOPICS, _topic),
    (paths.EXCLUSIVE_PRODUCERS, _exclusive_producer),
)
