"""A broker with a listener for Kafka's clients, in this process; the clients run in threads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvloop
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from coordinator.transactions import Transactions
from metatxn.service.exposure import Exposure
from metatxn.service.quotas.quotas import Quotas
from metatxn_gateways.kafka.service import KafkaListener
from participants.broker.broker import Broker
from tests.participants.broker.process import BrokerProcess
from tests.participants.segment.world import World

PATIENCE_S = 20
"""A client that waits longer has failed."""
Record = tuple[int, bytes | None, bytes | None]
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


@dataclass
class Serving:
    """What the listener needs of a broker's service."""

    broker: Broker
    url: str = "http://127.0.0.1:1"

    def __post_init__(self) -> None:
        self.quotas = Quotas(self.broker.store)


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, LoopFactory]:
    """The loop of the services. What is due at the same time it does in another order than asyncio's, on which two
    batches of a connection have changed places unseen."""
    return {"uvloop": uvloop.new_event_loop}


class Clients:
    """confluent-kafka, for what listens at `servers`."""

    @property
    def servers(self) -> str:
        raise NotImplementedError

    def producer(self, **options: Any) -> Producer:
        return Producer({"bootstrap.servers": self.servers, "linger.ms": 0, **options})

    def consumer(self, group: str, **options: Any) -> Consumer:
        """A member of a group."""
        settings = {
            "bootstrap.servers": self.servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "heartbeat.interval.ms": 100,
            "session.timeout.ms": 6_000,
            "fetch.wait.max.ms": 10,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
        }
        return Consumer({**settings, **options})

    def read(self, topic: str, isolation: str, offset: int = 0, partition: int = 0) -> tuple[list[Record], int]:
        """Everything from an offset on, and where the client's position is at the end."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "none",
                "isolation.level": isolation,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "check.crcs": True,
                "fetch.wait.max.ms": 10,
            }
        )
        place = TopicPartition(topic, partition, offset)
        consumer.assign([place])
        found: list[Record] = []
        try:
            while True:
                message = consumer.poll(PATIENCE_S)
                assert message is not None, "nothing came"
                if message.error() is not None:
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                    return found, message.offset()
                found.append((message.offset(), message.key(), message.value()))
        finally:
            consumer.close()


class Gateway(Clients):
    def __init__(self, world: World, exposure: Exposure | None = None) -> None:
        self.world = world
        self.transactions = Transactions(world.store, world.now_ms, 7)
        self.port = 0
        self.exposure = exposure

    async def start(self, process: BrokerProcess) -> Gateway:
        self.process = process
        self.broker = process.broker
        self.http = process.http
        self.create = partial(process.create, format="kafka")
        await self.broker.announcement.start()
        service = Serving(process.broker)
        self.listener = KafkaListener(self.world.store, service=service, port=self.port, exposure=self.exposure)
        await self.listener.start()
        self.port = int(self.listener.url.rpartition(":")[2])
        return self

    @property
    def servers(self) -> str:
        return self.listener.url

    async def stop(self) -> None:
        await self.listener.stop()
        await self.broker.announcement.stop()
        await self.process.stop()

    async def crash(self) -> None:
        """The process dies now, and another one goes on with what lies on its device."""
        await self.listener.stop()
        await self.start(await self.process.crash())

    async def browse(self, name: str) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = (await self.http.get(f"/v1/topics/{name}/messages")).json()["messages"]
        return messages


def send(producer: Producer, topic: str, *values: str, **options: Any) -> list[int]:
    """Answers the offsets."""
    offsets: list[int] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    for value in values:
        producer.produce(topic, value, partition=0, on_delivery=delivered, **options)
    assert producer.flush(PATIENCE_S) == 0
    return offsets


@asynccontextmanager
async def start_gateway(directory: Path, exposure: Exposure | None = None) -> AsyncIterator[Gateway]:
    world = World(directory, "local")
    gateway = Gateway(world, exposure)
    await gateway.start(await BrokerProcess(world, world.new_device("data")).start())
    try:
        yield gateway
    finally:
        await gateway.stop()
        await world.close()


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    async with start_gateway(tmp_path) as gateway:
        yield gateway
