"""What workloads share: their clients, each in a process of its own, and what is read and written for the history."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from contextlib import suppress
from random import Random
from typing import Any

from tests.simulation.client import Client, Doubtful, Horizon, Refused, SegmentPlace, parse_position
from tests.simulation.cluster import Cluster
from tests.simulation.faults import AIMS
from tests.simulation.history import End, History, HorizonSeen, Outcome, Read, Write
from tests.simulation.processes import Process

PUBLISH_PATIENCE_S = 25.0


class Workload(ABC):
    """`set_up` while nothing fails, then `start`; `finish` and `read_everything` when nothing fails any more."""

    name: str
    aims: tuple[str, ...] = AIMS
    """The kinds of records that it is about, see `faults`."""
    kafka = False
    """Whether it needs brokers that serve clients of Kafka."""

    def __init__(self, cluster: Cluster, history: History) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.history = history
        self.topics: list[str] = []
        self.processes: list[Process] = []
        self.stopping = False
        self._running: list[asyncio.Task[None]] = []

    @abstractmethod
    async def set_up(self) -> None: ...

    @abstractmethod
    def start(self) -> None: ...

    async def create_topic(self, name: str, random: Random) -> str:
        topic = f"public/default/{name}"
        await self.client(random).create_topic(random.choice(self.cluster.broker_urls), topic, random.choice((1, 2)))
        self.topics.append(topic)
        self.cluster.topics.append(topic)
        return topic

    def client(self, random: Random) -> Client:
        cluster = self.cluster
        urls = cluster.coordinator_urls, cluster.broker_urls
        return Client(self.world, cluster.network, *urls, random, self.history)

    def employ(self, name: str, kind: type[Actor]) -> None:
        """One more client process."""
        process = self.world.process(name)
        actor = kind(self, name, self.world.generator(name))
        self._running.append(process.spawn(actor.run(), name))
        self.processes.append(process)

    async def finish(self) -> None:
        """Nothing new is begun; returns once those who live have ended what they had begun."""
        self.stopping = True
        for process, running in zip(self.processes, self._running, strict=True):
            if process.frozen:
                self.world.loop.thaw(process)
            if process.alive:
                await running

    async def drain(self) -> None:
        """Bring what the clients have left to an end; here there is nothing."""
        return

    async def read_everything(self) -> None:
        """What everybody sees in the end."""
        client = self.client(self.world.generator("final reads"))
        for topic in self.topics:
            layout = await client.look(topic)
            self.history.layouts[topic] = [place.segment for place in layout]
            for place in layout:
                for isolation in ("read_committed", "read_uncommitted"):
                    self.history.final_reads += await self.read_all("final", client, place, isolation)

    async def read_all(
        self, name: str, client: Client, place: SegmentPlace, isolation: str, revision: int | None = None
    ) -> list[Read]:
        """A segment from its start to its end; one `Read` for each page."""
        pages: list[Read] = []
        after: str | None = None
        while True:
            read, after = await self.read(name, client, place, after, isolation, revision)
            pages.append(read)
            if read.end:
                return pages

    async def read(
        self,
        name: str,
        client: Client,
        place: SegmentPlace,
        after: str | None,
        isolation: str,
        revision: int | None = None,
        txn_id: str | None = None,
    ) -> tuple[Read, str]:
        """One page, and where to go on."""
        floor = self.cluster.store.revision
        page = await client.read(place, after, isolation, revision)
        read = Read(
            client=name,
            segment=place.segment,
            isolation=isolation,
            after=parse_position(after) if after else (0, -1),
            next=parse_position(page.next),
            end=page.end,
            revision=page.revision,
            floor=floor,
            at_revision=self.cluster.store.revision,
            frames=page.frames,
            txn_id=txn_id,
        )
        return read, page.next


async def whatever_comes(*works: Coroutine[Any, Any, object]) -> None:
    """All of them, at the same time, also when some are refused."""
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, Refused | Doubtful):
            raise outcome


class Actor(ABC):
    """One client: does one thing after another until the workload stops."""

    pause_s = 0.6
    refusals: tuple[type[Exception], ...] = (Refused, Doubtful)

    def __init__(self, workload: Workload, name: str, random: Random) -> None:
        self.workload = workload
        self.history = workload.history
        self.name = name
        self.random = random
        self.client = workload.client(random)
        self._numbers = 0
        self._places: dict[str, str] = {}
        """How far this client has read in each segment."""

    @abstractmethod
    async def act(self) -> None:
        """Raises one of `refusals`: then the next one follows."""

    async def run(self) -> None:
        while not self.workload.stopping:
            with suppress(*self.refusals):
                await self.act()
            await asyncio.sleep(self.random.expovariate(1 / self.pause_s))
        await self.leave()

    async def leave(self) -> None:
        """Let go of what it holds."""
        return

    async def write(
        self,
        topic: str,
        key: str,
        amount: int,
        *,
        txn_id: str | None = None,
        writer: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
    ) -> Write:
        """Publish an entry and write down what came of it. Raises as the client."""
        write = self.note(topic, key, amount, txn_id, writer)
        await self.send(write, producer, self._numbers if sequence is None else sequence)
        return write

    def note(self, topic: str, key: str, amount: int, txn_id: str | None, writer: str | None) -> Write:
        """An entry that is to be sent now."""
        self._numbers += 1
        write = Write(
            id=f"{self.name}-{self._numbers}",
            txn_id=txn_id,
            writer=writer,
            topic=topic,
            key=key,
            amount=amount,
            client=self.name,
            begun=self.workload.world.loop.time(),
        )
        self.history.writes.append(write)
        return write

    async def send(
        self, write: Write, producer: str | None, sequence: int, patience_s: float = PUBLISH_PATIENCE_S
    ) -> None:
        try:
            write.segment, write.position = await self.client.publish(
                write.topic,
                {"id": write.id, "key": write.key, "amount": write.amount},
                txn_id=write.txn_id,
                writer=write.writer,
                producer=producer,
                sequence=sequence,
                patience_s=patience_s,
            )
        except Refused as refused:
            write.outcome = Outcome.UNKNOWN if refused.doubtful else Outcome.FAILED
            raise
        write.outcome = Outcome.OK
        write.ended = self.workload.world.loop.time()

    async def any_place(self) -> SegmentPlace:
        return self.random.choice(await self.client.look(self.random.choice(self.workload.topics)))

    async def read_on(self, place: SegmentPlace, txn_id: str | None = None) -> Read:
        """A page behind what this client has read there; `txn_id` of a transaction that goes by it."""
        read, self._places[place.segment] = await self.workload.read(
            self.name, self.client, place, self._places.get(place.segment), "read_committed", txn_id=txn_id
        )
        self.history.reads.append(read)
        return read

    async def ask_for_horizon(self, place: SegmentPlace) -> Horizon:
        loop = self.workload.world.loop
        asked = loop.time()
        horizon = await self.client.horizon(place)
        self.history.horizons.append(
            HorizonSeen(place.segment, horizon.server, asked, loop.time(), horizon.max_read_position)
        )
        return horizon

    async def prepare(self, txn_id: str, timeout_ms: int) -> None:
        await self.client.prepare(txn_id, timeout_ms)
        self.is_closed(txn_id)

    def is_closed(self, txn_id: str) -> None:
        self.history.closed.setdefault(txn_id, self.workload.world.loop.time())

    async def end(
        self,
        txn_id: str,
        *,
        commit: bool,
        writers: tuple[str, ...] | None = None,
        remembered: tuple[str, ...] | None = None,
        patient: bool = True,
    ) -> None:
        """Commit or abort, and write down what came of it; impatient: asked once. Raises as the client."""
        end = End(txn_id, commit, self.name, writers, remembered)
        self.history.ends.append(end)
        try:
            if commit:
                await self.client.commit(txn_id, writers, patient=patient)
            else:
                await self.client.abort(txn_id)
        except Refused as refused:
            end.code = refused.code
            end.outcome = Outcome.UNKNOWN if refused.doubtful else Outcome.FAILED
            raise
        end.outcome = Outcome.OK
        self.is_closed(txn_id)
