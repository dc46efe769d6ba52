"""Topics that are compacted while everybody writes, in transactions and outside, and reads, and owners change.

A few keys are written again and again, so that most entries are replaced soon. In the end every entry that counts is
there, or a later one of its key in the same segment; and whatever was read on the way is there, too, or was replaced.
"""

from __future__ import annotations

import asyncio
from random import Random

from tests.simulation.client import Client
from tests.simulation.workloads.base import Actor, Workload, whatever_comes
from tests.simulation.workloads.scholar import Scholar

AUTHORS = 3
KEYS = 4
TIMEOUT_MS = (2_000, 15_000)


class Compacting(Workload):
    name = "compacting"

    async def set_up(self) -> None:
        random = self.world.generator("compacting")
        topic = await self.create_topic("table", random)
        self.history.compacted.add(topic)
        policy = {"cleanup": random.choice(("compact", "compact", "both")), "roll_ms": random.choice((1_000, 5_000))}
        await self.client(random).set_policy("topic", topic, policy)

    def client(self, random: Random) -> Client:
        found = super().client(random)
        found.as_messages = True
        return found

    def start(self) -> None:
        for number in range(AUTHORS):
            self.employ(f"author-{number}", Author)
        self.employ("reader", Reader)
        self.employ("scholar", Scholar)


class Author(Actor):
    pause_s = 0.3

    async def act(self) -> None:
        (topic,) = self.workload.topics
        if self.random.random() < 0.5:
            await self._write(topic, None)
            return
        txn_id = await self.client.begin(self.random.choice(TIMEOUT_MS))
        await whatever_comes(*(self._write(topic, txn_id) for _ in range(self.random.choice((1, 2, 5)))))
        if self.random.random() < 0.3:
            await asyncio.sleep(self.random.uniform(0, 5))
        fate = self.random.random()
        if fate < 0.9:
            await self.end(txn_id, commit=fate < 0.6)

    async def _write(self, topic: str, txn_id: str | None) -> None:
        key = f"row-{self.random.randrange(KEYS)}"
        await self.write(topic, key, 0, txn_id=txn_id, writer=self.name if txn_id else None, producer=self.name)


class Reader(Actor):
    async def act(self) -> None:
        place = await self.any_place()
        if self.random.random() < 0.1:
            self._places.pop(place.segment, None)  # from the beginning
        await self.read_on(place)
        if self.random.random() < 0.2:
            await self.ask_for_horizon(place)
