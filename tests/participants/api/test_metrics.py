"""Goal: every metric of the public contract that concerns a broker is on its `/metrics`, under that name, and counts
what it says.

Method: a broker on a real etcd, scraped as Prometheus does; on ZooKeeper and SQLite the names are the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from metastore.txn import paths
from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metastore.txn.store import INDEXES, begin, finalize, read_transaction
from metastore.urls import open_store
from metatxn.wire.ids import TxnId
from participants.common import horizon_lags, traffic
from participants.service import BrokerService
from participants.topic import subscription_metrics
from participants.topic.subscription_metrics import SubscriptionMetrics
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


async def test_what_goes_through_a_topic_is_counted(process: BrokerProcess) -> None:
    """In and out, whichever way it is read; what was given again; and what went to the dead letters."""
    (segment,) = await process.create("t")
    await process.create("dead")
    path = "/v1/topics/t/subscriptions/s"
    settings = {"type": "shared", "initial": "earliest", "dead_letter_topic": "dead", "max_redeliveries": 1}
    assert (await process.http.put(path, json=settings)).status_code == 200
    body = {"messages": [{"value": 1}, {"value": 2}]}
    assert (await process.http.post("/v1/topics/t/messages", json=body)).status_code == 200
    name, registry = "public/default/t", process.metrics.registry

    def counted(which: str, topic: str = name) -> float | None:
        return registry.get_sample_value(f"metatxn_{which}_total", {"topic": topic})

    payload = (await process.http.get(f"/v1/segments/{segment.replace('/', '%2F')}")).json()["size_bytes"]
    assert (counted("topic_messages_in"), counted("topic_entries_in")) == (2, 1)
    assert 0 < (counted("topic_bytes_in") or 0) < payload, "without the head of the entry"

    assert (await process.http.get("/v1/topics/t/messages?max=1")).status_code == 200
    assert (counted("topic_messages_out"), counted("topic_entries_out")) == (1, 1)
    assert counted("topic_bytes_out") == payload // 2
    await process.http.get(f"/v1/segments/{segment.replace('/', '%2F')}/entries")
    assert (counted("topic_messages_out"), counted("topic_entries_out")) == (3, 2)
    await process.http.get("/v1/topics/t/messages?compacted=true")
    assert counted("topic_messages_out") == 3, "they have no keys"

    for given, again in ((5, 0), (7, 2)):
        taken = (await process.http.post(f"{path}/receive", json={"consumer": "c"})).json()["messages"]
        assert len(taken) == 2
        assert (counted("topic_messages_out"), counted("redeliveries")) == (given, again)
        assert counted("dead_letters") == 0
        await process.http.post(f"{path}/redeliver", json={})
    while counted("dead_letters") != 2:
        await asyncio.sleep(0)
    assert counted("topic_messages_in", "public/default/dead") == 2


async def test_a_subscription_shows_how_far_it_is_behind(process: BrokerProcess, world: World) -> None:
    """What an open transaction has written is not behind yet: no consumer could have it."""
    (segment,) = await process.create("t")
    path = "/v1/topics/t/subscriptions/s"
    SubscriptionMetrics(process.metrics.registry, lambda: process.broker)
    assert (await process.http.put(path, json={"type": "shared", "initial": "earliest"})).status_code == 200

    def shown() -> list[float | None]:
        labels = {"topic": "public/default/t", "subscription": "s"}
        names = ("backlog_entries", "backlog_bytes", "unacked_messages", "consumers")
        return [process.metrics.registry.get_sample_value(f"metatxn_subscription_{name}", labels) for name in names]

    assert shown() == [0, 0, 0, 0]
    for _ in range(3):
        await process.http.post("/v1/topics/t/messages", json={"messages": [{"value": 1}]})
    size = process.broker.served[segment].ledgers.size_bytes
    await process.http.post(f"/v1/topics/t/messages?txn_id={await world.begin()}", json={"messages": [{"value": 2}]})
    assert shown() == [3, size, 0, 0]
    given = (await process.http.post(f"{path}/receive", json={"consumer": "c", "max": 2})).json()["messages"]
    assert shown() == [3, size, 2, 1]
    acks = {"kind": "cumulative", "message_ids": [given[-1]["message_id"]]}
    exclusive = {"kind": "individual", "message_ids": [each["message_id"] for each in given]}
    assert (await process.http.post(f"{path}/acks", json=acks)).status_code == 422, "it is shared"
    assert (await process.http.post(f"{path}/acks", json=exclusive)).status_code == 200
    assert shown() == [1, size / 3, 0, 1]
    assert (await process.http.delete(f"{path}/consumers/c")).status_code == 204
    assert shown() == [1, size / 3, 0, 0]
    assert (await process.http.delete(path)).status_code == 204
    assert shown() == [None] * 4


async def test_a_segment_that_is_opened_again_is_counted(process: BrokerProcess) -> None:
    (segment,) = await process.create("t")
    value = process.metrics.registry.get_sample_value
    assert (value("metatxn_segments_opened_total"), value("metatxn_segments_lost_total")) == (1, 0)
    process.broker.served[segment].lose("a test says so")
    while segment not in process.broker.served:
        await asyncio.sleep(0)
    assert (value("metatxn_segments_opened_total"), value("metatxn_segments_lost_total")) == (2, 1)


def test_topics_above_the_bound_share_their_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "MAX_TOPICS", 2)
    registry = CollectorRegistry()
    counts = traffic.Traffic(registry)
    for number in range(4):
        counts.of(f"public/default/{number}").came_in(1, 10)
    counts.of("public/default/0").came_in(1, 10)
    found = {
        sample.labels["topic"]: sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "metatxn_topic_messages_in_total"
    }
    assert found == {"public/default/0": 2, "public/default/1": 1, "others": 2}


def test_segments_above_the_bound_share_their_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with a series of their own are the ones whose readers are furthest behind."""
    monkeypatch.setattr(horizon_lags, "MAX_SEGMENT_SERIES", 2)
    registry = CollectorRegistry()
    lags = horizon_lags.HorizonLags(registry)

    def shown() -> dict[str, float]:
        return {sample.labels["segment"]: sample.value for family in registry.collect() for sample in family.samples}

    for number, entries in enumerate((1, 30, 5, 20)):
        lags.tell(f"segment-{number}", entries)
    assert shown() == {"segment-1": 30, "segment-3": 20, "others": 6}
    lags.tell("segment-0", 40)
    lags.forget("segment-1")
    assert shown() == {"segment-0": 40, "segment-3": 20, "others": 5}
    lags.forget("segment-2")
    assert shown() == {"segment-0": 40, "segment-3": 20}


async def test_subscriptions_above_the_bound_share_their_lag(
    process: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription_metrics, "MAX_SUBSCRIPTIONS", 2)
    SubscriptionMetrics(process.metrics.registry, lambda: process.broker)
    for number in range(4):
        await process.create(f"t{number}")
        await process.http.put(f"/v1/topics/t{number}/subscriptions/s", json={"type": "shared", "initial": "earliest"})
        for _ in range(number + 1):
            await process.http.post(f"/v1/topics/t{number}/messages", json={"messages": [{"value": 1}]})
    found = {
        sample.labels["topic"]: sample.value
        for family in process.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "metatxn_subscription_backlog_entries"
    }
    assert len(found) == 3 and sum(found.values()) == 10
    alone = {f"public/default/t{number}": number + 1 for number in range(4)}
    assert {topic: value for topic, value in found.items() if topic != "others"}.items() <= alone.items()


async def test_no_metric_has_more_series_where_there_are_more_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a broker that has more of everything than it shows."""
    monkeypatch.setattr(traffic, "MAX_TOPICS", 2)
    monkeypatch.setattr(subscription_metrics, "MAX_SUBSCRIPTIONS", 2)
    monkeypatch.setattr(horizon_lags, "MAX_SEGMENT_SERIES", 2)
    async with asynccontextmanager(started)(f"sqlite:///{tmp_path / 'metadata.db'}", tmp_path) as service:
        numbers = []
        for first in (0, 3):
            async with httpx.AsyncClient(base_url=service.url, timeout=60) as http:
                for topic in (f"/v1/topics/t{number}" for number in range(first, first + 3)):
                    body = {"name": topic.rpartition("/")[2], "segments": 2}
                    assert (await http.post("/v1/topics", json=body)).status_code == 201
                    settings = {"type": "shared", "initial": "earliest"}
                    assert (await http.put(f"{topic}/subscriptions/s", json=settings)).status_code == 200
                    assert (await http.post(f"{topic}/messages", json={"messages": [{"value": 1}]})).status_code == 200
            numbers.append({family.name: len(family.samples) for family in service.metrics.registry.collect()})
        assert numbers[0]["metatxn_horizon_lag_entries"] == 3
        assert numbers[0] == numbers[1]
