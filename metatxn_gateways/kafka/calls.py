"""The calls that kio reads and writes: what the cluster is, offsets by time, transactions, topics."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from metastore.txn.records.topics import TopicRecord
from metatxn.service.security.principal import Principal
from metatxn_gateways.kafka.cluster import KafkaCluster, Leader
from metatxn_gateways.kafka.codes import FENCED_SINCE, REFUSALS, KafkaCode, KafkaError, as_known, code_of, error_code
from metatxn_gateways.kafka.coordination import Coordination
from metatxn_gateways.kafka.partitions import Partitions, kafka_name, own_name, require_right, topic_id
from metatxn_gateways.kafka.producers import EPOCH, Producers
from metatxn_gateways.kafka.schemas import CallRequest, CallResponse
from participants.broker.broker import Broker
from participants.messages.pieces import in_turns
from participants.segment.segment import Segment

CLUSTER = "metatxn"
NO_TIME = timedelta(0)
_EARLIEST, _LATEST, _OF_MAX_TIMESTAMP, _EARLIEST_LOCAL, _LATEST_TIERED = -2, -1, -3, -4, -5
_OFFERED_SINCE = {_OF_MAX_TIMESTAMP: 7, _EARLIEST_LOCAL: 8, _LATEST_TIERED: 9}
"""The version of ListOffsets in which clients can ask for it."""
_COORDINATED = (0, 1)
"""What FindCoordinator is asked for: groups and transactions."""


class Calls:
    def __init__(
        self,
        broker: Broker,
        partitions: Partitions,
        producers: Producers,
        coordination: Coordination,
        cluster: KafkaCluster,
    ) -> None:
        self._broker = broker
        self._partitions = partitions
        self._producers = producers
        self._coordination = coordination
        self._cluster = cluster

    # -- the cluster -------------------------------------------------------------------------------------------

    async def metadata(self, request: CallRequest, response: CallResponse) -> Any:
        found: list[tuple[str | None, TopicRecord | KafkaCode]]
        if request.topics is None:
            topics = self._partitions.topics()
            found = [(kafka_name(each.name), each) async for each in topics if request.caller.may_see(each.name)]
        else:
            named = in_turns(request.topics)
            found = [(each.name, await self._topic_named(each.name, request.caller)) async for each in named]
        records = [each for _, each in found if isinstance(each, TopicRecord)]
        leaders = await self._cluster.leaders([segment for each in records for segment in each.segments])
        brokers = [
            response.make("MetadataResponseBroker", node_id=each.id, host=each.host, port=each.port)
            for each in self._cluster.nodes
        ]
        return response.make(
            "MetadataResponse",
            throttle_time=NO_TIME,
            brokers=tuple(brokers),
            cluster_id=CLUSTER,
            controller_id=self._cluster.own.id,
            topics=tuple([_topic(response, name, each, leaders) async for name, each in in_turns(found)]),
        )

    async def _topic_named(self, name: str | None, caller: Principal) -> TopicRecord | KafkaCode:
        if name is None:
            return KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
        try:
            if not caller.may_see(own_name(name)):
                return KafkaCode.TOPIC_AUTHORIZATION_FAILED
            return await self._partitions.topic(name)
        except REFUSALS as error:
            return code_of(error, KafkaCode.LEADER_NOT_AVAILABLE)

    async def find_coordinator(self, request: CallRequest, response: CallResponse) -> Any:
        wanted = [request.key] if request.coordinator_keys is None else request.coordinator_keys
        found = [self._coordinator(each, request.key_type) for each in wanted]
        if request.coordinator_keys is None:
            return response.make("FindCoordinatorResponse", throttle_time=NO_TIME, **found[0])
        coordinators = tuple(
            response.make("Coordinator", key=key, **each) for key, each in zip(wanted, found, strict=True)
        )
        return response.make("FindCoordinatorResponse", throttle_time=NO_TIME, coordinators=coordinators)

    def _coordinator(self, name: str, kind: int | None) -> dict[str, Any]:
        node, code = self._cluster.coordinator(name), KafkaCode.NONE
        if (kind or 0) not in _COORDINATED:
            node, code = None, KafkaCode.INVALID_REQUEST
        elif node is None:
            code = KafkaCode.COORDINATOR_NOT_AVAILABLE
        return {
            "node_id": node.id if node is not None else -1,
            "host": node.host if node is not None else "",
            "port": node.port if node is not None else -1,
            "error_code": error_code(code),
            "error_message": None,
        }

    async def describe_cluster(self, request: CallRequest, response: CallResponse) -> Any:
        code = KafkaCode.NONE if request.endpoint_type in (None, 1) else KafkaCode.UNSUPPORTED_ENDPOINT_TYPE
        brokers = [
            response.make("DescribeClusterBroker", broker_id=each.id, host=each.host, port=each.port, rack=None)
            for each in self._cluster.nodes
        ]
        return response.make(
            "DescribeClusterResponse",
            throttle_time=NO_TIME,
            error_code=error_code(code),
            error_message=None if code is KafkaCode.NONE else "there are no endpoints other than those of brokers",
            endpoint_type=1,
            cluster_id=CLUSTER,
            controller_id=self._cluster.own.id,
            brokers=tuple(brokers) if code is KafkaCode.NONE else (),
            cluster_authorized_operations=-(1 << 31),
        )

    # -- offsets -----------------------------------------------------------------------------------------------

    async def list_offsets(self, request: CallRequest, response: CallResponse) -> Any:
        topics = []
        for topic in request.topics:
            found = [await self._offset(request, response, topic.name, each) for each in topic.partitions]
            topics.append(response.make("ListOffsetsTopicResponse", name=topic.name, partitions=tuple(found)))
        return response.make("ListOffsetsResponse", throttle_time=NO_TIME, topics=tuple(topics))

    async def _offset(self, request: CallRequest, response: CallResponse, topic: str, wanted: Any) -> Any:
        code, offset, at_ms, epoch = KafkaCode.NONE, -1, -1, -1
        try:
            require_right(request.caller, "consume", topic)
            segment = await self._partitions.segment(topic, wanted.partition_index)
            epoch = segment.ownership.generation
            if _OFFERED_SINCE.get(wanted.timestamp, 0) > response.version:
                raise KafkaError(KafkaCode.UNSUPPORTED_VERSION)
            offset, at_ms = await self._offset_at(segment, wanted.timestamp, committed=bool(request.isolation_level))
        except REFUSALS as error:
            code = code_of(error)
        return response.make(
            "ListOffsetsPartitionResponse",
            partition_index=wanted.partition_index,
            error_code=error_code(code),
            timestamp=at_ms,
            offset=offset,
            leader_epoch=epoch,
        )

    async def _offset_at(self, segment: Segment, at_ms: int, *, committed: bool) -> tuple[int, int]:
        """An offset, and the timestamp of its record where that was asked for."""
        if at_ms in (_EARLIEST, _EARLIEST_LOCAL):
            return await self._partitions.start_of(segment), -1
        if at_ms == _LATEST_TIERED:
            return -1, -1  # all of a segment is at one place
        end = await segment.offsets.stable_end() if committed else segment.offsets.end
        if at_ms == _LATEST:
            return end, -1
        if at_ms < 0 and at_ms != _OF_MAX_TIMESTAMP:
            raise KafkaError(KafkaCode.UNSUPPORTED_VERSION)
        times = segment.record_times
        found = await (times.latest() if at_ms == _OF_MAX_TIMESTAMP else times.first_from(at_ms))
        return found if found is not None and found.offset < end else (-1, -1)

    async def offset_for_leader_epoch(self, request: CallRequest, response: CallResponse) -> Any:
        topics = []
        for topic in request.topics:
            found = [await self._end_of_epoch(request, response, topic.topic, each) for each in topic.partitions]
            topics.append(response.make("OffsetForLeaderTopicResult", topic=topic.topic, partitions=tuple(found)))
        return response.make("OffsetForLeaderEpochResponse", throttle_time=NO_TIME, topics=tuple(topics))

    async def _end_of_epoch(self, request: CallRequest, response: CallResponse, topic: str, wanted: Any) -> Any:
        """The end of an epoch: what a client has been given is never cut off, so every epoch reaches to the end."""
        code, epoch, end = KafkaCode.NONE, -1, -1
        try:
            require_right(request.caller, "consume", topic)
            segment = await self._partitions.segment(topic, wanted.partition)
            current = segment.ownership.generation
            if wanted.current_leader_epoch >= 0 and wanted.current_leader_epoch != current:
                late = wanted.current_leader_epoch < current
                raise KafkaError(KafkaCode.FENCED_LEADER_EPOCH if late else KafkaCode.UNKNOWN_LEADER_EPOCH)
            if wanted.leader_epoch <= current:
                epoch, end = wanted.leader_epoch, segment.offsets.end
        except REFUSALS as error:
            code = code_of(error)
        return response.make(
            "EpochEndOffset",
            error_code=error_code(code),
            partition=wanted.partition,
            leader_epoch=epoch,
            end_offset=end,
        )

    # -- transactions ------------------------------------------------------------------------------------------

    async def init_producer_id(self, request: CallRequest, response: CallResponse) -> Any:
        code, producer_id = KafkaCode.NONE, -1
        try:
            timeout_ms = request.transaction_timeout // timedelta(milliseconds=1)
            before = None if (request.producer_id or -1) < 0 else (request.producer_id, request.producer_epoch)
            producer_id = await self._producers.connect(request.transactional_id, timeout_ms, before, request.caller)
        except REFUSALS as error:
            code = as_known(code_of(error, KafkaCode.COORDINATOR_NOT_AVAILABLE), response.version >= 4)
        return response.make(
            "InitProducerIdResponse",
            throttle_time=NO_TIME,
            error_code=error_code(code),
            producer_id=producer_id,
            producer_epoch=EPOCH if code is KafkaCode.NONE else -1,
        )

    async def add_partitions_to_txn(self, request: CallRequest, response: CallResponse) -> Any:
        topics = request.v3_and_below_topics or request.topics or ()
        wanted = [(each.name, partition) for each in topics for partition in each.partitions]
        codes = await self._added(request, response.version, wanted)
        results = []
        for each in topics:
            found = [
                response.make(
                    "AddPartitionsToTxnPartitionResult",
                    partition_index=partition,
                    partition_error_code=error_code(codes[each.name, partition]),
                )
                for partition in each.partitions
            ]
            results.append(
                response.make("AddPartitionsToTxnTopicResult", name=each.name, results_by_partition=tuple(found))
            )
        return response.make(
            "AddPartitionsToTxnResponse", throttle_time=NO_TIME, results_by_topic_v3_and_below=tuple(results)
        )

    async def _added(
        self, request: CallRequest, version: int, wanted: list[tuple[str, int]]
    ) -> dict[tuple[str, int], KafkaCode]:
        """Add all partitions, or none. They may be served by other brokers."""
        segments: list[Segment] = []
        codes: dict[tuple[str, int], KafkaCode] = {}
        for topic, partition in wanted:
            try:
                require_right(request.caller, "produce", topic)
                here = self._broker.serving(await self._partitions.segment_id(topic, partition))
                segments += [] if here is None else [here]
            except REFUSALS as error:
                codes[topic, partition] = code_of(error)
        if codes:
            return dict.fromkeys(wanted, KafkaCode.OPERATION_NOT_ATTEMPTED) | codes
        try:
            producer = await self._producers.transactional(
                request.v3_and_below_transactional_id,
                request.v3_and_below_producer_id,
                request.v3_and_below_producer_epoch,
                request.caller,
            )
            await self._producers.add(producer, segments)
        except REFUSALS as error:
            code = as_known(code_of(error, KafkaCode.COORDINATOR_NOT_AVAILABLE), version >= FENCED_SINCE)
            return dict.fromkeys(wanted, code)
        return dict.fromkeys(wanted, KafkaCode.NONE)

    async def end_txn(self, request: CallRequest, response: CallResponse) -> Any:
        code = KafkaCode.NONE
        try:
            producer = await self._producers.transactional(
                request.transactional_id, request.producer_id, request.producer_epoch, request.caller
            )
            await self._producers.end(producer, commit=request.committed)
            self._coordination.ended(producer.groups)
        except REFUSALS as error:
            code = as_known(code_of(error, KafkaCode.COORDINATOR_NOT_AVAILABLE), response.version >= FENCED_SINCE)
        return response.make("EndTxnResponse", throttle_time=NO_TIME, error_code=error_code(code))


def _topic(
    response: CallResponse, name: str | None, found: TopicRecord | KafkaCode, leaders: Mapping[str, Leader]
) -> Any:
    segments = found.segments if isinstance(found, TopicRecord) else ()
    partitions = [_partition(response, number, leaders.get(each)) for number, each in enumerate(segments)]
    return response.make(
        "MetadataResponseTopic",
        error_code=error_code(KafkaCode.NONE if isinstance(found, TopicRecord) else found),
        name=name,
        topic_id=topic_id(found) if isinstance(found, TopicRecord) else None,
        is_internal=False,
        partitions=tuple(partitions),
    )


def _partition(response: CallResponse, number: int, leader: Leader | None) -> Any:
    nodes = (leader.node.id,) if leader is not None else ()
    return response.make(
        "MetadataResponsePartition",
        error_code=error_code(KafkaCode.NONE if leader is not None else KafkaCode.LEADER_NOT_AVAILABLE),
        partition_index=number,
        leader_id=leader.node.id if leader is not None else -1,
        leader_epoch=leader.epoch if leader is not None else -1,
        replica_nodes=nodes,
        isr_nodes=nodes,
        offline_replicas=(),
    )
