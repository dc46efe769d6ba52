"""Goal: every metric of the public contract that concerns a broker is on its `/metrics`, under that name, and counts
what it says.

Method: a broker on a real etcd, scraped as Prometheus does; on ZooKeeper and SQLite the names are the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from metastore.txn import paths
from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metastore.txn.store import INDEXES, begin, finalize, read_transaction
from metastore.urls import open_store
from metatxn.wire.ids import TxnId
from participants.service import BrokerService
from tests.participants.broker.process import BrokerProcess
from tests.participants.segment.world import World
from tests.servers import EtcdServer

NAMES = {
    "pulsar_txn_metadata_store_op_writes_total",
    "metatxn_decision_to_visible_seconds",
    "metatxn_horizon_lag_entries",
    "metatxn_watch_resyncs_total",
    "metatxn_reconcile_repairs_total",
    "metatxn_group_commit_size",
    "pulsar_txn_metadata_store_index_query_seconds",
    "metatxn_append_seconds",
    "metatxn_fsync_seconds",
}
"""Those of the contract; the others are the coordinator's, which alone sees headers and keys."""


INDEX_QUERIES = "pulsar_txn_metadata_store_index_query_seconds_count"


async def scrape(url: str) -> dict[str, float]:
    """Samples without a label or with one, by name and that label's value."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as http:
        answer = await http.get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(answer.text)
    return {
        sample.name + "".join(f" {value}" for value in sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.fixture(params=["etcd", "sqlite"])
async def service(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BrokerService]:
    if request.param == "etcd":
        with EtcdServer(tmp_path / "etcd") as server:
            async for found in started(f"etcd://{server.endpoint}", tmp_path):
                yield found
    else:
        async for found in started(f"sqlite:///{tmp_path / 'metadata.db'}", tmp_path):
            yield found


async def started(store_url: str, tmp_path: Path) -> AsyncIterator[BrokerService]:
    store = await open_store(store_url, INDEXES)
    service = BrokerService(store, data_dir=tmp_path / "data", port=0)
    await service.start()
    yield service
    await service.stop()
    await store.close()


async def test_every_name_of_the_contract_is_there_and_counts(service: BrokerService) -> None:
    store = service._store
    async with httpx.AsyncClient(base_url=service.url, timeout=60) as http:
        created = await http.post("/v1/topics", json={"name": "t"})
        segment = created.json()["segments"][0]["segment"]
        txn = TxnId(1, 1)
        header = Header(state=TxnState.OPEN, timeout_ms=2**40, created_ms=1)
        await store.apply(begin(store.batch(), txn, header))
        for query in ("", f"?txn_id={txn}", ""):
            answer = await http.post(f"/v1/topics/t/messages{query}", json={"messages": [{"value": 1}]})
            assert answer.status_code == 200, answer.text
        subscription = "/v1/topics/t/subscriptions/s"
        assert (await http.put(subscription, json={"type": "shared", "initial": "earliest"})).status_code == 200
        (given,) = (await http.post(f"{subscription}/receive", json={"consumer": "c"})).json()["messages"]
        acks = {"kind": "individual", "message_ids": [given["message_id"]], "txn_id": str(txn)}
        assert (await http.post(f"{subscription}/acks", json=acks)).status_code == 200

        shown = await scrape(service.url)
        assert shown["pulsar_txn_metadata_store_op_writes_total"] == 2, "a publish and an acknowledgement"
        assert shown[f"metatxn_horizon_lag_entries {segment}"] == 2
        assert shown["metatxn_append_seconds_count"] == 3 and shown["metatxn_fsync_seconds_count"] >= 1
        assert shown["metatxn_decision_to_visible_seconds_count"] == 0
        assert shown["metatxn_watch_resyncs_total"] == shown["metatxn_reconcile_repairs_total"] == 0
        names = {name.partition(" ")[0].removesuffix("_count") for name in shown}
        assert names >= NAMES - {"metatxn_horizon_lag_entries"} and shown["metatxn_group_commit_size_count"] > 0

        records = await read_transaction(store, txn)
        assert records is not None
        final = records.header.model_copy(update={"state": TxnState.COMMITTED, "finalized_ms": 2})
        await store.apply(finalize(store.batch(), [records], final))
        while (shown := await scrape(service.url))["metatxn_decision_to_visible_seconds_count"] == 0:
            pass
        assert shown[f"metatxn_horizon_lag_entries {segment}"] == 0
        page = (await http.get(f"/v1/segments/{segment.replace('/', '%2F')}")).json()
        assert (page["pinned_by"], page["open_transactions"]) == (None, [])
        assert (await http.delete("/v1/topics/t")).status_code == 204
        assert f"metatxn_horizon_lag_entries {segment}" not in await scrape(service.url), "it is not served any more"
        assert await store.get(paths.header(txn)) is not None


async def test_a_repair_and_a_gap_are_counted(process: BrokerProcess, world: World) -> None:
    """Decisions about a publish and an acknowledgement that no watch has told; and a watch that lost its place."""
    await process.create("t")
    await process.http.put("/v1/topics/t/subscriptions/s", json={"type": "shared", "initial": "earliest"})
    txns = [await world.begin(), await world.begin()]
    ids = (await process.http.post("/v1/topics/t/messages", json={"messages": [{"value": 1}]})).json()["message_ids"]
    await process.http.post(f"/v1/topics/t/messages?txn_id={txns[0]}", json={"messages": [{"value": 2}]})
    body = {"kind": "individual", "message_ids": ids, "txn_id": str(txns[1]), "for_all": True}
    assert (await process.http.post("/v1/topics/t/subscriptions/s/acks", json=body)).status_code == 200
    world.store.dropping = True
    for txn in txns:
        await world.commit(txn)
    value = process.metrics.registry.get_sample_value
    queries = value(INDEX_QUERIES) or 0
    assert queries >= 2, "what is opened looks what is open there"
    for _ in range(2):
        await process.broker.reconcile()
    assert value(INDEX_QUERIES) == queries + 4, "of the segment and of its subscription, each time"
    assert value("metatxn_reconcile_repairs_total") == 2
    assert value("metatxn_watch_resyncs_total") == 0
    world.store.cut_watches()
    while value("metatxn_watch_resyncs_total") == 0:
        await asyncio.sleep(0)
        await process.broker.reconcile()


async def test_a_segment_that_is_opened_again_shows_at_once_how_far_its_readers_are_behind(
    process: BrokerProcess, world: World
) -> None:
    (segment,) = await process.create("t")
    txn = await world.begin()
    for _ in range(3):
        await process.http.post(f"/v1/topics/t/messages?txn_id={txn}", json={"messages": [{"value": 1}]})
    process = await process.crash()
    lag = process.metrics.registry.get_sample_value("metatxn_horizon_lag_entries", {"segment": segment})
    assert lag == 3
    page = (await process.http.get(f"/v1/segments/{segment.replace('/', '%2F')}")).json()
    assert page["pinned_by"] == str(txn)
    assert [each["txn_id"] for each in page["open_transactions"]] == [str(txn)]
    await process.stop()
