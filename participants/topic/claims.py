"""Claiming a topic for an exclusive producer: the record, and then every owner (DESIGN §5.23).

    one apply: the next epoch ─▶ the layout is read ─▶ the owner of each active segment ─▶ the claimer is answered
                                                       reads the hold, and drains what it had begun before

The order is the argument: who opens a segment after the apply reads the new hold before it serves, and all others are
asked. So when the claimer is answered, nothing of an earlier epoch, or without one, is appended any more.
"""

from __future__ import annotations

import asyncio

from metastore.errors import MetastoreError
from metastore.txn import paths
from metastore.txn.records.segments import SegmentRecord
from metastore.txn.records.topics import ExclusiveProducerRecord
from metastore.types import Record
from metatxn.wire import errors
from participants.broker.broker import Broker
from participants.messages.exclusive_producers import Claim


class Claims:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def claim(self, topic_name: str, claim: Claim, authorization: str | None = None) -> ExclusiveProducerRecord:
        """Returns once the claim counts on every segment. `authorization` is that of the caller. Raises as
        `ExclusiveProducers.claim`, and OUTCOME_UNKNOWN if the topic is held and an owner has not heard of it."""
        held = await self._broker.exclusive_producers.claim(topic_name, claim)
        topic = (await self._broker.topics.get(topic_name)).topic  # after the apply
        found = await self._broker.store.get_each(map(paths.segment, topic.segments))
        active = [each for each in topic.segments if _is_active(found[paths.segment(each)])]
        told = await asyncio.gather(*(self._tell(each, authorization) for each in active), return_exceptions=True)
        for segment_id, result in zip(active, told, strict=True):
            if isinstance(result, (MetastoreError, errors.MetatxnError)):
                raise _untold(topic_name, held, segment_id, result) from result
            if result is not None:
                raise result
        return held

    async def _tell(self, segment_id: str, authorization: str | None) -> None:
        try:
            segment = await self._broker.anywhere(segment_id, authorization)
        except errors.NotFound:
            return  # it was deleted
        await segment.learn_producer()


def _is_active(stored: Record | None) -> bool:
    return stored is not None and SegmentRecord.decode(stored.value).state == "active"


def _untold(
    topic_name: str, held: ExclusiveProducerRecord, segment_id: str, error: BaseException
) -> errors.MetatxnError:
    return errors.OutcomeUnknown(
        f"topic {topic_name} is claimed under epoch {held.epoch}, and the owner of {segment_id} has not confirmed "
        f"that it knows: {error}",
        action="Claim it again in the same session, until it is answered.",
        topic=topic_name,
        segment=segment_id,
    )
