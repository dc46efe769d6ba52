"""A broker with a listener for Pulsar's clients, in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coordinator.transactions import Transactions
from metatxn.service.exposure import Exposure
from metatxn.wire.pulsar_entries import decode_pulsar
from metatxn_gateways.pulsar.service import PulsarListener
from tests.certificates import Authority
from tests.gateways.conftest import Serving
from tests.gateways.pulsar.client import PulsarClient
from tests.gateways.pulsar.secured import Secured
from tests.gateways.pulsar.v5 import compiled
from tests.participants.broker.process import BrokerProcess
from tests.participants.broker.stories import quoted
from tests.participants.segment.world import World


class PulsarGateway:
    def __init__(self, world: World, exposure: Exposure | None = None) -> None:
        self.world = world
        self.exposure = exposure
        self.transactions = Transactions(world.store, world.now_ms, 7)
        self.port = 0

    async def start(self, process: BrokerProcess) -> PulsarGateway:
        self.process = process
        self.broker = process.broker
        self.http = process.http
        self.create = partial(process.create, format="pulsar")
        self.service = Serving(process.broker)
        self.listener = PulsarListener(self.world.store, service=self.service, port=self.port, exposure=self.exposure)
        await self.listener.start()
        self.port = int(self.listener.url.rpartition(":")[2])
        return self

    async def stop(self) -> None:
        await self.listener.stop()
        await self.process.stop()

    async def crash(self) -> None:
        """The process dies now, and another one goes on with what lies on its device."""
        await self.listener.stop()
        await self.start(await self.process.crash())

    async def split(self, segment: str) -> list[str]:
        answer = await self.http.post(f"/v1/segments/{quoted(segment)}/split", json={})
        assert answer.status_code == 200, answer.text
        children: list[str] = answer.json()["children"]
        return children

    async def merge(self, segments: list[str]) -> list[str]:
        first, second = segments
        answer = await self.http.post(f"/v1/segments/{quoted(first)}/merge", json={"with": second})
        assert answer.status_code == 200, answer.text
        children: list[str] = answer.json()["children"]
        return children

    def client(self, **connect: Any) -> AbstractAsyncContextManager[PulsarClient]:
        return PulsarClient.connected(f"pulsar://127.0.0.1:{self.port}", **connect)

    async def browse(self, name: str) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = (await self.http.get(f"/v1/topics/{name}/messages")).json()["messages"]
        return messages


@asynccontextmanager
async def start_pulsar(directory: Path, exposure: Exposure | None = None) -> AsyncIterator[PulsarGateway]:
    world = World(directory, "local")
    process = await BrokerProcess(world, world.new_device("data")).start()
    gateway = await PulsarGateway(world, exposure).start(process)
    try:
        yield gateway
    finally:
        await gateway.stop()
        await world.close()


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[PulsarGateway]:
    async with start_pulsar(tmp_path) as gateway:
        yield gateway


async def values(client: PulsarClient, count: int) -> list[bytes | None]:
    """The next values that are delivered; at least so many, and the rest of the last batch."""
    found: list[bytes | None] = []
    while len(found) < count:
        _, content = await client.next("message")
        found += [each.value for each in decode_pulsar(content)]
    return found


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def secured(tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Secured:
    monkeypatch.setattr("metatxn.service.security.watched_file.LOOK_EVERY_S", 0.0)
    return Secured(tmp_path, authority)


@pytest.fixture(scope="session")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs for Pulsar's own client, compiled."""
    return compiled(tmp_path_factory.mktemp("classes"))
