"""Goal: a principal gets what its quota says, in the whole cluster, wherever it sends its requests, and no more.

Method: processes that share a store, on a loop with a time of its own (`tests.simulation.loop`), and clients that send
as much as they can or at a rate. What they got in a minute is compared with the quota. Scenarios 160-164.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from random import Random
from typing import Any

import pytest

from metastore.backends.memory import MemoryStore
from metastore.errors import StoreUnavailable
from metastore.txn import paths
from metastore.txn.records.processes import BrokerRecord
from metastore.txn.records.quotas import QuotaRecord, QuotaUseRecord
from metastore.txn.store import INDEXES
from metatxn.service.quotas.division import Use, part_of
from metatxn.service.quotas.peers import hash_of_proof
from metatxn.service.quotas.quotas import Quotas
from metatxn.wire.errors import RateLimited
from tests.extent import usually
from tests.participants.segment.faulty_store import FaultyStore
from tests.simulation.loop import SimulationLoop

ADA = "ada"
MINUTE_S = 60.0
SETTLED_S = 5.0
"""After this time everybody has heard of everybody."""
PUBLISH = ("POST", "/v1/segments/s/entries")
READ = ("GET", "/v1/segments/s/entries")
RECEIVE = ("POST", "/v1/topics/t/subscriptions/s/receive")
COMMIT = ("POST", "/v1/txns/7/commit")


def request(kind: tuple[str, str], length: int | None = None, proof: str | None = None) -> dict[str, Any]:
    headers = [] if length is None else [(b"content-length", str(length).encode())]
    headers += [] if proof is None else [(b"metatxn-peer", proof.encode())]
    return {"method": kind[0], "path": kind[1], "headers": headers}


class Cluster:
    """Processes that let `ADA` use what they may."""

    def __init__(self, loop: SimulationLoop, seed: int) -> None:
        self.loop = loop
        self.random = Random(seed)
        self.store = MemoryStore(INDEXES)
        self.processes: list[Quotas] = []
        self.stores: list[FaultyStore] = []
        self.got: Counter[tuple[int, str]] = Counter()
        """By process and what was used, since `count_from` began."""
        self.refusals: Counter[int] = Counter()
        self.soonest_s = 1e9
        self._exit = AsyncExitStack()
        self._clients: list[asyncio.Task[None]] = []

    async def quota(self, principal: str | None, **amounts: int) -> None:
        key = paths.DEFAULT_QUOTA if principal is None else paths.quota_of_principal(principal)
        await self.store.apply(self.store.batch().put(key, QuotaRecord(**amounts).encode()))

    async def start(self, number: int) -> None:
        for _ in range(number):
            store = FaultyStore(self.store)
            quotas = Quotas(store, clock=self.loop.time)
            await self._exit.enter_async_context(quotas.running())
            self.processes.append(quotas)
            self.stores.append(store)

    def client(
        self, at: int, rate: float | None = None, kind: tuple[str, str] = COMMIT, size: int = 0, name: str = ADA
    ) -> asyncio.Task[None]:
        """Sends `rate` requests in a second, or as many as it can. What it is refused it tries again."""
        task = asyncio.create_task(self._send(at, rate, kind, size, name))
        self._clients.append(task)
        return task

    async def _send(self, at: int, rate: float | None, kind: tuple[str, str], size: int, name: str) -> None:
        while True:
            try:
                charge = self.processes[at].begin(name, request(kind, size if kind == PUBLISH else None))
            except RateLimited as refused:
                self.refusals[at] += 1
                wait_s = refused.retry_after_s or 0.0
                self.soonest_s = min(self.soonest_s, wait_s)
                await asyncio.sleep(wait_s + self.random.uniform(0, 0.2))
                continue
            self.got[at, name] += size or 1
            if charge is not None and kind in (READ, RECEIVE):

                async def dropped(_: Any) -> None: ...

                await charge.counting(dropped)({"type": "http.response.body", "body": bytes(size)})
            await asyncio.sleep(self.random.expovariate(rate) if rate else self.random.uniform(0, 0.002))

    async def settle(self, seconds: float = SETTLED_S) -> None:
        await asyncio.sleep(seconds)
        self.got.clear()
        self.refusals.clear()

    async def rates(self, seconds: float = MINUTE_S) -> list[float]:
        """What each process lets ADA have in a second, from now on for so long."""
        self.got.clear()
        await asyncio.sleep(seconds)
        return [self.got[at, ADA] / seconds for at in range(len(self.processes))]

    async def stop(self) -> None:
        for task in self._clients:
            task.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        await self._exit.aclose()
        await self.store.close()


Story = Callable[[Cluster], Awaitable[None]]


@pytest.fixture
def told() -> Callable[..., None]:
    """Runs a story in a time of its own."""

    def run(story: Story, seed: int = 1) -> None:
        loop = SimulationLoop(Random(seed), 1, lambda: 0.0)

        async def whole() -> None:
            cluster = Cluster(loop, seed)
            try:
                await story(cluster)
            finally:
                await cluster.stop()
            assert cluster.soonest_s >= 1

        try:
            loop.run_until_complete(whole())
        finally:
            loop.close()

    return run


def about(limit: float) -> Any:
    return pytest.approx(limit, rel=0.1)


# -- the parts -------------------------------------------------------------------------------------------------


def test_the_parts_add_up_to_the_quota() -> None:
    """No matter who computes them; nobody's is 0, and who wants less does not cost the others anything."""
    random = Random(1)
    for _ in range(500):
        uses = [
            Use(random.choice([0.0, random.uniform(0, 200)]), random.random() < 0.3)
            for _ in range(random.randint(1, 8))
        ]
        parts = [part_of(100, use, [*uses[:at], *uses[at + 1 :]]) for at, use in enumerate(uses)]
        assert sum(parts) == pytest.approx(100)
        assert min(parts) > 0
        limited = [part for part, use in zip(parts, uses, strict=True) if use.limited]
        assert all(part == pytest.approx(max(parts)) for part in limited) or sum(use.rate for use in uses) < 100


def test_requests_that_wait_get_what_the_quota_says(told: Callable[..., None]) -> None:
    """As those of Kafka's clients do, several at a time, of any size."""

    async def story(cluster: Cluster) -> None:
        await cluster.quota(ADA, bytes_in_per_second=10_000)
        await cluster.start(1)
        passed = 0

        async def publish(size: int) -> None:
            nonlocal passed
            while True:
                await cluster.processes[0].begin_later(ADA, ["bytes_in_per_second"], size)
                passed += size
                await asyncio.sleep(0.001)

        clients = [asyncio.create_task(publish(size)) for size in (1_000, 5_000, 30_000)]
        await asyncio.sleep(SETTLED_S)
        passed = 0
        await asyncio.sleep(3 * MINUTE_S)
        for each in clients:
            each.cancel()
        assert passed / (3 * MINUTE_S) == about(10_000)

    told(story)


# -- the whole cluster -----------------------------------------------------------------------------------------


def test_160_a_principal_gets_its_quota_wherever_it_sends(told: Callable[..., None]) -> None:
    """All of it at one process, or where it wants most; and then somewhere else."""

    async def story(cluster: Cluster) -> None:
        await cluster.quota(ADA, requests_per_second=200)
        await cluster.start(4)
        first = cluster.client(0)
        await cluster.settle()
        assert sum(await cluster.rates()) == about(200)
        for at, rate in ((1, 30.0), (2, 10.0), (3, None)):
            cluster.client(at, rate)
        await cluster.settle()
        rates = await cluster.rates()
        assert sum(rates) == about(200)
        assert rates[1] == about(30) and rates[2] == pytest.approx(10, rel=0.2)
        assert rates[0] == pytest.approx(rates[3], rel=0.15)
        first.cancel()
        await cluster.settle()
        rates = await cluster.rates()
        assert rates[0] == 0 and sum(rates) == about(200)

    told(story)


@pytest.mark.parametrize("seed", range(usually(3, 60)))
def test_160_whoever_sends_how_much_wherever(seed: int, told: Callable[..., None]) -> None:
    async def story(cluster: Cluster) -> None:
        random, limit = Random(seed), 100
        await cluster.quota(ADA, requests_per_second=limit)
        await cluster.start(random.randint(1, 6))
        for _ in range(2):
            wanted = [random.choice([None, random.uniform(1, limit)]) for _ in range(random.randint(1, 5))]
            clients = [cluster.client(random.randrange(len(cluster.processes)), rate) for rate in wanted]
            await cluster.settle()
            in_all = sum(limit if rate is None else rate for rate in wanted)
            got = sum(await cluster.rates())
            assert got <= 1.1 * limit and got >= 0.9 * min(limit, 0.95 * in_all), (seed, wanted)
            for client in clients:
                client.cancel()

    told(story, seed)


def test_161_who_uses_less_than_its_quota_is_not_refused(told: Callable[..., None]) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.quota(ADA, requests_per_second=200)
        await cluster.start(3)
        for at, rate in ((0, 100.0), (1, 40.0), (2, 20.0)):
            cluster.client(at, rate)
        await cluster.settle()
        assert sum(await cluster.rates()) == about(160)
        assert sum(cluster.refusals.values()) <= 3

    told(story)


@pytest.mark.parametrize(
    ("kind", "quota"),
    [(PUBLISH, "bytes_in_per_second"), (READ, "bytes_out_per_second"), (RECEIVE, "bytes_out_per_second")],
)
def test_160_bytes_are_counted_as_they_move(kind: tuple[str, str], quota: str, told: Callable[..., None]) -> None:
    """A request that moves more than a second's worth passes, and the next ones wait for it."""

    async def story(cluster: Cluster) -> None:
        await cluster.quota(ADA, **{quota: 10_000})
        await cluster.start(2)
        cluster.client(0, None, kind, 15_000)
        cluster.client(1, None, kind, 400)
        cluster.client(1, 5.0, COMMIT)
        await cluster.settle(20)
        assert sum(await cluster.rates(2 * MINUTE_S)) - 5 == about(10_000)
        others = {name: 1 for name in ("bytes_in_per_second", "bytes_out_per_second") if name != quota}
        await cluster.quota(ADA, **others)
        await cluster.settle(20)
        assert sum(await cluster.rates(1)) > 100_000  # only what moves messages, and moves them that way

    told(story)


def test_162_a_default_counts_for_each_principal_whose_own_quota_says_nothing(told: Callable[..., None]) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.quota(None, requests_per_second=20)
        await cluster.quota("bob", requests_per_second=50)
        await cluster.quota("eve", requests_per_second=-1)
        await cluster.start(2)
        for at in (0, 1):
            for name in (ADA, "bob", "eve", "joe"):
                cluster.client(at, 200.0, name=name)
        await cluster.settle()
        await cluster.rates()
        rates = {name: (cluster.got[0, name] + cluster.got[1, name]) / MINUTE_S for name in (ADA, "bob", "eve", "joe")}
        assert rates == {ADA: about(20), "bob": about(50), "eve": about(400), "joe": about(20)}

    told(story)


def test_162_a_change_counts_at_once(told: Callable[..., None]) -> None:
    """Also the first quota, and the end of the last one."""

    async def story(cluster: Cluster) -> None:
        await cluster.start(2)
        cluster.client(0)
        cluster.client(1)
        await cluster.settle(1)
        assert sum(await cluster.rates(1)) > 500
        for limit in (100, 40):
            await cluster.quota(ADA, requests_per_second=limit)
            await cluster.settle()
            assert sum(await cluster.rates()) == about(limit)
        await cluster.store.apply(cluster.store.batch().delete(paths.quota_of_principal(ADA)))
        await cluster.settle(2)
        assert sum(await cluster.rates(1)) > 500
        assert await uses(cluster) == []

    told(story)


async def uses(cluster: Cluster) -> list[QuotaUseRecord]:
    """What the processes tell each other, as far as it says anything."""
    await asyncio.sleep(3)
    return [QuotaUseRecord.decode(each.value) for each in (await cluster.store.scan(paths.QUOTA_USES)).records]


def test_163_a_process_that_dies_leaves_its_part_to_the_others(told: Callable[..., None]) -> None:
    """Its record is deleted by another one."""

    async def story(cluster: Cluster) -> None:
        await cluster.quota(ADA, requests_per_second=100)
        await cluster.start(2)
        killed = cluster.client(0)
        cluster.client(1)
        await cluster.settle()
        cluster.stores[0].away = StoreUnavailable("it is dead")
        killed.cancel()
        await cluster.settle(40)
        assert (await cluster.rates())[1] == about(100)
        await cluster.settle(40)
        assert len(await uses(cluster)) == 1

    told(story)


def test_163_without_the_store_everybody_keeps_to_a_fair_part(told: Callable[..., None]) -> None:
    """Nothing waits for it. After half a minute the others take what a process does not tell that it uses; then it has
    a fair part, so there is too much, but not without a bound."""

    async def story(cluster: Cluster) -> None:
        await cluster.quota(ADA, requests_per_second=100)
        await cluster.start(2)
        cluster.client(0)
        cluster.client(1, 10.0)
        await cluster.settle()
        for store in cluster.stores:
            store.away = StoreUnavailable("it is away")
        assert sum(await cluster.rates(20)) == about(100)
        await cluster.settle(40)
        assert sum(await cluster.rates()) <= 115
        for store in cluster.stores:
            store.away = None
        await cluster.settle(20)
        assert sum(await cluster.rates()) == about(100)

    told(story)


def test_164_what_a_broker_asks_another_one_for_a_caller_counts_once(told: Callable[..., None]) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.quota(ADA, requests_per_second=1)
        record = BrokerRecord(url="http://b", peer=hash_of_proof("secret"))
        await cluster.store.apply(cluster.store.batch().put(paths.broker_process("b"), record.encode()))
        await cluster.start(1)
        await cluster.settle()
        (quotas,) = cluster.processes
        assert quotas.begin(ADA, request(COMMIT)) is not None
        for _ in range(5):
            assert quotas.begin(ADA, request(COMMIT, proof="secret")) is None
        with pytest.raises(RateLimited) as refused:
            quotas.begin(ADA, request(COMMIT, proof="guessed"))
        assert refused.value.members == {"quota": "requests_per_second", "limit": 1}
        assert (
            refused.value.detail == "principal ada: the quota of 1 requests per second in the whole cluster is used up"
        )
        await cluster.store.apply(cluster.store.batch().delete(paths.broker_process("b")))
        await asyncio.sleep(0.1)
        with pytest.raises(RateLimited):
            quotas.begin(ADA, request(COMMIT, proof="secret"))

    told(story)


def test_without_use_nothing_is_told(told: Callable[..., None]) -> None:
    """Quotas cost the store nothing while nobody uses what they limit, and little while somebody does."""

    async def story(cluster: Cluster) -> None:
        await cluster.quota(ADA, requests_per_second=100)
        await cluster.start(2)
        await cluster.settle()
        before = await cluster.store.current_revision()
        await asyncio.sleep(MINUTE_S)
        assert await cluster.store.current_revision() == before
        client = cluster.client(0, 50.0)
        await asyncio.sleep(MINUTE_S)
        assert await cluster.store.current_revision() - before <= 70
        client.cancel()
        await asyncio.sleep(MINUTE_S)
        assert await uses(cluster) == []

    told(story)


def test_a_debt_is_not_forgotten_while_its_principal_waits(told: Callable[..., None]) -> None:
    async def story(cluster: Cluster) -> None:
        await cluster.quota(ADA, bytes_in_per_second=10)
        await cluster.start(1)
        await cluster.settle()
        (quotas,) = cluster.processes
        charge = quotas.begin(ADA, request(PUBLISH))
        assert charge is not None
        charge.body(2_000)  # it did not say its length
        await asyncio.sleep(2 * MINUTE_S)
        with pytest.raises(RateLimited) as refused:
            quotas.begin(ADA, request(PUBLISH, 5))
        assert refused.value.retry_after_s == pytest.approx(80, abs=2)
        assert quotas.begin(ADA, request(COMMIT, 5)) is not None
        await asyncio.sleep(refused.value.retry_after_s or 0)
        assert quotas.begin(ADA, request(PUBLISH, 5)) is not None

    told(story)
