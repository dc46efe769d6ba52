"""The calls of consumer groups: members, and the offsets that they commit and fetch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any

from metatxn.service.security.principal import Principal
from metatxn.wire.ids import TxnId
from metatxn.wire.names import topic_of_segment
from metatxn_gateways.kafka.codes import (
    FENCED_SINCE,
    REFUSALS,
    TRANSACTION_ENDED,
    KafkaCode,
    KafkaError,
    as_known,
    code_of,
    error_code,
)
from metatxn_gateways.kafka.coordination import Coordination
from metatxn_gateways.kafka.groups import Joining, MemberIdRequired
from metatxn_gateways.kafka.offsets import GivenOffset, checked_offset
from metatxn_gateways.kafka.partitions import Partitions, kafka_name, require_right
from metatxn_gateways.kafka.producers import Producers
from metatxn_gateways.kafka.schemas import CallRequest, CallResponse

_NO_TIME = timedelta(0)
_MILLISECOND = timedelta(milliseconds=1)
_FIRST_THAT_NEEDS_IDS = 4
"""The version of JoinGroup from which a member joins with the id that it was told."""
_Partition = tuple[str, int]


class GroupCalls:
    def __init__(self, partitions: Partitions, producers: Producers, coordination: Coordination) -> None:
        self._partitions = partitions
        self._producers = producers
        self._coordination = coordination

    # -- members -----------------------------------------------------------------------------------------------

    async def join_group(self, request: CallRequest, response: CallResponse) -> Any:
        wanted = Joining(
            request.member_id,
            request.group_instance_id,
            request.session_timeout // _MILLISECOND,
            (request.rebalance_timeout or request.session_timeout) // _MILLISECOND,
            request.protocol_type,
            {each.name: each.metadata for each in request.protocols},
            request.caller,
            request.client,
            "" if request.address is None else f"/{request.address}",
        )
        needs_id = response.version >= _FIRST_THAT_NEEDS_IDS
        try:
            joined = await self._coordination.join(
                request.group_id, wanted, request.client or "member", needs_id=needs_id
            )
        except REFUSALS as error:
            told = error.member_id if isinstance(error, MemberIdRequired) else request.member_id
            code = code_of(error, KafkaCode.COORDINATOR_NOT_AVAILABLE)
            return response.make(
                "JoinGroupResponse",
                throttle_time=_NO_TIME,
                error_code=error_code(code),
                generation_id=-1,
                protocol_type=None,
                protocol_name=None if response.version >= 7 else "",
                leader="",
                skip_assignment=False,
                member_id=told,
                members=(),
            )
        members = tuple(
            response.make("JoinGroupResponseMember", member_id=each, group_instance_id=instance, metadata=metadata)
            for each, (instance, metadata) in joined.members.items()
        )
        return response.make(
            "JoinGroupResponse",
            throttle_time=_NO_TIME,
            error_code=error_code(KafkaCode.NONE),
            generation_id=joined.generation,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol,
            leader=joined.leader,
            skip_assignment=joined.skip_assignment,
            member_id=joined.member_id,
            members=members,
        )

    async def sync_group(self, request: CallRequest, response: CallResponse) -> Any:
        code, assignment, group = KafkaCode.NONE, b"", None
        try:
            group, assignment = await self._coordination.sync(
                request.group_id,
                request.generation_id,
                request.member_id,
                request.group_instance_id,
                {each.member_id: each.assignment for each in request.assignments},
            )
        except REFUSALS as error:
            code = code_of(error, KafkaCode.COORDINATOR_NOT_AVAILABLE)
        return response.make(
            "SyncGroupResponse",
            throttle_time=_NO_TIME,
            error_code=error_code(code),
            protocol_type=group.protocol_type if group is not None else None,
            protocol_name=group.protocol if group is not None else None,
            assignment=assignment,
        )

    async def heartbeat(self, request: CallRequest, response: CallResponse) -> Any:
        code = KafkaCode.NONE
        try:
            self._coordination.heartbeat(
                request.group_id, request.generation_id, request.member_id, request.group_instance_id
            )
        except KafkaError as error:
            code = error.code
        return response.make("HeartbeatResponse", throttle_time=_NO_TIME, error_code=error_code(code))

    async def leave_group(self, request: CallRequest, response: CallResponse) -> Any:
        leaving = [(each.member_id, each.group_instance_id) for each in request.members or ()]
        if request.members is None:
            leaving = [(request.member_id, None)]
        codes = [self._left(request, *each) for each in leaving]
        members = tuple(
            response.make("MemberResponse", member_id=member, group_instance_id=instance, error_code=error_code(code))
            for (member, instance), code in zip(leaving, codes, strict=True)
            if request.members is not None
        )
        code = KafkaCode.NONE if request.members is not None else codes[0]
        return response.make("LeaveGroupResponse", throttle_time=_NO_TIME, error_code=error_code(code), members=members)

    def _left(self, request: CallRequest, member: str, instance: str | None) -> KafkaCode:
        try:
            self._coordination.leave(request.group_id, member, instance, request.caller)
        except KafkaError as error:
            return error.code
        return KafkaCode.NONE

    # -- what is committed -------------------------------------------------------------------------------------

    async def offset_commit(self, request: CallRequest, response: CallResponse) -> Any:
        async def commit(offsets: dict[str, GivenOffset]) -> None:
            await self._coordination.commit(
                request.group_id,
                request.generation_id_or_member_epoch,
                request.member_id,
                request.group_instance_id,
                offsets,
            )

        return await self._committed("OffsetCommitResponse", request, response, commit)

    async def add_offsets_to_txn(self, request: CallRequest, response: CallResponse) -> Any:
        code = KafkaCode.NONE
        try:
            producer = await self._producers.transactional(
                request.transactional_id, request.producer_id, request.producer_epoch, request.caller
            )
            await self._producers.add(producer, [])
            producer.groups.add(request.group_id)
        except REFUSALS as error:
            code = as_known(code_of(error, KafkaCode.COORDINATOR_NOT_AVAILABLE), response.version >= FENCED_SINCE)
        return response.make("AddOffsetsToTxnResponse", throttle_time=_NO_TIME, error_code=error_code(code))

    async def txn_offset_commit(self, request: CallRequest, response: CallResponse) -> Any:
        async def commit(offsets: dict[str, GivenOffset]) -> None:
            producer = await self._producers.transactional(
                request.transactional_id, request.producer_id, request.producer_epoch, request.caller
            )
            txn_id = await self._producers.open_transaction(producer)
            try:
                await commit_in(txn_id, offsets)
            except TRANSACTION_ENDED:  # another broker may have ended it, and begun the next one
                following = await self._producers.open_transaction(producer, refused=txn_id)
                if following == txn_id:
                    raise
                await commit_in(following, offsets)

        async def commit_in(txn_id: TxnId, offsets: dict[str, GivenOffset]) -> None:
            generation = -1 if request.generation_id is None else request.generation_id
            member, instance = request.member_id or "", request.group_instance_id
            await self._coordination.commit_in(txn_id, request.group_id, generation, member, instance, offsets)

        return await self._committed("TxnOffsetCommitResponse", request, response, commit)

    async def _committed(
        self,
        kind: str,
        request: CallRequest,
        response: CallResponse,
        commit: Callable[[dict[str, GivenOffset]], Awaitable[None]],
    ) -> Any:
        """Commit the partitions that exist, or none of them."""
        codes: dict[_Partition, KafkaCode] = {}
        offsets: dict[str, GivenOffset] = {}
        good: list[_Partition] = []
        for topic in request.topics:
            for each in topic.partitions:
                place = (topic.name, each.partition_index)
                try:
                    require_right(request.caller, "consume", topic.name)
                    epoch = getattr(each, "committed_leader_epoch", None)
                    given = checked_offset(each.committed_offset, epoch, each.committed_metadata)
                    offsets[await self._partitions.segment_id(*place)] = given
                    good.append(place)
                except REFUSALS as error:
                    codes[place] = code_of(error, KafkaCode.COORDINATOR_NOT_AVAILABLE)
        code = KafkaCode.NONE
        try:
            if offsets:
                await commit(offsets)
        except REFUSALS as error:
            code = as_known(code_of(error, KafkaCode.COORDINATOR_NOT_AVAILABLE), known=False)
        codes.update(dict.fromkeys(good, code))
        topics = tuple(
            response.make(
                f"{kind}Topic",
                name=topic.name,
                partitions=tuple(
                    response.make(
                        f"{kind}Partition",
                        partition_index=each.partition_index,
                        error_code=error_code(codes[topic.name, each.partition_index]),
                    )
                    for each in topic.partitions
                ),
            )
            for topic in request.topics
        )
        return response.make(kind, throttle_time=_NO_TIME, topics=topics)

    # -- what was committed ------------------------------------------------------------------------------------

    # Any broker knows that: it is in the store.

    async def offset_fetch(self, request: CallRequest, response: CallResponse) -> Any:
        stable = bool(request.require_stable)
        if request.groups is None:
            topics, code = await self._fetched(request, response, request.group_id, request.topics, stable, "")
            return response.make(
                "OffsetFetchResponse", throttle_time=_NO_TIME, error_code=error_code(code), topics=topics
            )
        groups = []
        for group in request.groups:
            topics, code = await self._fetched(request, response, group.group_id, group.topics, stable, "s")
            groups.append(
                response.make(
                    "OffsetFetchResponseGroup", group_id=group.group_id, topics=topics, error_code=error_code(code)
                )
            )
        return response.make("OffsetFetchResponse", throttle_time=_NO_TIME, groups=tuple(groups))

    async def _fetched(
        self,
        request: CallRequest,
        response: CallResponse,
        group: str,
        topics: Iterable[Any] | None,
        stable: bool,
        plural: str,
    ) -> tuple[tuple[Any, ...], KafkaCode]:
        """The topics of the answer. From version 8 on the names of its structures end in an s."""
        refused = KafkaCode.NONE
        try:
            wanted = None if topics is None else await self._places(topics)
            segments = None if wanted is None else [each for each in wanted.values() if each is not None]
            found, unstable = await self._coordination.offsets.fetch(group, segments)
            if wanted is None:
                wanted = await self._places_of(found)
        except REFUSALS as error:
            refused = code_of(error, KafkaCode.COORDINATOR_NOT_AVAILABLE)
            wanted = {(each.name, one): None for each in topics or () for one in each.partition_indexes}
            found, unstable = {}, frozenset()
        by_topic: dict[str, list[Any]] = {}
        for (topic, partition), segment in wanted.items():
            known = found.get(segment) if segment is not None else None
            epoch = known.leader_epoch if known is not None else None
            code = refused or _not_allowed(request.caller, topic)
            if code and topics is None:
                continue
            if code:
                known = None
            elif stable and segment in unstable:
                known, code = None, KafkaCode.UNSTABLE_OFFSET_COMMIT
            answer = response.make(
                f"OffsetFetchResponsePartition{plural}",
                partition_index=partition,
                committed_offset=known.offset if known is not None else -1,
                committed_leader_epoch=-1 if epoch is None else epoch,
                metadata=(known.metadata if known is not None else None) or "",
                error_code=error_code(code),
            )
            by_topic.setdefault(topic, []).append(answer)
        made = tuple(
            response.make(f"OffsetFetchResponseTopic{plural}", name=name, partitions=tuple(partitions))
            for name, partitions in by_topic.items()
        )
        return made, refused

    async def _places(self, topics: Iterable[Any]) -> dict[_Partition, str | None]:
        """The segment of each partition that is asked for; None for one that does not exist, which has no offset."""
        places: dict[_Partition, str | None] = {}
        for topic in topics:
            for partition in topic.partition_indexes:
                try:
                    places[topic.name, partition] = await self._partitions.segment_id(topic.name, partition)
                except REFUSALS as error:
                    if code_of(error) not in (KafkaCode.UNKNOWN_TOPIC_OR_PARTITION, KafkaCode.INVALID_TOPIC_EXCEPTION):
                        raise
                    places[topic.name, partition] = None
        return places

    async def _places_of(self, segments: Iterable[str]) -> dict[_Partition, str | None]:
        """The partitions of these segments whose topics still exist."""
        places: dict[_Partition, str | None] = {}
        for segment in segments:
            name = kafka_name(topic_of_segment(segment))
            try:
                listed = (await self._partitions.topic(name)).segments
            except REFUSALS as error:
                if code_of(error) is not KafkaCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                continue
            if segment in listed:
                places[name, listed.index(segment)] = segment
        return places


def _not_allowed(caller: Principal, topic: str) -> KafkaCode:
    """The refusal: a topic whose name is not valid has no offsets."""
    try:
        require_right(caller, "consume", topic)
    except KafkaError as error:
        if error.code is KafkaCode.TOPIC_AUTHORIZATION_FAILED:
            return error.code
    return KafkaCode.NONE
