"""Transfers between accounts: each takes from some and gives to others, in entries on several topics.

The sum of all committed entries is zero at every revision of the store, whatever fails. A client takes some of the
entries under a second writer and leaves that one out of its commit: what it wrote would break the sum.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random

from tests.simulation.client import Client, Doubtful, Refused, SegmentPlace, place_of
from tests.simulation.cluster import Cluster
from tests.simulation.history import End, History, Outcome, Read, Write
from tests.simulation.processes import Process

TOPICS = 3
ACCOUNTS = 12
CLIENTS = 4
READERS = 2
TIMEOUT_MS = (1_500, 8_000, 30_000)
PAUSE_S = 0.6


class Bank:
    def __init__(self, cluster: Cluster, history: History) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self.history = history
        self.places: dict[str, list[SegmentPlace]] = {}
        self.processes: list[Process] = []
        self.stopping = False
        self._running: list[asyncio.Task[None]] = []

    async def set_up(self) -> None:
        random = self._world.generator("bank")
        client = self.client(random)
        brokers = self._cluster.broker_urls
        for number in range(TOPICS):
            topic = f"public/default/bank-{number}"
            broker = brokers[number % len(brokers)]
            await client.create_topic(broker, topic, random.choice((1, 2)))
            self.places[topic] = await client.segments(broker, topic)

    def client(self, random: Random) -> Client:
        return Client(self._world, self._cluster.network, self._cluster.coordinator_urls, random)

    def start(self) -> None:
        kinds: list[type[Teller | Auditor]] = [Teller] * CLIENTS + [Auditor] * READERS
        for number, kind in enumerate(kinds):
            name = f"client-{number}"
            process = self._world.process(name)
            self._running.append(process.spawn(kind(self, name, self._world.generator(name)).run(), name))
            self.processes.append(process)

    async def finish(self) -> None:
        """Nothing new is begun; returns once those who live have ended what they had begun."""
        self.stopping = True
        for process, running in zip(self.processes, self._running, strict=True):
            if process.frozen:
                self._world.loop.thaw(process)
            if process.alive:
                await running

    async def read_everything(self) -> None:
        """What everybody sees in the end."""
        client = self.client(self._world.generator("final reads"))
        for place in self.all_places:
            self.history.final_reads += await self.read_all("final", client, place, "read_committed")
            self.history.final_reads += await self.read_all("final", client, place, "read_uncommitted")

    @property
    def all_places(self) -> list[SegmentPlace]:
        return [place for places in self.places.values() for place in places]

    async def read_all(self, name: str, client: Client, place: SegmentPlace, isolation: str) -> list[Read]:
        """A segment from its start to its end; one `Read` for each page."""
        pages: list[Read] = []
        after: str | None = None
        while True:
            read = await self.read(name, client, place, after, isolation)
            pages.append(read[0])
            after = read[1]
            if read[0].end:
                return pages

    async def read(
        self,
        name: str,
        client: Client,
        place: SegmentPlace,
        after: str | None,
        isolation: str,
        revision: int | None = None,
    ) -> tuple[Read, str]:
        floor = self._cluster.store.revision
        page = await client.read(place, after, isolation, revision)
        read = Read(
            client=name,
            segment=place.segment,
            isolation=isolation,
            after=_position(after) if after else (0, -1),
            next=_position(page.next),
            end=page.end,
            revision=page.revision,
            floor=floor,
            at_revision=self._cluster.store.revision,
            frames=page.frames,
        )
        return read, page.next


def _position(text: str) -> tuple[int, int]:
    ledger, _, entry = text.partition("@")[0].partition(":")
    return int(ledger), int(entry)


class Teller:
    """Transfers, one after another."""

    def __init__(self, bank: Bank, name: str, random: Random) -> None:
        self._bank = bank
        self._name = name
        self._random = random
        self._client = bank.client(random)
        self._numbers = 0

    async def run(self) -> None:
        while not self._bank.stopping:
            with suppress(Refused, Doubtful):
                await self._transfer()
            await asyncio.sleep(self._random.expovariate(1 / PAUSE_S))

    async def _transfer(self) -> None:
        random = self._random
        txn_id = await self._client.begin(random.choice(TIMEOUT_MS))
        amounts = self._amounts()
        writers = (f"{self._name}/a", f"{self._name}/b")
        void = random.random() < 0.2
        try:
            works = [self._publish(txn_id, key, amount, writers[0]) for key, amount in amounts]
            if void:
                works.append(self._publish(txn_id, self._account(), random.randint(1, 9), writers[1]))
            await asyncio.gather(*works)
        except (Refused, Doubtful):
            await self._end(txn_id, commit=False)
            return
        fate = random.random()
        if fate < 0.8:
            await self._end(txn_id, commit=True, writers=writers[:1] if void or random.random() < 0.3 else None)
        elif fate < 0.95:
            await self._end(txn_id, commit=False)

    def _account(self) -> str:
        return f"account-{self._random.randrange(ACCOUNTS)}"

    def _amounts(self) -> list[tuple[str, int]]:
        """Accounts and what they get; together nothing."""
        given = [self._random.randint(1, 100) for _ in range(self._random.choice((1, 1, 1, 2, 6)))]
        return [(self._account(), amount) for amount in [*given, -sum(given)]]

    async def _publish(self, txn_id: str, key: str, amount: int, writer: str) -> None:
        bank = self._bank
        topics = sorted(bank.places)
        topic = topics[int(key.rpartition("-")[2]) % len(topics)]
        place = place_of(bank.places[topic], key)
        self._numbers += 1
        sequence = self._numbers
        write = Write(
            id=f"{self._name}-{sequence}",
            txn_id=txn_id,
            writer=writer,
            topic=topic,
            key=key,
            amount=amount,
            client=self._name,
            begun=bank._world.loop.time(),
        )
        bank.history.writes.append(write)
        payload = {"id": write.id, "key": key, "amount": amount}
        try:
            write.position = await self._client.publish(place, payload, txn_id=txn_id, writer=writer, sequence=sequence)
        except Refused as refused:
            write.outcome = Outcome.UNKNOWN if refused.doubtful else Outcome.FAILED
            raise
        write.segment = place.segment
        write.outcome = Outcome.OK

    async def _end(self, txn_id: str, *, commit: bool, writers: tuple[str, ...] | None = None) -> None:
        end = End(txn_id, commit, self._name, writers)
        self._bank.history.ends.append(end)
        try:
            if commit:
                await self._client.commit(txn_id, writers)
            else:
                await self._client.abort(txn_id)
        except Refused as refused:
            end.code = refused.code
            end.outcome = Outcome.UNKNOWN if refused.doubtful else Outcome.FAILED
        else:
            end.outcome = Outcome.OK


class Auditor:
    """Reads: to the end of every segment, and all of them at one revision."""

    def __init__(self, bank: Bank, name: str, random: Random) -> None:
        self._bank = bank
        self._name = name
        self._random = random
        self._client = bank.client(random)
        self._places: dict[str, str] = {}

    async def run(self) -> None:
        while not self._bank.stopping:
            with suppress(Refused, Doubtful):
                if self._random.random() < 0.2:
                    await self._snapshot()
                else:
                    await self._follow(self._random.choice(self._bank.all_places))
            await asyncio.sleep(self._random.expovariate(1))

    async def _follow(self, place: SegmentPlace) -> None:
        """Go on where the last read of this segment ended."""
        after = self._places.get(place.segment)
        read, next_ = await self._bank.read(self._name, self._client, place, after, "read_committed")
        self._places[place.segment] = next_
        self._bank.history.reads.append(read)

    async def _snapshot(self) -> None:
        revision: int | None = None
        reads: list[Read] = []
        for place in self._bank.all_places:
            after: str | None = None
            while True:
                read, after = await self._bank.read(self._name, self._client, place, after, "snapshot", revision)
                reads.append(read)
                revision = read.revision
                if read.end:
                    break
        self._bank.history.snapshots.append(reads)
