"""Removing sealed segments from the layout, with every trace of them in the store (DESIGN §5.14).

    bare, drained, inherited ─▶ one apply: not in the layout, deleted, no owner, its children know where it ended
                                ─▶ traces in slices ─▶ bytes ─▶ its record and the owner's tombstone (see `deletion`)

A segment goes if its entries are all trimmed and nothing needs it any more: it is sealed, its children serve and have
inherited what it remembered, no operation is left on it, and none of its parents exists, so that the layout has no gap.
Two parents of one child go when both are bare. Then their child, as long as it exists, tells a reader with a place in
either of them whether it missed anything: such a reader was not yet in the child.

Nothing is lost with a subscription's cursor: what is trimmed is not delivered anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from metastore.errors import CheckFailed, MetastoreError
from metastore.keys import prefix_end
from metastore.txn import paths
from metastore.txn.read_holds import holds_in_force
from metastore.txn.records.segments import OwnerRecord, SegmentRecord
from metastore.txn.records.transactions import Header
from metastore.types import AtVersion, Record
from metastore.versions import Feature
from metatxn.service.lifecycle import Lifecycle, tell
from metatxn.service.patience import Patience
from metatxn.service.versions import require
from metatxn.wire import errors
from metatxn.wire.ids import TxnId
from metatxn.wire.names import number_of_segment
from metatxn.wire.position import Position
from participants.broker.broker import Broker
from participants.ledger.storage import LedgerError
from participants.messages.topics import StoredTopic
from participants.segment.segment import Segment
from participants.segment.trimming import stored_segment, trim
from participants.subscription.segment_subscriptions import subscriptions_of
from participants.topic.deletion import Deletion, owner_tombstone

log = structlog.get_logger()
TRANSACTIONS_NAMED = 100
"""The most transactions that a refusal names."""


@dataclass(frozen=True, slots=True)
class Family:
    """A sealed segment with its topic, its children, and the other parents of these, as they are in the store."""

    topic: StoredTopic
    stored: Record
    record: SegmentRecord
    children: Mapping[str, tuple[Record, SegmentRecord]]
    others: Mapping[str, SegmentRecord]


@dataclass(slots=True)
class Needs:
    """What still needs a segment."""

    reasons: list[str] = field(default_factory=list)
    segments: list[str] = field(default_factory=list)
    subscriptions: list[str] = field(default_factory=list)
    transactions: list[str] = field(default_factory=list)

    def add_segments(self, found: Sequence[str], reason: str) -> None:
        if found:
            self.segments += found
            self.reasons.append(f"{', '.join(found)} {reason}")

    def refusal(self, segment_id: str) -> errors.MetatxnError:
        return errors.SegmentInUse(
            f"segment {segment_id} cannot be deleted: {'; '.join(self.reasons)}",
            segment=segment_id,
            segments=self.segments or None,
            subscriptions=self.subscriptions or None,
            holders=self.transactions or None,
        )


class Removal:
    def __init__(self, broker: Broker, deletion: Deletion) -> None:
        self._broker = broker
        self._store = broker.store
        self._deletion = deletion

    # -- by hand -----------------------------------------------------------------------------------------------

    async def delete(self, segment_id: str) -> None:
        """Drop what is left in a sealed segment that is served here, and remove it. A segment that is already removed
        is not an error.

        What transactions that have ended did here is final within moments, and this waits for it.

        Raises SEGMENT_IN_USE, which names what still needs it; UPGRADE_PENDING, NOT_FOUND, NOT_OWNER,
        STORE_UNAVAILABLE. After an error that is not definite it can be repeated.
        """
        await require(self._store, self._broker.version, Feature.REMOVAL)
        try:
            segment = await self._broker.segment(segment_id)
        except errors.NotFound:
            if await self._broker.removed(segment_id) is None:
                raise
            return
        if segment.record.state == "sealed":  # others are refused anyway, and may have new ones all the time
            await self._ended_are_gone(segment)
        patience = Patience()
        while await patience.lasts():
            if await self._attempt(segment, by_hand=True):
                return
        raise patience.over(f"segment {segment_id}")

    async def _ended_are_gone(self, segment: Segment) -> None:
        """Wait until no transaction that has ended has operations on it, or until patience is over. Raises the store's
        errors."""
        patience = Patience()
        while await patience.lasts():
            keys = [paths.header(TxnId.parse(each)) for each in await self._holders(segment)]
            headers = (await self._store.get_many(keys)).records.values() if keys else ()
            if all(each is not None and not Header.decode(each.value).state.final for each in headers):
                return

    async def _drop_rest(self, segment: Segment, family: Family) -> None:
        """Trim the segment completely. A subscription that is created or moved meanwhile writes the record of the
        topic, and then this has not happened."""
        unchanged = AtVersion(family.topic.record.key, family.topic.record.version)
        end = segment.ledgers.last_durable.next
        await trim(segment, self._store, self._broker.storage, end, [unchanged])

    # -- in the background -------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Remove what can be removed of the segments that are served here. What was never written to is removed if the
        policy of its topic drops anything. Raises the store's errors."""
        if not self._broker.version.allows(Feature.REMOVAL):
            return
        await self._learn_children()
        bare = [each for each in self._broker.serving_now() if each.record.is_bare and each.record.children]
        unused = {each.record.topic for each in bare if each.record.trimmed_up_to is None}
        policies = await self._broker.policies.of_topics(sorted(unused)) if unused else {}
        for segment in sorted(bare, key=lambda each: number_of_segment(each.id)):
            topic = segment.record.topic
            if segment.record.trimmed_up_to is None and not (topic in policies and policies[topic].drops):
                continue
            try:
                await self._attempt(segment, by_hand=False)
            except errors.SegmentInUse:
                continue
            except (CheckFailed, LedgerError, errors.MetatxnError) as error:
                log.info("a segment is not removed, which will be tried again", segment=segment.id, error=str(error))

    async def _learn_children(self) -> None:
        """The children of a merge are recorded by the broker that completes it, and the answer may be lost."""
        sealed = {
            paths.segment(each.id): each
            for each in self._broker.serving_now()
            if each.ledgers.open is None and each.record.is_bare and not each.record.children
        }
        for key, stored in (await self._store.get_each(list(sealed))).items():
            record = SegmentRecord.decode(stored.value) if stored is not None else None
            if stored is not None and record is not None and record.state == "sealed":
                sealed[key].recorded(record, stored.version)

    # -- both --------------------------------------------------------------------------------------------------

    async def _attempt(self, segment: Segment, *, by_hand: bool) -> bool:
        """Try to remove it. Returns whether it is removed now; otherwise something has changed meanwhile. Raises
        SEGMENT_IN_USE."""
        segment.assert_serving()
        family = await self._family(segment)
        if family.record.state == "deleted":
            await self._finish(segment)
            return True
        if not family.record.is_bare and not by_hand:
            return False
        if not by_hand and await self._is_held(family.topic.topic.name):
            return False
        needs = await self._needs(segment, family)
        if needs.reasons:
            raise needs.refusal(segment.id)
        try:
            if not family.record.is_bare:
                await self._drop_rest(segment, family)
                return False
            await self._remove(segment, family)
        except CheckFailed as lost:
            if lost.check == segment.ownership.check:
                segment.deposed_by(lost)
            return False
        await self._finish(segment)
        return True

    async def _is_held(self, topic: str) -> bool:
        """Whether a reader holds a revision of the topic, and so perhaps the layout of that time (DESIGN §5.24). It was
        read before, and removing a segment replaces it at that version."""
        holds = await holds_in_force(self._store, paths.read_holds(topic), self._broker.clock())
        return bool(holds)

    async def _family(self, segment: Segment) -> Family:
        topic = await self._broker.topics.get(segment.record.topic)
        stored = await stored_segment(segment, self._store, even_removed=True)
        record = SegmentRecord.decode(stored.value)
        children = await self._segments(record.children)
        others = {parent for _, child in children.values() for parent in child.existing_parents} - {segment.id}
        found = await self._segments(sorted(others))
        return Family(topic, stored, record, children, {each: found[each][1] for each in found})

    async def _segments(self, segment_ids: Sequence[str]) -> dict[str, tuple[Record, SegmentRecord]]:
        keys = {paths.segment(each): each for each in segment_ids}
        records = (await self._store.get_many(list(keys))).records if keys else {}
        return {
            keys[key]: (stored, SegmentRecord.decode(stored.value))
            for key, stored in records.items()
            if stored is not None
        }

    async def _needs(self, segment: Segment, family: Family) -> Needs:
        needs, record = Needs(), family.record
        if record.state != "sealed":
            needs.reasons.append("it accepts messages: split it, or merge it")
            return needs
        if not record.children:
            needs.reasons.append("it has no children, so no segment would have its keys")
        parents = sorted(record.existing_parents)
        needs.add_segments(parents, "came before it, and must be removed first")
        unopened = [each for each in record.children if each not in family.children or not _inherited(family, each)]
        needs.add_segments(unopened, "takes over from it and has not been opened yet")
        full = [each for each, other in family.others.items() if not other.is_bare]
        needs.add_segments(full, "was merged with it and still has messages: trim it first")
        if not record.is_bare:
            await self._add_subscriptions(segment, family, needs)
        await self._add_transactions(segment, needs)
        return needs

    async def _add_subscriptions(self, segment: Segment, family: Family, needs: Needs) -> None:
        """The subscriptions that have not durably acknowledged everything, unless the policy drops what they have
        not."""
        policy = (await self._broker.policies.of_topics([family.record.topic])).get(family.record.topic)
        if policy is None or policy.retention.value == "hard":
            return
        subscriptions = subscriptions_of(segment)
        await subscriptions.settle()
        end = _last_entry(family.record)
        behind = [name for name, before in (await subscriptions.acknowledged_by()).items() if before <= end]
        if behind:
            needs.subscriptions = sorted(behind)
            needs.reasons.append(f"subscription {', '.join(needs.subscriptions)} has not acknowledged all of it")

    async def _add_transactions(self, segment: Segment, needs: Needs) -> None:
        """The transactions that have operations on it. One that stores an acknowledgement after this read, of an entry
        that is trimmed, loses nothing when that is deleted."""
        needs.transactions = await self._holders(segment)
        if needs.transactions:
            needs.reasons.append(f"transaction {', '.join(needs.transactions[:3])} has operations on it")

    async def _holders(self, segment: Segment) -> list[str]:
        writes, acks = paths.writes_by_segment(segment.id), paths.acks_by_segment(segment.id)
        found = [paths.op_of_write_entry(each) for each in await self._entries("writes-by-segment", writes)]
        found += [paths.op_of_ack_entry(each) for each in await self._entries("acks-by-segment-subscription", acks)]
        return list(dict.fromkeys(paths.op_key_parts(key)[0] for key in found))[:TRANSACTIONS_NAMED]

    async def _entries(self, index: str, prefix: str) -> Sequence[str]:
        return await self._store.query_index(index, prefix, prefix_end(prefix), limit=TRANSACTIONS_NAMED)

    async def _remove(self, segment: Segment, family: Family) -> None:
        """The apply that removes it. Whatever has changed since the records were read makes it fail. Raises
        `CheckFailed` and the store's errors."""
        check, topic = segment.ownership.check, family.topic.topic
        first = topic.first_segment
        left = topic.model_copy(
            update={
                "segments": tuple(each for each in topic.segments if each != segment.id),
                "first_segment": min(map(number_of_segment, topic.segments)) if first is None else first,
            }
        )
        batch = self._store.batch().replace(family.topic.record, left.encode())
        batch.replace(family.stored, family.record.model_copy(update={"state": "deleted"}).encode())
        owner = OwnerRecord(broker="", url="", generation=segment.ownership.generation)
        batch.check(check).put(check.key, owner_tombstone(owner).encode())
        end = str(family.record.trimmed_up_to or Position(0, -1))
        for stored, child in family.children.values():
            ends = {**(child.removed_parents or {}), segment.id: end}
            batch.replace(stored, child.model_copy(update={"removed_parents": ends}).encode())
        await self._store.apply(batch)

    async def _finish(self, segment: Segment) -> None:
        """Leave a segment that is removed. What is left of it is deleted now, or by a later reconcile."""
        segment.leave("it was removed from its topic")
        tell(Lifecycle.SEGMENT_REMOVED, segment=segment.id, children=list(segment.record.children))
        self._broker.metrics.segments_removed.inc()
        self._broker.forget_topic(segment.record.topic)
        try:
            await self._deletion.finish_segment(segment.id)
        except (MetastoreError, LedgerError, errors.MetatxnError) as error:
            log.info("a removed segment is deleted later", segment=segment.id, error=str(error))


def _inherited(family: Family, child: str) -> bool:
    """Whether the child has been opened and recorded what it inherited, and so does not need its parents."""
    return family.children[child][1].dedup is not None


def _last_entry(record: SegmentRecord) -> Position:
    ends = [each.last for each in record.ledgers if each.entries and each.last is not None]
    return max(ends, default=Position(0, -1))
