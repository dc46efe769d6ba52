"""A reader that holds a topic while it reads it, twice and slowly."""

from __future__ import annotations

import asyncio

from metastore.txn import paths
from tests.simulation.client import Refused
from tests.simulation.history import HeldRead, Seen
from tests.simulation.workloads.base import Actor

HOLD_MS = (2_000, 20_000)


class Scholar(Actor):
    """Some let their hold end by its time."""

    pause_s = 4.0

    async def act(self) -> None:
        topic, self._numbers = self.random.choice(self.workload.topics), self._numbers + 1
        hold_id = f"{self.name}-{self._numbers}"
        revision = await self.client.hold(topic, hold_id, self.random.choice(HOLD_MS))
        held = HeldRead(paths.read_hold(topic, hold_id), topic, revision)
        self.history.held_reads.append(held)
        try:
            for _ in range(2):
                held.reads.append(await self._read(topic, revision))
        except Refused as refused:
            held.refused = refused.code
            raise
        finally:
            held.ended = self.workload.cluster.store.revision
        if self.random.random() < 0.7:
            await self.client.release_hold(topic, hold_id)

    async def _read(self, topic: str, revision: int) -> list[Seen]:
        seen: list[Seen] = []
        for place in await self.client.look(topic):
            after, more = None, True
            while more:
                read, after = await self.workload.read(self.name, self.client, place, after, "snapshot", revision)
                seen += read.frames
                more = not read.end
                await asyncio.sleep(self.random.uniform(0, 2))
        return seen
