"""Who may be in a consumer group: a member sees what the others are subscribed to, and as the leader assigns it.

There is no right on groups. A principal that may consume all topics of a group may be in it, as with our own
subscriptions. Members of another kind (Kafka Connect's workers) name no topics: those of one group belong to one
principal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from metatxn.service.security.principal import Principal
from metatxn_gateways.kafka.codes import KafkaCode, KafkaError
from metatxn_gateways.kafka.cutting import Cutter
from metatxn_gateways.kafka.groups import ConsumerGroup, Joining
from metatxn_gateways.kafka.partitions import own_name
from metatxn_gateways.listener import MalformedRequest

CONSUMER = "consumer"


def assert_may_join(group: ConsumerGroup, wanted: Joining) -> None:
    """Raises GROUP_AUTHORIZATION_FAILED. A member that joins again is not asked for the topics of the others."""
    others = [] if wanted.member_id in group.members else [each.wanted for each in group.members.values()]
    _assert_may_be_with(wanted.caller, [wanted, *others])


def assert_may_change(group: ConsumerGroup, caller: Principal) -> None:
    """Raises GROUP_AUTHORIZATION_FAILED if the caller may not change the group."""
    _assert_may_be_with(caller, [each.wanted for each in group.members.values()])


def may_see(group: ConsumerGroup, caller: Principal) -> bool:
    return _may_be_with(caller, [each.wanted for each in group.members.values()])


def _assert_may_be_with(caller: Principal, members: Iterable[Joining]) -> None:
    if not _may_be_with(caller, members):
        raise KafkaError(KafkaCode.GROUP_AUTHORIZATION_FAILED)


def _may_be_with(caller: Principal, members: Iterable[Joining]) -> bool:
    return caller.superuser or all(_may_be_with_one(caller, each) for each in members)


def _may_be_with_one(caller: Principal, member: Joining) -> bool:
    """Whether the caller may be with this member. Metadata that cannot be read is for administrators."""
    if member.protocol_type != CONSUMER:
        return member.caller.name == caller.name
    try:
        return all(caller.may("consume", own_name(topic)) for topic in subscribed_topics(member.protocols))
    except KafkaError:
        return False


def subscribed_topics(protocols: Mapping[str, bytes]) -> set[str]:
    """The topics in the metadata of a member: a version, and then a list of names. Raises INVALID_REQUEST."""
    topics: set[str] = set()
    for metadata in protocols.values():
        cutter = Cutter(memoryview(metadata))
        try:
            cutter.number(2)
            topics.update(cutter.name() for _ in cutter.items())
        except MalformedRequest:
            raise KafkaError(KafkaCode.INVALID_REQUEST) from None
    return topics
