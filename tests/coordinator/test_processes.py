"""Coordinators as real processes on a real etcd (DESIGN §2; scenarios K86–K88, X116).

Method: several at once, kills, and a store that does not answer for a while.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import secrets
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.coordinator.processes import CoordinatorProcess
from tests.servers import EtcdServer

CONNECTIONS = 100


@pytest.fixture
def store_url(etcd_server: EtcdServer) -> str:
    return f"etcd://{etcd_server.endpoint}/{secrets.token_hex(6)}"


@pytest.fixture
def three(store_url: str) -> Iterator[list[CoordinatorProcess]]:
    with ExitStack() as stack:
        yield [stack.enter_context(CoordinatorProcess(store_url)) for _ in range(3)]


def client() -> httpx.AsyncClient:
    return httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=30))


async def answers(http: httpx.AsyncClient, url: str, txn_ids: list[str]) -> list[Any]:
    """Everything a coordinator says of these transactions, of the key and of the lists; but not who serves."""
    paths = [f"/v1/txns/{txn_id}" for txn_id in txn_ids]
    paths += ["/v1/txns?limit=3", "/v1/txns?state=OPEN", "/v1/txns?state=COMMITTED&limit=2"]
    paths += ["/admin/v2/transactions/transaction-keys", "/admin/v2/transactions/transaction-keys/k"]
    return [(await http.get(url + path)).json() for path in paths]


async def test_a_blank_coordinator_answers_as_the_dead_ones_did(
    three: list[CoordinatorProcess], store_url: str
) -> None:
    """Three serve one store, each request goes to the next one; all are killed; a new one knows it all, and goes on."""
    urls = itertools.cycle([process.url for process in three])
    async with client() as http:
        txn_ids = []
        for number in range(9):
            body = {"owner": "o", "timeout_ms": 600_000, "properties": {"n": str(number)}}
            txn_ids.append((await http.post(f"{next(urls)}/v1/txns", json=body)).json()["txn_id"])
        await http.post(f"{next(urls)}/v1/transaction-keys/k/connect", json={"epoch": -1})
        keyed = {"transaction_key": "k", "epoch": 0, "version": 1, "timeout_ms": 600_000}
        txn_ids.append((await http.post(f"{next(urls)}/v1/txns", json=keyed)).json()["txn_id"])
        for txn_id, verb, content in (
            *((txn_ids[0], "commit", {"writers": ["w"]}), (txn_ids[1], "abort", {"reason": "r"})),
            *((txn_ids[2], "keep-alive", {"timeout_ms": 900_000}), (txn_ids[3], "prepare", {})),
            *((txn_ids[4], "writers", {"add": ["a"]}), (txn_ids[5], "commit", {})),
        ):
            assert (await http.post(f"{next(urls)}/v1/txns/{txn_id}/{verb}", json=content)).status_code == 200
        before = [await answers(http, process.url, txn_ids) for process in three]
        assert before[0] == before[1] == before[2]
        for process in three:
            process.signal(signal.SIGKILL)
        for process in three:
            assert process.wait() == -signal.SIGKILL
        with CoordinatorProcess(store_url) as blank:
            assert await answers(http, blank.url, txn_ids) == before[0]
            for txn_id in (txn_ids[0], txn_ids[2], txn_ids[3], txn_ids[-1]):
                decided = await http.post(f"{blank.url}/v1/txns/{txn_id}/commit")
                assert (decided.status_code, decided.json()["state"]) == (200, "COMMITTED")
            assert (await http.post(f"{blank.url}/v1/txns", json=keyed)).json()["already_committed"] is True


async def test_a_hundred_connect_under_one_key_at_once(three: list[CoordinatorProcess]) -> None:
    """Issue of the coordinator: epochs are dense, exactly one connection is current, and only that one can work."""
    path = "/v1/transaction-keys/k/connect"
    async with client() as http:

        async def connect(number: int) -> int:
            response = await http.post(three[number % 3].url + path, json={"epoch": -1, "session": f"s{number}"})
            assert response.status_code == 200, response.text
            return int(response.json()["epoch"])

        async def begin(epoch: int) -> int:
            body = {"transaction_key": "k", "epoch": epoch}
            return (await http.post(f"{three[epoch % 3].url}/v1/txns", json=body)).status_code

        epochs = await asyncio.gather(*map(connect, range(CONNECTIONS)))
        assert sorted(epochs) == list(range(CONNECTIONS))
        admin = "/admin/v2/transactions/transaction-keys/k"
        assert [(await http.get(process.url + admin)).json()["epoch"] for process in three] == [CONNECTIONS - 1] * 3
        begun = await asyncio.gather(*map(begin, range(CONNECTIONS)))
        assert begun == [403] * (CONNECTIONS - 1) + [201]


async def test_a_signal_lets_a_slow_commit_finish(tmp_path: Path) -> None:
    """SIGTERM while the store does not answer: the commit still gets its answer, and the process ends with 0."""
    with (
        EtcdServer(tmp_path / "etcd") as server,
        CoordinatorProcess(f"etcd://{server.endpoint}", "--coordinator-id", "171") as process,
    ):
        async with client() as http:
            txn_id = (await http.post(f"{process.url}/v1/txns")).json()["txn_id"]
            assert txn_id.startswith("00ab")
            server.freeze()
            url = httpx.URL(process.url)
            reader, writer = await asyncio.open_connection(url.host, url.port)
            writer.write(b"POST /v1/txns/%b/commit HTTP/1.1\r\nhost: c\r\ncontent-length: 0\r\n\r\n" % txn_id.encode())
            await writer.drain()
            status = asyncio.create_task(reader.readline())
            # One event loop over there: what was sent first is read by the time the next request is answered.
            assert (await http.get(f"{process.url}/healthz")).status_code == 200
        process.signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait_for_log, "service stopping")
        assert not status.done()
        server.thaw()
        assert await status == b"HTTP/1.1 200 OK\r\n"
        assert b'"state":"COMMITTED"' in await reader.read()
        writer.close()
        await asyncio.to_thread(process.wait_for_log, "service stopped")
        assert await asyncio.to_thread(process.wait) == 0
        assert '"state":"COMMITTED"' in header(server, txn_id)


def header(server: EtcdServer, txn_id: str) -> str:
    found = server.etcdctl("get", f"/txn/{txn_id}")
    return base64.b64decode(found["kvs"][0]["value"]).decode()
