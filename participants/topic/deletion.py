"""Deleting topics with all of their records in the store (DESIGN §5.7), and what is left of segments that were removed
from their topics (see `removal`).

    topic ─▶ tombstone │ per segment: deleted, its owner's generation bumped ─▶ traces in slices ─▶ bytes ─▶ record gone

No other broker needs to agree: once the generation is bumped, no former owner can store anything, and every broker that
reads the segment's record leaves it alone. What remains are tombstones of the topic (so that the numbers of its
segments continue) and of the subscriptions, until they are forgotten (see `forgetting`). Every step may be repeated. If
one fails, the broker finishes the deletion when it next reconciles, even if the request is not repeated; after a crash,
another request or a broker that starts does so. The bytes are deleted by a broker that has their storage.

Of a segment nothing remains, not even the tombstone of its owner. That goes last, together with the segment's record:
until then every deletion checks it. Later nothing can be written for the segment, because every write checks one of the
two records at a version, and an owner can only be made beside the segment's record.

An open transaction that wrote to the topic loses its operations there and ends like any other (scenario 38).
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from metastore.errors import CheckFailed
from metastore.keys import prefix_end
from metastore.txn import paths
from metastore.txn.read_holds import end_holds
from metastore.txn.records.segments import OwnerRecord, SegmentRecord
from metastore.types import AtVersion, Record
from metastore.versions import Feature
from metatxn.service.patience import Patience
from metatxn.service.retry import until_it_succeeds
from metatxn.wire import errors
from participants.broker.broker import Broker
from participants.ledger.storage import LedgerError
from participants.messages.exclusive_producers import end_hold
from participants.messages.topics import StoredTopic, not_found
from participants.subscription.definitions import Definitions
from participants.subscription.deletion import delete_keys, delete_records

log = structlog.get_logger()
_FORGOTTEN = dict.fromkeys(("arrow_schema", "schema_history", "policy"))
"""The fields of a topic that its tombstone does not keep."""
_OPS_PER_READ = 90
"""The number of records that are read and deleted at a time."""


class Deletion:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._store = broker.store
        self._begun: set[str] = set()
        """The topics whose deletion was begun here, and may not be finished."""

    async def delete(self, name: str) -> None:
        """Delete the topic and all of its records except the tombstones, unless that is already done.

        Raises NOT_FOUND if it never existed. After STORE_UNAVAILABLE or an error of the store the request can be
        repeated.
        """
        self._begun.add(name)
        patience = Patience()
        while await patience.lasts():
            tombstone = await self._entombed(name)
            if tombstone is not None:
                self._broker.forget_topic(name)
                await self.finish(tombstone)
                return
        raise patience.over(f"topic {name}")

    async def _entombed(self, name: str) -> StoredTopic | None:
        """The topic as it is from its deletion on, or None if it was changed meanwhile."""
        stored = await self._broker.topics.get_or_tombstone(name)
        if stored is None:
            self._begun.discard(name)
            raise not_found(name)
        if stored.topic.deleted:
            return stored
        deleted = {"deleted": True, "deleted_ms": self._broker.clock(), **_FORGOTTEN}
        tombstone = stored.topic.model_copy(update=deleted)
        batch = self._store.batch().replace(stored.record, tombstone.encode())
        end_hold(batch, name, await self._store.get(paths.exclusive_producer(name)))
        try:
            applied = await self._store.apply(batch)
        except CheckFailed:
            return None
        record = Record(stored.record.key, tombstone.encode(), applied.revision, first=False)
        return StoredTopic(record, tombstone)

    async def finish(self, tombstone: StoredTopic) -> None:
        """Delete what is left of a deleted topic."""
        name = tombstone.topic.name
        for definition in await Definitions(self._store).of_topic(name):
            if not definition.record.deleted:
                await Definitions(self._store).drop(name, definition.name, self._broker.clock())
        await end_holds(self._store, paths.read_holds(name))
        if tombstone.topic.format == "pulsar":
            await self._delete_schemas(tombstone)
        for segment_id in tombstone.topic.segments:
            await self.finish_segment(segment_id)
        if tombstone.topic.segments:
            empty = tombstone.topic.model_copy(update={"segments": ()})
            try:
                await self._store.apply(self._store.batch().replace(tombstone.record, empty.encode()))
            except CheckFailed:
                log.info("another broker has finished the deletion", topic=name)
        self._begun.discard(name)

    async def _delete_schemas(self, tombstone: StoredTopic) -> None:
        """Delete the schemas of Pulsar's clients. None is added, because that checks the topic's record. Anyone who
        finishes the deletion has deleted them before, so as long as this record is unchanged they are not those of a
        topic that was created again."""
        deleted = AtVersion(tombstone.record.key, tombstone.record.version)
        while stored := (await self._store.scan(paths.pulsar_schemas(tombstone.topic.name))).records:
            try:
                await delete_records(self._store, deleted, stored)
            except CheckFailed as failed:
                if failed.check == deleted:
                    return

    async def finish_begun(self) -> None:
        """Finish the deletions that were begun here and failed. One without a trace in the store is looked for
        again: its first write may still be on its way. Raises as `delete`."""
        for name in sorted(self._begun):
            stored = await self._broker.topics.get_or_tombstone(name)
            if stored is None:
                self._begun.discard(name)
            elif stored.topic.deleted:
                await self.finish(stored)

    async def finish_all(self) -> None:
        """At the start of a broker, finish the deletions that an earlier one has begun. Raises as `delete`."""
        after: str | None = None
        more = True
        while more:
            topics, more = await self._broker.topics.page(after, _OPS_PER_READ)
            for topic in topics:
                after = topic.name
                if topic.deleted and topic.segments:
                    await self.delete(topic.name)

    async def finish_segment(self, segment_id: str) -> None:
        """Delete a segment of a deleted topic, or what is left of a removed one. Its record stays until its storage is
        here to delete the bytes. If this fails, it is finished by the next reconcile, whether the request is repeated
        or not: a broker without the storage can finish everything else."""
        self._broker.finish_later(segment_id)

        async def once() -> None:
            owner = await self._retire(segment_id)
            await self._broker.drop(segment_id)
            if owner is not None:
                await self._delete_traces(segment_id, owner)
                await self._delete_bytes(segment_id, owner)

        def report(error: Exception) -> None:
            log.info("delete again", segment=segment_id, error=str(error))

        # Another broker may do the same: what it has deleted is found missing, and read again.
        await until_it_succeeds(once, CheckFailed, report)
        self._broker.finished(segment_id)

    async def _retire(self, segment_id: str) -> AtVersion | None:
        """Mark the segment as deleted and without an owner, in one apply. Returns a check that holds as long as
        anything is left of the segment; None if nothing is."""
        segment_key, owner_key = paths.segment(segment_id), paths.segment_owner(segment_id)
        records = (await self._store.get_many([segment_key, owner_key])).records
        stored, owner = records[segment_key], records[owner_key]
        before = OwnerRecord.decode(owner.value) if owner else None
        if owner is not None and before is not None and before.deleted:
            return AtVersion(owner_key, owner.version)
        if owner is None and stored is None:
            return None
        tombstone = owner_tombstone(before)
        batch = self._store.batch()
        if owner is not None:
            batch.replace(owner, tombstone.encode())
        else:
            batch.create(owner_key, tombstone.encode())
        if stored is not None:
            record = SegmentRecord.decode(stored.value).model_copy(update={"state": "deleted", "merge": None})
            batch.replace(stored, record.encode())
        return AtVersion(owner_key, (await self._store.apply(batch)).revision)

    async def _delete_traces(self, segment_id: str, owner: AtVersion) -> None:
        writes, acks = paths.writes_by_segment(segment_id), paths.acks_by_segment(segment_id)
        await self._delete_operations("writes-by-segment", writes, owner, paths.op_of_write_entry)
        await self._delete_operations("acks-by-segment-subscription", acks, owner, paths.op_of_ack_entry)
        for prefix in (paths.segment_states(segment_id), paths.cursors_of_segment(segment_id)):
            await delete_keys(self._store, owner, prefix, prefix_end(prefix))

    async def _delete_operations(self, index: str, prefix: str, owner: AtVersion, op_of: Callable[[str], str]) -> None:
        while entries := await self._store.query_index(index, prefix, prefix_end(prefix), limit=_OPS_PER_READ):
            records = (await self._store.get_many([op_of(entry) for entry in entries])).records.values()
            await delete_records(self._store, owner, [record for record in records if record is not None])

    async def _delete_bytes(self, segment_id: str, owner: AtVersion) -> None:
        stored: Record | None = await self._store.get(paths.segment(segment_id))
        record = SegmentRecord.decode(stored.value) if stored is not None else None
        if stored is None or record is None or record.storage != self._broker.storage.storage_id:
            return
        try:
            await self._broker.storage.drop(segment_id)
        except LedgerError as error:
            raise errors.StoreUnavailable(
                f"the bytes of segment {segment_id} cannot be deleted: {error}",
                action="Delete the topic once more. Nothing of it is readable any more.",
                segment=segment_id,
            ) from error
        batch = self._store.batch().remove(stored)
        if self._broker.version.allows(Feature.FORGETTING) or await self._was_removed(record.topic, segment_id):
            batch.check(owner).delete(owner.key)
        await self._store.apply(batch)

    async def _was_removed(self, topic_name: str, segment_id: str) -> bool:
        topic = await self._broker.topics.get_or_tombstone(topic_name)
        return topic is not None and topic.topic.had(segment_id)


def owner_tombstone(before: OwnerRecord | None) -> OwnerRecord:
    return OwnerRecord(broker="", url="", generation=before.generation + 1 if before else 1, deleted=True)
