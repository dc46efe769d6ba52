"""The one table of backends. A new backend is one more line in `FACTORIES`; no test ever names one.

A backend also appears with one ability taken away, so that what emulates it runs everywhere. What a line declares
(`keeps_entries`, `keeps_every_change`) decides which tests of that ability are its own; none is skipped.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest

from metastore.api import MetadataStore
from metastore.backends.etcd import EtcdStore
from metastore.backends.memory import MemoryStore
from metastore.backends.sqlite import SqliteStore
from metastore.backends.zookeeper import ZooKeeperStore
from metastore.types import IndexDefinition
from tests.extent import usually
from tests.servers import EtcdServer, ZooKeeperServer


class Backend(Protocol):
    """One state, and clients of it."""

    async def open(self) -> MetadataStore:
        """A client on this state; embedded backends give the same object every time. Closed with the backend."""
        ...

    async def compact(self) -> None:
        """Make the backend forget the history up to now, as its maintenance would sooner or later."""
        ...


@dataclass(frozen=True)
class Factory:
    """Makes a `Backend` with an empty state, for as long as the context lasts."""

    start: Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[Backend]]
    keeps_entries: bool = True
    """Index entries are records below `/idx/`."""
    keeps_every_change: bool = True
    """A watch tells each change, and continues a listing without a `Resync`; otherwise it may collapse changes."""


def _by_color(key: str, value: bytes) -> Iterable[str]:
    """Fixture records hold `color,color,…`: one entry per color, none for an empty value."""
    name = key.rpartition("/")[2]
    return [f"{color}/{name}" for color in value.decode().split(",") if color]


ITEMS = "/item/"
BY_COLOR = IndexDefinition("by-color", ITEMS, _by_color)
INDEXES = (BY_COLOR,)


class _Embedded:
    def __init__(self, store: MemoryStore | SqliteStore) -> None:
        self._store = store

    async def open(self) -> MetadataStore:
        return self._store

    async def compact(self) -> None:
        await self._store.compact()


@asynccontextmanager
async def _memory(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    store = MemoryStore(INDEXES)
    yield _Embedded(store)
    await store.close()


class SqliteWithoutIndex(SqliteStore):
    batch = MetadataStore.batch
    query_index = MetadataStore.query_index


class SqliteWithoutSequence(SqliteStore):
    put_sequential = MetadataStore.put_sequential


class SqlitePollingWatch(SqliteStore):
    watch = MetadataStore.watch
    poll_interval_ms = 5


@asynccontextmanager
async def _sqlite(request: pytest.FixtureRequest, kind: type[SqliteStore] = SqliteStore) -> AsyncIterator[Backend]:
    directory: Path = request.getfixturevalue("tmp_path")
    store = await kind.open(directory / f"{secrets.token_hex(6)}.db", INDEXES)
    yield _Embedded(store)
    await store.close()


class _Etcd:
    """A fresh root on the server of the session; every client is a store of its own, as another process would be."""

    def __init__(self, server: EtcdServer) -> None:
        self._server = server
        self._root = f"/{secrets.token_hex(6)}"
        self._stores: list[EtcdStore] = []

    async def open(self) -> MetadataStore:
        store = await EtcdStore.open([self._server.endpoint], self._root, INDEXES)
        self._stores.append(store)
        return store

    async def compact(self) -> None:
        await asyncio.to_thread(self._server.compact)

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


@asynccontextmanager
async def _etcd(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    backend = _Etcd(request.getfixturevalue("etcd_server"))
    yield backend
    await backend.close()


class _ZooKeeper:
    """A fresh root on a server of the session, as on etcd."""

    def __init__(self, server: ZooKeeperServer) -> None:
        self._server = server
        self._root = f"/{secrets.token_hex(6)}"
        self._stores: list[ZooKeeperStore] = []

    async def open(self) -> MetadataStore:
        store = await ZooKeeperStore.open([self._server.endpoint], self._root, INDEXES)
        self._stores.append(store)
        return store

    async def compact(self) -> None:
        await self._stores[0].compact()

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


@asynccontextmanager
async def _zookeeper(request: pytest.FixtureRequest, server: str = "zookeeper_server") -> AsyncIterator[Backend]:
    backend = _ZooKeeper(request.getfixturevalue(server))
    yield backend
    await backend.close()


FACTORIES: dict[str, Factory] = {
    "etcd": Factory(_etcd),
    "memory": Factory(_memory),
    "sqlite": Factory(_sqlite),
    "sqlite_polling_watch": Factory(partial(_sqlite, kind=SqlitePollingWatch), keeps_every_change=False),
    "sqlite_without_index": Factory(partial(_sqlite, kind=SqliteWithoutIndex), keeps_entries=False),
    "sqlite_without_sequence": Factory(partial(_sqlite, kind=SqliteWithoutSequence)),
    "zookeeper": Factory(_zookeeper),
    **usually({}, {"zookeeper_pyspark": Factory(partial(_zookeeper, server="zookeeper_pyspark_server"))}),
}
"""PySpark brings a newer server of ZooKeeper than Debian."""


def where(ability: Callable[[Factory], bool]) -> pytest.MarkDecorator:
    """Only the backends that declare the ability run this test."""
    able = [name for name, factory in sorted(FACTORIES.items()) if ability(factory)]
    return pytest.mark.parametrize("backend", able, indirect=True)


where_entries_are_records = where(lambda factory: factory.keeps_entries)
where_every_change_is_told = where(lambda factory: factory.keeps_every_change)
