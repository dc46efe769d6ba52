"""Goal: nothing below the store sends a write a second time, not the client libraries either.

Method: a proxy keeps the replies of a real server back until the write has been applied, and then cuts the connection.
gRPC's and kazoo's own calls must fail, and the server must have got each of them once; a whole apply must be answered
truly. (What the stores themselves do about lost replies is tested with each of them.)
"""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest

from metastore.backends.etcd import EtcdStore
from metastore.backends.etcd_stubs import PutRequest
from metastore.backends.options import EtcdOptions, ZooKeeperOptions
from metastore.backends.zookeeper import ZooKeeperStore
from metastore.backends.zookeeper_connection import LostError
from metastore.backends.zookeeper_wire import Multi, set_data
from metastore.urls import open_store
from tests.metastore.opening import SCHEMES
from tests.metastore.proxies import Proxy
from tests.servers import EtcdServer, ZooKeeperServer

DEADLINE_MS = 30_000


async def test_grpc_sends_a_write_once(etcd_server: EtcdServer) -> None:
    direct = await EtcdStore.open([etcd_server.endpoint], "/once")
    async with Proxy(etcd_server.port) as proxy:
        store = await EtcdStore.open([proxy.endpoint], "/once", options=EtcdOptions(deadline_ms=DEADLINE_MS))
        for number in range(5):
            key = f"/raw/{number}"
            async with direct.watch(key, await direct.current_revision() + 1) as watch:
                proxy.holding = True
                put = PutRequest(key=f"/once{key}".encode(), value=b"")
                call = asyncio.create_task(store._connection.call(store._connection.kv.Put, put, 30))
                await anext(watch)
                proxy.cut()
            with pytest.raises(grpc.aio.AioRpcError) as lost:
                await call
            assert lost.value.code() is grpc.StatusCode.UNAVAILABLE
            record = await store.get(key)  # connected again: what was to be sent again would have been
            assert record is not None and record.first, "the write was sent twice"
        await store.close()
    await direct.close()


async def test_kazoo_sends_a_write_once(zookeeper_server: ZooKeeperServer) -> None:
    direct = await ZooKeeperStore.open(
        [zookeeper_server.endpoint], "/once", options=ZooKeeperOptions(deadline_ms=DEADLINE_MS)
    )

    async def tip_version() -> int:
        deadline = asyncio.get_running_loop().time() + 30
        return (await direct._connection.read((), deadline)).before.stat.version

    async with Proxy(zookeeper_server.port) as proxy:
        store = await ZooKeeperStore.open([proxy.endpoint], "/once", options=ZooKeeperOptions(deadline_ms=DEADLINE_MS))
        for _ in range(5):
            before = await tip_version()
            proxy.holding = True
            call = store._connection.send(Multi([set_data(store._paths.tip, b"")]))
            while await tip_version() == before:
                continue
            proxy.cut()
            with pytest.raises(LostError):
                await call
            await store.current_revision()  # connected again
            assert await tip_version() == before + 1, "the write was sent twice"
        await store.close()
    await direct.close()


@pytest.mark.parametrize("kind", ["etcd", "zookeeper"])
async def test_an_apply_whose_reply_is_lost_on_the_wire_is_answered_truly(
    kind: str, etcd_server: EtcdServer, zookeeper_server: ZooKeeperServer
) -> None:
    server = etcd_server if kind == "etcd" else zookeeper_server
    url = f"{SCHEMES[kind]}://{{}}/lost-on-the-wire".format
    losses: list[None] = []
    direct = await open_store(url(server.endpoint), ())
    async with Proxy(server.port) as proxy:
        store = await open_store(url(proxy.endpoint), (), deadline_ms=DEADLINE_MS, on_lost=lambda: losses.append(None))
        # Whatever it must read to write there, it has read now.
        await store.apply(store.batch().create("/n/first", b""))
        for number in range(5):
            key = f"/n/{number}"
            await store.get("/n/first")  # connected again: a connection that begins while it is held never gets ready
            async with direct.watch("/n/", await direct.current_revision() + 1) as watch:
                proxy.holding = True
                applying = asyncio.create_task(store.apply(store.batch().create(key, b"")))
                seen = asyncio.ensure_future(anext(watch))
                await asyncio.wait({applying, seen}, return_when=asyncio.FIRST_COMPLETED)
                proxy.cut()
                if not seen.done():
                    raise AssertionError("the write ended unseen") from applying.exception()
                item = await seen
            assert (await applying).revision == item.revision
            record = await direct.get(key)
            assert record is not None and record.first and record.version == item.revision
        await store.close()
    assert len(losses) == 5
    await direct.close()
