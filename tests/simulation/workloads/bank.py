"""Transfers between accounts: each takes from some and gives to others, in entries on several topics.

The sum of all committed entries is zero at every revision of the store, whatever fails. A client writes some entries as
a second writer and leaves that one out of its commit: what it wrote would break the sum. Some transfers are long, some
are prepared, some are ended by two at the same moment in opposite ways, some are never ended and time out, and some
clients go on writing to what has ended; the segments are split and merged meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from metastore.txn import paths
from tests.simulation.client import Doubtful, Refused, SegmentPlace
from tests.simulation.history import Read
from tests.simulation.workloads.base import Actor, Workload, whatever_comes

TOPICS = 3
ACCOUNTS = 12
TELLERS = 4
AUDITORS = 2
TIMEOUT_MS = (1_500, 8_000, 30_000)
PREPARED_TIMEOUT_MS = (3_000, 20_000)


class Bank(Workload):
    name = "bank"
    aims = (paths.HEADERS, paths.PREPARED, ":w:")

    async def set_up(self) -> None:
        random = self.world.generator("bank")
        for number in range(TOPICS):
            await self.create_topic(f"bank-{number}", random)

    def start(self) -> None:
        for number in range(TELLERS):
            self.employ(f"teller-{number}", Teller)
        for number in range(AUDITORS):
            self.employ(f"auditor-{number}", Auditor)


class Teller(Actor):
    """Transfers, one after another."""

    async def act(self) -> None:
        random = self.random
        txn_id = await self.client.begin(random.choice(TIMEOUT_MS))
        amounts = self._amounts()
        if random.random() < 0.3:
            await self.read_on(await self.any_place(), txn_id)
        writers = (f"{self.name}/a", f"{self.name}/b")
        void = random.random() < 0.2
        works = [self._transfer(txn_id, key, amount, writers[0]) for key, amount in amounts]
        if void:
            works.append(self._transfer(txn_id, self._account(), random.randint(1, 9), writers[1]))
        try:
            await asyncio.gather(*works)
        except (Refused, Doubtful):
            await self.end(txn_id, commit=False)
            return
        if random.random() < 0.1:
            await asyncio.sleep(random.uniform(0, 10))
        if random.random() < 0.1:
            await self.prepare(txn_id, random.choice(PREPARED_TIMEOUT_MS))
        counted = writers[:1] if void or random.random() < 0.3 else None
        fate = random.random()
        if fate < 0.45:
            await self.end(txn_id, commit=True, writers=counted, patient=random.random() < 0.5)
        elif fate < 0.55:  # one more is on its way: it counts as a whole, or it is refused
            more = self._transfer(txn_id, self._account(), 0, writers[0])
            await whatever_comes(more, self.end(txn_id, commit=True, writers=counted))
        elif fate < 0.8:
            await self._go_on(txn_id, writers[0], self.end(txn_id, commit=True, writers=counted))
        elif fate < 0.85:
            await whatever_comes(self.end(txn_id, commit=True, writers=counted), self.end(txn_id, commit=False))
        elif fate < 0.96:
            await self.end(txn_id, commit=False)
        if random.random() < 0.15:
            await self._come_too_late(txn_id, writers)

    async def _go_on(self, txn_id: str, writer: str, end: Coroutine[Any, Any, None]) -> None:
        """Entries for one segment are on their way, one after another, when the transaction ends and others follow."""
        account = self._account()

        async def more() -> None:
            for _ in range(5):
                await self._transfer(txn_id, account, 0, writer)

        async def end_and_more() -> None:
            await end
            await whatever_comes(more(), more())

        await whatever_comes(more(), more(), end_and_more())

    async def _come_too_late(self, txn_id: str, writers: tuple[str, ...]) -> None:
        """Nothing of this may change what was decided, if it was."""
        await whatever_comes(
            self._transfer(txn_id, self._account(), self.random.randint(1, 9), writers[1]),
            self.end(txn_id, commit=False),
            self.end(txn_id, commit=True, writers=writers[:1]),
        )

    def _account(self) -> str:
        return f"account-{self.random.randrange(ACCOUNTS)}"

    def _amounts(self) -> list[tuple[str, int]]:
        """Accounts and what they get; together nothing."""
        given = [self.random.randint(1, 100) for _ in range(self.random.choice((1, 1, 1, 2, 6)))]
        return [(self._account(), amount) for amount in [*given, -sum(given)]]

    async def _transfer(self, txn_id: str, account: str, amount: int, writer: str) -> None:
        topics = self.workload.topics
        topic = topics[int(account.rpartition("-")[2]) % len(topics)]
        await self.write(topic, account, amount, txn_id=txn_id, writer=writer)


class Auditor(Actor):
    """Reads: one segment where it went on before, or all of them at one revision; and asks how far that goes."""

    pause_s = 1.0

    async def act(self) -> None:
        fate = self.random.random()
        if fate < 0.25:
            await self._snapshot()
        elif fate < 0.4:
            await self.ask_for_horizon(await self.any_place())
        else:
            await self.read_on(await self.any_place())

    async def _snapshot(self) -> None:
        """The layout is taken behind the revision (DESIGN §7)."""
        reads: list[Read] = []
        revision: int | None = None
        for topic in self.workload.topics:
            if revision is None:
                reads.append(await self._now(self.client.layouts.get(topic) or await self.client.look(topic)))
                revision = reads[0].revision
            for place in await self.client.look(topic):
                reads += await self.workload.read_all(self.name, self.client, place, "snapshot", revision)
        self.history.snapshots.append(reads)

    async def _now(self, layout: list[SegmentPlace]) -> Read:
        """A read for its revision; what it shows is read again."""
        read, _ = await self.workload.read(self.name, self.client, layout[0], None, "snapshot")
        read.frames = []
        return read
