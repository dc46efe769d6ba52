"""Servers and stores of tests that know they talk to ZooKeeper."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from metastore.backends.zookeeper import ZooKeeperStore
from tests.servers import ZooKeeperServer

OpenStore = Callable[..., Awaitable[ZooKeeperStore]]


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """A server that the test may kill and freeze. Its ticks are short, and so may sessions be."""
    with ZooKeeperServer(tmp_path / "zookeeper") as server:
        yield server


@pytest.fixture
async def open_store() -> AsyncIterator[OpenStore]:
    """Opens stores of a server, under a fresh root; they are closed behind the test."""
    async with AsyncExitStack() as stack:

        async def open_one(server: ZooKeeperServer, root: str | None = None, **options: Any) -> ZooKeeperStore:
            fresh = f"/{secrets.token_hex(6)}" if root is None else root
            store = await ZooKeeperStore.open([server.endpoint], fresh, **options)
            stack.push_async_callback(store.close)
            return store

        yield open_one


@pytest.fixture
async def sizes() -> list[int]:
    """Give its `append` to a store as `on_group`."""
    return []
