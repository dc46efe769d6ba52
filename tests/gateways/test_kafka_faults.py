"""Goal: what an idempotent or transactional producer was told is appended is there once, and everything stands in the
order in which it was sent, whatever fails: stores, disks, connections, and owners that change.

Method: clients by Kafka's rules, which have up to five batches in flight and send again in their order, through the
listeners of one broker on files or of two that share objects; faults of any kind at random; seeds. Often a client
begins with a new producer id, so that its first batches meet the faults, at 0 or shortly before the sequences begin
anew. What it gives up goes on in the next epoch, or with another id. DESIGN §5.22.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from metastore.errors import StoreUnavailable
from metatxn_gateways.kafka.codes import KafkaCode
from participants.segment.segment import Segment
from tests.extent import usually
from tests.gateways.asking import TRANSACTIONAL, Asking, Holder, Link, batch, on_one_connection
from tests.gateways.conftest import Gateway, start_gateway
from tests.gateways.test_kafka_brokers import Brokers, Member
from tests.participants.ledger.faults import broken, no_space
from tests.participants.ledger.faulty_bucket import PutFault
from tests.participants.segment.faulty_store import INTENT, Fault, FaultyStore
from tests.participants.segment.world import World

IN_FLIGHT = 5
BATCHES = 60
SEQUENCES = 1 << 31
AGAIN = {
    KafkaCode.LEADER_NOT_AVAILABLE,
    KafkaCode.NOT_LEADER_OR_FOLLOWER,
    KafkaCode.REQUEST_TIMED_OUT,
    KafkaCode.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaCode.COORDINATOR_NOT_AVAILABLE,
    KafkaCode.NOT_COORDINATOR,
    KafkaCode.KAFKA_STORAGE_ERROR,
    KafkaCode.CORRUPT_MESSAGE,
}
"""A client sends again, perhaps to somebody else."""
Place = Gateway | Member


class Cluster:
    """The brokers, and what can happen to them."""

    def __init__(self, places: list[Place]) -> None:
        self.places = places
        self.happenings: list[Callable[[Random], Awaitable[None]]] = [self.loses_answers, self.is_away, self.is_lost]

    def leader(self) -> Place | None:
        """Who serves the partition now, as far as it knows."""
        return next((place for place in self.places if self._served(place)), None)

    def _served(self, place: Place) -> dict[str, Segment]:
        broker = place.broker if isinstance(place, Gateway) else place.process.broker
        return broker.served

    def stores(self) -> list[FaultyStore]:
        return [place.world.store if isinstance(place, Gateway) else place.process.store for place in self.places]

    async def loses_answers(self, random: Random) -> None:
        """Of an intent, before or after its effect."""
        lost = StoreUnavailable("the answer is lost")
        fault = Fault(INTENT, before=lost) if random.random() < 0.5 else Fault(INTENT, after=lost)
        random.choice(self.stores()).fault(fault)

    async def is_away(self, random: Random) -> None:
        store = random.choice(self.stores())
        store.away = StoreUnavailable("it is away")
        await a_while(random)
        store.away = None

    async def is_lost(self, random: Random) -> None:
        """The segment, which is opened again, perhaps elsewhere."""
        for place in self.places:
            for segment in self._served(place).values():
                segment.lose("a test says so")

    def heal(self) -> None:
        for store in self.stores():
            store.away = None
            store._faults.clear()


class OnFiles(Cluster):
    def __init__(self, gateway: Gateway) -> None:
        super().__init__([gateway])
        self._disk = gateway.process.device.disk  # type: ignore[attr-defined]
        self.happenings += [self.is_full, self.fails]

    async def is_full(self, random: Random) -> None:
        self._disk.write_error = no_space()
        await a_while(random)
        self._disk.write_error = None

    async def fails(self, random: Random) -> None:
        self._disk.sync_error = broken()
        await a_while(random)
        self._disk.sync_error = None

    def heal(self) -> None:
        super().heal()
        self._disk.write_error = self._disk.sync_error = None


class OnObjects(Cluster):
    def __init__(self, brokers: Brokers) -> None:
        super().__init__([*brokers.members])
        self._members = brokers.members
        self.happenings += [self.fails, self.moves]

    async def fails(self, random: Random) -> None:
        fault = PutFault(lost_request=True) if random.random() < 0.5 else PutFault(lost_reply=True)
        random.choice(self._members).process.bucket.fault(fault)

    async def moves(self, random: Random) -> None:
        """The leader is not announced for a while, and does not hear that it was deposed."""
        leader = self.leader()
        if isinstance(leader, Member):
            await leader.process.freeze()
            await a_while(random, 400)
            leader.process.thaw()
            await leader.process.announce()

    def heal(self) -> None:
        super().heal()
        for member in self._members:
            member.process.bucket.faults.clear()


async def a_while(random: Random, most: int = 100) -> None:
    for _ in range(random.randrange(most)):
        await asyncio.sleep(0)


@dataclass(eq=False)
class Sent:
    values: list[bytes]
    records: bytes


@dataclass
class Told:
    """What the clients were told, by value, and what no client that keeps the rules is told."""

    acknowledged: set[bytes] = field(default_factory=set)
    aborted: set[bytes] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)


class Client:
    """An idempotent producer. It sends again what was refused, in its order, and gives up at times: then it goes on in
    its next epoch, or as another producer."""

    def __init__(self, cluster: Cluster, name: str, random: Random, told: Told) -> None:
        self.cluster, self.name, self.random, self.told = cluster, name, random, told
        self.holder: Holder | None = None
        self.unanswered: deque[Sent] = deque()
        self._ids = self._numbers = 0
        self._connection: tuple[Place, Asking, Link] | None = None
        self._half_open: list[asyncio.Task[Any]] = []
        self.is_another()

    def is_another(self) -> None:
        """Go on with a new producer id. Its sequences may begin anywhere, as if all that was before were forgotten."""
        self._ids += 1
        self.producer = self.random.randrange(1 << 40)
        self.epoch = 0
        self._next = self.random.choice((0, SEQUENCES - self.random.randrange(1, 12)))

    async def run(self) -> None:
        while self._numbers < BATCHES:
            await self.send(self.random.randrange(1, 12))
            if self.random.random() < 0.3:
                self.is_another()
        await asyncio.gather(*self._half_open, return_exceptions=True)

    async def send(self, count: int) -> bool:
        """Whether all of it is acknowledged; otherwise it was given up."""
        self.unanswered += [self._made() for _ in range(count)]
        while self.unanswered:
            if self.random.random() < 0.04:
                self.unanswered.clear()
                await self.give_up()
                return False
            leader = self.cluster.leader() or self.random.choice(self.cluster.places)
            if self._connection is None or self._connection[0] is not leader:
                link = Link()
                self._connection = leader, on_one_connection(leader, link), link
            await self._exchange(*self._connection[1:])
            await a_while(self.random, 20)
        return True

    def _made(self) -> Sent:
        values = []
        for _ in range(self.random.randrange(1, 3)):
            self._numbers += 1
            values.append(f"{self.name}.{self._ids}-{self.epoch}-{self._numbers}".encode())
        producer, attributes = (self.producer, 0) if self.holder is None else (self.holder.producer_id, TRANSACTIONAL)
        made = batch(*values, producer=producer, sequence=self._next, epoch=self.epoch, attributes=attributes)
        self._next = (self._next + len(values)) % SEQUENCES
        return Sent(values, made)

    async def give_up(self) -> None:
        if self.random.random() < 0.5:
            self.is_another()
        else:
            self.epoch, self._next = self.epoch + 1, 0

    async def _exchange(self, asking: Asking, link: Link) -> None:
        """Send until everything is acknowledged, or something has to be sent again, or the connection is cut."""
        waiting, refused = deque(self.unanswered), False
        in_flight: deque[tuple[Sent, asyncio.Task[tuple[int, int]]]] = deque()
        while in_flight or (waiting and not refused):
            while waiting and not refused and len(in_flight) < IN_FLIGHT:
                in_flight.append((waiting[0], self._produce(asking, waiting.popleft())))
            if self.random.random() < 0.05:
                await a_while(self.random, 30)
                return self._hang_up([task for _, task in in_flight], link)
            sent, answer = in_flight.popleft()
            code, _ = await answer
            if code in (KafkaCode.NONE, KafkaCode.DUPLICATE_SEQUENCE_NUMBER):
                self.unanswered.remove(sent)
                self.told.acknowledged.update(sent.values)
                continue
            refused = True
            expected = code in AGAIN or (
                code == KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER and sent is not self.unanswered[0]
            )
            if not expected:
                self.told.wrong.append(f"{sent.values} were told {KafkaCode(code).name}")
                raise AssertionError(self.told.wrong)
        return None

    def _produce(self, asking: Asking, sent: Sent) -> asyncio.Task[tuple[int, int]]:
        """It may be damaged on its way, and more often if others follow it that were not refused yet."""
        records = sent.records
        if self.random.random() < (0.1 if sent is self.unanswered[0] else 0.02):
            records = records[:-1] + bytes([records[-1] ^ 1])
        return asyncio.ensure_future(asking.append("t", 0, records, self.holder))

    def _hang_up(self, tasks: list[asyncio.Task[tuple[int, int]]], link: Link) -> None:
        """The broker hears of it at once, or not before it has answered."""
        self._connection = None
        if self.random.random() < 0.5:
            for task in tasks:
                task.cancel()
            link.on_lost()
        self._half_open += tasks


class TransactionalClient(Client):
    """One that writes in transactions. When it gives up it aborts, or another one takes its place. Either goes on with
    another producer id."""

    async def run(self) -> None:
        await self._takes_its_place()
        while self._numbers < BATCHES:
            await self._insist(lambda asking: asking.add_partitions(self.held, ("t", 0)))
            before = set(self.told.acknowledged)
            if not await self.send(self.random.randrange(1, 12)):
                self.told.aborted |= self._mine(self.told.acknowledged - before)
                continue
            commit = self.random.random() < 0.8
            if not commit:
                self.told.aborted |= self._mine(self.told.acknowledged - before)
            await self._end(commit=commit)
            if self.random.random() < 0.2:
                await self._takes_its_place()
        await asyncio.gather(*self._half_open, return_exceptions=True)

    @property
    def held(self) -> Holder:
        assert self.holder is not None
        return self.holder

    def _mine(self, values: set[bytes]) -> set[bytes]:
        return {value for value in values if value.startswith(f"{self.name}.".encode())}

    async def give_up(self) -> None:
        if self.random.random() < 0.5:
            await self._takes_its_place()
        else:
            await self._end(commit=False)
            await self._insist(lambda asking: asking.init(self.held))
            self.is_another()

    async def _takes_its_place(self) -> None:
        """Another client with the same transactional id, which knows nothing of the transaction that may be open."""
        self.holder = Holder(self.name)
        await self._insist(lambda asking: asking.init(self.held))
        self.is_another()

    async def _end(self, *, commit: bool) -> None:
        await self._insist(lambda asking: asking.end(self.held, commit=commit))

    async def _insist(self, call: Callable[[Asking], Awaitable[int]]) -> None:
        while code := await call(on_one_connection(self.cluster.places[0])):
            assert code in AGAIN, f"{self.name} was told {KafkaCode(code).name}"
            await a_while(self.random, 20)


@asynccontextmanager
async def cluster_of(kind: str, directory: Path) -> AsyncIterator[Cluster]:
    if kind == "files":
        async with start_gateway(directory) as gateway:
            await gateway.create("t")
            yield OnFiles(gateway)
        return
    world = World(directory, "objects")
    brokers = Brokers(world)
    for _ in range(2):
        await brokers.start()
    try:
        await brokers.create(segments=1)
        yield OnObjects(brokers)
    finally:
        for member in list(brokers.members):
            await brokers.stop(member)
        await world.close()


async def trouble(cluster: Cluster, random: Random) -> None:
    while True:
        await a_while(random, 300)
        await random.choice(cluster.happenings)(random)


async def read(cluster: Cluster, *, committed: bool) -> list[bytes]:
    """Everything, once there is a leader."""
    found: list[bytes] = []
    offset = 0
    while True:
        leader = cluster.leader()
        code, records, end = (
            await on_one_connection(leader).fetch("t", 0, offset, committed=committed) if leader else (-1, [], offset)
        )
        if not code and end == offset:
            return found
        found += [value or b"" for _, value in records]
        offset = end
        await asyncio.sleep(0)


def judge(told: Told, everything: list[bytes], committed: list[bytes]) -> None:
    assert not told.wrong
    last: dict[bytes, tuple[int, int]] = {}
    for value in everything:
        producer, epoch, number = value.split(b"-")
        place = int(epoch), int(number)
        assert place > last.get(producer, (-1, -1)), f"{value!r} stands behind what was sent later, or is there twice"
        last[producer] = place
    assert told.acknowledged <= set(everything)
    shown = set(committed)
    assert told.acknowledged - told.aborted <= shown and not told.aborted & shown


@pytest.mark.parametrize("kind", ["files", "objects"])
@pytest.mark.parametrize("seed", range(usually(3, whole=30)))
async def test_every_acknowledged_batch_is_there_once_and_in_its_order(tmp_path: Path, kind: str, seed: int) -> None:
    random, told = Random(f"{kind} {seed}"), Told()
    async with cluster_of(kind, tmp_path) as cluster:
        clients = [
            make(cluster, f"{make.__name__}{number}", Random(random.random()), told)
            for number in range(2)
            for make in (Client, TransactionalClient)
        ]
        troubling = asyncio.ensure_future(trouble(cluster, Random(random.random())))
        try:
            async with asyncio.TaskGroup() as group:
                for each in clients:
                    group.create_task(each.run())
        finally:
            troubling.cancel()
            await asyncio.wait([troubling])
            cluster.heal()
            for place in cluster.places:
                if isinstance(place, Member):
                    place.process.thaw()
        judge(told, await read(cluster, committed=False), await read(cluster, committed=True))
