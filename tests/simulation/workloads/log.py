"""Producers that append to keys, outside of any transaction, while segments are split and merged under them.

Each sends the next entry of a key when the one before was answered, and sends an entry again, under its sequence, until
it is. So every entry is there once, and those of a key in the order in which they were sent.
"""

from __future__ import annotations

from tests.simulation.workloads.base import Actor, Workload

PRODUCERS = 2
KEYS = 5


class Log(Workload):
    name = "log"

    async def set_up(self) -> None:
        await self.create_topic("log", self.world.generator("log"))

    def start(self) -> None:
        for number in range(PRODUCERS):
            self.employ(f"producer-{number}", Producer)


class Producer(Actor):
    async def act(self) -> None:
        (topic,) = self.workload.topics
        await self.write(topic, f"key-{self.random.randrange(KEYS)}", 0, producer=self.name)
