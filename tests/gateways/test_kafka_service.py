"""Goal: the command line opens the listener where it is asked to, announces what clients are told, and says what is
wrong with its options.

Method: what the commands call, with a broker in this process.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from metastore.check import StoreCheck
from metastore.keys import unescape
from metastore.txn import paths
from metastore.txn.records.processes import BrokerRecord
from metatxn.cli.gateways import GatewayOptions
from metatxn.cli.options import CliError
from metatxn.cli.serve import gateways_started
from metatxn.service.exposure import Exposure
from metatxn_gateways.kafka.requests import OFFERED, KafkaRequest
from tests.gateways.asking import Asking
from tests.gateways.conftest import PATIENCE_S, Gateway, Serving

NAMES = ("port", "advertise", "max_connections", "max_partitions")


async def announced(gateway: Gateway) -> list[str | None]:
    """The Kafka addresses of all brokers."""
    found = await gateway.world.store.inner.scan(paths.BROKERS)
    assert [unescape(each.key.removeprefix(paths.BROKERS)) for each in found.records] == [gateway.broker.id]
    return [BrokerRecord.decode(each.value).kafka for each in found.records]


@pytest.fixture
def started(gateway: Gateway) -> Any:
    """What the commands do with these options."""

    async def started(stack: AsyncExitStack, *options: Any) -> dict[str, str]:
        service: Any = Serving(gateway.broker)
        given = GatewayOptions(**{f"kafka_{name}": each for name, each in zip(NAMES, options, strict=False)})
        return await gateways_started(stack, gateway.world.store, service, "127.0.0.1", given, Exposure())

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
    ("options", "says"),
    [
        ((None, "a:1"), "--kafka-advertise needs --kafka-port"),
        ((None, None, 5), "--kafka-max-connections needs --kafka-port"),
        ((None, None, None, 5), "--kafka-max-partitions needs --kafka-port"),
        ((0, "a"), "'a' is not HOST:PORT"),
        ((-1, None), "port"),
    ],
)
async def test_wrong_options_are_named(started: Any, options: tuple[Any, ...], says: str) -> None:
    async with AsyncExitStack() as stack:
        with pytest.raises(CliError, match=says):
            await started(stack, *options)


async def test_connections_beyond_the_most_are_closed_and_counted(gateway: Gateway, started: Any) -> None:
    await gateway.listener.stop()
    async with AsyncExitStack() as stack:
        where = (await started(stack, 0, None, 2))["kafka"].split(":")
        kept = [await asyncio.open_connection(*where) for _ in range(2)]
        await answered(*kept[0])
        await answered(*kept[1])
        reader, refused = await asyncio.open_connection(*where)
        assert await reader.read() == b""
        labels = {"reason": "too_many"}
        registry = gateway.broker.metrics.registry
        assert registry.get_sample_value("metatxn_kafka_connections_closed_total", labels) == 1
        await answered(*kept[1])
        kept[0][1].close()
        await kept[0][1].wait_closed()
        while registry.get_sample_value("metatxn_kafka_connections") == 2:
            await asyncio.sleep(0)
        again = await asyncio.open_connection(*where)
        await answered(*again)
        for _, writer in (*kept, again):
            writer.close()
        refused.close()


async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write((10).to_bytes(4) + b"\0\x12\0\0\0\0\0\1\xff\xff")
    size = int.from_bytes(await reader.readexactly(4))
    assert (await reader.readexactly(size))[:4] == b"\0\0\0\1"


async def test_a_topic_has_as_many_partitions_as_the_option_says(
    gateway: Gateway, started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that one apply cannot create are added."""
    monkeypatch.setattr("metatxn_gateways.kafka.topic_calls.MAX_SEGMENTS", 3)
    await gateway.listener.stop()

    def work(servers: str) -> None:
        admin = AdminClient({"bootstrap.servers": servers})

        def partitions(topic: str) -> int:
            return len(admin.list_topics(topic, PATIENCE_S).topics[topic].partitions)

        for count in (3, 8):
            config = {"cleanup.policy": "compact"}
            admin.create_topics([NewTopic(f"t{count}", count, 1, config=config)])[f"t{count}"].result(PATIENCE_S)
            assert partitions(f"t{count}") == count
        with pytest.raises(KafkaException, match="INVALID_PARTITIONS"):
            admin.create_topics([NewTopic("t9", 9, 1)])["t9"].result(PATIENCE_S)
        admin.create_partitions([NewPartitions("t3", 8)])["t3"].result(PATIENCE_S)
        assert partitions("t3") == 8
        for count in (8, 9):
            with pytest.raises(KafkaException, match="INVALID_PARTITIONS"):
                admin.create_partitions([NewPartitions("t3", count)])["t3"].result(PATIENCE_S)

    async with AsyncExitStack() as stack:
        await asyncio.to_thread(work, (await started(stack, 0, None, None, 8))["kafka"])
    assert not [finding async for finding in StoreCheck(gateway.world.store).findings()]


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
