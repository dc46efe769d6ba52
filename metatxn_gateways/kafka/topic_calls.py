"""The calls that change topics: create and delete them, and delete their oldest records."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from metastore.errors import CheckFailed
from metatxn.service import audit
from metatxn.wire import errors
from metatxn.wire.broker import MAX_SEGMENTS
from metatxn_gateways.kafka.codes import REFUSALS, KafkaCode, KafkaError, code_of, error_code, status_of
from metatxn_gateways.kafka.configs import configs_of
from metatxn_gateways.kafka.partitions import Partitions, own_name, require_right
from metatxn_gateways.kafka.schemas import CallRequest, CallResponse
from metatxn_gateways.kafka.settings import policy_of
from participants.broker.broker import Broker
from participants.broker.draining import assert_takes_topics
from participants.segment.trimming import trim
from participants.topic.layout import LayoutUpkeep

_NO_TIME = timedelta(0)
_TO_THE_END = -1
_CONFIGS_SINCE = 5
"""The version of CreateTopics whose answer has the settings of the topic."""


class TopicCalls:
    def __init__(self, broker: Broker, partitions: Partitions, max_partitions: int = MAX_SEGMENTS) -> None:
        self._broker = broker
        self._max_partitions = max_partitions
        self._partitions = partitions

    async def create_topics(self, request: CallRequest, response: CallResponse) -> Any:
        results = []
        for each in request.topics:
            code, why, number, status = KafkaCode.NONE, None, -1, 201
            configs: list[Any] = []
            try:
                require_right(request.caller, "admin", each.name)
                number = await self._create(each, validate_only=bool(request.validate_only))
                if response.version >= _CONFIGS_SINCE and not request.validate_only:
                    configs = await self._configs(each.name, response)
            except REFUSALS as error:
                code, why = code_of(error), str(error)
                status = status_of(error)
            if not request.validate_only:
                _record("topic.create", each.name, status, request)
            results.append(
                response.make(
                    "CreatableTopicResult",
                    name=each.name,
                    error_code=error_code(code),
                    error_message=why,
                    num_partitions=number,
                    replication_factor=1 if number > 0 else -1,
                    configs=tuple(configs),
                )
            )
        return response.make("CreateTopicsResponse", throttle_time=_NO_TIME, topics=tuple(results))

    async def _configs(self, name: str, response: CallResponse) -> list[Any]:
        policy = (await self._broker.policies.of_topic(own_name(name))).effective
        return [
            response.make(
                "CreatableTopicConfigs",
                name=each.name,
                value=each.value,
                read_only=each.read_only,
                config_source=each.source,
                is_sensitive=False,
            )
            for each in configs_of(policy)
        ]

    async def _create(self, wanted: Any, *, validate_only: bool) -> int:
        """Create a topic, and return the number of its partitions. Its settings become its policy, and one that has no
        meaning here is refused."""
        name = own_name(wanted.name)
        if wanted.replication_factor not in (-1, 1) or wanted.assignments:
            raise KafkaError(KafkaCode.INVALID_REPLICATION_FACTOR)
        number = 1 if wanted.num_partitions == -1 else int(wanted.num_partitions)
        if not 1 <= number <= self._max_partitions:
            raise KafkaError(KafkaCode.INVALID_PARTITIONS)
        policy = policy_of((each.name, each.value) for each in wanted.configs)
        if validate_only:
            stored = await self._broker.topics.get_or_tombstone(name)
            if stored is not None and not stored.topic.deleted:
                raise errors.AlreadyExists(f"topic {name} exists", topic=name)
            return number
        await assert_takes_topics(self._broker, name)
        storage = self._broker.storage.storage_id
        first = min(number, MAX_SEGMENTS)
        topic = await self._broker.topics.create(name, first, None, storage, self._broker.clock(), "kafka")
        if policy:
            await self._broker.policies.change_topic(name, policy)
        segments = topic.segments if first == number else await self._grown(name, number)
        await self._broker.until_opened(segments)
        return number

    async def create_partitions(self, request: CallRequest, response: CallResponse) -> Any:
        results = []
        for each in request.topics:
            code, why, status = KafkaCode.NONE, None, 200
            try:
                require_right(request.caller, "admin", each.name)
                await self._add_partitions(each, validate_only=bool(request.validate_only))
            except REFUSALS as error:
                code, why, status = code_of(error), str(error), status_of(error)
            if not request.validate_only:
                _record("topic.add_partitions", each.name, status, request)
            results.append(
                response.make(
                    "CreatePartitionsTopicResult", name=each.name, error_code=error_code(code), error_message=why
                )
            )
        return response.make("CreatePartitionsResponse", throttle_time=_NO_TIME, results=tuple(results))

    async def _add_partitions(self, wanted: Any, *, validate_only: bool) -> None:
        """Add partitions, counted again at each attempt, so that of two requests for the same number only one adds."""
        name = own_name(wanted.name)
        if wanted.assignments:
            raise KafkaError(KafkaCode.INVALID_REPLICA_ASSIGNMENT)
        stored = await self._broker.topics.get(name)
        if stored.topic.format != "kafka":
            raise KafkaError(KafkaCode.UNKNOWN_TOPIC_OR_PARTITION)
        before = len(stored.topic.segments)
        if not before < wanted.count <= self._max_partitions:
            raise KafkaError(KafkaCode.INVALID_PARTITIONS)
        if validate_only:
            return
        segments = await self._grown(name, wanted.count)
        await self._broker.until_opened(segments[before:])

    async def _grown(self, name: str, number: int) -> Sequence[str]:
        """Add partitions until there are `number`, as many in one apply as a topic may have when it is created. A death
        in between leaves fewer. Raises INVALID_PARTITIONS if another request has added all of them. Returns all."""
        added = False
        while True:
            stored = await self._broker.topics.get(name)
            missing = number - len(stored.topic.segments)
            if missing <= 0:
                if not added:
                    raise KafkaError(KafkaCode.INVALID_PARTITIONS)
                return stored.topic.segments[:number]
            await assert_takes_topics(self._broker, name)
            with suppress(CheckFailed):
                storage = self._broker.storage.storage_id
                await self._broker.topics.add_partitions(
                    stored, min(missing, MAX_SEGMENTS), storage, self._broker.clock()
                )
                added = True
            self._broker.forget_topic(name)

    async def delete_topics(self, request: CallRequest, response: CallResponse) -> Any:
        upkeep = self._broker.upkeep
        assert isinstance(upkeep, LayoutUpkeep)
        results = []
        for name in request.topic_names:
            code, status = KafkaCode.NONE, 204
            try:
                require_right(request.caller, "admin", name)
                topic = await self._partitions.topic(name)
                await upkeep.deletion.delete(topic.name)
                self._broker.forget_topic(topic.name)
            except REFUSALS as error:
                code, status = code_of(error), status_of(error)
            _record("topic.delete", name, status, request)
            results.append(response.make("DeletableTopicResult", name=name, error_code=error_code(code)))
        return response.make("DeleteTopicsResponse", throttle_time=_NO_TIME, responses=tuple(results))

    async def delete_records(self, request: CallRequest, response: CallResponse) -> Any:
        topics = []
        for topic in request.topics:
            found = [await self._shortened(request, response, topic.name, each) for each in topic.partitions]
            topics.append(response.make("DeleteRecordsTopicResult", name=topic.name, partitions=tuple(found)))
        return response.make("DeleteRecordsResponse", throttle_time=_NO_TIME, topics=tuple(topics))

    async def _shortened(self, request: CallRequest, response: CallResponse, topic: str, wanted: Any) -> Any:
        code, start, status, about = KafkaCode.NONE, -1, 200, {"topic": topic}
        try:
            require_right(request.caller, "admin", topic)
            about = {"segment": await self._partitions.segment_id(topic, wanted.partition_index)}
            start = await self._trimmed(topic, wanted.partition_index, wanted.offset)
        except REFUSALS as error:
            code, status = code_of(error), status_of(error)
        audit.record(
            "segment.trim",
            about,
            status,
            principal=request.caller.name,
            address=request.address,
            arguments={"before_offset": wanted.offset},
        )
        return response.make(
            "DeleteRecordsPartitionResult",
            partition_index=wanted.partition_index,
            low_watermark=start,
            error_code=error_code(code),
        )

    async def _trimmed(self, topic: str, partition: int, offset: int) -> int:
        """Trim, and return the first offset that is left: that of the batch with `offset`. Nothing after the stable
        offset goes."""
        segment = await self._partitions.segment(topic, partition)
        stable = await segment.offsets.stable_end()
        wanted = stable if offset == _TO_THE_END else offset
        if not 0 <= wanted <= stable:
            await segment.reader.assert_owned()
            raise KafkaError(KafkaCode.OFFSET_OUT_OF_RANGE)
        place = await segment.offsets.place_of(wanted)
        await trim(segment, self._broker.store, self._broker.storage, place.next)
        return await self._partitions.start_of(segment)


def _record(verb: str, topic: str, status: int, request: CallRequest) -> None:
    audit.record(verb, {"topic": topic}, status, principal=request.caller.name, address=request.address)
