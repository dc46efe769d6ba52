"""Where the stores of a storm live, and what may befall them there. A new backend is one more line in the tables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from metastore.api import MetadataStore
from metastore.backends.memory import MemoryStore
from metastore.backends.sqlite import SqliteStore
from metastore.backends.zookeeper import ZooKeeperStore
from metastore.txn.store import INDEXES
from metastore.types import IndexDefinition
from metastore.urls import open_store
from tests.servers import EtcdServer, ZooKeeperServer

Server = EtcdServer | ZooKeeperServer


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of server. `options` make its clients notice soon that it is away."""

    scheme: str
    start: Callable[[Path], Server]
    options: Mapping[str, int]


SERVED = {
    "etcd": Kind("etcd", EtcdServer, {"deadline_ms": 2_000}),
    "zookeeper": Kind("zk", ZooKeeperServer, {"deadline_ms": 2_000, "session_timeout_ms": 1_500}),
}


class ServedPlace:
    """A root on a server of its own. `kills` counts the deaths of the server."""

    def __init__(self, kind: Kind, server: Server) -> None:
        self._kind = kind
        self.server = server
        self.kills = 0

    @property
    def url(self) -> str:
        return f"{self._kind.scheme}://{self.server.endpoint}/storm"

    async def open(self, indexes: Iterable[IndexDefinition] = INDEXES, *, port: int | None = None) -> MetadataStore:
        """A client of its own, as another process would be; through `port`, if it is given."""
        url = self.url if port is None else f"{self._kind.scheme}://127.0.0.1:{port}/storm"
        return await open_store(url, indexes, **self._kind.options)

    async def restart(self) -> None:
        """`kill -9`, and begin again with the same data."""
        self.server.kill()
        self.kills += 1
        await asyncio.to_thread(self.server.start)

    async def compact(self, store: MetadataStore) -> None:
        """Make the place forget its history up to now; `store` is any client of it."""
        if isinstance(self.server, EtcdServer):
            await asyncio.to_thread(self.server.compact)
        else:
            assert isinstance(store, ZooKeeperStore)
            await store.compact()


@asynccontextmanager
async def served(kind: Kind, directory: Path) -> AsyncIterator[ServedPlace]:
    with kind.start(directory) as server:
        yield ServedPlace(kind, server)


class MemoryPlace:
    """Everything ends with the process, so there is one store and it is never opened again."""

    def __init__(self, directory: Path) -> None:
        self._store = MemoryStore(INDEXES)

    async def reopen(self) -> MemoryStore:
        return self._store

    async def close(self) -> None:
        await self._store.close()


class FilePlace:
    """One file, opened by one store after the other. What dies here is the process that has it open."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "storm.db"
        self.url = f"sqlite:///{self._path}"
        self._store: SqliteStore | None = None

    async def reopen(self) -> SqliteStore:
        await self.close()
        self._store = await SqliteStore.open(self._path, INDEXES)
        return self._store

    async def close(self) -> None:
        if self._store:
            await self._store.close()


EMBEDDED: dict[str, Callable[[Path], MemoryPlace | FilePlace]] = {"memory": MemoryPlace, "sqlite": FilePlace}
