"""Goal: the command line opens the listener where it is asked to, announces what clients are told, and says what is
wrong with its options.

Method: what the commands call, with a broker in this process.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any
from urllib.parse import urlsplit

import pytest

from metastore.txn import paths
from metastore.txn.records.processes import BrokerRecord
from metatxn.cli.gateways import GatewayOptions
from metatxn.cli.options import CliError
from metatxn.cli.serve import gateways_started
from metatxn.service.exposure import Exposure
from tests.gateways.conftest import Serving
from tests.gateways.pulsar.conftest import PulsarGateway

NAMES = ("port", "advertise", "max_connections")


async def announced(gateway: PulsarGateway) -> list[str | None]:
    """The URLs of all brokers."""
    found = await gateway.world.store.inner.scan(paths.BROKERS)
    return [BrokerRecord.decode(each.value).pulsar for each in found.records]


@pytest.fixture
async def started(gateway: PulsarGateway) -> Any:
    """What the commands do with these options."""
    await gateway.broker.announcement.start()

    async def started(stack: AsyncExitStack, *options: Any) -> dict[str, str]:
        service: Any = Serving(gateway.broker)
        given = GatewayOptions(**{f"pulsar_{name}": each for name, each in zip(NAMES, options, strict=False)})
        return await gateways_started(stack, gateway.world.store, service, "127.0.0.1", given, Exposure())

    return started


async def test_the_url_is_announced_while_the_listener_listens(gateway: PulsarGateway, started: Any) -> None:
    await gateway.listener.stop()
    async with AsyncExitStack() as stack:
        said = await started(stack, 0)
        assert [said["pulsar"]] == await announced(gateway)
    assert await announced(gateway) == [None]
    async with AsyncExitStack() as stack:
        url = "pulsar://pulsar.example:16650"
        assert await started(stack, 0, "pulsar.example:16650") == {"pulsar": url}
        assert await announced(gateway) == [url]
    async with AsyncExitStack() as stack:
        assert await started(stack, None) == {}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((None, "a:1"), "--pulsar-advertise needs --pulsar-port"),
        ((None, None, 5), "--pulsar-max-connections needs --pulsar-port"),
        ((0, "a"), "'a' is not HOST:PORT"),
        ((-1, None), "port"),
    ],
)
async def test_wrong_options_are_named(started: Any, options: tuple[Any, ...], says: str) -> None:
    async with AsyncExitStack() as stack:
        with pytest.raises(CliError, match=says):
            await started(stack, *options)


async def test_connections_beyond_the_most_are_closed_and_counted(gateway: PulsarGateway, started: Any) -> None:
    await gateway.listener.stop()
    async with AsyncExitStack() as stack:
        where = urlsplit((await started(stack, 0, None, 1))["pulsar"])
        _, kept = await asyncio.open_connection(where.hostname, where.port)
        registry = gateway.broker.metrics.registry
        while registry.get_sample_value("metatxn_pulsar_connections") != 1:
            await asyncio.sleep(0)
        reader, refused = await asyncio.open_connection(where.hostname, where.port)
        assert await reader.read() == b""
        labels = {"reason": "too_many"}
        assert registry.get_sample_value("metatxn_pulsar_connections_closed_total", labels) == 1
        for writer in (kept, refused):
            writer.close()
