"""Goal: of what members say of their cluster, only what is sure is used.

Method: the answers of members are handed in; `test_failover.py` has real ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

import grpc
import grpc.aio
import pytest

from metastore.backends.etcd_members import EtcdMember, EtcdMembers, ListMembers
from metastore.backends.etcd_stubs import Member as Listed
from metastore.backends.etcd_stubs import MemberListResponse, ResponseHeader
from tests.metastore.etcd.test_lost_replies import error

GIVEN = "given:1"
LISTED = [
    Listed(ID=1, clientURLs=["http://first:1"]),
    Listed(ID=2, clientURLs=["http://wrong:1", "http://second:1", "http://again:1"]),
]


def says(cluster: int, member: int, listed: Sequence[Listed] = LISTED) -> MemberListResponse:
    return MemberListResponse(header=ResponseHeader(cluster_id=cluster, member_id=member), members=listed)


def asking(answers: Mapping[str, MemberListResponse]) -> ListMembers:
    async def ask(member: EtcdMember) -> MemberListResponse:
        if member.address not in answers:
            raise error(grpc.StatusCode.UNAVAILABLE, "nobody is there")
        return answers[member.address]

    return ask


@pytest.fixture
async def members() -> AsyncIterator[EtcdMembers]:
    members = EtcdMembers([GIVEN], None)
    yield members
    await members.close()


def addresses(members: EtcdMembers) -> list[str]:
    return [member.address for member in members.all]


async def test_a_member_is_taken_up_where_it_answers_and_once(members: EtcdMembers) -> None:
    ask = asking({GIVEN: says(7, 1), "second:1": says(7, 2), "again:1": says(7, 2), "first:1": says(7, 1)})
    await members.learn(ask)
    await members.learn(ask)
    assert addresses(members) == [GIVEN, "second:1"], "who was given is not taken up under another address"


async def test_another_member_or_a_member_of_another_cluster_is_not(members: EtcdMembers) -> None:
    await members.learn(asking({GIVEN: says(7, 1), "wrong:1": says(7, 3), "second:1": says(8, 2)}))
    assert addresses(members) == [GIVEN]


async def test_a_member_is_forgotten_when_it_is_no_longer_listed_but_not_while_it_is_in_use(
    members: EtcdMembers,
) -> None:
    await members.learn(asking({GIVEN: says(7, 1), "second:1": says(7, 2)}))
    ask = asking({GIVEN: says(7, 1, LISTED[:1]), "second:1": says(7, 2, LISTED[:1])})
    members.in_use = members.all[1]
    await members.learn(ask)
    assert addresses(members) == [GIVEN, "second:1"]
    members.in_use = members.all[0]
    await members.learn(ask)
    assert addresses(members) == [GIVEN]


async def test_nobody_is_taken_up_who_is_less_safe_than_what_was_given() -> None:
    members = EtcdMembers([GIVEN], grpc.ssl_channel_credentials())
    await members.learn(asking({GIVEN: says(7, 1), "second:1": says(7, 2)}))
    assert addresses(members) == [GIVEN]
    await members.close()
