"""Goal: the command line opens the listener where it is asked to, announces what clients are told, and says what is
wrong with its options.

Method: what the commands call, with a broker in this process.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from metastore.keys import unescape
from metastore.txn import paths
from metastore.txn.records.processes import BrokerRecord
from metatxn.cli.options import CliError
from metatxn.cli.serve import kafka_started
from metatxn.service.exposure import Exposure
from metatxn_gateways.kafka.requests import OFFERED, KafkaRequest
from tests.gateways.asking import Asking
from tests.gateways.conftest import Gateway, Serving


async def announced(gateway: Gateway) -> list[str | None]:
    """The Kafka addresses of all brokers."""
    found = await gateway.world.store.inner.scan(paths.BROKERS)
    assert [unescape(each.key.removeprefix(paths.BROKERS)) for each in found.records] == [gateway.broker.id]
    return [BrokerRecord.decode(each.value).kafka for each in found.records]


@pytest.fixture
def started(gateway: Gateway) -> Any:
    """What the commands do with these options."""

    async def started(stack: AsyncExitStack, port: int | None, advertise: str | None = None) -> dict[str, str]:
        service: Any = Serving(gateway.broker)
        where = (port, advertise)
        return await kafka_started(stack, gateway.world.store, service, "127.0.0.1", where, Exposure())

    return started


async def test_the_address_is_announced_while_the_listener_listens(gateway: Gateway, started: Any) -> None:
    await gateway.listener.stop()
    async with AsyncExitStack() as stack:
        said = await started(stack, 0)
        assert [said["kafka"]] == await announced(gateway)
    assert await announced(gateway) == [None]
    async with AsyncExitStack() as stack:
        assert await started(stack, 0, "kafka.example:19092") == {"kafka": "kafka.example:19092"}
        assert await announced(gateway) == ["kafka.example:19092"]
    async with AsyncExitStack() as stack:
        assert await started(stack, None) == {}


@pytest.mark.parametrize(
    ("port", "advertise", "says"),
    [(None, "a:1", "--kafka-advertise needs --kafka-port"), (0, "a", "'a' is not HOST:PORT"), (-1, None, "port")],
)
async def test_wrong_options_are_named(started: Any, port: int | None, advertise: str | None, says: str) -> None:
    async with AsyncExitStack() as stack:
        with pytest.raises(CliError, match=says):
            await started(stack, port, advertise)


async def test_a_port_in_use_is_named(gateway: Gateway, started: Any) -> None:
    async with AsyncExitStack() as stack:
        with pytest.raises(CliError, match=f"port {gateway.port} is in use"):
            await started(stack, gateway.port)
        assert await announced(gateway) == [gateway.listener.address], "the first one goes on"


async def test_requests_connections_and_groups_are_counted(gateway: Gateway) -> None:
    registry = gateway.broker.metrics.registry
    ask = Asking.of(gateway)
    await gateway.create("t")
    assert await ask.produce("t", 0, b"a") == (0, 0)
    assert not (await ask.join("g", instance="i")).error_code
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    reader, malformed = await asyncio.open_connection("127.0.0.1", gateway.port)
    malformed.write(b"\xff\xff\xff\xff")
    assert await reader.read() == b""

    def count(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(f"metatxn_kafka_{name}", labels)

    assert count("request_seconds_count", request="Produce") == 1
    assert count("request_seconds_count", request="JoinGroup") == 1
    assert count("request_seconds_count", request="Fetch") is None
    assert count("connections_closed_total", reason="malformed") == 1
    assert (count("connections"), count("groups")) == (1, 1)
    for each in (writer, malformed):
        each.close()
    await gateway.listener.stop()
    assert count("connections") is None


def test_requests_have_the_names_that_kafka_gives_them() -> None:
    assert {each.label for each in KafkaRequest} >= {
        "Fetch",
        "InitProducerId",
        "AddPartitionsToTxn",
        "OffsetForLeaderEpoch",
    }
    assert OFFERED.keys() == set(KafkaRequest)
