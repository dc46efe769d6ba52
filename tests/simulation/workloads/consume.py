"""Consume, transform, produce: a consumer writes an output for each input and acknowledges it in the same transaction.

So every input has exactly one output in the end, no matter which of the consumers was killed, frozen, fenced or left
behind. Some acknowledge first, ask only once, and believe what they are told: what was certainly refused they do
without, and commit the transaction all the same. Some of a shared subscription try to acknowledge everything up to what
they were given, though others have what lies before it, and do so message by message only when that is refused.

Some acknowledge on a subscription of which nobody was ever given anything.

Where there is a dead-letter topic, an input that was given back too often has a dead letter instead of its output.
The subscription's name is also as long as it may be. In half of the seeds messages time out under their consumers, or
wait after they were returned.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from math import inf
from typing import Any

from metastore.txn import paths
from tests.simulation.client import PATIENCE_S, Doubtful, Refused, payload_of
from tests.simulation.workloads.base import Actor, Workload

PRODUCERS = 1
CONSUMERS = 3
SUBSCRIPTION = "packing"
TIMEOUT_MS = (4_000, 20_000)
BELIEVING = 0.3
"""How many of the packings acknowledge first, and go on without what is refused."""
CARELESS = 0.1
"""How many acknowledgements on a shared subscription begin with a cumulative one."""
GUESSING = 0.1
"""How many packings acknowledge what nobody was given."""
NEVER_READ = "unread"
MOVED = "moved"
"""A subscription that is moved again and again."""
EARLY = "early"
"""A subscription that is not isolated."""
LONGEST_NAME = 256
TIMES_MS = (
    {"ack_timeout_ms": 2_000},
    {"ack_timeout_ms": 5_000, "redelivery_delay_ms": 100, "max_redelivery_delay_ms": 4_000},
    {"redelivery_delay_ms": 3_000},
)
"""Shorter than many transactions, and than the quiet in which the last packer believes that nothing is left."""


class Consume(Workload):
    name = "consume"
    aims: tuple[str, ...] = (paths.HEADERS, paths.CURSORS, ":a:")
    kinds: tuple[str, ...] = ("shared", "shared", "failover", "exclusive")
    letters_rate = 0.3

    async def set_up(self) -> None:
        random = self.world.generator("consume")
        self.orders = await self.create_topic("orders", random)
        self.parcels = await self.create_topic("parcels", random)
        self.history.pipes.append((self.orders, self.parcels))
        self.kind = random.choice(self.kinds)
        self.subscription = random.choice((SUBSCRIPTION, SUBSCRIPTION.ljust(LONGEST_NAME, "-")))
        self.letters = "public/default/letters" if random.random() < self.letters_rate else None
        redeliveries = None
        if self.letters is not None:
            broker = random.choice(self.cluster.broker_urls)
            await self.client(random).create_topic(broker, self.letters, random.choice((1, 2)))
            self.cluster.topics.append(self.letters)
            redeliveries = self.history.max_redeliveries[self.orders] = random.choice((0, 1, 3))
        times_ms = random.choice((*({},) * 3, *TIMES_MS))
        self.history.ack_timeout_s = times_ms.get("ack_timeout_ms", inf) / 1000
        await self.client(random).subscribe(
            self.orders, self.subscription, self.kind, self.letters, redeliveries, **times_ms
        )
        await self.client(random).subscribe(self.orders, NEVER_READ, "shared")
        await self.client(random).subscribe(self.orders, MOVED, "shared")
        await self.client(random).subscribe(self.orders, EARLY, self.kind, isolation="read_uncommitted")
        self.history.early[self.orders] = set()

    def start(self) -> None:
        for number in range(PRODUCERS):
            self.employ(f"shop-{number}", Shop)
        for number in range(CONSUMERS):
            self.employ(f"packer-{number}", Packer)
        self.employ("mover", Mover)
        self.employ("hasty", Hasty)

    async def drain(self) -> None:
        """One more consumer packs what the others have left, once what they hold has returned."""
        process = self.world.process("last packer")
        packer = self.last_packer()
        packer.patient = True
        self.processes.append(process)
        await process.spawn(packer.pack_everything())

    def last_packer(self) -> Packer:
        return Packer(self, "last packer", self.world.generator("last packer"))

    async def read_everything(self) -> None:
        await super().read_everything()
        await self._consume_again()
        client = self.client(self.world.generator("late"))
        while given := await client.receive(self.orders, EARLY, "late", 100):
            self.history.early[self.orders].update(payload_of(message)["id"] for message in given)
            await client.acknowledge(self.orders, EARLY, [each["message_id"] for each in given], None)
        if self.letters is not None:
            client = self.client(self.world.generator("final letters"))
            found = self.history.letters[self.orders] = Counter()
            for place in await client.look(self.letters):
                for page in await self.read_all("final letters", client, place, "read_committed"):
                    found.update(seen.id for seen in page.frames)

    async def _consume_again(self) -> None:
        """Move the subscription to the beginning, and consume to the end."""
        client = self.client(self.world.generator("again"))
        await client.seek(self.orders, MOVED, "earliest")
        again = self.history.again[self.orders] = set()
        while given := await client.receive(self.orders, MOVED, "again", 100):
            again.update(payload_of(message)["id"] for message in given)


class Mover(Actor):
    """Consumes a little, and moves the subscription to one of its ends, under transactions that it has left open."""

    pause_s = 2.0

    async def act(self) -> None:
        assert isinstance(self.workload, Consume)
        orders = self.workload.orders
        given = await self.client.receive(orders, MOVED, self.name, 5)
        txn_id = await self.client.begin(self.random.choice(TIMEOUT_MS))
        if given:
            await self.client.acknowledge(orders, MOVED, [each["message_id"] for each in given], txn_id)
        fate = self.random.random()
        if fate < 0.6:
            await self.end(txn_id, commit=True)
        await self.client.seek(
            orders, MOVED, self.random.choice(("earliest", "latest")), force=self.random.random() < 0.5
        )


class Hasty(Actor):
    """Does not wait for decisions."""

    pause_s = 2.0
    _life = 0

    async def act(self) -> None:
        assert isinstance(self.workload, Consume)
        orders = self.workload.orders
        try:
            given = await self.client.receive(orders, EARLY, f"{self.name}/{self._life}", 5)
        except Doubtful:
            self._life += 1
            raise
        self.history.early[orders].update(payload_of(message)["id"] for message in given)
        if given:
            await self.client.acknowledge(orders, EARLY, [each["message_id"] for each in given], None)


class Shop(Actor):
    async def act(self) -> None:
        assert isinstance(self.workload, Consume)
        await self.write(self.workload.orders, f"order-{self.random.randrange(20)}", 0, producer=self.name)


class Packer(Actor):
    patient = False
    """Commits whatever it has begun; the others change their minds."""
    _life = 0

    async def act(self) -> None:
        await self._pack()

    async def pack_everything(self) -> None:
        """Until nothing was given for longer than a consumer may be silent and a transaction open."""
        quiet_s = 0.0
        while quiet_s < 70:
            began = self.workload.world.loop.time()
            try:
                packed = await self._pack()
            except (Refused, Doubtful):
                packed = 1
                await asyncio.sleep(1)
            quiet_s = 0 if packed else quiet_s + self.workload.world.loop.time() - began

    async def _pack(self) -> int:
        workload = self.workload
        assert isinstance(workload, Consume)
        try:
            given = await self.receive(f"{self.name}/{self._life}")
        except Doubtful:
            self._life += 1
            raise
        if not given:
            await asyncio.sleep(1)
            return 0
        txn_id = await self.client.begin(self.random.choice(TIMEOUT_MS))
        if self.random.random() < GUESSING:
            await self._guess(txn_id, given)
        try:
            if self.random.random() < BELIEVING:
                await self._pack_what_is_taken(txn_id, given)
            else:
                works = [self._output(txn_id, message) for message in given]
                works.append(self._acknowledge(txn_id, given))
                await asyncio.gather(*works)
        except (Refused, Doubtful):
            await self.end(txn_id, commit=False)
            await self.give_back(given)
            raise
        fate = self.random.random()
        if self.patient or fate < 0.85:
            await self.end(txn_id, commit=True)
        elif fate < 0.95:
            await self.end(txn_id, commit=False)
        return len(given)

    async def receive(self, consumer: str) -> list[dict[str, Any]]:
        assert isinstance(self.workload, Consume)
        given = await self.client.receive(self.workload.orders, self.workload.subscription, consumer, 5)
        self.history.given.update(payload_of(message)["id"] for message in given)
        return given

    async def give_back(self, given: list[dict[str, Any]]) -> None:
        assert isinstance(self.workload, Consume)
        ids = [each["message_id"] for each in given]
        await self.client.redeliver(self.workload.orders, self.workload.subscription, ids)

    async def take(self, txn_id: str, ids: list[str], patience_s: float = PATIENCE_S) -> None:
        """Acknowledge."""
        assert isinstance(self.workload, Consume)
        await self.client.acknowledge(
            self.workload.orders, self.workload.subscription, ids, txn_id, patience_s=patience_s
        )

    async def _guess(self, txn_id: str, given: list[dict[str, Any]]) -> None:
        assert isinstance(self.workload, Consume)
        ids = [message["message_id"] for message in given]
        try:
            await self.client.acknowledge(self.workload.orders, NEVER_READ, ids, txn_id, patience_s=0)
        except (Refused, Doubtful):
            return
        self.history.given_to_nobody.append(f"{ids} in {txn_id}")

    async def _pack_what_is_taken(self, txn_id: str, given: list[dict[str, Any]]) -> None:
        """Of two halves those whose acknowledgement is not certainly refused."""
        half = len(given) // 2 or 1
        for part in given[:half], given[half:]:
            if part and await self._takes(txn_id, part):
                await asyncio.gather(*(self._output(txn_id, message) for message in part))

    async def _takes(self, txn_id: str, given: list[dict[str, Any]]) -> bool:
        """Whether the acknowledgement is taken, asked once. Raises when nobody can tell."""
        try:
            await self._acknowledge(txn_id, given, patience_s=0)
        except Refused as refused:
            if refused.doubtful:
                raise
            return False
        return True

    async def _output(self, txn_id: str, message: dict[str, Any]) -> None:
        assert isinstance(self.workload, Consume)
        await self.write(self.workload.parcels, payload_of(message)["id"], 0, txn_id=txn_id)

    async def _acknowledge(self, txn_id: str, given: list[dict[str, Any]], patience_s: float = PATIENCE_S) -> None:
        workload = self.workload
        assert isinstance(workload, Consume)
        ids = [message["message_id"] for message in given]
        if workload.kind in ("shared", "key_shared") and self.random.random() < CARELESS:
            try:
                await self.client.acknowledge_cumulative(workload.orders, workload.subscription, ids[-1], txn_id)
            except Refused as refused:
                if refused.code != "INVALID_ARGUMENT":
                    raise
            else:
                ids = ids[:-1]
        await self.take(txn_id, ids, patience_s)
