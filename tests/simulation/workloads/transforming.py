"""Clients of Kafka consume, transform and produce: the members of a group write an output for each input, and commit
their offsets in the same transaction.

So every input has one output in the end, no matter which of the members was killed, frozen, or thrown out of its group.
Inputs come from idempotent producers, which send again what was not answered; readers follow the outputs.

Clients keep the rules of Kafka's own: after any answer that they do not expect they begin anew where the group is, and
anyone who has an unanswered request sends it again, or never uses that producer again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from metatxn_gateways.kafka.codes import KafkaCode
from tests.gateways.asking import Asking, Holder, made
from tests.simulation.history import KafkaRecords
from tests.simulation.kafka import Connections, address_of
from tests.simulation.network import NoAnswer, Unreachable
from tests.simulation.workloads.base import Actor, Workload

INPUTS, OUTPUTS = "inputs", "outputs"
PARTITIONS = 2
GROUP = "transformers"
SHOPS = 2
MEMBERS = 2
SESSION_S = 6
TRANSACTION_TIMEOUTS_S = (5, 15)
PATIENCE_S = 20.0
GROUP_KIND, TRANSACTION_KIND = 0, 1
LATEST = -1
_AGAIN = {
    KafkaCode.LEADER_NOT_AVAILABLE,
    KafkaCode.NOT_LEADER_OR_FOLLOWER,
    KafkaCode.REQUEST_TIMED_OUT,
    KafkaCode.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaCode.COORDINATOR_NOT_AVAILABLE,
    KafkaCode.NOT_COORDINATOR,
    KafkaCode.KAFKA_STORAGE_ERROR,
    KafkaCode.UNSTABLE_OFFSET_COMMIT,
}
"""A client asks again, perhaps somebody else."""
_BEGIN_ANEW = {
    *(KafkaCode.ILLEGAL_GENERATION, KafkaCode.UNKNOWN_MEMBER_ID, KafkaCode.REBALANCE_IN_PROGRESS),
    *(KafkaCode.INVALID_PRODUCER_EPOCH, KafkaCode.PRODUCER_FENCED, KafkaCode.INVALID_TXN_STATE),
}
"""A member was thrown out, or its transaction was ended by somebody else."""


class GivenUp(Exception):
    """A client begins anew."""


class Transforming(Workload):
    name = "transforming"
    kafka = True

    async def set_up(self) -> None:
        random = self.world.generator("transforming")
        self.partitions = {INPUTS: PARTITIONS, OUTPUTS: random.choice((1, 2))}
        for topic, partitions in self.partitions.items():
            broker = random.choice(self.cluster.broker_urls)
            await self.client(random).create_topic(broker, f"public/default/{topic}", partitions, "kafka")
            self.cluster.topics.append(f"public/default/{topic}")
        self.history.kafka = KafkaRecords(INPUTS, OUTPUTS)

    def start(self) -> None:
        for number in range(SHOPS):
            self.employ(f"shop-{number}", Shop)
        for number in range(MEMBERS):
            self.employ(f"transformer-{number}", Transformer)
        self.employ("reader", Reader)

    async def drain(self) -> None:
        """One more member transforms what the others have left."""
        process = self.world.process("last transformer")
        member = Transformer(self, "last transformer", self.world.generator("last transformer"))
        member.patient = True
        self.processes.append(process)
        await process.spawn(member.transform_everything())

    async def read_everything(self) -> None:
        reader = Reader(self, "last reader", self.world.generator("last reader"))
        for topic, partitions in self.partitions.items():
            for number in range(partitions):
                for committed, found in ((True, self.records.committed), (False, self.records.uncommitted)):
                    found[topic, number] = []
                    with suppress(GivenUp):  # the checker has what it was told, and misses what was not read
                        found[topic, number] = await reader.read_all(topic, number, committed=committed)

    @property
    def records(self) -> KafkaRecords:
        assert self.history.kafka is not None
        return self.history.kafka


class KafkaActor(Actor):
    refusals = (GivenUp,)
    patience_s = PATIENCE_S

    def __init__(self, workload: Workload, name: str, random: Any) -> None:
        super().__init__(workload, name, random)
        assert isinstance(workload, Transforming)
        self.transforming = workload
        self.records = workload.records
        cluster = workload.cluster
        self._connections = Connections(workload.world, cluster.network)
        self._brokers = [address_of(url.removeprefix("http://")) for url in cluster.broker_urls]

    def any_broker(self) -> Asking:
        return self._connections.to(self.random.choice(self._brokers))

    async def leader(self, topic: str, partition: int) -> Asking:
        answer = await self.any_broker().metadata(topic)
        nodes = {each.node_id: f"{each.host}:{each.port}" for each in answer.brokers}
        for found in answer.topics[0].partitions:
            if found.partition_index == partition and not found.error_code:
                return self._connections.to(nodes[found.leader_id])
        raise GivenUp("there is no leader")

    async def coordinator(self, name: str, kind: int) -> Asking:
        code, address = await self.any_broker().coordinator(name, kind)
        if code:
            raise GivenUp("there is no coordinator")
        return self._connections.to(address)

    async def insist(
        self,
        find: Callable[[], Awaitable[Asking]],
        call: Callable[[Asking], Awaitable[Any]],
        code_of: Callable[[Any], int] = int,
    ) -> Any:
        """Ask until there is an answer that is not to be asked for again. Raises `GivenUp` for what ends the life of a
        member or producer, and when that takes too long; other codes are returned."""
        deadline = self.transforming.world.loop.time() + self.patience_s
        while self.transforming.world.loop.time() < deadline:
            try:
                answer = await call(await find())
            except (Unreachable, NoAnswer, GivenUp):
                code = KafkaCode.REQUEST_TIMED_OUT
            else:
                code = KafkaCode(code_of(answer))
                if code not in _AGAIN:
                    if code in _BEGIN_ANEW:
                        raise GivenUp(code.name)
                    return answer
            await asyncio.sleep(self.random.uniform(0.05, 0.5))
        raise GivenUp("it takes too long")

    async def expect(self, find: Callable[[], Awaitable[Asking]], call: Callable[[Asking], Awaitable[int]]) -> None:
        """What a client that keeps the rules is never refused."""
        if code := await self.insist(find, call):
            self.records.unexpected.append(f"{self.name} was told {KafkaCode(code).name}")
            raise GivenUp(KafkaCode(code).name)


class Shop(KafkaActor):
    """Numbers what it sends to each partition, and sends it again until it is answered, or for as long as it has
    patience: then it goes on in its next epoch, whose numbers begin at 0 (KIP-360), or as another producer. It sends
    some batches behind others that are not answered yet, and those that are refused again, in their order."""

    _producer: Holder | None = None
    _lives = 0

    def __init__(self, workload: Workload, name: str, random: Any) -> None:
        super().__init__(workload, name, random)
        self.patience_s = random.choice((1.0, 5.0, PATIENCE_S))

    def _begin_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._next = dict.fromkeys(range(PARTITIONS), 0)

    async def act(self) -> None:
        if self._producer is None:
            producer = Holder(None)  # type: ignore[arg-type]
            await self.expect(self._anybody, lambda asking: asking.init(producer))
            self._producer = producer
            self._lives += 1
            self._begin_epoch(0)
        partition = self.random.randrange(PARTITIONS)
        # The first batch goes alone: requests may overtake each other here, and nobody could know which one is first.
        count = self.random.choice((1, 1, 3)) if self._next[partition] else 1
        unanswered = [self._batch(partition) for _ in range(count)]
        try:
            await self.expect(
                lambda: self.leader(INPUTS, partition), lambda asking: self._produce(asking, partition, unanswered)
            )
        except GivenUp:  # what was sent may be there or not, so no number follows it
            self._begin_epoch(self._epoch + 1)
            if self.random.random() < 0.2:
                self._producer = None
            raise

    def _batch(self, partition: int) -> tuple[int, list[bytes]]:
        """The next sequence, and values."""
        self._numbers += 1
        name = f"{self.name}.{self._lives}-{self._numbers}"
        values = [f"{name}-{n}".encode() for n in range(self.random.choice((1, 1, 3)))]
        self.records.sent.update(values)
        sequence = self._next[partition]
        self._next[partition] += len(values)
        return sequence, values

    async def _produce(self, asking: Asking, partition: int, unanswered: list[tuple[int, list[bytes]]]) -> int:
        """Send all that is not answered, and forget what is then. The code of the first that was refused."""
        first, *_ = sent = [*unanswered]
        answers = await asyncio.gather(*(self._answer(asking, partition, *batch) for batch in sent))
        refused = KafkaCode.NONE
        for batch, code in zip(sent, answers, strict=True):
            if code in _BEGIN_ANEW:  # it is the only one that has this producer id, and goes on only in later epochs
                self.records.unexpected.append(f"{self.name} was told {code.name} in epoch {self._epoch}")
            if code is KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER and batch is not first:
                code = KafkaCode.REQUEST_TIMED_OUT  # as long as the first one is not there
            if code is KafkaCode.NONE:
                unanswered.remove(batch)
                self.records.acknowledged.update(batch[1])
            refused = refused or code
        return refused

    async def _answer(self, asking: Asking, partition: int, sequence: int, values: list[bytes]) -> KafkaCode:
        assert self._producer is not None
        producer = self._producer.producer_id
        try:
            code, _ = await asking.produce(
                INPUTS, partition, *values, producer=producer, sequence=sequence, epoch=self._epoch
            )
        except (Unreachable, NoAnswer):
            return KafkaCode.REQUEST_TIMED_OUT
        return KafkaCode(code)

    async def _anybody(self) -> Asking:
        return self.any_broker()


class Transformer(KafkaActor):
    patient = False
    """Commits whatever it has begun; the others change their minds."""

    def __init__(self, workload: Workload, name: str, random: Any) -> None:
        super().__init__(workload, name, random)
        self._member = ""
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._generation = -1
        self._positions: dict[int, int] = {}
        self._holder: Holder | None = None

    async def act(self) -> None:
        try:
            await self._step()
        except GivenUp:
            self._begin_anew()
            if self.random.random() < 0.5:
                self._member = ""
            raise

    async def transform_everything(self) -> None:
        while not await self._is_done():
            try:
                await self.act()
            except GivenUp:
                await asyncio.sleep(1)
            await asyncio.sleep(0.1)

    async def leave(self) -> None:
        try:
            await (await self._group()).leave(GROUP, self._member)
        except (Unreachable, NoAnswer, GivenUp):
            return

    async def _is_done(self) -> bool:
        """Whether the group has passed all inputs."""
        try:
            for partition in range(PARTITIONS):
                if await self._committed(partition) < await self._end(partition):
                    return False
        except GivenUp:
            return False
        return True

    async def _end(self, partition: int) -> int:
        part = made(2, 5, "ListOffsetsPartition", partition_index=partition, current_leader_epoch=-1, timestamp=LATEST)
        topic = made(2, 5, "ListOffsetsTopic", name=INPUTS, partitions=(part,))
        wanted = made(2, 5, "ListOffsetsRequest", replica_id=-1, isolation_level=1, topics=(topic,))

        def found(answer: Any) -> Any:
            return answer.topics[0].partitions[0]

        answer = await self.insist(
            lambda: self.leader(INPUTS, partition),
            lambda asking: asking.ask(2, 5, wanted),
            lambda answer: int(found(answer).error_code),
        )
        return int(found(answer).offset)

    # -- the group ---------------------------------------------------------------------------------------------

    async def _group(self) -> Asking:
        return await self.coordinator(GROUP, GROUP_KIND)

    async def _join(self) -> None:
        answer = await self.insist(
            self._group,
            lambda asking: asking.join(GROUP, self._member, session_s=SESSION_S),
            lambda answer: int(answer.error_code),
        )
        self._member = answer.member_id
        if answer.error_code == KafkaCode.MEMBER_ID_REQUIRED:
            return await self._join()
        members = sorted(each.member_id for each in answer.members)
        shares = {
            each: json.dumps([number for number in range(PARTITIONS) if number % len(members) == index]).encode()
            for index, each in enumerate(members)
        }
        _, share = await self.insist(
            self._group,
            lambda asking: asking.sync(GROUP, answer.generation_id, self._member, shares),
            lambda answer: int(answer[0]),
        )
        if not share:  # the leader's assignment was made for members that have gone
            raise GivenUp("no assignment")
        self._generation = answer.generation_id
        self._positions = {number: await self._committed(number) for number in json.loads(share)}
        return None

    async def _committed(self, partition: int) -> int:
        """Behind what is decided, or waiting for it."""
        _, offset = await self.insist(
            self._group, lambda asking: asking.fetch_offset(GROUP, INPUTS, partition), lambda answer: int(answer[0])
        )
        return max(int(offset), 0)

    # -- a step ------------------------------------------------------------------------------------------------

    async def _step(self) -> None:
        if self._generation < 0:
            await self._join()
        await self.expect(self._group, lambda asking: asking.heartbeat(GROUP, self._generation, self._member))
        given = {number: await self._fetched(number) for number in self._positions}
        if not any(given.values()):
            return
        if self._holder is None:
            self._holder = Holder(f"id of {self.name}")
            self._sequences = dict.fromkeys(range(self.transforming.partitions[OUTPUTS]), 0)
            timeout = timedelta(seconds=self.random.choice(TRANSACTION_TIMEOUTS_S))
            await self.expect(self._transactions, lambda asking: asking.init(self._holder, timeout))  # type: ignore[arg-type]
        await self._transform(self._holder, given)

    async def _fetched(self, partition: int) -> list[tuple[int, bytes | None]]:
        code, records, end = await self.insist(
            lambda: self.leader(INPUTS, partition),
            lambda asking: asking.fetch(INPUTS, partition, self._positions[partition]),
            lambda answer: int(answer[0]),
        )
        if code:
            self.records.unexpected.append(f"{self.name} was told {KafkaCode(code).name} by a fetch")
            raise GivenUp("no records")
        if not records:
            self._positions[partition] = end
        return list(records[: self.random.choice((1, 3, 10))])

    async def _transactions(self) -> Asking:
        return await self.coordinator(f"id of {self.name}", TRANSACTION_KIND)

    async def _transform(self, holder: Holder, given: dict[int, list[tuple[int, bytes | None]]]) -> None:
        target = self.random.randrange(self.transforming.partitions[OUTPUTS])
        values = [value for records in given.values() for _, value in records if value is not None]
        offsets = {(INPUTS, number): records[-1][0] + 1 for number, records in given.items() if records}
        await self.expect(self._transactions, lambda asking: asking.add_partitions(holder, (OUTPUTS, target)))

        async def produce(asking: Asking) -> int:
            code, _ = await asking.produce(OUTPUTS, target, *values, holder=holder, sequence=self._sequences[target])
            return code

        await self.expect(lambda: self.leader(OUTPUTS, target), produce)
        self._sequences[target] += len(values)
        await self.expect(self._transactions, lambda asking: asking.add_offsets(holder, GROUP))
        await self.expect(
            self._group,
            lambda asking: asking.commit_offsets_in(holder, GROUP, offsets, self._member, self._generation),
        )
        fate = self.random.random()
        if not self.patient and fate > 0.95:
            raise GivenUp("it changes its mind")
        commit = self.patient or fate < 0.85
        await self.expect(self._transactions, lambda asking: asking.end(holder, commit=commit))
        if not commit:
            raise GivenUp("it has aborted, and reads its inputs again")
        self._positions |= {number: offset for (_, number), offset in offsets.items()}


class Reader(KafkaActor):
    """Follows the outputs as they are committed."""

    def __init__(self, workload: Workload, name: str, random: Any) -> None:
        super().__init__(workload, name, random)
        self._next = dict.fromkeys(range(self.transforming.partitions[OUTPUTS]), 0)

    async def act(self) -> None:
        partition = self.random.choice(list(self._next))
        records, self._next[partition] = await self._page(OUTPUTS, partition, self._next[partition], committed=True)
        self.records.read += [(partition, *each) for each in records]

    async def read_all(self, topic: str, partition: int, *, committed: bool) -> list[tuple[int, bytes | None]]:
        found: list[tuple[int, bytes | None]] = []
        offset = -1
        end = 0
        while end > offset:
            offset = end
            records, end = await self._page(topic, partition, offset, committed=committed)
            found += records
        return found

    async def _page(
        self, topic: str, partition: int, offset: int, *, committed: bool
    ) -> tuple[list[tuple[int, bytes | None]], int]:
        code, records, end = await self.insist(
            lambda: self.leader(topic, partition),
            lambda asking: asking.fetch(topic, partition, offset, committed=committed),
            lambda answer: int(answer[0]),
        )
        if code:
            self.records.unexpected.append(f"{self.name} was told {KafkaCode(code).name} by a fetch")
            raise GivenUp("no records")
        return records, end
