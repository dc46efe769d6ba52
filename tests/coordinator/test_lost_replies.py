"""Goal: a message lost on the wire changes no answer (issue 4, item 7; scenario X112).

Method: two coordinators, with stores of their own, on a real etcd. All that the first one sends to etcd, and all that
clients send to the first one, goes through proxies. Once a request that decides something is on its way, its reply is
lost after it has taken effect, or the request itself is; then the connection breaks. Whatever the caller is told, the
first coordinator, the second one and a blank third one must say the same ever after.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import pytest

import metatxn
from coordinator.service import CoordinatorService
from metastore.backends.etcd import EtcdStore
from metastore.txn import paths
from metastore.txn.store import INDEXES
from metastore.urls import open_store
from tests.metastore.proxies import Proxy
from tests.servers import EtcdServer, free_port

FORWARD = [pytest.param(True, id="reply"), pytest.param(False, id="request")]
KEYED = {"transaction_key": "k", "epoch": 0, "version": 1, "timeout_ms": 600_000}

Answer = TypeVar("Answer")


@dataclass
class Scene:
    """`first` is what clients are told; `to_first` and `to_etcd` are the proxies before and behind it."""

    truth: EtcdStore
    store_url: str
    first: str
    second: str
    to_first: Proxy
    to_etcd: Proxy
    http: httpx.AsyncClient

    async def losing(self, proxy: Proxy, part: bytes, forward: bool, call: Awaitable[Answer]) -> Answer:
        """The answer of `call`, of which the request that holds `part`, or the reply to it, is lost in `proxy`."""
        async with self.truth.watch(paths.HEADERS, await self.truth.current_revision() + 1) as watch:
            met = proxy.hold_from(part, forward=forward)
            answering = asyncio.ensure_future(call)
            lost = asyncio.ensure_future(anext(watch) if forward else met.wait())
            await asyncio.wait({answering, lost}, return_when=asyncio.FIRST_COMPLETED)
            unheard = not answering.done()
            proxy.cut()
            answer = await answering
            assert unheard, f"nothing was lost before the answer: {answer}"
            await lost
        return answer

    async def post(self, url: str, path: str, body: Any = None) -> Any:
        response = await self.http.post(f"{url}/v1/txns{path}", json=body)
        assert response.is_success, response.text
        return response.json()

    async def connect(self) -> int:
        """The first epoch of the key of `KEYED`, which is free."""
        taken = await self.http.post(f"{self.second}/v1/transaction-keys/k/connect", json={"epoch": -1})
        assert taken.json()["epoch"] == KEYED["epoch"]
        return int(taken.json()["epoch"])

    async def begun(self) -> list[str]:
        """The headers of all transactions there are."""
        return [record.key for record in (await self.truth.scan(paths.HEADERS)).records]

    async def client_of_the_first(self) -> metatxn.AsyncClient:
        """It has found both coordinators, in an order of its own, and will ask the first one first."""
        while True:
            client = metatxn.connect_async(self.second)
            if await client._connection.coordinators.url() == self.first:
                return client
            await client.close()

    async def assert_committed_for_ever(self, txn_id: str) -> None:
        """Read, committed again, refused to be aborted, and read again."""
        path = f"/v1/txns/{txn_id}"
        async with coordinator(self.store_url) as third:
            urls = [self.first, self.second, third.url]
            told = [(await self.http.get(url + path)).json() for url in urls]
            told += [await self.post(url, f"/{txn_id}/commit") for url in urls]
            for url in urls:
                refused = await self.http.post(f"{url}{path}/abort")
                assert (refused.status_code, refused.json()["code"]) == (409, "INVALID_TXN_STATE")
            told += [(await self.http.get(url + path)).json() for url in urls]
        assert told[0]["state"] == "COMMITTED"
        assert all(answer == told[0] for answer in told), told


@asynccontextmanager
async def coordinator(store_url: str, **options: Any) -> AsyncIterator[CoordinatorService]:
    store = await open_store(store_url)
    try:
        service = CoordinatorService(store, **({"port": 0} | options))
        await service.start()
        try:
            yield service
        finally:
            await service.stop()
    finally:
        await store.close()


@pytest.fixture
async def scene(etcd_server: EtcdServer) -> AsyncIterator[Scene]:
    root, port = secrets.token_hex(6), free_port()
    async with AsyncExitStack() as stack:
        truth = await EtcdStore.open([etcd_server.endpoint], f"/{root}", INDEXES)
        stack.push_async_callback(truth.close)
        to_etcd = await stack.enter_async_context(Proxy(etcd_server.port))
        to_first = await stack.enter_async_context(Proxy(port))
        first, store_url = f"http://{to_first.endpoint}", f"etcd://{etcd_server.endpoint}/{root}"
        behind = coordinator(f"etcd://{to_etcd.endpoint}/{root}", port=port, advertise_url=first)
        await stack.enter_async_context(behind)
        second = await stack.enter_async_context(coordinator(store_url))
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=120))
        yield Scene(truth, store_url, first, second.url, to_first, to_etcd, http)


@pytest.mark.parametrize("forward", FORWARD)
async def test_commit_is_lost_between_coordinator_and_store(scene: Scene, forward: bool) -> None:
    """The coordinator finds out by itself what became of it, and commits if it did not happen."""
    txn_id = (await scene.post(scene.first, ""))["txn_id"]
    commit = scene.post(scene.first, f"/{txn_id}/commit")
    told = await scene.losing(scene.to_etcd, b'"state":"COMMITTED"', forward, commit)
    assert told["state"] == "COMMITTED"
    await scene.assert_committed_for_ever(txn_id)


@pytest.mark.parametrize("forward", FORWARD)
async def test_commit_is_lost_between_client_and_coordinator(scene: Scene, forward: bool) -> None:
    """The client asks the other coordinator, and commits there if it did not happen."""
    async with await scene.client_of_the_first() as client:
        txn = await client.begin()
        told = await scene.losing(scene.to_first, b"/commit", forward, txn.commit())
        assert told.state == "COMMITTED"
        assert await client._connection.coordinators.url() == scene.second
        assert await client.attach(txn.id).commit() == told
    await scene.assert_committed_for_ever(txn.id)


@pytest.mark.parametrize("forward", FORWARD)
async def test_begin_of_a_version_is_lost_between_coordinator_and_store(scene: Scene, forward: bool) -> None:
    """There is one transaction of that version, and everybody who begins it again is given that one."""
    await scene.connect()
    begin = scene.post(scene.first, "", KEYED)
    told = await scene.losing(scene.to_etcd, b'"state":"OPEN"', forward, begin)
    again = await scene.http.post(f"{scene.second}/v1/txns", json=KEYED)
    assert (again.status_code, again.json()) == (200, told)
    assert len(await scene.begun()) == 1
    await scene.post(scene.second, f"/{told['txn_id']}/commit")
    await scene.assert_committed_for_ever(told["txn_id"])
    assert (await scene.post(scene.first, "", KEYED))["already_committed"]


@pytest.mark.parametrize("forward", FORWARD)
async def test_begin_of_a_version_is_lost_between_client_and_coordinator(scene: Scene, forward: bool) -> None:
    """The client begins again through the other coordinator, and finds the transaction if it was begun."""
    async with await scene.client_of_the_first() as client:
        epoch = await scene.connect()
        begin = client.begin(key="k", epoch=epoch, version=1)
        txn = await scene.losing(scene.to_first, b"POST /v1/txns ", forward, begin)
        assert not txn.already_committed
        assert await client._connection.coordinators.url() == scene.second
        assert len(await scene.begun()) == 1
        await txn.commit()
        replayed = await client.begin(key="k", epoch=epoch, version=1)
        assert replayed.already_committed
    await scene.assert_committed_for_ever(txn.id)
