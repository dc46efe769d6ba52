"""Jobs that write in tasks: long and huge transactions beside tiny ones, with writers of which only some count.

A task is tried by several attempts, one after another or at the same time, as Spark's speculative ones: each writes all
of the task under a name of its own, and the commit lists one complete attempt of every task. What the others have
written, and go on writing behind the commit, is void. All amounts of a job sum up to zero, so the sum tells when an
attempt counts that must not, or does not that must. Tellers and auditors of the bank go on beside them.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tests.simulation.client import Doubtful, Refused
from tests.simulation.workloads.bank import ACCOUNTS, Auditor, Bank, Teller
from tests.simulation.workloads.base import Actor

JOBS = 2
TELLERS = 2
ATTEMPTS = 3
TASKS = (1, 3, 6)
ENTRIES_PER_TASK = (1, 2, 20)
TIMEOUT_MS = (3_000, 9_000)


class Jobs(Bank):
    name = "jobs"

    def start(self) -> None:
        for number in range(JOBS):
            self.employ(f"driver-{number}", Driver)
        for number in range(TELLERS):
            self.employ(f"teller-{number}", Teller)
        self.employ("auditor", Auditor)


class Driver(Actor):
    """Runs one job after another; each in one transaction, kept alive while its tasks run."""

    pause_s = 4.0
    _jobs = 0

    async def act(self) -> None:
        self._jobs += 1
        timeout_ms = self.random.choice(TIMEOUT_MS)
        txn_id = await self.client.begin(timeout_ms)
        amounts = [self.random.randint(-50, 50) for _ in range(self.random.choice(TASKS) - 1)]
        amounts.append(-sum(amounts))
        entries = self.random.choice(ENTRIES_PER_TASK)
        keeping = asyncio.create_task(self._keep_alive(txn_id, timeout_ms))
        tasks = [Task(self, txn_id, number, amount, entries) for number, amount in enumerate(amounts)]
        try:
            winners = await asyncio.gather(*(task.winner() for task in tasks))
            await self._commit(txn_id, tuple(winners))
        except (Refused, Doubtful):
            await self.end(txn_id, commit=False)
            raise
        finally:
            keeping.cancel()
            # Also those that nobody waits for any more: what they write comes behind the end.
            await asyncio.gather(*(attempt for task in tasks for attempt in task.attempts), return_exceptions=True)

    async def _commit(self, txn_id: str, winners: tuple[str, ...]) -> None:
        if self.random.random() < 0.5:
            await self.end(txn_id, commit=True, writers=winners)
        else:
            await self.client.remember_writers(txn_id, winners)
            await self.end(txn_id, commit=True, remembered=winners)

    async def _keep_alive(self, txn_id: str, timeout_ms: int) -> None:
        while True:
            await asyncio.sleep(timeout_ms / 3_000)
            with suppress(Refused, Doubtful):
                await self.client.keep_alive(txn_id, timeout_ms)


class Task:
    """One part of a job: `entries` entries that sum up to `amount`."""

    def __init__(self, driver: Driver, txn_id: str, number: int, amount: int, entries: int) -> None:
        self._driver = driver
        self._txn_id = txn_id
        self._name = f"{driver.name}/{driver._jobs}/{number}"
        self._parts = [amount, *([0] * (entries - 1))]
        self.attempts: list[asyncio.Task[str]] = []

    async def winner(self) -> str:
        """The writer of an attempt that is complete. Raises as the last attempt, when all have failed."""
        random = self._driver.random
        running: set[asyncio.Task[str]] = set()
        while True:
            while len(self.attempts) < ATTEMPTS and (not running or random.random() < 0.3):
                running.add(self._start())
            ended, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for attempt in sorted(ended, key=self.attempts.index):
                if attempt.exception() is None:
                    return attempt.result()
            if not running and len(self.attempts) == ATTEMPTS:
                return attempt.result()

    def _start(self) -> asyncio.Task[str]:
        attempt = asyncio.create_task(self._write(f"{self._name}/{len(self.attempts)}"))
        self.attempts.append(attempt)
        return attempt

    async def _write(self, writer: str) -> str:
        random, topics = self._driver.random, self._driver.workload.topics
        if random.random() < 0.2:
            await asyncio.sleep(random.uniform(0, 20))
        for part in self._parts:
            account = random.randrange(ACCOUNTS)
            topic = topics[account % len(topics)]
            await self._driver.write(topic, f"account-{account}", part, txn_id=self._txn_id, writer=writer)
        return writer
