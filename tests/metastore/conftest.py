"""Every test that asks for `store` or `backend` runs once per entry of `FACTORIES`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from metastore.api import MetadataStore
from tests.metastore.factories import FACTORIES, Backend
from tests.servers import ZooKeeperServer, pyspark_zookeeper


@pytest.fixture(scope="session")
def zookeeper_pyspark_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """As `zookeeper_server`, in the version that travels with pyspark."""
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
