"""Goal: Kafka's clients are held to the quotas of their principals: a request waits until it may pass.

Method: requests on one connection, whose order is what counts, and a clock that moves when the test says so. How much
passes in a minute is told in `tests/service/test_quotas.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from metastore.txn import paths
from metastore.txn.records.quotas import QuotaRecord
from metatxn.service.quotas.quotas import Quotas
from metatxn_gateways.kafka.service import KafkaListener
from tests.gateways.asking import Asking, framed, read_answer
from tests.gateways.conftest import Gateway, Serving

LIMIT = 1_000_000
"""So that what is waited for is there soon."""
LARGE = bytes(600_000)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0)


class Limited:
    """A listener, and the requests that have waited."""

    def __init__(self, gateway: Gateway) -> None:
        self.now_s = 0.0
        self.waited: list[str] = []
        service = Serving(gateway.broker)
        self.quotas = service.quotas = Quotas(gateway.world.store, clock=lambda: self.now_s, refused=self.waited.append)
        self.listener = KafkaListener(gateway.world.store, service=service, port=0)
        self._store = gateway.world.store

    async def limit(self, **amounts: int) -> None:
        record = QuotaRecord(**amounts).encode()
        await self._store.apply(self._store.batch().put(paths.DEFAULT_QUOTA, record))
        await until(lambda: self.quotas.active)

    def connection(self) -> Asking:
        handle: Callable[[memoryview], Any] = self.listener._connect()

        async def ask(api_key: int, version: int, entity: Any) -> Any:
            parts = await handle(framed(api_key, version, entity))
            return read_answer(api_key, version, b"".join(parts))

        return Asking(ask)


@pytest.fixture
async def limited(gateway: Gateway) -> AsyncIterator[Limited]:
    await gateway.listener.stop()
    made = Limited(gateway)
    async with made.quotas.running():
        await made.listener.start()
        yield made
        await made.listener.stop()


async def test_produces_wait_in_their_order_and_nothing_else_does(gateway: Gateway, limited: Limited) -> None:
    await gateway.create("t")
    await limited.limit(bytes_in_per_second=LIMIT)
    client = limited.connection()
    assert await client.produce("t", 0, LARGE) == (0, 0)
    held = [asyncio.ensure_future(client.produce("t", 0, LARGE, value)) for value in (b"a", b"b")]
    await until(lambda: bool(limited.waited))
    assert await client.heartbeat("g", 1, "m") != 0, "answered, by one that knows no such group"
    assert (await limited.connection().fetch("t", 0, 0))[1] == [(0, LARGE)]
    assert not any(each.done() for each in held)
    limited.now_s += 0.5
    assert await held[0] == (0, 1)
    assert not held[1].done()
    limited.now_s += 0.5
    assert await held[1] == (0, 3)
    assert limited.waited == ["bytes_in_per_second"] * 2, "one refusal of each that has waited"


async def test_nothing_overtakes_what_waits_when_the_quota_ends(gateway: Gateway, limited: Limited) -> None:
    await gateway.create("t")
    await limited.limit(bytes_in_per_second=LIMIT)
    client = limited.connection()
    assert await client.produce("t", 0, LARGE) == (0, 0)
    held = [asyncio.ensure_future(client.produce("t", 0, LARGE, value)) for value in (b"a", b"b")]
    await until(lambda: bool(limited.waited))
    store = gateway.world.store
    await store.apply(store.batch().delete(paths.DEFAULT_QUOTA))
    await until(lambda: not limited.quotas.active)
    assert await client.produce("t", 0, b"c") == (0, 5)
    assert [await each for each in held] == [(0, 1), (0, 3)]


@pytest.mark.timeout(30)
async def test_what_was_fetched_is_waited_for_afterwards(gateway: Gateway, limited: Limited) -> None:
    await gateway.create("t")
    await limited.limit(bytes_out_per_second=LIMIT)
    client = limited.connection()
    assert await client.produce("t", 0, LARGE) == (0, 0)
    assert (await client.fetch("t", 0, 0))[0] == 0
    late = asyncio.ensure_future(client.fetch("t", 0, 1))
    await until(lambda: limited.waited == ["bytes_out_per_second"])
    assert await limited.connection().produce("t", 0, b"x") == (0, 1)
    assert not late.done()
    limited.now_s += 1
    assert (await late)[0] == 0


@pytest.mark.timeout(30)
async def test_every_request_but_signs_of_life_counts(gateway: Gateway, limited: Limited) -> None:
    await gateway.create("t")
    await limited.limit(requests_per_second=4)
    client = limited.connection()
    assert (await client.fetch("t", 0, 0))[0] == 0
    late = asyncio.ensure_future(client.fetch_offset("g", "t", 0))
    await until(lambda: limited.waited == ["requests_per_second"])
    assert await client.heartbeat("g", 1, "m") != 0
    assert not late.done()
    limited.now_s += 1
    assert (await late)[0] == 0
