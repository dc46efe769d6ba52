"""Topics whose policies say how long messages stay, and change while everybody writes, reads and acknowledges.

A policy is set on a topic, on the namespace, or on the cluster. One subscription is consumed, and some have another
one that nobody uses, so that it holds everything back unless retention is hard. What is dropped is judged at the moment
when it is. One reader holds what it reads. In the end a policy is set that frees much, and what it frees must be gone
soon.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from metastore.txn import paths
from tests.simulation.client import Client, Doubtful, Refused, SegmentPlace
from tests.simulation.drops import Witness, over
from tests.simulation.workloads.base import Actor, Workload, whatever_comes
from tests.simulation.workloads.scholar import Scholar

AUTHORS = 2
TIMEOUT_MS = (2_000, 15_000)
READING, UNUSED = "reading", "unused"
RETENTION_MS = (1_000, 4_000, 15_000)
RETENTION_BYTES = (0, 300, 2_000, 10_000)
CHANGES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("retention_ms", (*RETENTION_MS, -1, None)),
    ("retention_bytes", (*RETENTION_BYTES, -1, None)),
    ("retention", ("hard", "acknowledged", "acknowledged", None)),
    ("roll_ms", (1_000, 5_000, None)),
    ("max_unacked_per_consumer", (3, 20, -1, None)),
)
TTL_MS = (3_000, 10_000, None, None)
"""It stays as it is until the end: what expires is compared with the policy at that moment."""
BACKLOGS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"backlog_bytes": 2_000},
    {"backlog_ms": 5_000},
    {"backlog": "evict", "backlog_bytes": 500},
    {"backlog": "evict", "backlog_bytes": 3_000},
    {"backlog": "evict", "backlog_ms": 5_000},
)
"""Stay as they are for the same reason."""
NO_BACKLOG = {"backlog_bytes": None, "backlog_ms": None}
LEVELS = ("topic", "topic", "namespaces/public/default", "cluster")
FREED_WITHIN_S = 150.0
"""Each pass closes or drops at most what a segment has open or is over by then, and large lists of ledgers close theirs
later."""
CLOCKS_TOGETHER = 4
"""The clocks of two brokers, of which one has dropped what the other one has written, differ by at most this many times
what the clock of one may be off by: while everything heals they are all set."""


class Keeping(Workload):
    name = "keeping"
    aims = (paths.SEGMENTS, paths.SEGMENT_STATES, paths.POLICIES)

    async def set_up(self) -> None:
        random = self.world.generator("keeping")
        self.witness = Witness(self.cluster.store, self.history, self.world.loop.time, UNUSED)
        self.unused: list[str] = []
        """The topics with that subscription."""
        self.history.clocks_differ_s = CLOCKS_TOGETHER * self.cluster.most_ms / 1000
        for name in ("visits", "orders"):
            topic = await self.create_topic(name, random)
            await self.client(random).subscribe(topic, READING, random.choice(("shared", "failover")))
            if random.random() < 0.5:
                await self.client(random).subscribe(topic, UNUSED, "shared")
                self.unused.append(topic)
            stays = {"ttl_ms": random.choice(TTL_MS)} | random.choice(BACKLOGS)
            await self.client(random).set_policy("topic", topic, _drawn(random) | stays)

    def start(self) -> None:
        for number in range(AUTHORS):
            self.employ(f"author-{number}", Author)
        self.employ("guest", Guest)
        self.employ("browser", Browser)
        self.employ("clerk", Clerk)
        self.employ("scholar", Scholar)

    async def read_everything(self) -> None:
        random = self.world.generator("the last policy")
        client, bounds = self.client(random), {"retention_ms": -1, "retention_bytes": -1}
        by = random.choice(("retention_ms", "retention_ms", "retention_bytes"))
        bounds[by] = random.choice(RETENTION_MS if by == "retention_ms" else RETENTION_BYTES)
        hard = random.random() < 0.6
        if random.random() < 0.5:
            bounds["ttl_ms"] = 1_000
        for topic in self.topics:
            policy = bounds | NO_BACKLOG | {"retention": "hard" if hard else "acknowledged", "roll_ms": 1_000}
            await client.set_policy("topic", topic, policy)
        await self._until_freed(empty=hard and by == "retention_ms", expired="ttl_ms" in bounds)
        await self._until_nobody_is_held()
        for topic in self.topics:  # nothing goes while it is read
            await client.set_policy("topic", topic, {"retention_ms": -1, "retention_bytes": -1})
        await super().read_everything()

    async def _until_freed(self, *, empty: bool, expired: bool) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + FREED_WITHIN_S
        client = self.client(self.world.generator("what is freed"))
        while True:
            now_ms = min(role.process.wall_clock_ms() for role in self.cluster.roles.values() if role.process)
            left = [each for topic in self.topics for each in over(self.witness, topic, now_ms)]
            if empty:
                left += [f"{place.segment} has entries" for place in await self._not_empty(client)]
            if expired:
                backlogs = [(topic, await client.backlog(topic, UNUSED)) for topic in self.unused]
                left += [f"{count} messages of {topic} have not expired" for topic, count in backlogs if count]
            if not left or loop.time() > deadline:
                self.history.not_freed = left
                return
            await asyncio.sleep(2)

    async def _until_nobody_is_held(self) -> None:
        """No bound is exceeded any more, so every topic takes messages again."""
        loop, last = asyncio.get_running_loop(), Author(self, "last", self.world.generator("last"))
        deadline = loop.time() + FREED_WITHIN_S
        for topic in self.topics:
            while True:
                try:
                    await last.write(topic, "page-0", 0, producer=last.name)
                    break
                except Refused as refused:
                    if refused.code != "RATE_LIMITED":
                        raise
                    if loop.time() > deadline:
                        self.history.not_freed.append(f"{topic} takes no messages: {refused}")
                        break
                    await asyncio.sleep(1)

    async def _not_empty(self, client: Client) -> list[SegmentPlace]:
        """The segments that take messages, and still have some: all of them are old by now."""
        found = []
        for topic in self.topics:
            for place in await client.look(topic):
                try:
                    if place.active and (await client.read(place, None, "read_committed")).frames:
                        found.append(place)
                except Refused as refused:
                    if refused.code != "POSITION_TRIMMED":  # just now
                        raise
                    found.append(place)
        return found


def _drawn(random: Random) -> dict[str, Any]:
    return {name: random.choice(values) for name, values in CHANGES if random.random() < 0.6}


class Clerk(Actor):
    """Changes a policy."""

    pause_s = 5.0

    async def act(self) -> None:
        topic, level = self.random.choice(self.workload.topics), self.random.choice(LEVELS)
        await self.client.set_policy(level, topic, _drawn(self.random))


class Author(Actor):
    pause_s = 0.3

    async def act(self) -> None:
        random, topic = self.random, self.random.choice(self.workload.topics)
        if random.random() < 0.5:
            await self._write(topic, None)
            return
        txn_id = await self.client.begin(random.choice(TIMEOUT_MS))
        await whatever_comes(*(self._write(topic, txn_id) for _ in range(random.choice((1, 2, 5)))))
        if random.random() < 0.5:
            await asyncio.sleep(random.uniform(0, 10))
        fate = random.random()
        if fate < 0.9:
            await self.end(txn_id, commit=fate < 0.6)

    async def _write(self, topic: str, txn_id: str | None) -> None:
        key = f"page-{self.random.randrange(20)}"
        await self.write(topic, key, 0, txn_id=txn_id, writer=self.name if txn_id else None, producer=self.name)


class Guest(Actor):
    """Acknowledges what it is given, outside of transactions or in one that it may abort."""

    pause_s = 0.3

    async def act(self) -> None:
        topic = self.random.choice(self.workload.topics)
        try:
            given = await self.client.receive(topic, READING, self.name, 20)
        except Doubtful:
            self.name += "'"
            raise
        ids = [each["message_id"] for each in given]
        if not ids:
            return
        if self.random.random() < 0.6:
            await self.client.acknowledge(topic, READING, ids, None)
            return
        txn_id = await self.client.begin(self.random.choice(TIMEOUT_MS))
        await self.client.acknowledge(topic, READING, ids, txn_id)
        commit = self.random.random() < 0.7
        await self.end(txn_id, commit=commit)
        if not commit:
            await self.client.redeliver(topic, READING, ids)


class Browser(Actor):
    """Reads on; from the first entry that is left when the next one was dropped."""

    async def act(self) -> None:
        place = await self.any_place()
        try:
            await self.read_on(place)
        except Refused as refused:
            if refused.code == "POSITION_TRIMMED":
                self._places.pop(place.segment, None)
            raise
        if self.random.random() < 0.2:
            await self.ask_for_horizon(place)
