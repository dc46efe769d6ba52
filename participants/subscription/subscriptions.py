"""The subscriptions that this broker serves: created, found, dropped."""

from __future__ import annotations

from collections.abc import Mapping

from metastore.txn.records import SubscriptionRecord
from metastore.types import Record
from participants.api.models import Message
from participants.broker.broker import Broker
from participants.broker.messages import Messages, PublishOptions
from participants.subscription.dead_letters import DeadLetters
from participants.subscription.definitions import Definition, Definitions
from participants.subscription.places import Place
from participants.subscription.subscription import Subscription
from service.problems import ServiceError

SESSION_TIMEOUT_MS = 30_000


class Subscriptions:
    def __init__(self, broker: Broker, messages: Messages) -> None:
        self._broker = broker
        self._messages = messages
        self._definitions = Definitions(broker.store)
        self._dead_letters = DeadLetters(self._publish)
        self._served: dict[tuple[str, str], Subscription] = {}

    async def create(self, topic: str, name: str, wanted: SubscriptionRecord) -> Subscription:
        """The subscription as `wanted` describes it (its incarnation aside). Raises ALREADY_EXISTS when another one
        has the name, NOT_FOUND without the topic."""

        async def ends() -> Mapping[str, Place]:
            """`latest`: behind what readers can see. What becomes visible later belongs to the subscription."""
            segments = [await self._broker.segment(one) for one in (await self._broker.topic(topic)).segments]
            return {segment.id: Place.behind(segment.buffer.max_read_position) for segment in segments}

        async def stored() -> Record:
            return (await self._broker.topics.get(topic)).record

        return self._serve(await self._definitions.create(topic, name, wanted, stored, ends))

    async def get(self, topic: str, name: str) -> Subscription:
        """Raises NOT_FOUND."""
        known = self._served.get((topic, name))
        if known is not None and not known.gone:
            return known
        return self._serve(await self._definitions.get(topic, name))

    async def drop(self, topic: str, name: str) -> None:
        """It is gone at once; what it left in the store goes before this returns. Raises NOT_FOUND."""
        definition = await self._definitions.drop(topic, name)
        known = self._served.pop((topic, name), None)
        if known is not None:
            known.close()
        for segment_id in (await self._broker.topic(topic)).segments:
            try:
                segment = await self._broker.segment(segment_id)
            except ServiceError:
                continue  # its recovery deletes what is left
            await segment.subscriptions.drop(definition)

    def _serve(self, definition: Definition) -> Subscription:
        """The one object of this incarnation: consumers and what they hold are known to it alone."""
        key = (definition.topic, definition.name)
        known = self._served.get(key)
        if known is not None and known.definition == definition and not known.gone:
            return known
        if known is not None:
            known.close()
        served = self._served[key] = Subscription(
            definition,
            layout=self._broker.topic,
            segment=self._broker.segment,
            dead_letters=self._dead_letters,
            session_timeout_ms=SESSION_TIMEOUT_MS,
        )
        return served

    async def _publish(self, topic: str, message: Message, producer: str, sequence: int) -> object:
        return await self._messages.publish(topic, [message], PublishOptions(None, producer, sequence))
