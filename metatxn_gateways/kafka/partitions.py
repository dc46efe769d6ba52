"""Kafka's topics and partitions, which are our topics with the format `kafka` and their segments (DESIGN §5.20)."""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator
from functools import lru_cache

from metastore.txn.records.topics import TopicRecord
from metatxn.service.security.principal import Principal
from metatxn.wire import errors
from metatxn.wire.access import Right
from metatxn.wire.names import DEFAULT_NAMESPACE, topic_name
from metatxn.wire.position import Position
from metatxn_gateways.kafka.codes import KafkaCode, KafkaError
from participants.broker.broker import Broker
from participants.segment.segment import Segment

REMEMBERED_PLACES = 10_000
REMEMBERED_NAMES = 1_000
_TOPIC_IDS = uuid.UUID("6c0f3b0e-6f2b-5d57-9a5c-3f1d5b8c2d11")
_LISTED_AT_ONCE = 1_000


@lru_cache(maxsize=REMEMBERED_NAMES)
def own_name(kafka_name: str) -> str:
    """Our name for a topic: a name without a slash is one of `public/default`. Raises INVALID_TOPIC_EXCEPTION."""
    try:
        return topic_name(kafka_name)
    except ValueError:
        raise KafkaError(KafkaCode.INVALID_TOPIC_EXCEPTION) from None


def require_right(caller: Principal, right: Right, kafka_name: str) -> None:
    """Raises TOPIC_AUTHORIZATION_FAILED, whether there is such a topic or not, and INVALID_TOPIC_EXCEPTION."""
    if not caller.may(right, own_name(kafka_name)):
        raise KafkaError(KafkaCode.TOPIC_AUTHORIZATION_FAILED)


def kafka_name(own: str) -> str:
    return own.removeprefix(f"{DEFAULT_NAMESPACE}/")


def topic_id(topic: TopicRecord) -> uuid.UUID:
    """The id of a topic. Numbers of segments are never reused, so a topic that is created again has another id."""
    return uuid.uuid5(_TOPIC_IDS, topic.segments[0])


class Partitions:
    """The partitions that this broker serves."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._places: OrderedDict[tuple[str, int], Position] = OrderedDict()
        self._starts: dict[str, tuple[Position, int]] = {}

    async def topic(self, name: str) -> TopicRecord:
        """A topic. Raises UNKNOWN_TOPIC_OR_PARTITION, also for a topic with another format."""
        own = own_name(name)
        found = await self._broker.in_layout(own, lambda: self._broker.topic(own))
        if found.format != "kafka":
            raise KafkaError(KafkaCode.UNKNOWN_TOPIC_OR_PARTITION)
        return found

    async def topics(self) -> AsyncIterator[TopicRecord]:
        """All topics, in the order of their names."""
        after, more = None, True
        while more:
            page, more = await self._broker.topics.page(after, _LISTED_AT_ONCE)
            for topic in page:
                if topic.format == "kafka" and not topic.deleted:
                    yield topic
            after = page[-1].name if page else None

    async def segment(self, name: str, partition: int) -> Segment:
        """The segment of a partition that is served here. Raises UNKNOWN_TOPIC_OR_PARTITION, NOT_OWNER and
        STORE_UNAVAILABLE."""

        async def look() -> Segment:
            topic = await self.topic(name)
            if not 0 <= partition < len(topic.segments):
                raise errors.NotFound(f"topic {name} has no partition {partition}")
            return await self._broker.segment(topic.segments[partition])

        return await self._broker.in_layout(own_name(name), look)

    async def segment_id(self, name: str, partition: int) -> str:
        """The id of a partition's segment, wherever it is served. Raises UNKNOWN_TOPIC_OR_PARTITION."""

        async def look() -> str:
            topic = await self.topic(name)
            if not 0 <= partition < len(topic.segments):
                raise errors.NotFound(f"topic {name} has no partition {partition}")
            return topic.segments[partition]

        return await self._broker.in_layout(own_name(name), look)

    async def compacts(self, name: str, *, surely: bool = False) -> bool:
        """Whether a topic of ours is compacted, as of the last look at its policy, or `surely` now."""
        policies = self._broker.policies
        found = (await policies.of_topic(name)).effective if surely else await policies.recent(name)
        return found.compacts

    # -- places of offsets, which never change -------------------------------------------------------------------

    async def place_of(self, segment: Segment, offset: int) -> Position:
        """See `OffsetIndex.place_of`. Where a reader goes on was remembered by `reached`."""
        known = self._places.get((segment.id, offset))
        return known if known is not None else await segment.offsets.place_of(offset)

    def reached(self, segment: Segment, offset: int, place: Position) -> None:
        self._places[segment.id, offset] = place
        self._places.move_to_end((segment.id, offset))
        if len(self._places) > REMEMBERED_PLACES:
            self._places.popitem(last=False)

    async def start_of(self, segment: Segment) -> int:
        """The offset of the first message that may be read."""
        at = segment.ledgers.start
        known = self._starts.get(segment.id)
        if known is None or known[0] != at:
            known = self._starts[segment.id] = (at, await segment.offsets.start())
        return known[1]
