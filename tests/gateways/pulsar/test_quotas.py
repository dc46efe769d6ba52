"""Goal: Pulsar's clients are held to the quotas of their principals, and the listener tells what it does.

Method: a small client of the protocol over loopback, and a clock that moves when the test says so. How much passes in a
minute is told in `tests/service/test_quotas.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from metastore.txn import paths
from metastore.txn.records.quotas import QuotaRecord
from metatxn.service.quotas.quotas import Quotas
from metatxn_gateways.pulsar.service import PulsarListener
from tests.gateways.conftest import Serving
from tests.gateways.pulsar.client import PATIENCE_S, PulsarClient, entry
from tests.gateways.pulsar.conftest import PulsarGateway
from tests.gateways.pulsar.test_consuming import entries, produced

LIMIT = 1_000_000
LARGE = bytes(600_000)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0)


class LimitedPulsar:
    """A listener, and what has waited."""

    def __init__(self, gateway: PulsarGateway) -> None:
        self.now_s = 0.0
        self.waited: list[str] = []
        service = Serving(gateway.broker)
        self.quotas = service.quotas = Quotas(gateway.world.store, clock=lambda: self.now_s, refused=self.waited.append)
        self.listener = PulsarListener(gateway.world.store, service=service, port=0, exposure=gateway.exposure)
        self._store = gateway.world.store

    async def limit(self, **amounts: int) -> None:
        record = QuotaRecord(**amounts).encode()
        await self._store.apply(self._store.batch().put(paths.DEFAULT_QUOTA, record))
        await until(lambda: self.quotas.active)


@pytest.fixture
async def limited(gateway: PulsarGateway) -> AsyncIterator[LimitedPulsar]:
    await gateway.listener.stop()
    made = LimitedPulsar(gateway)
    async with made.quotas.running():
        await made.listener.start()
        try:
            yield made
        finally:
            await made.listener.stop()
            await gateway.listener.start()


async def test_commands_wait_in_their_order_until_the_quota_lets_them_pass(
    gateway: PulsarGateway, limited: LimitedPulsar
) -> None:
    (segment,) = await gateway.create("t")
    async with PulsarClient.connected(limited.listener.url) as client:
        await client.producer(segment)
        await limited.limit(bytes_in_per_second=LIMIT)
        for number, value in enumerate((LARGE, LARGE, b"small")):
            client.produce(entry(value), number)
        (first,) = await client.receipts(1)
        await until(lambda: bool(limited.waited))
        client.send("ping")
        await client.next("pong")
        assert limited.waited == ["bytes_in_per_second"] and client.waiting("send_receipt") == 0
        for number in range(3, 6):
            client.produce(entry(LARGE), number)
        while client.waiting("send_receipt") < 5:
            limited.now_s += 1
            await asyncio.sleep(0.01)
        places = [first, *await client.receipts(5)]
        assert places == sorted(places)
        limited.now_s += 10
        client.raw(b"\0\0\0\1\0")
        await client.until_closed()


async def test_what_is_delivered_counts_and_waits(gateway: PulsarGateway, limited: LimitedPulsar) -> None:
    (segment,) = await gateway.create("t")
    async with PulsarClient.connected(limited.listener.url) as client:
        await produced(client, segment, *(entry(LARGE) for _ in range(4)))
        await limited.limit(bytes_out_per_second=LIMIT)
        await client.subscribe(segment)
        await client.messages(2)
        await until(lambda: bool(limited.waited))
        assert limited.waited == ["bytes_out_per_second"] and client.waiting("message") == 0
        while client.waiting("message") < 2:
            limited.now_s += 1
            await asyncio.sleep(0.01)
        await client.reader(segment, 2)
        while client.waiting("message") < 6:
            limited.now_s += 1
            await asyncio.sleep(0.01)


async def test_commands_connections_producers_and_consumers_are_counted(gateway: PulsarGateway) -> None:
    registry = gateway.broker.metrics.registry

    def count(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"metatxn_pulsar_{name}", labels)

    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        places = await produced(client, segment, *entries(0, 1))
        await client.subscribe(segment)
        await client.messages(2)
        await client.reader(segment, 2)
        await client.ack(places[0])
        assert count("command_seconds_count", command="send") == 2
        assert count("command_seconds_count", command="ack") == 1
        assert count("command_seconds_count", command="seek") is None
        assert (count("connections"), count("producers"), count("consumers")) == (1, 1, 2)
        await client.ask("close_consumer", consumer_id=2)
        await client.ask("close_producer", producer_id=1_000)
        assert (count("producers"), count("consumers")) == (0, 1)
        client.raw(b"")
        await client.until_closed()
    await until(lambda: count("connections") == 0)
    assert (count("producers"), count("consumers")) == (0, 0)
    assert count("connections_closed_total", reason="malformed") == 1
    await gateway.listener.stop()
    assert count("connections") is None
    await gateway.listener.start()
