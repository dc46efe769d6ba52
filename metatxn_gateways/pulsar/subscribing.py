"""Subscriptions for the consumers of Pulsar's clients: found or created, and served on one segment.

Shared                  a subscription `shared`: queue consumers
Exclusive, Failover     a subscription `failover`, whose segments have one consumer at a time: stream consumers
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from metastore.txn.records.subscriptions import SubscriptionRecord
from metastore.types import Record
from metatxn.wire import errors
from metatxn.wire.broker import MAX_NAME, Message
from metatxn.wire.ids import TxnId
from metatxn.wire.text import no_control_characters
from metatxn_gateways.pulsar.codes import PulsarCode, PulsarError
from participants.broker.broker import Broker
from participants.segment.segment import Segment
from participants.subscription.dead_letters import DeadLetters
from participants.subscription.definitions import Definition, Definitions
from participants.subscription.places import Start
from participants.subscription.segment_subscription import SegmentSubscription
from participants.subscription.segment_subscriptions import subscriptions_of
from participants.topic.messages import Messages, PublishOptions
from participants.topic.seeking import Target, starts_of
from participants.txn.own_transactions import OwnTransactions

EXCLUSIVE, SHARED, FAILOVER = 0, 1, 2
_TYPES: Mapping[int, Any] = {EXCLUSIVE: "failover", SHARED: "shared", FAILOVER: "failover"}
_INITIAL: Mapping[int, Any] = {0: "latest", 1: "earliest"}
_ATTEMPTS = 3


class Subscribing:
    """Serves the subscriptions of a broker's topics."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._messages = Messages(broker)
        self._definitions = Definitions(broker.store)
        self._dead_letters = DeadLetters(
            self._publish, OwnTransactions(broker.store, lambda: broker.clock(), lambda: broker.principal)
        )

    async def part(self, segment: Segment, request: Any) -> SegmentSubscription:
        """The subscription that a consumer asks for on this segment, which is created if it does not exist.

        Raises `PulsarError` for one with another type, UPGRADE_PENDING, STORE_UNAVAILABLE, and the store's errors.
        """
        kind, name = _TYPES.get(request.sub_type), checked_name(request.subscription, "subscription")
        if kind is None:
            raise PulsarError(PulsarCode.NOT_ALLOWED, "consumers by key are not supported: use a queue consumer")
        for _ in range(_ATTEMPTS):
            definition = await self._definition(segment.record.topic, name, kind, request)
            if definition.record.type != kind:
                message = (
                    f"subscription {name} of topic {definition.topic} is {definition.record.type}, and this consumer "
                    f"needs one that is {kind}. Take another name, or drop it: metatxn subscription drop"
                )
                raise PulsarError(PulsarCode.NOT_ALLOWED, message)
            try:
                part = await subscriptions_of(segment).get(definition)
            except errors.NotFound:
                continue  # it was dropped, or moved, in between
            part.on_dead = self._dead_letters.send
            return part
        raise PulsarError(PulsarCode.SERVICE_NOT_READY, f"subscription {name} keeps changing")

    async def _definition(self, topic: str, name: str, kind: Any, request: Any) -> Definition:
        """The stored definition; it is created if there is none."""
        try:
            return await self._definitions.get(topic, name)
        except errors.NotFound:
            pass
        broker = self._broker
        wanted = SubscriptionRecord(
            incarnation=1,
            type=kind,
            initial=_INITIAL.get(request.initial_position, "latest"),
            created_ms=broker.clock(),
        )

        async def stored() -> Record:
            return (await broker.topics.get(topic)).record

        async def ends() -> Mapping[str, Start]:
            return await starts_of(Target("latest"), broker, topic, broker.authorization)

        try:
            return await self._definitions.create(topic, name, wanted, stored, ends)
        except errors.AlreadyExists:
            return await self._definitions.get(topic, name)

    async def _publish(self, topic: str, messages: Sequence[Message], txn_id: TxnId) -> object:
        """Publish dead letters as the broker itself, as the broker's own interface does."""
        options = PublishOptions(txn_id, None, None, authorization=self._broker.authorization)
        return await self._messages.publish(topic, messages, options)


def checked_name(name: str, what: str) -> str:
    """The name of a subscription or of a consumer. Raises `PulsarError`."""
    try:
        no_control_characters(name)
    except ValueError as error:
        raise PulsarError(PulsarCode.NOT_ALLOWED, f"the name of a {what} {error}") from None
    if not 1 <= len(name) <= MAX_NAME:
        raise PulsarError(PulsarCode.NOT_ALLOWED, f"the name of a {what} has between 1 and {MAX_NAME} characters")
    return name
