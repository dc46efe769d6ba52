"""Servers and stores of tests that know they talk to ZooKeeper."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from metastore.backends.options import ZooKeeperOptions
from metastore.backends.zookeeper import ZooKeeperStore
from tests.metastore.opening import opener
from tests.servers import ZooKeeperServer

OpenStore = Callable[..., Awaitable[ZooKeeperStore]]


async def children(store: ZooKeeperStore, path: str) -> list[str]:
    return await store._connection.children(path, store._deadline())


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """A server that the test may kill and freeze. Its ticks are short, and so may sessions be."""
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        yield server


@pytest.fixture
async def open_store() -> AsyncIterator[OpenStore]:
    """Opens stores of a server, under a fresh root; they are closed behind the test."""
    async with opener(ZooKeeperStore.open, ZooKeeperOptions) as open_one:
        yield open_one
