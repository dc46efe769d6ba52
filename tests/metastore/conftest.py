"""Every test that asks for `store` or `backend` runs once per entry of `FACTORIES`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from metastore.api import MetadataStore
from tests.metastore.factories import FACTORIES, Backend
from tests.servers import EtcdServer, ZooKeeperServer, pyspark_zookeeper


@pytest.fixture(scope="session")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """For tests that leave the server alone; each works under a root of its own."""
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """For tests that leave the server alone; each works under a root of its own."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper_pyspark_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """The same, in the version that travels with pyspark."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"), class_path=pyspark_zookeeper()) as server:
        yield server


@pytest.fixture(params=sorted(FACTORIES))
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    async with FACTORIES[request.param].start(request) as backend:
        yield backend


@pytest.fixture
async def store(backend: Backend) -> MetadataStore:
    return await backend.open()


@pytest.fixture
def sizes() -> list[int]:
    """The sizes of groups. Give its `append` to a store as `on_group`."""
    return []
