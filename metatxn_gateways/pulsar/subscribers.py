"""Consumers with a subscription, each attached to the owner of one segment (DESIGN §5.10).

Entries are sent as long as the client has permits: `FLOW` permits messages, and the last entry may exceed that. Of an
entry only the messages count that this consumer gets; `ack_set` says which these are. What a consumer holds returns
when it is closed, when its connection ends, and by `REDELIVER`.
"""

from __future__ import annotations

import asyncio
from typing import Any

from metastore.errors import MetastoreError
from metatxn.wire import errors
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from metatxn_gateways.listener import Reply
from metatxn_gateways.pulsar.acks import ack_set_of, acks_of
from metatxn_gateways.pulsar.commands import command
from metatxn_gateways.pulsar.readers import READ_BYTES, message
from metatxn_gateways.pulsar.session import PulsarSession
from participants.messages.payloads import message_count
from participants.segment.segment import Segment
from participants.subscription.segment_subscription import SegmentSubscription
from participants.subscription.share import LocalShare
from participants.subscription.taking import Taker, TakingEntries


class Subscriber:
    """A consumer that is attached as `number`. `run` sends until the segment, the subscription or the connection is
    lost; `detach` comes after it."""

    def __init__(
        self,
        request: Any,
        part: SegmentSubscription,
        number: int,
        session: PulsarSession,
    ) -> None:
        self.id: int = request.consumer_id
        self.name: str = request.consumer_name
        self.part = part
        self.number = number
        self._session = session
        self._link = session.link
        self._epoch: int | None = request.consumer_epoch if request.HasField("consumer_epoch") else None
        """The client drops what was sent to it before its last `REDELIVER`."""
        self._permits = 0
        self._permitted = asyncio.Event()
        self.drained = False
        """Whether everything that the segment will ever contain is acknowledged."""

    @property
    def segment(self) -> Segment:
        return self.part.segment

    def flow(self, permits: int) -> None:
        self._permits += permits
        if self._permits > 0:
            self._permitted.set()

    async def run(self) -> None:
        """Send entries. Raises STORE_UNAVAILABLE once the segment is no longer served here, the error of a subscription
        that has ended, AUTHORIZATION once the right to consume is lost, and the store's errors."""
        while True:
            await self._permitted.wait()
            charge = await self._session.may_read()
            async with self._session.delivering:
                await self._link.until_writable()
                changed = self.segment.changed.next()
                self.part.assert_serving()
                size = await self._deliver()
            if size > 0:
                if charge is not None:
                    charge.answer(size)
                continue
            if self.part.deliveries.full:
                self.part.dispatch.refused_more = True
            if not self.drained and await self._look_at_end():
                self.drained = True
                self._session.context.ordered.acknowledged(self.part.definition.name, self.segment.id)
                self._link.send([command("reached_end_of_topic", consumer_id=self.id)])
            await asyncio.shield(changed)

    async def _deliver(self) -> int:
        """Send what is due. Returns the bytes. What was taken in vain, because the right to consume was lost, returns
        when this consumer is detached. Raises AUTHORIZATION."""
        taking = TakingEntries(Taker(self.number, ()), self._permits, READ_BYTES)
        await self.part.dispatch.deliver(taking)
        self._session.require("consume", self.segment.record.topic)
        frames: list[Reply] = []
        for each in taking.entries.values():
            fields: dict[str, Any] = {"redelivery_count": each.times}
            if ack_set := ack_set_of(each.indexes, message_count(each.frame)):
                fields["ack_set"] = ack_set
            if self._epoch is not None:
                fields["consumer_epoch"] = self._epoch
            frames.append(message(self.id, self.segment.id, each.frame, **fields))
            self._permits -= len(each.indexes)
        if self._permits <= 0:
            self._permitted.clear()
        if frames:
            self._link.send(*frames)
        return sum(len(part) for frame in frames for part in frame)

    async def _look_at_end(self) -> bool:
        try:
            return await self.part.dispatch.drained()
        except MetastoreError:
            return False  # the write of the cursor is repeated, and whatever comes next looks again

    # -- what its client asks for ------------------------------------------------------------------------------

    async def acknowledge(self, request: Any, txn_id: TxnId | None) -> None:
        """Acknowledge. Returns once that is durable; inside a transaction, once its operations are. What comes after
        the abort of its transaction is delivered again, like what came before it. Raises as `acks_of` and
        `LocalShare.acknowledge` do."""
        self.part.assert_serving()
        acks = await acks_of(self.part, request, inside=txn_id is not None)
        try:
            await LocalShare({self.segment.id: self.part}).acknowledge_all([(self.part, acks)], txn_id)
        except errors.MetatxnError:
            if txn_id is not None and await self.part.freed_by_abort(txn_id):
                places = [place for ack in acks for place in self.part.deliveries.places_in(ack.span)]
                self.part.dispatch.redeliver([(place.position, place.message) for place in places], self.number)
            raise

    async def redeliver(self, request: Any) -> None:
        """Return what this consumer holds of these entries, or everything that it holds. What is being sent to it at
        this moment comes before that."""
        async with self.part.dispatch.reading:
            if request.HasField("consumer_epoch"):
                self._epoch = request.consumer_epoch
            if not request.message_ids:
                self.part.dispatch.redeliver(None, self.number)
                return
            positions = {Position(each.ledger_id, each.entry_id) for each in request.message_ids}
            sizes = {position: self.part.deliveries.size_of(position) or 0 for position in positions}
            ids = [(position, index) for position in sorted(positions) for index in range(sizes[position])]
            self.part.dispatch.redeliver(ids, self.number)

    async def detach(self) -> None:
        """Detach it; what it holds returns. Idempotent."""
        await self.part.attached.detach(self.number)
