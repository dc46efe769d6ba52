"""Publishes messages that were delivered too often to the dead-letter topic, exactly once: under a producer and a
sequence that are derived from their place, so that a publish that is repeated after a crash finds the first one. Then
they are acknowledged."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Protocol

import structlog

from metastore.errors import MetastoreError
from metatxn.service.retry import until_it_succeeds
from metatxn.wire import errors
from metatxn.wire.broker import MAX_NAME, Message, ReadMessage
from participants.subscription.places import Place
from participants.subscription.segment_subscription import SegmentSubscription

log = structlog.get_logger()
_MESSAGES_PER_ENTRY = 1 << 32
"""The largest count that a frame can contain."""


class Publish(Protocol):
    async def __call__(self, topic: str, message: Message, producer: str, sequence: int) -> object: ...


class DeadLetters:
    def __init__(self, publish: Publish) -> None:
        self._publish = publish

    def send(self, part: SegmentSubscription, places: Sequence[Place]) -> None:
        """Send the messages in the background until that is done. The task ends with the segment, and begins again with
        the next delivery."""
        for place in places:
            part.segment.spawn(self._send_until_done(part, place))

    async def _send_until_done(self, part: SegmentSubscription, place: Place) -> None:
        def report(error: Exception) -> None:
            log.warning("a dead letter is sent again", segment=part.segment.id, place=str(place), error=str(error))

        await until_it_succeeds(lambda: self._send(part, place), (errors.MetatxnError, MetastoreError), report)

    async def _send(self, part: SegmentSubscription, place: Place) -> None:
        if part.segment.lost or part.dropped:
            return
        topic = part.definition.record.dead_letter_topic
        assert topic is not None
        found = await part.dead_message(place)
        if found is not None:
            producer = producer_name(part.segment.id, part.definition.name, place.ledger)
            sequence = place.entry * _MESSAGES_PER_ENTRY + place.message
            await self._publish(topic, _letter(part, found), producer, sequence)
            part.segment.traffic.dead_letters += 1
        await part.bury(place)


def producer_name(segment: str, subscription: str, ledger: int) -> str:
    """The name of the producer of the dead letters of one subscription from one ledger, which is always the same. A
    name that is too long for other brokers is replaced by a digest."""
    name = f"dead letters of {segment} {subscription} {ledger}"
    return name if len(name) <= MAX_NAME else f"dead letters of {sha256(name.encode()).hexdigest()}"


def _letter(part: SegmentSubscription, found: ReadMessage) -> Message:
    origin = {
        "metatxn.origin-topic": part.definition.topic,
        "metatxn.origin-subscription": part.definition.name,
        "metatxn.origin-message-id": found.message_id,
    }
    body = {"value_base64": found.value_base64} if found.value_base64 is not None else {"value": found.value}
    return Message.model_validate({"properties": found.properties | origin, "key": found.key, **body})
