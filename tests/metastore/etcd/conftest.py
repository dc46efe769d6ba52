"""Servers and stores of tests that know they talk to etcd."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from metastore.backends.etcd import EtcdStore
from tests.servers import EtcdServer

OpenStore = Callable[..., Awaitable[EtcdStore]]


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[EtcdServer]:
    """A server that the test may kill, freeze and compact."""
    with EtcdServer(tmp_path / "etcd") as server:
        yield server


@pytest.fixture
async def open_store() -> AsyncIterator[OpenStore]:
    """Opens stores of a server, under a fresh root; they are closed behind the test."""
    async with AsyncExitStack() as stack:

        async def open_one(server: EtcdServer, root: str | None = None, **options: Any) -> EtcdStore:
            fresh = f"/{secrets.token_hex(6)}" if root is None else root
            store = await EtcdStore.open([server.endpoint], fresh, **options)
            stack.push_async_callback(store.close)
            return store

        yield open_one


@pytest.fixture
async def sizes() -> list[int]:
    """Give its `append` to a store as `on_group`."""
    return []
