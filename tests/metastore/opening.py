"""Fresh places in the servers of the tests, and stores that are closed behind a test."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import pytest

from metastore.backends.etcd import EtcdStore
from metastore.backends.options import EtcdOptions, ZooKeeperOptions
from metastore.backends.zookeeper import ZooKeeperStore
from metastore.errors import StoreUnavailable
from metastore.types import IndexDefinition
from tests.servers import START_TIMEOUT_S, EtcdServer, ZooKeeperServer

S = TypeVar("S", EtcdStore, ZooKeeperStore)

SCHEMES = {"etcd": "etcd", "zookeeper": "zk"}


def fresh_url(request: pytest.FixtureRequest, kind: str) -> str:
    """The URL of an empty store of the kind `sqlite`, `etcd` or `zookeeper`."""
    if kind == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path')}/x.db"
    server: EtcdServer | ZooKeeperServer = request.getfixturevalue(f"{kind}_server")
    return f"{SCHEMES[kind]}://{server.endpoint}/{secrets.token_hex(6)}"


@asynccontextmanager
async def opener(
    open_store: Callable[..., Awaitable[S]], options_of: Callable[..., EtcdOptions | ZooKeeperOptions]
) -> AsyncIterator[Callable[..., Awaitable[S]]]:
    """A function that opens stores of a server, each under a fresh root unless it is given one."""
    async with AsyncExitStack() as stack:

        async def open_one(
            server: EtcdServer | ZooKeeperServer,
            root: str | None = None,
            indexes: Iterable[IndexDefinition] = (),
            **options: Any,
        ) -> S:
            fresh = f"/{secrets.token_hex(6)}" if root is None else root
            give_up = time.monotonic() + START_TIMEOUT_S
            while True:
                try:
                    store = await open_store([server.endpoint], fresh, indexes, options_of(**options))
                except StoreUnavailable:  # a deadline that is short for the test's sake, on a machine that is slow
                    assert time.monotonic() < give_up, f"{server.endpoint} does not answer"
                    continue
                stack.push_async_callback(store.close)
                return store

        yield open_one
