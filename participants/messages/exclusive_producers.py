"""The holds of exclusive producers in the store (DESIGN §5.23): claimed, prolonged, released.

    free ────claim──▶ held, epoch + 1 ──release, or over and in another's way──▶ free, the same epoch
                        │  ▲
                        └──┘ another session claims it: over, or with `fence`: epoch + 1
                        keep-alive, or the same session claims it again: the same epoch, a later end

Each change replaces the record at the version that was read. That the owners of segments hear of a claim before the
claimer does is a matter of `participants.topic.claims`.
"""

from __future__ import annotations

from dataclasses import dataclass

from metastore.api import MetadataStore
from metastore.clock import Clock
from metastore.errors import CheckFailed
from metastore.txn import paths
from metastore.txn.forgetting import beginning
from metastore.txn.records.topics import ExclusiveProducerRecord, TopicRecord
from metastore.types import Absent, AtVersion, Batch, Record
from metastore.versions import ClusterVersion, Feature
from metatxn.service.patience import Patience
from metatxn.service.versions import require
from metatxn.wire import errors
from participants.messages.topics import not_found


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim. `session` names the claimer, so that it may repeat its claim. With `fence` it takes the topic from the
    producer that has it; otherwise only a hold that is over."""

    session: str
    producer: str | None
    fence: bool
    ttl_ms: int


class ExclusiveProducers:
    def __init__(self, store: MetadataStore, version: ClusterVersion, clock: Clock) -> None:
        self._store = store
        self._version = version
        self._clock = clock

    async def claim(self, topic_name: str, claim: Claim) -> ExclusiveProducerRecord:
        """Record the claim. It counts once the owners of the segments have heard of it. Raises NOT_FOUND, NOT_ALLOWED
        if another session has the topic, UPGRADE_PENDING and the store's errors."""
        await require(self._store, self._version, Feature.EXCLUSIVE_PRODUCERS)
        topic_key, hold_key = paths.topic(topic_name), paths.exclusive_producer(topic_name)
        patience = Patience()
        while await patience.lasts():
            records = (await self._store.get_many([topic_key, hold_key])).records
            topic, stored = records[topic_key], records[hold_key]
            if topic is None or TopicRecord.decode(topic.value).deleted:
                raise not_found(topic_name)
            hold = ExclusiveProducerRecord.decode(stored.value) if stored is not None else None
            batch = self._store.batch().check(AtVersion(topic_key, topic.version))
            if stored is not None and hold is not None:
                claimed = self._claimed(topic_name, hold, claim)
                batch.replace(stored, claimed.encode())
            else:
                first = await beginning(self._store)
                claimed = self._claimed(topic_name, ExclusiveProducerRecord(epoch=first.number), claim)
                batch.check(first.check).create(hold_key, claimed.encode())
            try:
                await self._store.apply(batch)
            except CheckFailed:
                continue
            return claimed
        raise patience.over(f"topic {topic_name}")

    def _claimed(self, topic_name: str, hold: ExclusiveProducerRecord, claim: Claim) -> ExclusiveProducerRecord:
        now_ms = self._clock()
        until_ms = now_ms + claim.ttl_ms
        if hold.session == claim.session:
            return hold.model_copy(update={"until_ms": until_ms})
        if hold.held and not (claim.fence or hold.is_over(now_ms)):
            raise _held(topic_name, hold)
        return ExclusiveProducerRecord(
            epoch=hold.epoch + 1,
            session=claim.session,
            producer=claim.producer,
            claimed_ms=now_ms,
            until_ms=until_ms,
        )

    async def keep_alive(self, topic_name: str, epoch: int, ttl_ms: int) -> ExclusiveProducerRecord:
        """Prolong the hold of this epoch, also if it is over and was not ended. Raises NOT_ALLOWED if it has
        ended, and the store's errors."""
        patience = Patience()
        while await patience.lasts():
            stored = await self._store.get(paths.exclusive_producer(topic_name))
            hold = ExclusiveProducerRecord.decode(stored.value) if stored is not None else None
            if stored is None or hold is None or not hold.held or hold.epoch != epoch:
                raise _ended(topic_name, epoch)
            kept = hold.model_copy(update={"until_ms": self._clock() + ttl_ms})
            try:
                await self._store.apply(self._store.batch().replace(stored, kept.encode()))
            except CheckFailed:
                continue
            return kept
        raise patience.over(f"the exclusive producer of topic {topic_name}")

    async def release(self, topic_name: str, epoch: int) -> None:
        """End the hold of this epoch, unless it has ended. Raises the store's errors."""
        patience = Patience()
        while await patience.lasts():
            stored = await self._store.get(paths.exclusive_producer(topic_name))
            hold = ExclusiveProducerRecord.decode(stored.value) if stored is not None else None
            if stored is None or hold is None or not hold.held or hold.epoch != epoch:
                return
            try:
                await self._store.apply(self._store.batch().replace(stored, hold.ended.encode()))
            except CheckFailed:
                continue
            return
        raise patience.over(f"the exclusive producer of topic {topic_name}")


def end_hold(batch: Batch, topic_name: str, stored: Record | None) -> None:
    """Make the apply that deletes the topic also release it. A claim at the same time makes it fail."""
    if stored is None:
        batch.check(Absent(paths.exclusive_producer(topic_name)))
    else:
        batch.replace(stored, ExclusiveProducerRecord.decode(stored.value).ended.encode())


def _held(topic_name: str, hold: ExclusiveProducerRecord) -> errors.MetatxnError:
    return errors.NotAllowed(
        f"topic {topic_name} has an exclusive producer, {hold.producer or 'without a name'}",
        action="Wait until it has ended, or take the topic from it with `fence`.",
        topic=topic_name,
        producer=hold.producer,
        until_ms=hold.until_ms,
    )


def _ended(topic_name: str, epoch: int) -> errors.MetatxnError:
    return errors.NotAllowed(
        f"epoch {epoch} of the exclusive producer of topic {topic_name} is over",
        action="Claim the topic again, if it should still be yours.",
        topic=topic_name,
    )
