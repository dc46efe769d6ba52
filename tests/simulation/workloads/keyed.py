"""Drivers under one transaction key, as a job that is restarted: each version is to be written exactly once.

A driver connects, which fences the one before, and goes on behind the last version that was committed. Drivers are
killed and frozen; one that wakes up believes that it is still the only one. There are always several of them, and an
operator who begins under the key without having connected, as anyone who knows nothing but its name.
"""

from __future__ import annotations

import asyncio

from metastore.txn import paths
from tests.simulation.client import Doubtful, Refused
from tests.simulation.workloads.base import Actor, Workload

DRIVERS = 3
KEY = "nightly"
TIMEOUT_MS = (4_000, 20_000)


class Keyed(Workload):
    name = "keyed"
    aims = (paths.TRANSACTION_KEYS, paths.HEADERS)

    async def set_up(self) -> None:
        random = self.world.generator("keyed")
        for number in range(2):
            await self.create_topic(f"job-{number}", random)

    def start(self) -> None:
        for number in range(DRIVERS):
            self.employ(f"driver-{number}", Driver)
        self.employ("operator-of-the-key", Operator)


class Driver(Actor):
    """Takes over, does some versions, and is succeeded."""

    pause_s = 6.0

    async def act(self) -> None:
        connected = await self.client.connect(KEY)
        epoch: int = connected["epoch"]
        last: int | None = connected.get("last_version")
        version = 0 if last is None else last + (self.random.random() < 0.7)  # or again, as Spark repeats a batch
        for _ in range(self.random.randint(1, 6)):
            if self.workload.stopping:
                return
            await self._do(epoch, version)
            version += 1

    async def _do(self, epoch: int, version: int) -> None:
        """One version, until it is committed. Ends with what refuses the driver for good."""
        while True:
            begun = await self.client.begin_version(KEY, epoch, version, self.random.choice(TIMEOUT_MS))
            if begun.get("already_committed"):
                return
            txn_id = begun["txn_id"]
            try:
                await asyncio.gather(
                    *(
                        self.write(topic, f"{version}", 0, txn_id=txn_id, writer=self.name)
                        for topic in self.workload.topics
                    )
                )
                await self.end(txn_id, commit=True)
            except (Refused, Doubtful) as error:
                if isinstance(error, Refused) and error.code == "NOT_ALLOWED":
                    raise
            else:
                return
            if self.workload.stopping:
                return


class Operator(Actor):
    """Must not get in anybody's way."""

    pause_s = 3.0

    async def act(self) -> None:
        await self.client.begin_unconnected(KEY, self.random.choice(TIMEOUT_MS))
