"""Forgetting deleted topics and dropped subscriptions, of which nothing is left but their tombstones (DESIGN §5.26).

Every broker looks from time to time, whatever it serves. Each step is checked, so two brokers may do the same: what one
of them has forgotten, the other one passes over. A broker with local files also looks for deleted segments that are its
own, because it may never have heard of one: its topic was created here without an answer, or it is the child of a merge
that another broker has completed, and nobody asked for it before it was deleted elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import structlog

from metastore.check import dump
from metastore.errors import CheckFailed
from metastore.keys import prefix_end, unescape
from metastore.txn import paths
from metastore.txn.forgetting import Counter, forget
from metastore.txn.records.segments import SegmentRecord
from metastore.txn.records.subscriptions import SubscriptionRecord
from metastore.txn.records.topics import ExclusiveProducerRecord, TopicRecord
from metastore.types import Record
from metastore.versions import Feature
from participants.broker.broker import Broker

FORGET_AFTER_MS = 3_600_000
"""How long a tombstone stays, so that a repeated deletion succeeds."""
LOOK_EVERY_MS = 600_000

log = structlog.get_logger()


class Forgetting:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store
        self._looked_ms: int | None = None

    async def look(self) -> None:
        """Forget what is due, if the last look was long enough ago. Raises the store's errors."""
        now_ms = self._broker.clock()
        if self._looked_ms is None:  # brokers that start together do not look together
            self._looked_ms = now_ms - crc32(self._broker.id.encode()) % LOOK_EVERY_MS
        if not 0 <= now_ms - self._looked_ms < LOOK_EVERY_MS and self._broker.version.allows(Feature.FORGETTING):
            self._looked_ms = now_ms
            if self._broker.storage.exclusive:
                await self._find_deleted_segments(self._broker.storage.storage_id)
            await self.forget_due(now_ms - FORGET_AFTER_MS)

    async def _find_deleted_segments(self, storage: str) -> None:
        """Have the next reconcile finish the deletion of every segment of this storage that is deleted."""
        async for stored in dump(self._store, paths.SEGMENTS):
            record = SegmentRecord.decode(stored.value)
            if record.storage == storage and record.state == "deleted":
                self._broker.finish_later(unescape(stored.key.removeprefix(paths.SEGMENTS)))

    async def forget_due(self, until_ms: int) -> None:
        """Forget what was deleted or dropped by then. Raises the store's errors."""
        async for record in dump(self._store, paths.SUBSCRIPTIONS):
            dropped = SubscriptionRecord.decode(record.value)
            if dropped.deleted and (dropped.deleted_ms or 0) <= until_ms:
                await self._forget_subscription(record, dropped)
        async for record in dump(self._store, paths.TOPICS):
            topic = TopicRecord.decode(record.value)
            if topic.deleted and not topic.segments and (topic.deleted_ms or 0) <= until_ms:
                await self._forget_topic(record, topic)

    async def _forget_subscription(self, record: Record, dropped: SubscriptionRecord) -> None:
        topic, name = map(unescape, record.key.removeprefix(paths.SUBSCRIPTIONS).split("/"))
        async for segment in dump(self._store, paths.segments_of_topic(topic)):
            if await self._has_any_left(unescape(segment.key.removeprefix(paths.SEGMENTS)), name):
                return
        await self._forget([Counter(record, dropped.incarnation)])

    async def _has_any_left(self, segment: str, subscription: str) -> bool:
        """Whether the segment has a cursor or an acknowledgement of the subscription. None is added once it was
        dropped, because each is written under a check of its record."""
        if await self._is_any_below(paths.cursors(segment, subscription)):
            return True
        acks = paths.acks_by_subscription(segment, subscription)
        return bool(await self._store.query_index("acks-by-segment-subscription", acks, prefix_end(acks), limit=1))

    async def _forget_topic(self, record: Record, topic: TopicRecord) -> None:
        """With its exclusive producer, once its segments and subscriptions are gone. Nothing of a deleted topic is
        created any more, because everything checks its record, and an owner the record of its segment."""
        name = topic.name
        of_segments = paths.segments_of_topic, paths.owners_of_topic
        of_pulsar = (paths.pulsar_schemas,) if topic.format == "pulsar" else ()
        for prefix in (*of_segments, paths.subscriptions, paths.read_holds, *of_pulsar):
            if await self._is_any_below(prefix(name)):
                return
        counters = [Counter(record, topic.next_segment - 1)]
        producer = await self._store.get(paths.exclusive_producer(name))
        if producer is not None:
            counters.append(Counter(producer, ExclusiveProducerRecord.decode(producer.value).epoch))
        await self._forget(counters)

    async def _is_any_below(self, prefix: str) -> bool:
        return bool((await self._store.range(prefix, prefix_end(prefix), limit=1)).records)

    async def _forget(self, counters: Sequence[Counter]) -> None:
        keys = [counter.record.key for counter in counters]
        try:
            await forget(self._store, counters)
        except CheckFailed as failed:
            log.debug("not forgotten, because something is left or has changed", keys=keys, check=str(failed.check))
        else:
            log.info("forgotten", keys=keys)
