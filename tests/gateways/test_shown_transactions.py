"""Goal: the metrics of a process tell of the transactions that clients of other systems begin and end in it.

Method: a listener in the process of a broker that commits what comes with entries, and one transaction each way.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from coordinator.local import local_commits
from metatxn_gateways.kafka.codes import KafkaCode
from tests.gateways.asking import Asking, Holder
from tests.gateways.conftest import Gateway
from tests.gateways.pulsar.conftest import PulsarGateway
from tests.participants.broker.process import BrokerProcess
from tests.participants.segment.world import World

EACH_ENDED = [("committed", 1), ("aborted", 1)]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path, "local")
    yield world
    await world.close()


@pytest.fixture
async def process(world: World) -> BrokerProcess:
    return await BrokerProcess(world, world.new_device("data")).start()


@pytest.fixture
def registry(process: BrokerProcess, world: World) -> CollectorRegistry:
    registry = CollectorRegistry()
    process.broker.committer = local_commits(world.store, world.now_ms, registry)
    return registry


def ended(registry: CollectorRegistry) -> list[tuple[str, float | None]]:
    name = "metatxn_transactions_ended_total"
    return [(result, registry.get_sample_value(name, {"result": result})) for result, _ in EACH_ENDED]


async def test_of_those_of_kafka(process: BrokerProcess, registry: CollectorRegistry, world: World) -> None:
    gateway = await Gateway(world).start(process)
    await gateway.create("t")
    ask, holder = Asking.of(gateway), Holder("x")
    assert await ask.init(holder) == KafkaCode.NONE
    for sequence, committed in enumerate((True, False)):
        assert await ask.add_partitions(holder, ("t", 0)) == KafkaCode.NONE
        assert (await ask.produce("t", 0, b"a", holder=holder, sequence=sequence))[0] == KafkaCode.NONE
        assert await ask.end(holder, commit=committed) == KafkaCode.NONE
    await gateway.stop()
    assert registry.get_sample_value("metatxn_transactions_created_total") == 2
    assert ended(registry) == EACH_ENDED


async def test_of_those_of_pulsar(process: BrokerProcess, registry: CollectorRegistry, world: World) -> None:
    gateway = await PulsarGateway(world).start(process)
    async with gateway.client() as client:
        await client.end(await client.begin(), commit=True)
        await client.end(await client.begin(), commit=False)
    await gateway.stop()
    assert registry.get_sample_value("metatxn_transactions_created_total") == 2
    assert ended(registry) == EACH_ENDED


async def test_a_broker_that_commits_nothing_serves_them_as_well(process: BrokerProcess, world: World) -> None:
    gateway = await PulsarGateway(world).start(process)
    assert process.broker.committer is None
    async with gateway.client() as client:
        await client.end(await client.begin(), commit=True)
    await gateway.stop()
