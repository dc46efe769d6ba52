"""Changes of a topic's segments: split, merge, seal. Each is a few applies; one of them is the change (DESIGN §5.14).

    seal    the owner seals it without children: it accepts no more messages
    split   the owner's seal, and in the same apply two children that share its part of the hash range
    merge   claim both ─▶ each owner seals its own ─▶ one apply: the child, and both name it

A claim is in the records of both segments, which split, seal and merge all check. A broker that dies in the middle of a
merge leaves a claim that the owners of the two segments find when they reconcile: they seal and finish the merge, or,
if one of them is unavailable for `CLAIM_PATIENCE_MS`, give it up. Then a segment that was sealed for it gets its own
child.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from metastore.background import in_background
from metastore.errors import CheckFailed, MetastoreError
from metastore.keys import unescape
from metastore.txn import paths
from metastore.txn.records.segments import MergeClaim, SegmentRecord
from metastore.types import Batch, Record, Version
from metatxn.service.lifecycle import Lifecycle, tell
from metatxn.service.patience import Patience
from metatxn.wire import errors
from metatxn.wire.broker import HashRange
from metatxn.wire.names import segment_id as new_segment_id
from participants.broker.broker import Broker
from participants.ledger.storage import LedgerError
from participants.messages.topics import StoredTopic, segment_not_found
from participants.segment.sealing import seal
from participants.segment.segment import Segment
from participants.topic.deletion import Deletion
from participants.topic.forgetting import Forgetting
from participants.topic.removal import Removal
from participants.topic.retention import Retention

log = structlog.get_logger()
CLAIM_PATIENCE_MS = 20_000
"""How long a merge waits for the owner of the other segment."""


@dataclass(frozen=True, slots=True)
class StoredSegment:
    id: str
    stored: Record
    record: SegmentRecord


class LayoutUpkeep:
    """The `Upkeep` of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store
        self.deletion = Deletion(broker)
        self.retention = Retention(broker)
        self.removal = Removal(broker, self.deletion)
        self.forgetting = Forgetting(broker)
        self._settling: dict[str, asyncio.Task[None]] = {}
        self._idle: dict[str, Version] = {}
        """The versions of the records of segments, by key, for which the last reconcile had nothing to do."""
        broker.attach(self)

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks that run in the background."""
        return list(self._settling.values())

    # -- seal and split ----------------------------------------------------------------------------------------

    async def seal(self, segment_id: str) -> tuple[str, ...]:
        """Seal the segment, so that it accepts no more messages. Returns its children: none, unless it was already
        split or merged."""
        segment = await self._broker.segment(segment_id)
        _refuse_partition(segment_id, segment.record)
        if segment.record.state == "active":
            await self._seal_unclaimed(segment, None)
        return segment.record.children

    async def split(self, segment_id: str, at: int | None) -> tuple[str, ...]:
        """Split the segment into two children: hashes below `at`, and from `at` on (None means the middle). An equal
        split that is already done is not an error.

        Raises INVALID_ARGUMENT if `at` leaves no hash for one of them, and SEGMENT_SEALED if the segment was sealed
        differently.
        """
        segment = await self._broker.segment(segment_id)
        _refuse_partition(segment_id, segment.record)
        low, high = segment.record.range
        upper = (low + high) // 2 + 1 if at is None else at
        if not low < upper <= high:
            raise errors.InvalidArgument(
                f"at: {upper} is not in {low + 1}…{high}, so one child would have no hash",
                field="at",
            )
        ranges = ((low, upper - 1), (upper, high))
        if segment.record.state == "active":
            await self._seal_unclaimed(segment, ranges)
        children = await self._children(segment)
        if len(children) != 2 or (at is not None and tuple(child.record.range for child in children) != ranges):
            raise _sealed_otherwise(segment_id, segment.record)
        return segment.record.children

    async def _seal_unclaimed(self, segment: Segment, ranges: tuple[HashRange, ...] | None) -> None:
        _refuse_claimed(segment.id, (await self._read(segment.id)).record)

        async def succession(batch: Batch, record: SegmentRecord) -> SegmentRecord:
            _refuse_claimed(segment.id, record)
            if ranges is None:
                return record
            topic = await self._broker.topics.get(record.topic)
            return self._with_children(batch, topic, {segment.id: record}, ranges)[segment.id]

        await seal(segment, self._store, succession, self._install)

    async def _install(self, sealed: SegmentRecord) -> None:
        """Open the children before callers are sent to them."""
        await self._broker.until_opened(sealed.children)
        self._broker.forget_topic(sealed.topic)

    def _with_children(
        self, batch: Batch, topic: StoredTopic, parents: dict[str, SegmentRecord], ranges: tuple[HashRange, ...]
    ) -> dict[str, SegmentRecord]:
        """Add the children to the batch and to the topic. Returns the parents' records, which name them."""
        first = topic.topic.next_segment
        created = tuple(
            new_segment_id(topic.topic.name, low, high, first + number) for number, (low, high) in enumerate(ranges)
        )
        storage = next(iter(parents.values())).storage
        now_ms = self._broker.clock()
        for child, hash_range in zip(created, ranges, strict=True):
            record = SegmentRecord(
                topic=topic.topic.name, range=hash_range, storage=storage, parents=tuple(parents), created_ms=now_ms
            )
            batch.create(paths.segment(child), record.encode())
        grown = topic.topic.model_copy(
            update={"segments": (*topic.topic.segments, *created), "next_segment": first + len(created)}
        )
        batch.replace(topic.record, grown.encode())
        return {
            parent: record.model_copy(update={"children": created, "merge": None}) for parent, record in parents.items()
        }

    # -- merge -------------------------------------------------------------------------------------------------

    async def merge(self, segment_id: str, other_id: str) -> tuple[str, ...]:
        """Merge the segment and its neighbour into one child. A merge that is already done is not an error.

        Raises INVALID_ARGUMENT if they are not neighbours, SEGMENT_SEALED if one of them was sealed differently, and
        STORE_UNAVAILABLE if the owner of the other one is unavailable.
        """
        segment = await self._broker.segment(segment_id)  # only an owner may begin
        _refuse_partition(segment_id, segment.record)
        await self._claim(segment_id, other_id)
        while True:
            if (child := await self._child_of(segment_id, other_id)) is not None:
                if (await self._read(child)).record.storage == self._broker.storage.storage_id:
                    await self._install((await self._read(segment_id)).record)
                return (child,)
            revision = await self._store.current_revision()
            claim = (await self._read(segment_id)).record.merge
            if claim is None or claim.other != other_id:
                raise errors.StoreUnavailable(
                    f"the merge with {other_id} was given up: its owner did not seal it",
                    action="Look at the topic and try again: a segment sealed for the merge now has its own child.",
                    definite=False,
                    segment=segment_id,
                )
            await self._settle(segment_id)
            await self._until_changed(other_id, revision, claim)

    async def _until_changed(self, segment_id: str, revision: int, claim: MergeClaim) -> None:
        """Wait until the segment's record may have been written after `revision`, or the claim is too old."""
        left_ms = claim.claimed_ms + CLAIM_PATIENCE_MS - self._broker.clock()
        async with self._store.watch(paths.segment(segment_id), revision + 1) as watch:
            try:
                await asyncio.wait_for(anext(watch), max(0, left_ms) / 1000)
            except TimeoutError:
                return

    async def _child_of(self, segment_id: str, other_id: str) -> str | None:
        one, other = await self._read(segment_id), await self._read(other_id)
        shared = set(one.record.children) & set(other.record.children)
        return next(iter(shared), None)

    async def _claim(self, segment_id: str, other_id: str) -> None:
        """Claim both segments for this merge, unless they are already merged."""
        patience = Patience()
        while await patience.lasts():
            one, other = await self._read(segment_id), await self._read(other_id)
            low, high = sorted((one, other), key=lambda segment: segment.record.range)
            topic = await self._broker.topics.get(one.record.topic)
            if other.record.topic != one.record.topic or low.record.range[1] + 1 != high.record.range[0]:
                raise errors.InvalidArgument(f"with: {other_id} is not a neighbour of {segment_id}", field="with")
            if one.record.merge is not None and one.record.merge.other == other_id:
                return
            if set(one.record.children) & set(other.record.children):
                return
            for segment in (one, other):
                if segment.record.state != "active":
                    raise _sealed_otherwise(segment.id, segment.record)
                _refuse_claimed(segment.id, segment.record)
            batch = self._store.batch()
            number = topic.topic.next_segment
            child = new_segment_id(topic.topic.name, low.record.range[0], high.record.range[1], number)
            for segment, neighbour in ((one, other), (other, one)):
                claim = MergeClaim(other=neighbour.id, child=child, claimed_ms=self._broker.clock())
                batch.replace(segment.stored, segment.record.model_copy(update={"merge": claim}).encode())
            batch.replace(topic.record, topic.topic.model_copy(update={"next_segment": number + 1}).encode())
            try:
                await self._store.apply(batch)
            except CheckFailed:
                continue
            return
        raise patience.over(f"{segment_id} or {other_id}")

    def claimed(self, segment_id: str) -> None:
        """The store shows a claim of a segment that is served here: the broker that began the merge waits until this
        one seals it."""
        if segment_id not in self._settling:
            self._settling[segment_id] = in_background(self._settle_claimed(segment_id), f"merge {segment_id}")

    async def _settle_claimed(self, segment_id: str) -> None:
        try:
            await self._settle(segment_id)
        except (MetastoreError, LedgerError, errors.MetatxnError) as error:
            log.warning("a merge does not continue and will be tried again", segment=segment_id, error=str(error))
        finally:
            del self._settling[segment_id]

    async def _settle(self, segment_id: str) -> None:
        """Continue the merge that has claimed the segment, as far as possible from here. Any broker may do so; the
        records decide.

        Raises the store's errors, and `errors.MetatxnError` if a segment cannot be sealed now.
        """
        one = await self._read(segment_id)
        claim = one.record.merge
        if claim is None:
            return
        for mine in (segment_id, claim.other):
            segment = self._broker.serving(mine)
            if segment is not None and segment.record.state == "active":
                await self._seal_claimed(segment, claim.child)
        one, other = await self._read(segment_id), await self._read(claim.other)
        if one.record.merge is None or other.record.merge is None:
            return
        if one.record.state == other.record.state == "sealed":
            await self._end_merge(one, other)
        elif self._broker.clock() >= claim.claimed_ms + CLAIM_PATIENCE_MS:
            await self._give_up(one, other)

    async def _seal_claimed(self, segment: Segment, child: str) -> None:
        async def succession(_: Batch, record: SegmentRecord) -> SegmentRecord:
            if record.merge is None or record.merge.child != child:
                raise errors.StoreUnavailable(f"the merge of {segment.id} was given up", segment=segment.id)
            return record

        await seal(segment, self._store, succession, self._install)

    async def _end_merge(self, one: StoredSegment, other: StoredSegment) -> None:
        """End the merge in one apply: both segments are sealed, and the child takes over."""
        low, high = sorted((one, other), key=lambda segment: segment.record.range)
        claim = one.record.merge
        assert claim is not None
        topic = await self._broker.topics.get(one.record.topic)
        hashes = (low.record.range[0], high.record.range[1])
        child = SegmentRecord(
            topic=topic.topic.name,
            range=hashes,
            storage=low.record.storage,
            parents=(low.id, high.id),
            created_ms=self._broker.clock(),
        )
        batch = self._store.batch().create(paths.segment(claim.child), child.encode())
        for parent in (low, high):
            record = parent.record.model_copy(update={"children": (claim.child,), "merge": None})
            batch.replace(parent.stored, record.encode())
        grown = topic.topic.model_copy(update={"segments": (*topic.topic.segments, claim.child)})
        batch.replace(topic.record, grown.encode())
        if await self._apply_unless_changed(batch):
            tell(Lifecycle.SEGMENTS_MERGED, segments=[low.id, high.id], child=claim.child)

    async def _give_up(self, one: StoredSegment, other: StoredSegment) -> None:
        """Give up the merge in one apply: neither segment is claimed any more, and one that was sealed for it has a
        child."""
        topic = await self._broker.topics.get(one.record.topic)
        batch = self._store.batch()
        for segment in (one, other):
            record = segment.record.model_copy(update={"merge": None})
            if record.state == "sealed":
                record = self._with_children(batch, topic, {segment.id: record}, (record.range,))[segment.id]
            batch.replace(segment.stored, record.encode())
        log.warning("merge given up", segment=one.id, other=other.id)
        await self._apply_unless_changed(batch)

    async def _apply_unless_changed(self, batch: Batch) -> bool:
        try:
            await self._store.apply(batch)
        except CheckFailed as lost:
            log.info("another broker has changed the layout first", check=str(lost.check))
            return False
        return True

    # -- upkeep ------------------------------------------------------------------------------------------------

    async def finish_deletions(self) -> None:
        await self.deletion.finish_all()

    async def reconcile(self, deleted: set[str]) -> None:
        """Continue the merges and deletions that others have begun on the segments served here, and delete the
        `deleted` ones whose storage is here, from which the finished ones are removed."""
        try:
            await self._look_at_records(deleted)
            for segment_id in sorted(deleted):
                await self.deletion.finish_segment(segment_id)
            await self.deletion.finish_begun()
            await self.retention.look()
            await self.removal.look()
            await self.forgetting.look()
        except (MetastoreError, LedgerError, errors.MetatxnError) as error:
            log.warning("layout not reconciled, which will be repeated", error=str(error))

    async def _look_at_records(self, deleted: set[str]) -> None:
        """Look at the records of the segments served here, in parts. One that had nothing to do is not decoded again
        while it is the same."""
        idle: dict[str, Version] = {}
        async for key, stored in self._store.each(map(paths.segment, [each.id for each in self._broker.serving_now()])):
            if stored is not None and self._idle.get(key) == stored.version:
                idle[key] = stored.version
                continue
            record = SegmentRecord.decode(stored.value) if stored is not None else None
            if stored is None or record is None or record.state == "deleted":
                deleted.add(unescape(key.removeprefix(paths.SEGMENTS)))
            elif record.merge is not None:
                await self._settle(unescape(key.removeprefix(paths.SEGMENTS)))
            else:
                idle[key] = stored.version
        self._idle = idle

    async def _children(self, segment: Segment) -> list[StoredSegment]:
        return [await self._read(child) for child in segment.record.children]

    async def _read(self, segment_id: str) -> StoredSegment:
        """Read the segment's record. Raises NOT_FOUND."""
        stored = await self._store.get(paths.segment(segment_id))
        record = SegmentRecord.decode(stored.value) if stored else None
        if stored is None or record is None or record.state == "deleted":
            raise segment_not_found(segment_id)
        return StoredSegment(segment_id, stored, record)


def _refuse_claimed(segment_id: str, record: SegmentRecord) -> None:
    if record.merge is not None:
        raise errors.StoreUnavailable(
            f"segment {segment_id} is being merged with {record.merge.other}",
            action="Try again when the merge is over.",
            segment=segment_id,
        )


def _refuse_partition(segment_id: str, record: SegmentRecord) -> None:
    """Refuse to end a Kafka partition: a record keeps its partition and its offset (DESIGN §5.20)."""
    if record.next_offset is not None:
        raise errors.InvalidArgument(
            f"segment: {segment_id} is a partition of topic {record.topic}, which has the format kafka: "
            "it is neither split, merged nor sealed",
            action="Create a topic with more segments.",
            field="segment",
            segment=segment_id,
        )


def _sealed_otherwise(segment_id: str, record: SegmentRecord) -> errors.MetatxnError:
    return errors.SegmentSealed(
        f"segment {segment_id} is already sealed, with other children",
        action="Change the layout of its children instead.",
        segment=segment_id,
        children=list(record.children),
    )
