"""Whether an entry may be appended while a producer may have the topic to itself (DESIGN §5.23).

    the topic's hold     an entry without an epoch     an entry with the epoch of the hold     with any other one
    not held             appended                      refused                                 refused
    held                 refused                       appended                                refused

The owner of a segment judges by the hold as it was when last read, because plain publishes do not ask the store.
It reads it before it serves, when a claimer asks it to (`learn`), and before it refuses an entry. A read of an earlier
revision never replaces what is known of a later one.
"""

from __future__ import annotations

from metastore.errors import CheckFailed, MetastoreError
from metastore.txn import paths
from metastore.txn.records.topics import ExclusiveProducerRecord
from metastore.types import Record, Revision, holds
from metatxn.wire import errors
from metatxn.wire.frames import Entry
from participants.segment.owned import OwnedSegment


class Admission:
    """See the module docstring. Used only from the event loop of its process."""

    def __init__(self, segment: OwnedSegment) -> None:
        self._segment = segment
        self._hold: ExclusiveProducerRecord | None = None
        self._revision: Revision = -1
        """The revision at which `_hold` was read."""

    def admits(self, entry: Entry) -> bool:
        """The hold, as far as is known here."""
        hold = self._hold
        if hold is None or not hold.held:
            return entry.epoch is None
        return entry.epoch == hold.epoch

    async def learn(self) -> Record | None:
        """Read the hold, and whether this broker still is the owner, at one revision: otherwise the next owner may have
        read the hold before it was claimed, so no one may rely on what this one knows. Raises STORE_UNAVAILABLE and the
        store's errors."""
        hold_key = paths.exclusive_producer(self._segment.record.topic)
        owner_key = paths.segment_owner(self._segment.id)
        found = await self._segment.store.get_many([hold_key, owner_key])
        if not holds(self._segment.ownership.check, found.records[owner_key]):
            self._segment.lose("another generation owns it now")
            raise self._segment.not_serving()
        stored = found.records[hold_key]
        if found.revision >= self._revision:
            self._revision = found.revision
            self._hold = ExclusiveProducerRecord.decode(stored.value) if stored is not None else None
        return stored

    async def look_again(self, entry: Entry) -> None:
        """Read the hold before an entry is refused. An entry without an epoch ends a hold that is over. Raises as
        `learn`."""
        stored = await self.learn()
        hold = ExclusiveProducerRecord.decode(stored.value) if stored is not None else None
        if stored is None or hold is None or entry.epoch is not None or not hold.is_over(self._segment.clock()):
            return
        try:
            await self._segment.store.apply(self._segment.store.batch().replace(stored, hold.ended.encode()))
        except CheckFailed:
            pass  # another broker was faster
        except MetastoreError as error:
            raise errors.StoreUnavailable(
                f"the hold of topic {self._segment.record.topic} is over and cannot be ended: {error}",
                action="Try again in a moment; nothing happened.",
                segment=self._segment.id,
            ) from error
        await self.learn()

    def refusal(self, entry: Entry) -> errors.MetatxnError:
        """The error for an entry that is not admitted."""
        hold, topic = self._hold, self._segment.record.topic
        if entry.epoch is not None:
            return errors.NotAllowed(
                f"epoch {entry.epoch} of the exclusive producer of topic {topic} is over: "
                + ("another producer has the topic now" if hold is not None and hold.held else "its hold has ended"),
                action="Nothing was appended. Claim the topic again, if it should still be yours.",
                segment=self._segment.id,
                topic=topic,
            )
        named = f" {hold.producer}" if hold is not None and hold.producer else ""
        return errors.NotAllowed(
            f"topic {topic} has an exclusive producer{named}, which alone may publish",
            action="Nothing was appended. `metatxn topic show` shows until when; publish when it has ended.",
            segment=self._segment.id,
            topic=topic,
        )
