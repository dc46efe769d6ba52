"""The holds of readers in the store (DESIGN §5.24): taken, prolonged, released.

    one apply: the hold │ the topic's record and `/gc/horizon`, as they were ─▶ no later compaction? ─▶ answered
                                                                               else taken back, and refused

The apply writes the two records again because retention, compaction and collection check them. So whatever of these has
not seen the hold fails from then on, and what was done before is seen by the apply, or by the look behind it.
"""

from __future__ import annotations

from dataclasses import dataclass

from metastore.api import MetadataStore
from metastore.clock import Clock
from metastore.errors import CheckFailed
from metastore.measured import took_back
from metastore.txn import paths
from metastore.txn.read_holds import holds_in_force
from metastore.txn.records.segments import SegmentRecord
from metastore.txn.records.topics import ReadHoldRecord, TopicRecord
from metastore.txn.records.transactions import GcHorizon
from metastore.types import Record, Revision
from metastore.versions import ClusterVersion, Feature
from metatxn.service.patience import Patience
from metatxn.service.versions import require
from metatxn.wire import errors
from metatxn.wire.broker import ReadHoldInfo
from participants.messages.topics import not_found

MAX_HOLDS = 100
"""The most holds of a topic."""
RETRY_AFTER_S = 5.0


@dataclass(frozen=True, slots=True)
class WantedHold:
    """A wanted hold. `hold_id` names it, so that the request for it may be repeated. Without a `revision` it is the
    current one."""

    hold_id: str
    hold_ms: int
    revision: Revision | None
    principal: str | None


class ReadHolds:
    def __init__(self, store: MetadataStore, version: ClusterVersion, clock: Clock) -> None:
        self._store = store
        self._version = version
        self._clock = clock

    async def take(self, topic_name: str, wanted: WantedHold) -> ReadHoldInfo:
        """Take a hold, or prolong the one of this id. When this returns, a snapshot of the topic at its revision stays
        readable while it is in force.

        Raises NOT_FOUND, INVALID_ARGUMENT for a revision that is in the future or below the horizon of collected
        decisions, POSITION_TRIMMED for one before the last compaction, RATE_LIMITED, UPGRADE_PENDING and the store's
        errors.
        """
        await require(self._store, self._version, Feature.READ_HOLDS)
        patience = Patience()
        while await patience.lasts():
            stored = await self._stored(topic_name, wanted)
            if stored is None:
                continue
            refusal = await self._too_late(topic_name, ReadHoldRecord.decode(stored.value).revision)
            if refusal is None:
                return _info(stored)
            await self._take_back(stored)
            took_back()
            if wanted.revision is not None:
                raise refusal
        raise patience.over(f"topic {topic_name}")

    async def _stored(self, topic_name: str, wanted: WantedHold) -> Record | None:
        """The hold as one apply has stored it, or None if something has changed meanwhile."""
        topic_key, hold_key = paths.topic(topic_name), paths.read_hold(topic_name, wanted.hold_id)
        found = await self._store.get_many([topic_key, paths.GC_HORIZON])
        topic, horizon = found.records[topic_key], found.records[paths.GC_HORIZON]
        if topic is None or TopicRecord.decode(topic.value).deleted:
            raise not_found(topic_name)
        held = await holds_in_force(self._store, paths.read_holds(topic_name), self._clock())
        before = next((each for each in held if each.key == hold_key), None)
        batch = self._store.batch()
        if before is not None:
            hold = self._prolonged(before, wanted)
            batch.replace(before, hold.encode())
        elif len(held) >= MAX_HOLDS:
            raise _too_many(topic_name)
        else:
            hold = self._new(wanted, found.revision, horizon)
            batch.create(hold_key, hold.encode()).replace(topic, topic.value)
            if horizon is not None:
                batch.replace(horizon, horizon.value)
            else:
                batch.create(paths.GC_HORIZON, GcHorizon(revision=0, finalized_ms=0).encode())
        try:
            applied = await self._store.apply(batch)
        except CheckFailed:
            return None
        return Record(hold_key, hold.encode(), applied.revision, first=before is None)

    def _prolonged(self, stored: Record, wanted: WantedHold) -> ReadHoldRecord:
        hold = ReadHoldRecord.decode(stored.value)
        if wanted.revision not in (None, hold.revision):
            raise errors.InvalidArgument(
                f"hold_id: {wanted.hold_id} holds revision {hold.revision}, not {wanted.revision}",
                action="Use another id for another revision.",
                field="hold_id",
            )
        return hold.model_copy(update={"until_ms": self._clock() + wanted.hold_ms})

    def _new(self, wanted: WantedHold, current: Revision, horizon: Record | None) -> ReadHoldRecord:
        """Check a revision: it must not have been collected when `horizon` was read, at the revision `current`."""
        revision, now_ms = current if wanted.revision is None else wanted.revision, self._clock()
        if revision > current:
            raise errors.InvalidArgument(f"revision: {revision} is in the future", field="revision")
        collected = GcHorizon.decode(horizon.value).revision if horizon is not None else 0
        if collected > revision:
            raise errors.InvalidArgument(
                f"revision: {revision} is too old, because decisions up to {collected} have been collected",
                action="Hold a newer revision.",
                field="revision",
            )
        return ReadHoldRecord(
            revision=revision, created_ms=now_ms, until_ms=now_ms + wanted.hold_ms, principal=wanted.principal
        )

    async def _too_late(self, topic_name: str, revision: Revision) -> errors.MetatxnError | None:
        """Why a snapshot at this revision is not complete: a segment was compacted later. None can be from now on."""
        stored = await self._store.get(paths.topic(topic_name))
        segments = TopicRecord.decode(stored.value).segments if stored is not None else ()
        found = await self._store.get_each(map(paths.segment, segments))
        for segment in segments:
            record = found[paths.segment(segment)]
            compaction = SegmentRecord.decode(record.value).compaction if record is not None else None
            if compaction is not None and compaction.revision > revision:
                return errors.PositionTrimmed(
                    f"revision {revision} cannot be held: segment {segment} was compacted at revision "
                    f"{compaction.revision}, and what was replaced by then is gone",
                    action="Hold a newer revision.",
                    segment=segment,
                    compacted_revision=compaction.revision,
                )
        return None

    async def _take_back(self, stored: Record) -> None:
        """Take a hold back, unless it was prolonged or ended meanwhile: then another call is to judge it."""
        try:
            await self._store.apply(self._store.batch().remove(stored))
        except CheckFailed:
            return

    async def keep_alive(self, topic_name: str, hold_id: str, hold_ms: int) -> ReadHoldInfo:
        """Prolong a hold, also one that is over and was not removed. Raises NOT_FOUND if it has ended, and the
        store's errors."""
        key = paths.read_hold(topic_name, hold_id)
        patience = Patience()
        while await patience.lasts():
            stored = await self._store.get(key)
            if stored is None:
                raise errors.NotFound(
                    f"read hold {hold_id} of topic {topic_name} has ended",
                    action="What it has held may be gone. Take another hold, and read again.",
                    topic=topic_name,
                )
            hold = ReadHoldRecord.decode(stored.value).model_copy(update={"until_ms": self._clock() + hold_ms})
            try:
                applied = await self._store.apply(self._store.batch().replace(stored, hold.encode()))
            except CheckFailed:
                continue
            return _info(Record(key, hold.encode(), applied.revision, first=False))
        raise patience.over(f"read hold {hold_id} of topic {topic_name}")

    async def release(self, topic_name: str, hold_id: str) -> None:
        """End a hold, unless it has ended. Raises the store's errors."""
        patience = Patience()
        while await patience.lasts():
            stored = await self._store.get(paths.read_hold(topic_name, hold_id))
            if stored is None:
                return
            try:
                await self._store.apply(self._store.batch().remove(stored))
            except CheckFailed:
                continue
            return
        raise patience.over(f"read hold {hold_id} of topic {topic_name}")

    async def of_topic(self, topic_name: str) -> list[ReadHoldInfo]:
        """The holds of a topic, by id; one that is over is among them until it is removed."""
        return [_info(stored) for stored in (await self._store.scan(paths.read_holds(topic_name))).records]


def _too_many(topic_name: str) -> errors.MetatxnError:
    return errors.RateLimited(
        f"topic {topic_name} has {MAX_HOLDS} read holds, which is the maximum",
        action="Wait until one of them ends, or release one that is no longer needed.",
        retry_after_s=RETRY_AFTER_S,
        topic=topic_name,
    )


def _info(stored: Record) -> ReadHoldInfo:
    hold, (_, hold_id) = ReadHoldRecord.decode(stored.value), paths.parse_read_hold(stored.key)
    return ReadHoldInfo(hold_id=hold_id, **hold.model_dump())
