"""Leaders that take a topic from each other, and others that publish to it when they may.

Each entry has the epoch under which it was sent as its amount, or 0. Leaders that were replaced go on for a while, some
have transactions open then, and hold times are so short that holds also end by them; the segments are split and merged
meanwhile.
"""

from __future__ import annotations

from tests.simulation.client import Doubtful, Refused
from tests.simulation.history import Claimed
from tests.simulation.workloads.base import Actor, Workload

LEADERS = 3
KEYS = 6
TTL_MS = (1_000, 5_000, 30_000)


class Leading(Workload):
    name = "leading"

    async def set_up(self) -> None:
        await self.create_topic("leading", self.world.generator("leading"))

    def start(self) -> None:
        for number in range(LEADERS):
            self.employ(f"leader-{number}", Leader)
        self.employ("follower", Follower)


class Leader(Actor):
    pause_s = 0.4

    async def act(self) -> None:
        if self.client.epoch is None or self.random.random() < 0.05:
            await self._claim()
        try:
            await self._publish()
        except Refused as refused:
            if refused.code == "NOT_ALLOWED" and self.random.random() < 0.5:  # otherwise it has not understood
                self.client.epoch = None
            raise
        if self.random.random() < 0.05 and self.client.epoch is not None:
            await self.client.release(self.workload.topics[0], self.client.epoch)

    async def _claim(self) -> None:
        (topic,) = self.workload.topics
        session = f"{self.name}-{self.random.getrandbits(64):016x}"
        fence = self.random.random() < 0.7
        epoch = await self.client.claim(topic, session, self.random.choice(TTL_MS), fence=fence)
        self.client.epoch = epoch
        self.history.claims.append(Claimed(topic, epoch, self.workload.world.loop.time()))

    async def _publish(self) -> None:
        (topic,), epoch = self.workload.topics, self.client.epoch or 0
        keys = [f"key-{self.random.randrange(KEYS)}" for _ in range(self.random.choice((1, 1, 3)))]
        if self.random.random() < 0.6:
            for key in keys:
                await self.write(topic, key, epoch, producer=self.name)
            return
        txn_id = await self.client.begin(8_000)
        try:
            for key in keys:
                await self.write(topic, key, epoch, txn_id=txn_id, writer=self.name)
        except (Refused, Doubtful):
            await self.end(txn_id, commit=False)
            raise
        await self.end(txn_id, commit=self.random.random() < 0.8)


class Follower(Actor):
    async def act(self) -> None:
        (topic,) = self.workload.topics
        await self.write(topic, f"key-{self.random.randrange(KEYS)}", 0, producer=self.name)
