"""Goal: anyone who only looks leaves no trace.

Method: a store is left behind as a killed process leaves it, with everything that the next one would tidy up. It is
dumped and checked as `metatxn store` does, and then every byte, revision or znode is what it was.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from metastore.api import MetadataStore
from metastore.backends import zookeeper_janitor
from metastore.backends.zookeeper import ZooKeeperStore
from metastore.check import StoreCheck, dump
from metastore.errors import InvalidBatch, StoreMissing
from metastore.txn.store import INDEXES
from metastore.urls import open_store, open_store_to_read
from tests.metastore.opening import fresh_url
from tests.metastore.test_check import fill
from tests.servers import EtcdServer, ZooKeeperServer


@pytest.fixture(scope="module")
def etcd_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One that no other test has left anything in: a lease that ends there would be a trace."""
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(scope="module")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """Likewise; and what other tests leave there takes long to walk."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


async def look(url: str) -> None:
    store = await open_store_to_read(url)
    try:
        assert [finding async for finding in StoreCheck(store).findings()] == []
        assert [record async for record in dump(store, page=3)]
    finally:
        await store.close()


async def fill_and_leave(store: MetadataStore) -> None:
    await fill(store)
    await store.close()


async def test_sqlite(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = fresh_url(request, "sqlite")
    await fill_and_leave(await open_store(url))
    before = (tmp_path / "x.db").read_bytes()
    await look(url)
    assert (tmp_path / "x.db").read_bytes() == before


async def test_etcd(etcd_server: EtcdServer, request: pytest.FixtureRequest) -> None:
    url = fresh_url(request, "etcd")
    await fill_and_leave(await open_store(url))
    before = etcd_server.revision()
    await look(url)
    assert etcd_server.revision() == before


def znodes(server: ZooKeeperServer) -> dict[str, object]:
    """Every znode of the server with its data and its whole stat; the children show in the stat of their parent."""
    client = KazooClient(server.endpoint)
    client.start()
    try:
        found: dict[str, object] = {}
        paths = ["/"]
        while paths:
            path = paths.pop()
            found[path] = client.get(path)
            below = path.rstrip("/")
            paths += (f"{below}/{name}" for name in client.get_children(path) if path != "/" or name != "zookeeper")
        return found
    finally:
        client.stop()
        client.close()


async def test_zookeeper(zookeeper_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Left behind: a record of an owner that died, and an empty directory, which is not left in peace for long."""
    monkeypatch.setattr(zookeeper_janitor, "PAUSE_S", 3_600)
    root = f"/{secrets.token_hex(6)}"
    store = await ZooKeeperStore.open([zookeeper_server.endpoint], root, INDEXES)
    await fill(store)
    await store.ephemeral("/cluster/broker/dead", b"{}", 60_000)
    await store.apply(store.batch().create("/cursor/gone/1", b""))
    await store.apply(store.batch().delete("/cursor/gone/1"))
    await store._connection.close()
    await store.close()
    before = await asyncio.to_thread(znodes, zookeeper_server)
    assert f"{root}/records/cursor+/gone+" in before and f"{root}/records/cluster+/broker+/dead" in before
    monkeypatch.setattr(zookeeper_janitor, "PAUSE_S", 0)
    await look(f"zk://{zookeeper_server.endpoint}{root}")
    assert await asyncio.to_thread(znodes, zookeeper_server) == before


async def test_a_zookeeper_store_that_is_only_read_refuses_to_write(request: pytest.FixtureRequest) -> None:
    url = fresh_url(request, "zookeeper")
    await fill_and_leave(await open_store(url))
    store = await open_store_to_read(url)
    try:
        with pytest.raises(InvalidBatch, match="read-only"):
            await store.apply(store.batch().put("/cursor/x/y", b""))
        with pytest.raises(InvalidBatch, match="read-only"):
            await store.ephemeral("/cluster/broker/x", b"", 60_000)
    finally:
        await store.close()


async def test_zookeeper_without_a_store(zookeeper_server: ZooKeeperServer) -> None:
    before = await asyncio.to_thread(znodes, zookeeper_server)
    with pytest.raises(StoreMissing, match="no store below /none"):
        await open_store_to_read(f"zk://{zookeeper_server.endpoint}/none")
    assert await asyncio.to_thread(znodes, zookeeper_server) == before
