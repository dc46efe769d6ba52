"""The coordinator as a process: a real server on a free port (DESIGN §2, scenario K88)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from coordinator.gc_sweep import GcSweep
from coordinator.service import STOP_GRACE_S, CoordinatorService
from coordinator.timeout_sweep import TimeoutSweep
from coordinator.transactions import Transactions
from metastore.backends.memory import MemoryStore
from metastore.errors import StoreUnavailable
from metastore.incarnation import IncarnationGuard
from metastore.txn import paths
from metastore.txn.records.processes import ProcessRecord
from metastore.txn.store import INDEXES
from metastore.types import Snapshot
from metastore.urls import open_store
from metastore.versions import SPEAKS
from metatxn.service.known_cluster import AWAY_AFTER_MS, AWAY_WITHIN_SECONDS, WITHIN_SECONDS, KnownCluster
from metatxn.service.patience import PATIENCE_MS
from metatxn.wire.listeners import LISTENER_HEADER
from tests.chaos import store_space
from tests.coordinator.conftest import FakeClock
from tests.coordinator.stores import FaultyStore
from tests.coordinator.test_transactions import begin
from tests.servers import EtcdServer


async def test_it_announces_itself_and_withdraws(truth: MemoryStore) -> None:
    """CONTRACT: `/v1/cluster` lists those that registered, and a revision that covers what was acknowledged."""
    first, second = CoordinatorService(truth, port=0), CoordinatorService(truth, port=0)
    await first.start()
    await second.start()
    await truth.apply(truth.batch().put(paths.broker_process("b/1"), b'{"url": "http://b"}'))
    async with httpx.AsyncClient(base_url=first.url, timeout=60) as client:
        cluster = (await client.get("/v1/cluster")).json()
        assert {process["url"] for process in cluster["coordinators"]} == {first.url, second.url}
        assert [(broker["id"], broker["url"]) for broker in cluster["brokers"]] == [("b/1", "http://b")]
        assert cluster["revision"] == await truth.current_revision()
        await second.stop()
        assert len((await client.get("/v1/cluster")).json()["coordinators"]) == 1
    await first.stop()
    await first.stop()
    assert (await truth.scan(paths.COORDINATORS)).records == []


async def test_while_the_store_is_away_it_tells_whom_it_knew(
    truth: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CONTRACT: `last_known`, with the addresses of the caller's listener, and `store_answered_ms`."""

    async def no_answer(_: Sequence[str]) -> Snapshot:
        raise StoreUnavailable("nobody listens")

    store, clock = FaultyStore(truth), FakeClock()
    service = CoordinatorService(store, port=0, clock=clock)
    broker = b'{"url": "http://b", "listeners": {"outside": "http://b.example"}}'
    await truth.apply(truth.batch().put(paths.broker_process("b/1"), broker))
    await service.start()
    async with httpx.AsyncClient(base_url=service.url, timeout=60) as client:
        there = (await client.get("/v1/status")).json()
        assert (there["ready"], there["store_answered_ms"], there["last_known"]) == (True, clock.now_ms, None)
        clock.now_ms += 1
        monkeypatch.setattr(store, "get_many", no_answer)
        away = (await client.get("/v1/status", headers={LISTENER_HEADER: "outside"})).json()
        assert (away["store"], away["waiting_for"]["metadata store"]) == (None, "nobody listens")
        assert away["store_answered_ms"] <= clock.now_ms
        known = away["last_known"]
        assert [each["url"] for each in known["coordinators"]] == [service.url]
        assert [(each["id"], each["url"]) for each in known["brokers"]] == [("b/1", "http://b.example")]
    await service.stop()


async def test_a_store_that_is_full_is_told_until_its_alarm_has_ended(tmp_path: Path) -> None:
    """CONTRACT: `warnings` of `/v1/status`. It answers reads, so nobody who does not write would know."""
    with EtcdServer(tmp_path / "etcd", flags=("--quota-backend-bytes", str(16 << 20))) as server:
        store = await open_store(f"etcd://{server.endpoint}", INDEXES)
        service = CoordinatorService(store, port=0)
        await service.start()
        async with httpx.AsyncClient(base_url=service.url, timeout=60) as client:
            assert (await client.get("/v1/status")).json()["warnings"] == {}
            await store_space.fill([server])
            assert (await client.post("/v1/txns", json={})).json()["code"] == "STORAGE_FULL"
            full = (await client.get("/v1/status")).json()
            assert full["ready"] and f"etcd at {server.endpoint} is full" in full["warnings"]["metadata store"]
            await store_space.make_room([server])
            assert (await client.get("/v1/status")).json()["warnings"] == {}
        await service.stop()
        await store.close()


async def test_nobody_waits_long_for_a_store_that_has_been_away(truth: MemoryStore) -> None:
    clock = FakeClock()
    guard = IncarnationGuard(truth, clock)
    known = KnownCluster(truth, guard)
    assert known.patience_s == WITHIN_SECONDS, "it was not asked yet"
    await guard.start()
    await guard.stop()
    clock.now_ms += AWAY_AFTER_MS
    assert known.patience_s == WITHIN_SECONDS
    clock.now_ms += 1
    assert known.patience_s == AWAY_WITHIN_SECONDS
    await guard.look()
    assert known.patience_s == WITHIN_SECONDS


async def test_it_is_announced_before_it_reads_the_cluster_version(store: FaultyStore) -> None:
    """So the one who raises the version meanwhile finds it (DESIGN §12)."""
    service = CoordinatorService(store, port=0)
    found: list[ProcessRecord] = []

    async def look() -> None:
        found.extend(ProcessRecord.decode(each.value) for each in (await store.truth.scan(paths.PROCESSES)).records)

    store.before_reads.append(look)
    await service.start()
    assert [(each.service, each.url, each.speaks) for each in found] == [("coordinator", service.url, SPEAKS)]
    await service.stop()
    assert (await store.truth.scan(paths.PROCESSES)).records == []


async def test_it_sweeps_while_it_serves(truth: MemoryStore) -> None:
    """E39, with the clock of the machine: 1 ms after the deadline and a few sweeps, it is over."""
    service = CoordinatorService(truth, port=0, timeout_sweep_interval_ms=5, max_clock_skew_ms=0)
    await service.start()
    async with httpx.AsyncClient(base_url=service.url, timeout=60) as client:
        txn_id = (await client.post("/v1/txns", json={"timeout_ms": 1})).json()["txn_id"]
        async with asyncio.timeout(60):
            while (await client.get(f"/v1/txns/{txn_id}")).json()["state"] == "OPEN":
                await asyncio.sleep(0.005)
        assert (await client.post(f"/v1/txns/{txn_id}/commit")).json()["code"] == "EXPIRED_TRANSACTION"
    await service.stop()


async def test_stopping_finishes_what_is_in_flight(store: FaultyStore) -> None:
    """A request that has arrived gets its answer, also one that waits for what became of a lost reply."""
    assert STOP_GRACE_S * 1000 > PATIENCE_MS
    service = CoordinatorService(store, port=0)
    await service.start()
    arrived, go_on = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        arrived.set()
        await go_on.wait()

    async with httpx.AsyncClient(base_url=service.url, timeout=60) as client:
        await client.post("/v1/txns")
        store.before_applies.append(hold)
        begun = asyncio.create_task(client.post("/v1/txns"))
        await arrived.wait()
        stopped = asyncio.create_task(service.stop())
        await asyncio.sleep(0.01)
        go_on.set()
        assert (await begun).status_code == 201
        await stopped
        with pytest.raises(httpx.ConnectError):
            await client.get("/healthz")


async def test_a_port_in_use_is_an_error_that_leaves_nothing_behind(truth: MemoryStore) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        service = CoordinatorService(truth, port=taken.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            await service.start()
    assert (await truth.scan(paths.COORDINATORS)).records == []


async def test_a_store_that_refuses_the_announcement_leaves_nothing_behind() -> None:
    store = MemoryStore()
    await store.close()
    service = CoordinatorService(store, port=0)
    with pytest.raises(Exception, match="closed"):
        await service.start()


async def test_the_log_names_the_transaction(transactions: Transactions, clock: FakeClock, truth: MemoryStore) -> None:
    """Its begin, its end, its timeout and its end of life; what happens over its user's head shows at level info."""
    gc = GcSweep(truth, clock, transactions.metrics, retention_ms=1_000)
    with capture_logs() as lines:
        committed, expired = await begin(transactions), await begin(transactions, timeout_ms=1)
        await transactions.commit(committed)
        clock.now_ms += 30_000
        await TimeoutSweep(transactions).sweep_once()
        clock.now_ms += 1_000
        await gc.collect_once()
    told = [(line["event"], line["log_level"], line["txn_id"]) for line in lines if "txn_id" in line]
    assert told == [
        *(("transaction begun", "debug", str(txn_id)) for txn_id in (committed, expired)),
        ("transaction decided", "debug", str(committed)),
        ("transaction decided", "info", str(expired)),
        *(("header collected", "debug", str(txn_id)) for txn_id in (committed, expired)),
    ]


async def test_a_store_that_answers_but_not_how_large_it_is_has_no_size_in_the_status(
    truth: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_answer() -> int:
        raise StoreUnavailable("nobody listens")

    store = FaultyStore(truth)
    monkeypatch.setattr(store, "size_bytes", no_answer)
    service = CoordinatorService(store, port=0)
    await service.start()
    async with httpx.AsyncClient(base_url=service.url, timeout=60) as client:
        shown = (await client.get("/v1/status")).json()
    await service.stop()
    assert shown["ready"] and "size_bytes" not in {name for name, value in shown["store"].items() if value is not None}
