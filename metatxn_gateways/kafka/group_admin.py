"""The administration of consumer groups: list and describe them, delete them, and delete single offsets.

A group exists while it has members or has committed offsets. Its record in the store stays when it is deleted, so that
no generation is used twice (DESIGN §5.21).
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import Any

from metatxn.service import audit
from metatxn.service.security.principal import Principal
from metatxn.wire.names import topic_of_segment
from metatxn_gateways.kafka.codes import REFUSALS, KafkaCode, KafkaError, code_of, error_code, status_of
from metatxn_gateways.kafka.coordination import Coordination
from metatxn_gateways.kafka.group_rights import CONSUMER, may_see, subscribed_topics
from metatxn_gateways.kafka.groups import ConsumerGroup, GroupState
from metatxn_gateways.kafka.partitions import Partitions, own_name, require_right
from metatxn_gateways.kafka.schemas import CallRequest, CallResponse

_NO_TIME = timedelta(0)
_NOT_ASKED_FOR = -(1 << 31)
_STATES = {
    GroupState.EMPTY: "Empty",
    GroupState.PREPARING: "PreparingRebalance",
    GroupState.COMPLETING: "CompletingRebalance",
    GroupState.STABLE: "Stable",
}


class GroupAdmin:
    def __init__(self, partitions: Partitions, coordination: Coordination) -> None:
        self._partitions = partitions
        self._coordination = coordination

    # -- looking -----------------------------------------------------------------------------------------------

    async def list_groups(self, request: CallRequest, response: CallResponse) -> Any:
        """List the groups that this broker coordinates; clients ask all brokers."""
        code, found = KafkaCode.NONE, []
        try:
            for name in sorted(await self._coordination.names()):
                state, group = await self._state(name)
                wanted = not request.states_filter or state in request.states_filter
                if state != "Dead" and wanted and await self._may_see(request.caller, name):
                    protocol = group.protocol_type if group is not None else ""
                    listed = {"group_id": name, "protocol_type": protocol, "group_state": state}
                    found.append(response.make("ListedGroup", **listed))
        except REFUSALS as error:
            code, found = code_of(error, KafkaCode.COORDINATOR_NOT_AVAILABLE), []
        return response.make(
            "ListGroupsResponse", throttle_time=_NO_TIME, error_code=error_code(code), groups=tuple(found)
        )

    async def describe_groups(self, request: CallRequest, response: CallResponse) -> Any:
        groups = tuple([await self._described(request.caller, response, name) for name in request.groups])
        return response.make("DescribeGroupsResponse", throttle_time=_NO_TIME, groups=groups)

    async def _described(self, caller: Principal, response: CallResponse, name: str) -> Any:
        code, state, group = KafkaCode.NONE, "", None
        try:
            if not await self._may_see(caller, name):
                raise KafkaError(KafkaCode.GROUP_AUTHORIZATION_FAILED)
            state, group = await self._state(name)
        except REFUSALS as error:
            code = code_of(error, KafkaCode.COORDINATOR_NOT_AVAILABLE)
        return response.make(
            "DescribedGroup",
            error_code=error_code(code),
            group_id=name,
            group_state=state,
            protocol_type=group.protocol_type if group is not None else "",
            protocol_data=group.protocol if group is not None else "",
            members=_members(response, group) if group is not None else (),
            authorized_operations=_NOT_ASKED_FOR,
        )

    async def _state(self, name: str) -> tuple[str, ConsumerGroup | None]:
        group = self._coordination.with_members(name)
        if group is not None:
            return _STATES[group.state], group
        return "Empty" if await self._coordination.offsets.segments_of(name) else "Dead", None

    async def _may_see(self, caller: Principal, name: str) -> bool:
        """Whether the caller may consume what the members are subscribed to, or, without members, what was
        committed."""
        if caller.superuser:
            return True
        if (group := self._coordination.with_members(name)) is not None:
            return may_see(group, caller)
        segments = await self._coordination.offsets.segments_of(name)
        return all(caller.may("consume", topic_of_segment(each)) for each in segments)

    # -- deleting ----------------------------------------------------------------------------------------------

    async def delete_groups(self, request: CallRequest, response: CallResponse) -> Any:
        results = []
        for name in request.groups_names:
            code, status = KafkaCode.NONE, 204
            try:
                if not await self._may_see(request.caller, name):
                    raise KafkaError(KafkaCode.GROUP_AUTHORIZATION_FAILED)
                await self._coordination.delete(name)
            except REFUSALS as error:
                code, status = code_of(error, KafkaCode.COORDINATOR_NOT_AVAILABLE), status_of(error)
            _record("group.delete", {"group": name}, status, request)
            results.append(response.make("DeletableGroupResult", group_id=name, error_code=error_code(code)))
        return response.make("DeleteGroupsResponse", throttle_time=_NO_TIME, results=tuple(results))

    async def offset_delete(self, request: CallRequest, response: CallResponse) -> Any:
        code = KafkaCode.NONE
        codes: dict[tuple[str, int], KafkaCode] = {}
        try:
            segments = await self._deletable(request, codes)
            await self._coordination.delete_offsets(request.group_id, segments)
        except REFUSALS as error:
            code = code_of(error, KafkaCode.COORDINATOR_NOT_AVAILABLE)
        topics = []
        for topic in request.topics:
            partitions = tuple(
                response.make(
                    "OffsetDeleteResponsePartition",
                    partition_index=each.partition_index,
                    error_code=error_code(codes.get((topic.name, each.partition_index), KafkaCode.NONE)),
                )
                for each in topic.partitions
            )
            topics.append(response.make("OffsetDeleteResponseTopic", name=topic.name, partitions=partitions))
            status = 204 if not code else 409
            _record("group.delete", {"group": request.group_id, "topic": topic.name}, status, request)
        return response.make(
            "OffsetDeleteResponse", throttle_time=_NO_TIME, error_code=error_code(code), topics=tuple(topics)
        )

    async def _deletable(self, request: CallRequest, codes: dict[tuple[str, int], KafkaCode]) -> list[str]:
        """The segments whose offsets may go. The others are in `codes`."""
        group = self._coordination.with_members(request.group_id)
        in_use = _topics_of(group) if group is not None else set()
        segments = []
        for topic in request.topics:
            for each in topic.partitions:
                place = (topic.name, each.partition_index)
                try:
                    require_right(request.caller, "consume", topic.name)
                    if own_name(topic.name) in in_use:
                        raise KafkaError(KafkaCode.GROUP_SUBSCRIBED_TO_TOPIC)
                    segments.append(await self._partitions.segment_id(*place))
                except REFUSALS as error:
                    codes[place] = code_of(error, KafkaCode.COORDINATOR_NOT_AVAILABLE)
        return segments


def _members(response: CallResponse, group: ConsumerGroup) -> tuple[Any, ...]:
    """The members. Their subscriptions and assignments are known once the generation has begun."""
    begun = group.state is GroupState.STABLE
    return tuple(
        response.make(
            "DescribedGroupMember",
            member_id=each.id,
            group_instance_id=each.wanted.instance,
            client_id=each.wanted.client_id,
            client_host=each.wanted.client_host,
            member_metadata=each.wanted.protocols.get(group.protocol, b"") if begun else b"",
            member_assignment=each.assignment if begun else b"",
        )
        for each in group.members.values()
    )


def _topics_of(group: ConsumerGroup) -> set[str]:
    """The topics that its members are subscribed to, as far as that can be read."""
    topics: set[str] = set()
    for each in group.members.values():
        with suppress(KafkaError):
            if each.wanted.protocol_type == CONSUMER:
                topics.update(map(own_name, subscribed_topics(each.wanted.protocols)))
    return topics


def _record(verb: str, about: dict[str, str], status: int, request: CallRequest) -> None:
    audit.record(verb, about, status, principal=request.caller.name, address=request.address)
