"""Goal: several brokers answer Kafka's clients as one: each partition has one leader, each group and transaction one
coordinator, and a transaction is whole whichever of them have served it.

Method: listeners over brokers that share an object store, in this process; requests given to their handlers, and
librdkafka over loopback. DESIGN §5.21, §5.22.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from metastore.txn import paths
from metatxn_gateways.kafka.cluster import node_at
from metatxn_gateways.kafka.codes import KafkaCode
from metatxn_gateways.kafka.service import KafkaListener
from participants.broker.placement import wanted
from tests.gateways.asking import Asking, Holder, asked, on_one_connection, worst
from tests.gateways.conftest import PATIENCE_S, Clients
from tests.gateways.test_kafka_admin import delete_request
from tests.gateways.transformer import INPUTS, Transformer, fill
from tests.participants.broker.shared import SharedBroker
from tests.participants.segment.faulty_store import Fault, puts
from tests.participants.segment.world import World

PARTITIONS = 8


class Member:
    """A broker with its listener."""

    def __init__(self, process: SharedBroker) -> None:
        self.process = process
        self.listener = KafkaListener(process.store, service=process, port=0)
        self.ask = Asking.of(self)

    @property
    def address(self) -> str:
        return self.listener.address

    async def stop(self) -> None:
        await self.listener.stop()
        await self.process.stop()


class Brokers(Clients):
    def __init__(self, world: World) -> None:
        self.world = world
        self.objects = MemoryStore()
        self.members: list[Member] = []
        self.segments: list[str] = []

    @property
    def servers(self) -> str:
        return ",".join(each.listener.url for each in self.members)

    async def start(self) -> Member:
        url = f"http://127.0.0.1:{len(self.members) + 1}"
        member = Member(await SharedBroker.start(self.world, self.objects, url))
        self.members.append(member)
        await member.listener.start()
        for each in self.members:
            each.process.can_reach(each.process for each in self.members)
        return member

    async def create(self, name: str = "t", segments: int = PARTITIONS) -> None:
        body = {"name": name, "segments": segments, "format": "kafka"}
        answer = await self.members[0].process.http.post("/v1/topics", json=body)
        assert answer.status_code == 201, answer.text
        self.segments = [segment["segment"] for segment in answer.json()["segments"]]
        while segments == PARTITIONS and not self.leads(self.members[0]):
            await self.again(self.members[0])
        while segments == PARTITIONS and not self.leads(self.members[1]):
            await self.again(self.members[1])
        for number in range(segments):
            await self.leader(number)

    async def again(self, member: Member) -> Member:
        """Another one in its place, whose id is as random."""
        await self.stop(member)
        return await self.start()

    async def third(self) -> Member:
        """One that leads some of the partitions."""
        third = await self.start()
        while not self.leads(third):
            third = await self.again(third)
        return third

    def leads(self, member: Member) -> list[int]:
        """The partitions that this one leads, or will lead."""
        ids = {each.process.broker.id: each for each in self.members}
        return [number for number, segment in enumerate(self.segments) if ids[wanted(segment, ids) or ""] is member]

    async def leader(self, partition: int) -> Member:
        """Of the topic, once it serves."""
        (leader,) = [each for each in self.members if partition in self.leads(each)]
        await leader.process.serving(self.segments[partition])
        return leader

    async def led_by(self, member: Member) -> int:
        """A partition that this one leads, once it serves."""
        number = self.leads(member)[0]
        assert await self.leader(number) is member
        return number

    def coordinator(self, name: str) -> Member:
        addresses = {each.address: each for each in self.members}
        return addresses[wanted(name, addresses) or ""]

    def other(self, member: Member) -> Member:
        return next(each for each in self.members if each is not member)

    async def stop(self, member: Member) -> None:
        self.members.remove(member)
        await member.stop()


@pytest.fixture
async def brokers(tmp_path: Path) -> AsyncIterator[Brokers]:
    world = World(tmp_path, "objects")
    brokers = Brokers(world)
    for _ in range(2):
        await brokers.start()
    try:
        yield brokers
    finally:
        for member in list(brokers.members):
            await brokers.stop(member)
        await world.close()


# -- the cluster ---------------------------------------------------------------------------------------------------


async def leaders_told(member: Member) -> dict[int, tuple[int, int]]:
    """By partition, the number and the epoch of its leader, once all are there."""
    while True:
        (topic,) = (await member.ask.metadata("t")).topics
        if not any(each.error_code for each in topic.partitions):
            return {each.partition_index: (each.leader_id, each.leader_epoch) for each in topic.partitions}
        await asyncio.sleep(0.001)


async def test_all_brokers_tell_the_same_leaders_and_the_others_refuse(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that went before, as `create` may have replaced one that led nothing, do not count."""
    monkeypatch.setattr("metatxn_gateways.kafka.cluster.GONE_FOR_S", 0.0)
    await brokers.again(brokers.members[1])
    await brokers.create()
    told = [await leaders_told(each) for each in brokers.members]
    assert told[0] == told[1]
    listed = (await brokers.members[0].ask.metadata("t")).brokers
    addresses = {each.node_id: f"{each.host}:{each.port}" for each in listed}
    assert set(addresses.values()) == {each.address for each in brokers.members}
    assert set(addresses) == {leader for leader, _ in told[0].values()}, "the partitions are spread"
    for number in range(PARTITIONS):
        leader = await brokers.leader(number)
        assert addresses[told[0][number][0]] == leader.address
        other = brokers.other(leader)
        assert (await other.ask.produce("t", number, b"a"))[0] == KafkaCode.NOT_LEADER_OR_FOLLOWER
        assert (await leader.ask.produce("t", number, b"a")) == (KafkaCode.NONE, 0)
        assert (await other.ask.fetch("t", number, 0))[0] == KafkaCode.NOT_LEADER_OR_FOLLOWER


async def test_a_leader_is_told_once_it_serves(brokers: Brokers) -> None:
    """The ownership is there, and the ledger is not listed yet."""
    await brokers.create()
    leader = brokers.members[1]
    number, other = await brokers.led_by(leader), brokers.other(leader)
    segment = leader.process.broker.served[brokers.segments[number]]
    before = (await leaders_told(other))[number]
    held = leader.process.store.fault(Fault(puts(paths.segment(segment.id)), hold_before=True))
    segment.lose("its ledger has failed")
    await held.reached.wait()
    (topic,) = (await other.ask.metadata("t")).topics
    assert (topic.partitions[number].error_code, topic.partitions[number].leader_id) == (
        KafkaCode.LEADER_NOT_AVAILABLE,
        -1,
    )
    held.go.set()
    after = (await leaders_told(other))[number]
    assert after == (before[0], before[1] + 1)


async def test_partitions_move_when_a_broker_comes_or_goes(brokers: Brokers) -> None:
    await brokers.create()
    for number in range(PARTITIONS):
        await (await brokers.leader(number)).ask.produce("t", number, b"a")
    third = await brokers.third()
    number = await brokers.led_by(third)
    assert {(await leaders_told(each))[number][0] for each in brokers.members} == {node_at(third.address).id}
    assert await third.ask.produce("t", number, b"b") == (KafkaCode.NONE, 1)
    await brokers.stop(third)
    leader = await brokers.leader(number)
    assert await leader.ask.read("t", number, 2) == [b"a", b"b"]


async def test_a_broker_that_has_gone_is_told_of_for_a_while(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    async def told() -> set[str]:
        found = (await brokers.members[0].ask.metadata()).brokers
        return {f"{each.host}:{each.port}" for each in found}

    gone = brokers.members[1]
    both = {each.address for each in brokers.members}
    await brokers.stop(gone)
    while brokers.members[0].listener._cluster.coordinator("g") != node_at(brokers.members[0].address):
        await asyncio.sleep(0)
    assert await told() == both
    monkeypatch.setattr("metatxn_gateways.kafka.cluster.GONE_FOR_S", 0.0)
    assert await told() == {brokers.members[0].address}


async def test_a_topic_that_another_broker_has_deleted_is_not_told_any_more(brokers: Brokers) -> None:
    await brokers.create(segments=1)
    for each in brokers.members:
        await leaders_told(each)
    assert (await brokers.members[0].process.http.delete("/v1/topics/t")).status_code == 204
    while (await brokers.members[1].ask.metadata("t")).topics[0].error_code != KafkaCode.UNKNOWN_TOPIC_OR_PARTITION:
        await asyncio.sleep(0.001)
    await brokers.create(segments=2)
    assert len(await leaders_told(brokers.members[1])) == 2


def test_a_node_is_known_by_its_address() -> None:
    assert node_at("a:1") == node_at("a:1") and node_at("a:1").id != node_at("a:2").id
    assert (node_at("[::1]:9092").host, node_at("[::1]:9092").port) == ("::1", 9092)
    assert 0 <= node_at("a:1").id < 1 << 31
    for wrong in ("", "a", ":1", "a:0", "a:b", "a:1/x", "u@a:1"):
        with pytest.raises(ValueError):
            node_at(wrong)


# -- groups --------------------------------------------------------------------------------------------------------


async def test_a_group_has_one_coordinator_and_the_others_refuse(brokers: Brokers) -> None:
    names = [f"g{number}" for number in range(40)]
    for name in names:
        found = {await each.ask.coordinator(name) for each in brokers.members}
        assert found == {(KafkaCode.NONE, brokers.coordinator(name).address)}
    assert {brokers.coordinator(name) for name in names} == set(brokers.members), "they are spread"
    assert (await brokers.members[0].ask.coordinator("g", kind=2))[0] == KafkaCode.INVALID_REQUEST
    other = brokers.other(brokers.coordinator("g")).ask
    assert (await other.join("g")).error_code == KafkaCode.NOT_COORDINATOR
    assert await other.heartbeat("g", 1, "m") == KafkaCode.NOT_COORDINATOR
    assert (await other.sync("g", 1, "m", {}))[0] == KafkaCode.NOT_COORDINATOR
    await brokers.create(segments=1)
    assert await other.commit_offsets("g", {("t", 0): 1}) == KafkaCode.NOT_COORDINATOR
    assert await brokers.coordinator("g").ask.commit_offsets("g", {("t", 0): 1}) == KafkaCode.NONE
    assert await other.fetch_offset("g", "t", 0) == (KafkaCode.NONE, 1), "what is committed is in the store"


async def joined(member: Member, group: str) -> tuple[str, int]:
    """Alone. Answers the id and the generation."""
    told = await member.ask.join(group)
    answer = await member.ask.join(group, told.member_id)
    assert not answer.error_code, answer
    code, _ = await member.ask.sync(group, answer.generation_id, answer.member_id, {answer.member_id: b"a"})
    assert code == 0
    return answer.member_id, answer.generation_id


async def test_a_group_moves_to_the_broker_that_comes_and_its_members_join_there(brokers: Brokers) -> None:
    await brokers.create(segments=1)
    before = {name: brokers.coordinator(name) for name in (f"g{number}" for number in range(40))}
    members = {name: await joined(each, name) for name, each in before.items()}
    third = await brokers.start()
    moved = {name for name in before if brokers.coordinator(name) is third}
    assert 0 < len(moved) < 40
    for name, (member, generation) in members.items():
        expected = KafkaCode.NOT_COORDINATOR if name in moved else KafkaCode.NONE
        assert await before[name].ask.heartbeat(name, generation, member) == expected
    name = min(moved)
    member, generation = members[name]
    assert await third.ask.commit_offsets(name, {("t", 0): 1}, member, generation) == KafkaCode.UNKNOWN_MEMBER_ID
    assert (await joined(third, name))[1] == generation + 1
    assert await before[name].ask.commit_offsets(name, {("t", 0): 1}, member, generation) == KafkaCode.NOT_COORDINATOR


async def test_a_broker_that_drains_coordinates_nothing_unless_all_do(brokers: Brokers) -> None:
    names = [f"g{number}" for number in range(40)]
    before = {name: brokers.coordinator(name) for name in names}
    one, two = brokers.members

    async def coordinators() -> set[str]:
        return {(await one.ask.coordinator(name))[1] for name in names}

    await two.process.broker.announcement.drain()
    while await coordinators() != {one.address}:
        await asyncio.sleep(0)
    await one.process.broker.announcement.drain()
    while await coordinators() != {one.address, two.address}:
        await asyncio.sleep(0)
    assert {name: (await one.ask.coordinator(name))[1] for name in names} == {
        name: member.address for name, member in before.items()
    }


async def test_a_join_that_waits_is_sent_on_when_the_group_moves(brokers: Brokers) -> None:
    names = [f"g{number}" for number in range(40)]
    for name in names:
        await joined(brokers.coordinator(name), name)
    before = {name: brokers.coordinator(name) for name in names}
    ids = {name: (await before[name].ask.join(name)).member_id for name in names}
    waiting = {name: asyncio.create_task(before[name].ask.join(name, ids[name])) for name in names}
    third = await brokers.start()
    for name in names:
        if brokers.coordinator(name) is third:
            assert (await waiting[name]).error_code == KafkaCode.NOT_COORDINATOR
        else:
            waiting[name].cancel()


# -- transactions --------------------------------------------------------------------------------------------------


async def begun(coordinator: Member, *partitions: int) -> Holder:
    holder = Holder("x")
    assert await coordinator.ask.init(holder) == KafkaCode.NONE
    assert await coordinator.ask.add_partitions(holder, *(("t", each) for each in partitions)) == KafkaCode.NONE
    return holder


async def test_transactions_follow_each_other_over_all_brokers(brokers: Brokers) -> None:
    """The leader of a partition hears of the next transaction when the last one refuses its batch."""
    await brokers.create()
    one = brokers.members[0]
    places = {each: await brokers.led_by(each) for each in brokers.members}
    holder = await begun(one, *places.values())
    for number in range(3):
        for leader, partition in places.items():
            for half in range(2):
                sequence = 2 * number + half
                code, offset = await leader.ask.produce(
                    "t", partition, b"%d" % sequence, holder=holder, sequence=sequence
                )
                assert (code, offset) == (KafkaCode.NONE, sequence)
        assert await one.ask.end(holder, commit=number != 1) == KafkaCode.NONE
        assert await one.ask.add_partitions(holder, *(("t", each) for each in places.values())) == KafkaCode.NONE
    for leader, partition in places.items():
        assert await leader.ask.read("t", partition, 6) == [b"0", b"1", b"4", b"5"]


async def test_a_wave_goes_on_in_the_following_transaction_as_a_whole(brokers: Brokers) -> None:
    """Its leader has not heard of the transaction's end, nor of the next one."""
    await brokers.create(segments=1)
    leader = await brokers.leader(0)
    coordinator = brokers.other(leader)
    holder = await begun(coordinator, 0)
    asking = on_one_connection(leader)

    def send(*numbers: int) -> list[asyncio.Task[tuple[int, int]]]:
        return [
            asyncio.ensure_future(asking.produce("t", 0, b"%d" % number, holder=holder, sequence=number))
            for number in numbers
        ]

    assert await asyncio.gather(*send(0, 1)) == [(0, 0), (0, 1)]
    leader.process.store.events_flow.clear()
    assert not await coordinator.ask.end(holder, commit=True)
    assert not await coordinator.ask.add_partitions(holder, ("t", 0))
    assert await asyncio.gather(*send(2, 3, 4, 5)) == [(0, number) for number in range(2, 6)]
    leader.process.store.events_flow.set()
    assert await asyncio.gather(*send(2, 6)) == [(0, 2), (0, 6)]
    assert not await coordinator.ask.end(holder, commit=True)
    assert await leader.ask.read("t", 0, 7) == [b"%d" % number for number in range(7)]


async def test_a_transaction_goes_on_when_its_coordinator_has_moved(brokers: Brokers) -> None:
    """An end is refused once by a broker that has not heard of the transaction, and then done."""
    await brokers.create(segments=1)
    one, two = brokers.members
    leader = await brokers.leader(0)
    holder = await begun(one, 0)
    assert (await leader.ask.produce("t", 0, b"a", holder=holder, sequence=0))[0] == KafkaCode.NONE
    assert await two.ask.add_partitions(holder, ("t", 0)) == await one.ask.add_partitions(holder, ("t", 0)) == 0
    assert await two.ask.end(holder, commit=True) == KafkaCode.NONE
    assert await one.ask.end(holder, commit=True) == KafkaCode.NONE, "a repeated one"
    third = await brokers.start()
    assert await third.ask.end(holder, commit=True) == KafkaCode.COORDINATOR_LOAD_IN_PROGRESS
    assert await third.ask.end(holder, commit=True) == KafkaCode.NONE
    assert await third.ask.end(holder, commit=False) == KafkaCode.INVALID_TXN_STATE


async def test_a_late_copy_of_an_end_does_not_end_the_next_transaction(brokers: Brokers) -> None:
    await brokers.create(segments=1)
    one, two = brokers.members
    leader = await brokers.leader(0)
    holder = await begun(one, 0)
    assert await two.ask.add_partitions(holder, ("t", 0)) == KafkaCode.NONE
    assert await two.ask.end(holder, commit=True) == KafkaCode.NONE
    assert await two.ask.add_partitions(holder, ("t", 0)) == KafkaCode.NONE
    assert (await leader.ask.produce("t", 0, b"a", holder=holder, sequence=0))[0] == KafkaCode.NONE
    assert await one.ask.end(holder, commit=True) == KafkaCode.COORDINATOR_LOAD_IN_PROGRESS, "it was sent for the first"
    assert await leader.ask.fetch("t", 0, 0) == (KafkaCode.NONE, [], 0)
    assert (await leader.ask.produce("t", 0, b"b", holder=holder, sequence=1))[0] == KafkaCode.NONE


async def test_a_late_copy_of_a_begin_does_not_end_the_next_transaction(brokers: Brokers) -> None:
    await brokers.create(segments=1)
    one, two = brokers.members
    leader = await brokers.leader(0)
    holder = Holder("x")
    assert await one.ask.init(holder) == KafkaCode.NONE
    late = one.process.store.hold_read(lambda keys: keys[0].startswith(paths.TRANSACTION_KEYS), unread=True)
    adding = asyncio.create_task(one.ask.add_partitions(holder, ("t", 0)))
    await late.reached.wait()
    for sequence in range(2):
        assert await two.ask.add_partitions(holder, ("t", 0)) == KafkaCode.NONE
        assert (await leader.ask.produce("t", 0, b"a", holder=holder, sequence=sequence))[0] == KafkaCode.NONE
        if sequence == 0:
            assert await two.ask.end(holder, commit=True) == KafkaCode.NONE
    late.go.set()
    await adding
    assert await two.ask.end(holder, commit=True) == KafkaCode.NONE
    assert await leader.ask.read("t", 0, 2) == [b"a", b"a"]


async def test_a_producer_that_was_fenced_elsewhere_is_told_so(brokers: Brokers) -> None:
    await brokers.create(segments=1)
    one, two = brokers.members
    leader = await brokers.leader(0)
    before = await begun(one, 0)
    assert (await leader.ask.produce("t", 0, b"a", holder=before, sequence=0))[0] == KafkaCode.NONE
    after = Holder("x")
    assert await two.ask.init(after) == KafkaCode.NONE
    assert (await leader.ask.produce("t", 0, b"b", holder=before, sequence=1))[0] == KafkaCode.INVALID_PRODUCER_EPOCH
    assert await one.ask.add_partitions(before, ("t", 0)) == KafkaCode.PRODUCER_FENCED
    assert await one.ask.end(before, commit=True) == KafkaCode.PRODUCER_FENCED
    assert await one.ask.init(before) == KafkaCode.PRODUCER_FENCED
    assert await two.ask.add_partitions(after, ("t", 0)) == KafkaCode.NONE


async def test_a_sequence_goes_on_behind_what_another_broker_has_appended(brokers: Brokers) -> None:
    """The partition moves away and comes back."""
    await brokers.create()
    first = {number: await brokers.leader(number) for number in range(PARTITIONS)}
    for number, leader in first.items():
        assert (await leader.ask.produce("t", number, b"a", producer=9, sequence=0))[0] == KafkaCode.NONE
    third = await brokers.third()
    number = await brokers.led_by(third)
    assert (await third.ask.produce("t", number, b"b", producer=9, sequence=1))[0] == KafkaCode.NONE
    await brokers.stop(third)
    leader = await brokers.leader(number)
    assert leader is first[number]
    assert (await leader.ask.produce("t", number, b"c", producer=9, sequence=2)) == (KafkaCode.NONE, 2)
    assert (await leader.ask.produce("t", number, b"b", producer=9, sequence=1)) == (KafkaCode.NONE, 1), "a retry"


@pytest.mark.parametrize("verb", ["fetch", "delete records"])
async def test_a_leader_that_was_deposed_knows_no_offset_out_of_range(brokers: Brokers, verb: str) -> None:
    """Clients that are told so begin elsewhere, and pass over what is there. Found by the simulation."""
    await brokers.create()
    frozen = brokers.members[0]
    number = await brokers.led_by(frozen)
    assert await frozen.ask.produce("t", number, b"a") == (KafkaCode.NONE, 0)
    await frozen.process.freeze()
    leader = brokers.other(frozen)
    await leader.process.serving(brokers.segments[number])
    for offset, value in enumerate((b"b", b"c"), 1):
        assert await leader.ask.produce("t", number, value) == (KafkaCode.NONE, offset)

    async def code(member: Member, offset: int) -> int:
        if verb == "fetch":
            return (await member.ask.fetch("t", number, offset))[0]
        return worst(await asked(member, 21, 2, delete_request(2, offset, number)))

    assert await code(frozen, 2) == KafkaCode.NOT_LEADER_OR_FOLLOWER
    assert await code(leader, 2) == KafkaCode.NONE
    assert await code(leader, 9) == KafkaCode.OFFSET_OUT_OF_RANGE
    frozen.process.thaw()


async def test_a_leader_that_was_deposed_knows_no_sequence_out_of_order(brokers: Brokers) -> None:
    """Its successor may have appended what is missing here. Found by the simulation."""
    await brokers.create()
    frozen = brokers.members[0]
    number = await brokers.led_by(frozen)

    async def code(member: Member, sequence: int) -> int:
        return (await member.ask.produce("t", number, b"%d" % sequence, producer=7, sequence=sequence))[0]

    assert await code(frozen, 0) == KafkaCode.NONE
    await frozen.process.freeze()
    leader = brokers.other(frozen)
    await leader.process.serving(brokers.segments[number])
    assert await code(leader, 1) == KafkaCode.NONE
    assert await code(frozen, 2) == KafkaCode.NOT_LEADER_OR_FOLLOWER
    assert await code(leader, 2) == KafkaCode.NONE
    assert await code(leader, 4) == KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    frozen.process.thaw()


# -- librdkafka ----------------------------------------------------------------------------------------------------


async def test_every_input_is_transformed_once_while_brokers_come_and_go(brokers: Brokers) -> None:
    """In the middle of a transaction each time: partitions, the group and the transactions move."""
    await brokers.create("in", 2)
    await brokers.create("out", 1)
    loop = asyncio.get_running_loop()

    async def change(step: int) -> None:
        if step in (2, 4):
            await brokers.start()
        elif step in (3, 5):
            await brokers.stop(brokers.members[0])

    def work() -> None:
        fill(brokers)
        program = Transformer(brokers)

        def offsets_sent(step: int) -> None:
            program.hear_of_brokers(set(brokers.servers.split(",")))
            asyncio.run_coroutine_threadsafe(change(step), loop).result(PATIENCE_S)

        program.offsets_sent = offsets_sent
        while program.reached < INPUTS:
            program.step()
        program.close()
        found, _ = brokers.read("out", "read_committed")
        assert sorted(int(value or b"") for _, _, value in found) == list(range(INPUTS))

    await asyncio.to_thread(work)
