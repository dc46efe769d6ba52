"""Goal: the members of a consumer group share one generation after the other, each is stored before a member hears of
it, and anyone who is late, fenced or of an earlier generation is told so.

Method: `Coordination` over a store with faults, on a clock that the test drives. DESIGN §5.21.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine
from typing import Any

import pytest

from metastore.errors import StoreUnavailable
from metastore.txn import paths
from metastore.txn.records.groups import GroupRecord
from metatxn_gateways.kafka.codes import KafkaCode, KafkaError
from metatxn_gateways.kafka.coordination import Coordination
from metatxn_gateways.kafka.groups import Joined, Joining, MemberIdRequired
from metatxn_gateways.kafka.offsets import CommittedOffsets, GivenOffset
from tests.participants.segment.faulty_store import Fault, FaultyStore, puts

GROUP, SEGMENT = "g", "segment://public/default/t/0000-ffff-0"
SESSION_MS, REBALANCE_MS = 10_000, 30_000


class Coordinating:
    """One process that coordinates groups. Several have one store."""

    def __init__(self, store: FaultyStore | None = None) -> None:
        self.store = store or FaultyStore()
        self.now_ms = 0
        self.groups = Coordination(CommittedOffsets(self.store, lambda: self.now_ms), lambda: self.now_ms)

    def joining(self, member: str = "", instance: str | None = None, **protocols: bytes) -> asyncio.Task[Joined]:
        wanted = Joining(member, instance, SESSION_MS, REBALANCE_MS, "consumer", protocols or {"range": b"x"})
        return asyncio.create_task(self.groups.join(GROUP, wanted, "c", needs_id=False))

    async def until_waiting(self, members: int) -> None:
        """Until this many members wait for the others."""
        while GROUP not in self.groups._groups or self.waiting() < members:
            await asyncio.sleep(0)

    def waiting(self) -> int:
        return sum(each.has_joined for each in self.groups._groups[GROUP].members.values())

    async def pair(self) -> tuple[Joined, Joined]:
        """Two members of one generation, the leader first; each has its assignment."""
        first = await self.joining()
        second = self.joining()
        await self.until_waiting(1)
        leader, follower = await asyncio.gather(self.joining(first.member_id), second)
        waits = asyncio.create_task(self.sync(follower))
        given = {leader.member_id: b"1", follower.member_id: b"2"}
        assert (await self.sync(leader, given), await waits) == (b"1", b"2")
        return leader, follower

    async def sync(self, joined: Joined, given: dict[str, bytes] | None = None) -> bytes:
        return (await self.groups.sync(GROUP, joined.generation, joined.member_id, None, given or {}))[1]

    def heartbeat(self, joined: Joined, instance: str | None = None) -> KafkaCode:
        try:
            self.groups.heartbeat(GROUP, joined.generation, joined.member_id, instance)
        except KafkaError as error:
            return error.code
        return KafkaCode.NONE

    async def commit(self, generation: int, member: str, offset: int = 1) -> KafkaCode:
        given = {SEGMENT: GivenOffset(offset, None, None)}
        return await code_of(self.groups.commit(GROUP, generation, member, None, given))

    async def stored(self) -> int:
        found = await self.store.inner.get(paths.group(GROUP))
        assert found is not None
        return GroupRecord.decode(found.value).generation


async def code_of(work: Awaitable[Any]) -> KafkaCode:
    try:
        await work
    except KafkaError as error:
        return error.code
    return KafkaCode.NONE


@pytest.fixture
async def one() -> AsyncIterator[Coordinating]:
    one = Coordinating()
    yield one
    await one.groups.stop()


async def test_members_join_one_generation_and_get_what_its_leader_assigns(one: Coordinating) -> None:
    leader, follower = await one.pair()
    assert leader.generation == follower.generation == await one.stored() == 2
    assert leader.leader == follower.leader == leader.member_id
    assert set(leader.members) == {leader.member_id, follower.member_id} and not follower.members
    assert one.heartbeat(leader) is one.heartbeat(follower) is KafkaCode.NONE
    assert await one.sync(follower) == b"2", "a repeated request"
    assert (await one.joining(follower.member_id)).generation == 2, "nothing has changed"


async def test_a_member_is_told_its_id_first(one: Coordinating) -> None:
    wanted = Joining("", None, SESSION_MS, REBALANCE_MS, "consumer", {"range": b""})
    with pytest.raises(MemberIdRequired) as told:
        await one.groups.join(GROUP, wanted, "c", needs_id=True)
    assert (await one.joining(told.value.member_id)).member_id == told.value.member_id
    assert await code_of(one.joining("made-up")) is KafkaCode.UNKNOWN_MEMBER_ID


async def test_the_protocol_is_the_one_that_all_know_and_most_prefer(one: Coordinating) -> None:
    first = await one.joining(a=b"", b=b"", c=b"")
    others = [one.joining(c=b"", b=b"") for _ in range(2)]
    await one.until_waiting(2)
    joined = await asyncio.gather(one.joining(first.member_id, a=b"", b=b"", c=b""), *others)
    assert {each.protocol for each in joined} == {"c"}
    assert await code_of(one.joining(a=b"")) is KafkaCode.INCONSISTENT_GROUP_PROTOCOL


async def test_a_member_that_is_silent_or_leaves_is_replaced(one: Coordinating) -> None:
    leader, follower = await one.pair()
    one.now_ms += SESSION_MS - 1
    assert one.heartbeat(leader) is KafkaCode.NONE
    one.now_ms += 1
    one.groups.look()
    assert one.heartbeat(follower) is KafkaCode.UNKNOWN_MEMBER_ID
    assert one.heartbeat(leader) is KafkaCode.REBALANCE_IN_PROGRESS
    alone = await one.joining(leader.member_id)
    assert list(alone.members) == [leader.member_id]
    one.groups.leave(GROUP, leader.member_id, None)
    while (await one.stored()) == alone.generation:
        await asyncio.sleep(0)
    assert await one.commit(alone.generation, leader.member_id) is KafkaCode.UNKNOWN_MEMBER_ID


async def test_a_generation_begins_without_those_that_do_not_join_in_time(one: Coordinating) -> None:
    leader, follower = await one.pair()
    third = one.joining()
    await one.until_waiting(1)
    one.now_ms += REBALANCE_MS - 1
    one.heartbeat(leader)
    one.heartbeat(follower)
    one.groups.look()
    assert not third.done() and one.heartbeat(leader) is KafkaCode.REBALANCE_IN_PROGRESS
    again = one.joining(leader.member_id)
    await one.until_waiting(2)
    one.now_ms += 1
    one.groups.look()
    joined = await asyncio.gather(again, third)
    assert {each.member_id for each in joined} == set(joined[0].members)
    assert one.heartbeat(follower) is KafkaCode.UNKNOWN_MEMBER_ID


async def test_those_that_wait_for_an_assignment_are_told_when_its_leader_is_gone(one: Coordinating) -> None:
    leader, follower = await one.pair()
    second = one.joining(leader.member_id)
    await one.until_waiting(1)
    joined = one.joining(follower.member_id)
    await second
    waits = asyncio.create_task(one.sync(await joined))
    await asyncio.sleep(0)
    one.now_ms += SESSION_MS
    one.groups.look()
    assert await code_of(waits) is KafkaCode.REBALANCE_IN_PROGRESS


async def test_an_instance_that_comes_again_keeps_its_assignment_and_fences_its_earlier_life(one: Coordinating) -> None:
    before = await one.joining(instance="i")
    await one.groups.sync(GROUP, before.generation, before.member_id, "i", {before.member_id: b"1"})
    after = await one.joining(instance="i")
    assert (after.generation, after.leader, after.skip_assignment) == (before.generation, after.member_id, True)
    assert (await one.groups.sync(GROUP, after.generation, after.member_id, "i", {}))[1] == b"1"
    assert one.heartbeat(before, "i") is KafkaCode.FENCED_INSTANCE_ID
    changed = await one.joining(instance="i", range=b"other")
    assert changed.generation == before.generation + 1


async def test_only_members_of_the_generation_commit(one: Coordinating) -> None:
    assert await one.commit(-1, "") is KafkaCode.NONE, "there are no members"
    leader, follower = await one.pair()
    assert await one.commit(leader.generation, follower.member_id) is KafkaCode.NONE
    assert await one.commit(leader.generation - 1, leader.member_id) is KafkaCode.ILLEGAL_GENERATION
    assert await one.commit(leader.generation, "nobody") is KafkaCode.UNKNOWN_MEMBER_ID
    assert await one.commit(-1, "") is KafkaCode.UNKNOWN_MEMBER_ID


async def test_no_member_hears_of_a_generation_that_is_not_stored(one: Coordinating) -> None:
    held = one.store.fault(Fault(puts(paths.group(GROUP)), hold_before=True, times=1))
    created = asyncio.create_task(one.groups.offsets.group(GROUP))
    await held.reached.wait()
    held.go.set()
    await created
    held = one.store.fault(Fault(puts(paths.group(GROUP)), hold_before=True))
    joining = one.joining()
    await held.reached.wait()
    assert not joining.done()
    held.go.set()
    assert (await joining).generation == 1


async def test_a_generation_that_cannot_be_stored_sends_the_members_away(one: Coordinating) -> None:
    await one.groups.offsets.group(GROUP)
    one.store.fault(Fault(puts(paths.group(GROUP)), before=StoreUnavailable("away")))
    assert await code_of(one.joining()) is KafkaCode.COORDINATOR_NOT_AVAILABLE
    assert (await one.joining()).generation == 1


async def test_a_restart_uses_no_generation_twice_and_refuses_the_members_before(one: Coordinating) -> None:
    leader, _ = await one.pair()
    after = Coordinating(one.store)
    assert await after.commit(leader.generation, leader.member_id) is KafkaCode.UNKNOWN_MEMBER_ID
    assert await code_of(after.joining(leader.member_id)) is KafkaCode.UNKNOWN_MEMBER_ID
    assert (await after.joining()).generation == leader.generation + 1
    await after.groups.stop()


async def test_a_frozen_coordinator_commits_nothing_once_another_has_begun_a_generation(one: Coordinating) -> None:
    """It still believes in its members: the store refuses."""
    leader, follower = await one.pair()
    other = Coordinating(one.store)
    taken = await other.joining()
    assert await other.commit(taken.generation, taken.member_id, 7) is KafkaCode.REBALANCE_IN_PROGRESS
    await other.sync(taken)
    assert await other.commit(taken.generation, taken.member_id, 7) is KafkaCode.NONE
    assert await one.commit(leader.generation, leader.member_id, 3) is KafkaCode.NOT_COORDINATOR
    assert one.heartbeat(follower) is KafkaCode.UNKNOWN_MEMBER_ID, "it has forgotten the group"
    assert (await other.groups.offsets.fetch(GROUP, None))[0][SEGMENT].offset == 7
    await other.groups.stop()


async def test_a_request_is_bounded(one: Coordinating) -> None:
    def join(group: str, session_ms: int) -> Coroutine[Any, Any, Joined]:
        return one.groups.join(group, Joining("", None, session_ms, 1, "c", {"r": b""}), "c", needs_id=False)

    assert await code_of(join("", SESSION_MS)) is KafkaCode.INVALID_GROUP_ID
    assert await code_of(join("x" * 201, SESSION_MS)) is KafkaCode.INVALID_GROUP_ID
    assert await code_of(join(GROUP, 1)) is KafkaCode.INVALID_SESSION_TIMEOUT
