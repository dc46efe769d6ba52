"""Goal: every call answers in bounded time when the store does not, and says truly whether anything can have happened;
and during an outage nobody tries to connect more often than the pauses between attempts allow.

Method: the server is frozen (SIGSTOP), the SQLite file is locked by another process, and each method of the interface
is called, one test each. Attempts to connect are counted by a socket that takes connections and closes them.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path

import pytest

from metastore.api import MetadataStore
from metastore.backends.etcd import EtcdStore
from metastore.backends.options import EtcdOptions, ZooKeeperOptions
from metastore.backends.sqlite import SqliteStore
from metastore.backends.zookeeper import ZooKeeperStore
from metastore.errors import MetastoreError, OutcomeUnknown, StoreUnavailable
from tests.metastore.factories import BY_COLOR, INDEXES
from tests.servers import EtcdServer, ZooKeeperServer

DEADLINE_MS = 1_000
# Ten deadlines, and the time a session of ZooKeeper takes to end.
BOUND_S = 30.0


Reopen = Callable[[], Awaitable[MetadataStore]]
Place = AbstractAsyncContextManager[tuple[MetadataStore, Reopen]]


@asynccontextmanager
async def frozen_etcd(directory: Path) -> AsyncIterator[tuple[MetadataStore, Reopen]]:
    with EtcdServer(directory / "etcd") as server:
        store = await EtcdStore.open(
            [server.endpoint], "/frozen", INDEXES, options=EtcdOptions(deadline_ms=DEADLINE_MS)
        )
        await store.apply(store.batch().put("/before", b""))

        async def reopen() -> MetadataStore:
            server.thaw()
            return await EtcdStore.open([server.endpoint], "/frozen", INDEXES, options=EtcdOptions(deadline_ms=30_000))

        server.freeze()
        yield store, reopen


@asynccontextmanager
async def frozen_zookeeper(directory: Path) -> AsyncIterator[tuple[MetadataStore, Reopen]]:
    with ZooKeeperServer(directory / "zookeeper") as server:
        store = await ZooKeeperStore.open(
            [server.endpoint],
            "/frozen",
            INDEXES,
            options=ZooKeeperOptions(deadline_ms=DEADLINE_MS, session_timeout_ms=1_000),
        )
        await store.apply(store.batch().put("/before", b""))

        async def reopen() -> MetadataStore:
            server.thaw()
            return await ZooKeeperStore.open(
                [server.endpoint], "/frozen", INDEXES, options=ZooKeeperOptions(deadline_ms=30_000)
            )

        server.freeze()
        yield store, reopen


@asynccontextmanager
async def locked_sqlite(directory: Path) -> AsyncIterator[tuple[MetadataStore, Reopen]]:
    """Another program holds the database, which none of ours would do: writes wait for it, reads go on."""
    path = directory / "x.db"
    store = await SqliteStore.open(path, INDEXES, deadline_ms=DEADLINE_MS)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    async def reopen() -> MetadataStore:
        other.close()
        return await SqliteStore.open(path, INDEXES)

    yield store, reopen


PLACES: dict[str, Callable[[Path], Place]] = {
    "etcd": frozen_etcd,
    "sqlite": locked_sqlite,
    "zookeeper": frozen_zookeeper,
}
READS: dict[str, Callable[[MetadataStore], Awaitable[object]]] = {
    "get": lambda store: store.get("/a"),
    "get_many": lambda store: store.get_many(["/a", "/b"]),
    "range": lambda store: store.range("/a", "/b"),
    "scan": lambda store: store.scan("/a"),
    "query_index": lambda store: store.query_index(BY_COLOR.name),
    "current_revision": lambda store: store.current_revision(),
}
# By the key that they write.
WRITES: dict[str, Callable[[MetadataStore], Awaitable[object]]] = {
    "/w/put": lambda store: store.apply(store.batch().put("/w/put", b"")),
    "/w/create": lambda store: store.apply(store.batch().create("/w/create", b"")),
    "/w/ids": lambda store: store.lease_ids("/w/ids", 10),
    "/w/live": lambda store: store.ephemeral("/w/live", b"", 2_000),
}


@pytest.mark.parametrize("place", PLACES)
async def test_every_call_answers_in_time_and_truly(place: str, tmp_path: Path) -> None:
    """An error that is definite says that nothing was written, and nothing is: not even after the server goes on."""
    errors: dict[str, MetastoreError] = {}
    async with PLACES[place](tmp_path) as (store, reopen):
        for key, write in WRITES.items():
            async with asyncio.timeout(BOUND_S):
                with pytest.raises((StoreUnavailable, OutcomeUnknown)) as refused:
                    await write(store)
            errors[key] = refused.value
        for read in READS.values():
            async with asyncio.timeout(BOUND_S):
                with nullcontext() if place == "sqlite" else pytest.raises(StoreUnavailable):
                    await read(store)
        async with asyncio.timeout(BOUND_S), store.watch("/w/", 1):
            pass
        async with asyncio.timeout(BOUND_S):
            await store.close()
        later = await reopen()
        written = {record.key for record in (await later.scan("/w/")).records}
        await later.close()
    # Only etcd has been sent it: ZooKeeper's waits for a read to be planned on, SQLite's for the lock.
    assert errors["/w/put"].definite == (place != "etcd")
    assert not any(error.definite for key, error in errors.items() if key in written), errors


class Closing:
    """Takes connections and closes them at once."""

    def __init__(self) -> None:
        self.attempts = 0

    def __call__(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.attempts += 1
        writer.close()


OPENERS: dict[str, Callable[[str], Awaitable[MetadataStore]]] = {
    "etcd": lambda endpoint: EtcdStore.open([endpoint], "/x", options=EtcdOptions(deadline_ms=4_000)),
    "etcd, three endpoints": lambda endpoint: EtcdStore.open(
        [endpoint] * 3, "/x", options=EtcdOptions(deadline_ms=4_000)
    ),
    "zookeeper": lambda endpoint: ZooKeeperStore.open([endpoint], "/x", options=ZooKeeperOptions(deadline_ms=4_000)),
}


@pytest.mark.parametrize("opener", OPENERS)
async def test_an_outage_is_waited_for_with_growing_pauses(opener: str) -> None:
    """The first pause is 20 ms (kazoo) or 100 ms (gRPC), the longest one second, and jitter takes at most half of it:
    4 seconds have room for a dozen attempts to each endpoint. Without pauses there would be thousands."""
    closing = Closing()
    async with await asyncio.start_server(closing, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(StoreUnavailable):
            await OPENERS[opener](f"127.0.0.1:{port}")
        endpoints = 3 if "three" in opener else 1
        assert 1 < closing.attempts <= 20 * endpoints
