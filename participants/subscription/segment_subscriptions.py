"""The subscriptions of one owned segment. Recovery reads their cursors and pending acks before the segment is ready.
Those of a subscription that is created later are read when it is first used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import count

import structlog

from metastore.api import MetadataStore
from metastore.errors import CheckFailed, MetastoreError
from metastore.txn import paths
from metastore.txn.entries import with_operations
from metastore.txn.records.subscriptions import MarkDelete
from metastore.types import Record
from metastore.versions import ClusterVersion
from metatxn.service.retry import until_it_succeeds
from metatxn.wire.position import Position
from participants.common.metrics import BrokerMetrics
from participants.segment.segment import Segment
from participants.subscription.cursor_store import CursorStore
from participants.subscription.definitions import Definition, Definitions, definition_of
from participants.subscription.deletion import delete_incarnations
from participants.subscription.isolated_view import IsolatedView
from participants.subscription.message_counts import MessageCounts
from participants.subscription.pending_acks import OpenPendingAcks
from participants.subscription.places import Place
from participants.subscription.segment_subscription import ACK_INDEX, SegmentSubscription
from participants.txn.header_mirror import HeaderMirror

log = structlog.get_logger()


class SegmentSubscriptions:
    def __init__(
        self,
        segment: Segment,
        store: MetadataStore,
        mirror: HeaderMirror,
        metrics: BrokerMetrics,
        open_pending_acks: OpenPendingAcks,
        version: ClusterVersion | None = None,
    ) -> None:
        self._segment = segment
        self._store = store
        self._mirror = mirror
        self._metrics = metrics
        self._open_pending_acks = open_pending_acks
        self._version = version or ClusterVersion()
        self._op_numbers = count(1)
        self._open: dict[str, SegmentSubscription] = {}
        self.on_close: dict[str, Callable[[], None]] = {}
        """The objects of the subscriptions whose home is this segment."""
        self.consumers: dict[str, Callable[[], int]] = {}
        """How many consumers they have, by name, for metrics."""
        self._opening = asyncio.Lock()
        self._message_counts = {
            uncommitted: MessageCounts(IsolatedView(segment, uncommitted=uncommitted).page)
            for uncommitted in (False, True)
        }
        """The message counts for subscriptions that see uncommitted messages, and for the others."""

    def __iter__(self) -> Iterator[SegmentSubscription]:
        return iter(list(self._open.values()))

    async def recover(self) -> None:
        """Open all subscriptions of the topic, and delete the records of dropped ones. Raises the store's errors."""
        for definition in await Definitions(self._store).of_topic(self._segment.record.topic):
            if not definition.record.deleted:
                await self.get(definition)
            if definition.last_dropped:
                self._segment.spawn(self._delete(definition.name, definition.last_dropped))

    async def get(self, definition: Definition) -> SegmentSubscription:
        """The object of this incarnation on this segment. Raises NOT_FOUND if it is dropped, and the store's errors."""
        async with self._opening:
            known = self._open.get(definition.name)
            if known is not None and known.definition == definition and not known.dropped:
                return known
            stored = await self._store.get(definition.check.key)
            if stored is None or stored.version != definition.check.version:
                raise definition.missing()
            if known is not None:  # an earlier incarnation, whose end was not reported
                known.drop(definition.record)
                self._segment.spawn(self._delete(definition.name, definition.record.incarnation - 1))
            cursor, counts, versions = await CursorStore.load(self._store, self._segment.id, definition)
            found = SegmentSubscription(
                self._segment,
                definition,
                cursor,
                self._open_pending_acks(self._segment.id, definition.name),
                counts,
                versions,
                store=self._store,
                mirror=self._mirror,
                op_numbers=self._op_numbers,
                metrics=self._metrics,
                message_counts=self._message_counts[definition.uncommitted],
                version=self._version,
            )
            try:
                of = {found.operations: found}
                async for _, txn_ids in with_operations(self._store, ACK_INDEX, of, self._metrics.index_query.time):
                    await found.adopt(txn_ids)
            except BaseException:
                found.drop()
                raise
            self._open[definition.name] = found
            return found

    async def drop(self, current: Definition) -> None:
        """Delete the records of incarnations that were dropped before `current`, or with it, on this segment. Raises
        the store's errors; then the rest is deleted when the segment is opened again."""
        name, last = current.name, current.last_dropped
        known = self._open.get(name)
        if known is not None and known.definition.record.incarnation <= last:
            known.drop(current.record)
            del self._open[name]
        await self._delete(name, last)

    async def _delete(self, name: str, last: int) -> None:
        owner = self._segment.ownership.check

        async def once() -> None:
            if self._segment.lost:
                return
            try:
                await delete_incarnations(self._store, owner, self._segment.id, name, last)
            except CheckFailed as lost:
                if lost.check != owner:
                    raise
                self._segment.deposed_by(lost)

        def report(error: Exception) -> None:
            log.warning("delete again", segment=self._segment.id, subscription=name, error=str(error))

        await until_it_succeeds(once, MetastoreError, report)

    async def acknowledged(self) -> Position | None:
        """See `Attached`."""
        return min((await self.acknowledged_by()).values(), default=None)

    async def acknowledged_by(self) -> dict[str, Position]:
        """The position before which every entry is acknowledged, by subscription. It is read from the store, so that a
        subscription that is not open here yet counts, too, and an acknowledgement only once it is durable."""
        definitions = await Definitions(self._store).of_topic(self._segment.record.topic)
        marks = {
            paths.cursor_mark(self._segment.id, each.name, each.record.incarnation): each
            for each in definitions
            if not each.record.deleted
        }
        found = await self._store.get_each(list(marks))
        return {each.name: _mark(found[key], each.start_on(self._segment.id)).position for key, each in marks.items()}

    async def settle(self) -> None:
        """Make durable what consumers have passed over, such as hidden entries at the end of a sealed segment, after
        which nothing is acknowledged. Raises the store's errors."""
        for subscription in self:
            await subscription.settle()

    async def expire(self, before_ms: int) -> None:
        """See `Attached`. The place is looked for only if a subscription has anything left to acknowledge."""
        end = Place.behind(self._segment.buffer.max_read_position)
        definitions = await Definitions(self._store).of_topic(self._segment.record.topic)
        found = [await self.get(each) for each in definitions if not each.record.deleted]
        behind = [subscription for subscription in found if subscription.cursor.mark_delete < end]
        if not behind:
            return
        first = await self._segment.reader.position_at(before_ms)
        for subscription in behind:
            await subscription.expire(min(Place.at(first), end))

    async def look_at(self, found: SegmentSubscription, stored: Record | None) -> None:
        """The record of this subscription is in the store as `stored`. If it was dropped, or has begun again, its
        records on this segment are deleted. Raises the store's errors."""
        known = found.definition
        if stored is not None and stored.version == known.check.version:
            return
        # None: it was dropped and forgotten.
        current = known.as_dropped if stored is None else definition_of(known.topic, stored)
        if known.record.incarnation <= current.last_dropped:
            await self.drop(current)

    def left_out(self, *, committed: bool) -> None:
        for uncommitted, counts in self._message_counts.items():
            if committed or uncommitted:
                counts.forget()

    def close(self) -> None:
        for subscription in self:
            subscription.close()
        for close in self.on_close.values():
            close()


def _mark(stored: Record | None, start: Place) -> Place:
    return Place.parse(MarkDelete.decode(stored.value).before) if stored is not None else start


def subscriptions_of(segment: Segment) -> SegmentSubscriptions:
    """The subscriptions that the opener of the segment has attached to it."""
    assert isinstance(segment.attached, SegmentSubscriptions), f"{segment.id} was opened without subscriptions"
    return segment.attached
