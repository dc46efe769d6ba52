"""The metrics of CONTRACT that a coordinator shows (scenario E44). Method: real work, then a scrape over HTTP."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from math import ceil

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from coordinator import ages
from coordinator import survey as module
from coordinator.batches import TOGETHER
from coordinator.service import CoordinatorService
from metastore.backends.etcd import EtcdStore
from metastore.backends.memory import MemoryStore
from metastore.errors import StoreUnavailable
from metastore.txn import paths
from metastore.txn.records.operations import WriteOp
from metatxn.wire.ids import TxnId
from participants.common.metrics import BrokerMetrics
from tests.coordinator.conftest import CountedReads, FakeClock
from tests.coordinator.stores import Fault, FaultyStore

NAMES = {
    "pulsar_txn_metadata_store_header_cas_total",
    "pulsar_txn_metadata_store_index_query_seconds",
    "pulsar_txn_metadata_store_outstanding_op_records",
    "pulsar_txn_transaction_key_count",
    "pulsar_txn_transaction_key_epoch",
    "pulsar_txn_transaction_key_age",
    "metatxn_transactions_open",
    "metatxn_transactions_created_total",
    "metatxn_transactions_ended_total",
    "metatxn_transaction_duration_seconds",
    "metatxn_oldest_open_transaction_seconds",
    "metatxn_watch_resyncs_total",
    "metatxn_gc_backlog_headers",
    "metatxn_group_commit_size",
}
"""Those of the contract that are a coordinator's; the others are measured where data is written."""

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Scraped:
    """A coordinator's application, and what its `/metrics` says."""

    def __init__(self, service: CoordinatorService, http: httpx.AsyncClient) -> None:
        self.service = service
        self.http = http

    async def samples(self) -> Samples:
        text = (await self.http.get("/metrics")).text
        families = text_string_to_metric_families(text)
        return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}

    async def value(self, name: str, **labels: str) -> float | None:
        return (await self.samples()).get((name, tuple(sorted(labels.items()))))

    async def labelled(self, name: str) -> set[str]:
        """The transaction keys that have a series of this name."""
        return {dict(labels)["transaction_key"] for found, labels in await self.samples() if found == name}


@pytest.fixture
async def scraped(store: FaultyStore, clock: FakeClock) -> AsyncIterator[Scraped]:
    service = CoordinatorService(store, clock=clock)
    transport = httpx.ASGITransport(app=service.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://coordinator") as http:
        yield Scraped(service, http)


async def begin(scraped: Scraped, **fields: object) -> str:
    return str((await scraped.http.post("/v1/txns", json=fields)).json()["txn_id"])


async def end(scraped: Scraped, txn_id: str, verb: str) -> int:
    return (await scraped.http.post(f"/v1/txns/{txn_id}/{verb}")).status_code


async def test_every_name_of_the_contract_is_on_a_page(scraped: Scraped) -> None:
    """A coordinator shows its own before anything has happened, and with a broker's they are all of CONTRACT.md."""
    await scraped.service.survey.look_once()
    text = (await scraped.http.get("/metrics")).text
    assert set(re.findall(r"^# TYPE (\S+) ", text, re.MULTILINE)) >= NAMES
    of_brokers = {metric.name for metric in BrokerMetrics().registry.collect()}
    assert {
        "pulsar_txn_metadata_store_op_writes",
        *("metatxn_decision_to_visible_seconds", "metatxn_horizon_lag_entries", "metatxn_reconcile_repairs"),
        *("metatxn_append_seconds", "metatxn_fsync_seconds", "pulsar_txn_metadata_store_index_query_seconds"),
    } <= of_brokers


async def test_every_end_is_counted_once_by_how_it_ended(scraped: Scraped, clock: FakeClock) -> None:
    """E44: also when it is repeated, refused or swept again."""
    committed, aborted = await begin(scraped), await begin(scraped)
    for _ in range(2):
        await end(scraped, committed, "commit")
        await end(scraped, aborted, "abort")
    assert await end(scraped, aborted, "commit") == 409
    for _ in range(3):
        await begin(scraped, timeout_ms=1)
    clock.now_ms += 10_000
    for _ in range(2):
        await scraped.service.timeout_sweep.sweep()
    await scraped.http.post("/v1/transaction-keys/k/connect", json={"epoch": -1})
    for _ in range(2):
        await begin(scraped, transaction_key="k", epoch=0)
    ended = {
        result: await scraped.value("metatxn_transactions_ended_total", result=result)
        for result in ("committed", "aborted", "timed_out", "fenced")
    }
    assert ended == {"committed": 1, "aborted": 1, "timed_out": 3, "fenced": 1}
    cas = {
        result: await scraped.value("pulsar_txn_metadata_store_header_cas_total", result=result)
        for result in ("ok", "conflict", "reject")
    }
    assert cas == {"ok": 6, "conflict": 0, "reject": 1}


async def test_every_begin_is_counted_once(scraped: Scraped, store: FaultyStore) -> None:
    """However it was found out that it happened; what found an open transaction, or a committed one, began nothing."""
    await scraped.http.post("/v1/transaction-keys/k/connect", json={"epoch": -1})
    await begin(scraped)
    await scraped.http.post("/v1/txns/batch", json={"items": [{"op": "begin"}] * 3})
    for fields in ({}, {"transaction_key": "k", "epoch": 0, "version": 1}):
        store.faults.append(Fault.LOSE_REPLY)
        txn_id = await begin(scraped, **fields)
    assert await begin(scraped, transaction_key="k", epoch=0, version=1) == txn_id
    await end(scraped, txn_id, "commit")
    again = {"transaction_key": "k", "epoch": 0, "version": 1}
    assert (await scraped.http.post("/v1/txns", json=again)).json()["already_committed"]
    await begin(scraped, transaction_key="k", epoch=0, version=2)
    assert await scraped.value("metatxn_transactions_created_total") == 7


async def test_how_long_a_transaction_took_is_told_by_how_it_ended(scraped: Scraped, clock: FakeClock) -> None:
    """A clock that is behind that of the begin makes it short, never negative."""
    committed, aborted, *together = [await begin(scraped) for _ in range(5)]
    clock.now_ms += 1_500
    await end(scraped, committed, "commit")
    items = [{"op": "commit", "txn_id": txn_id} for txn_id in together]
    await scraped.http.post("/v1/txns/batch", json={"items": items})
    clock.now_ms -= 60_000
    await end(scraped, aborted, "abort")
    name = "metatxn_transaction_duration_seconds"
    assert await scraped.value(f"{name}_count", result="committed") == 4
    assert await scraped.value(f"{name}_sum", result="committed") == 6
    assert await scraped.value(f"{name}_count", result="aborted") == 1
    assert await scraped.value(f"{name}_sum", result="aborted") == 0


async def test_a_lost_race_is_a_conflict(scraped: Scraped, store: FaultyStore) -> None:
    txn_id = await begin(scraped)
    store.before_applies.append(lambda: end(scraped, txn_id, "commit"))
    assert await end(scraped, txn_id, "commit") == 200
    assert await scraped.value("pulsar_txn_metadata_store_header_cas_total", result="conflict") == 1
    assert await scraped.value("metatxn_transactions_ended_total", result="committed") == 1


async def test_what_is_open_and_since_when(scraped: Scraped, clock: FakeClock, truth: MemoryStore) -> None:
    """As the last survey has found it, until the next one."""
    survey = scraped.service.survey
    assert await scraped.value("metatxn_transactions_open") is None, "nothing is claimed before the first look"
    await survey.look_once()
    assert await scraped.value("metatxn_transactions_open") == 0
    assert await scraped.value("metatxn_oldest_open_transaction_seconds") == 0
    first = await begin(scraped, timeout_ms=80_000_000)
    clock.now_ms += 90_000
    second = await begin(scraped)
    for counter in range(3):
        op = WriteOp(segment="t/1", after="1:-1", count=1)
        key = paths.write_op(TxnId.parse(first), "t/1", 1, counter)
        await truth.apply(truth.batch().create(key, op.encode()))
    await end(scraped, await begin(scraped), "commit")
    assert await scraped.value("metatxn_transactions_open") == 0
    await survey.look_once()
    assert await scraped.value("metatxn_transactions_open") == 2
    assert await scraped.value("metatxn_oldest_open_transaction_seconds") == 90
    assert await scraped.value("pulsar_txn_metadata_store_outstanding_op_records") == 3
    await end(scraped, first, "abort")
    clock.now_ms += 1_000
    await survey.look_once()
    assert await scraped.value("metatxn_transactions_open") == 1
    assert await scraped.value("metatxn_oldest_open_transaction_seconds") == 1
    await end(scraped, second, "commit")
    await survey.look_once()
    assert await scraped.value("metatxn_oldest_open_transaction_seconds") == 0


async def test_a_survey_reads_a_header_once(scraped: Scraped, counted: CountedReads) -> None:
    """And finished transactions never; a scrape reads nothing at all."""
    for _ in range(20):
        await begin(scraped)
    for _ in range(30):
        await end(scraped, await begin(scraped), "commit")
    counted.start()
    await scraped.service.survey.look_once()
    assert counted.keys == 20
    await begin(scraped)
    await scraped.service.survey.look_once()
    await scraped.samples()
    assert counted.keys == 21


async def test_a_failed_survey_leaves_what_was_found(
    scraped: Scraped, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await begin(scraped)
    await scraped.service.survey.look_once()

    async def unavailable(*_: object, **__: object) -> None:
        raise StoreUnavailable("nobody listens")

    monkeypatch.setattr(store, "range", unavailable)
    with pytest.raises(StoreUnavailable):
        await scraped.service.survey.look_once()
    assert await scraped.value("metatxn_transactions_open") == 1


async def test_counting_ends_at_a_bound(scraped: Scraped, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store with millions of operations is not read whole for a metric."""
    for each in (ages, module):
        monkeypatch.setattr(each, "MAX_COUNTED", 20)
        monkeypatch.setattr(each, "PAGE", 10)
    for _ in range(45):
        await begin(scraped)
    await scraped.service.survey.look_once()
    assert await scraped.value("metatxn_transactions_open") == 20


async def test_transaction_keys(scraped: Scraped, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transaction-key proposal: count, epoch, age; with labels only for a bounded number of keys."""
    monkeypatch.setattr(module, "MAX_LABELLED_KEYS", 2)
    monkeypatch.setattr(module, "PAGE", 2)
    for key in ("a", "b", "c", "d", "gone"):
        for _ in range(3 if key == "d" else 1):
            await scraped.http.post(f"/v1/transaction-keys/{key}/connect", json={"epoch": -1, "owner": "billing"})
        clock.now_ms += 10_000
    await scraped.http.delete("/admin/v2/transactions/transaction-keys/gone?owner=billing")
    await scraped.service.survey.look_once()
    assert await scraped.value("pulsar_txn_transaction_key_count") == 4
    assert await scraped.labelled("pulsar_txn_transaction_key_epoch") == {"c", "d"}
    assert await scraped.labelled("pulsar_txn_transaction_key_age_sum") == {"a", "b"}
    d, a = ({"owner": "billing", "transaction_key": key} for key in "da")
    assert await scraped.value("pulsar_txn_transaction_key_epoch", **d) == 2
    assert await scraped.value("pulsar_txn_transaction_key_age_sum", **a) == 50
    assert await scraped.value("pulsar_txn_transaction_key_age_count", **a) == 1


async def test_what_garbage_collection_had_to_keep(scraped: Scraped, clock: FakeClock, truth: MemoryStore) -> None:
    txn_id = await begin(scraped)
    op = WriteOp(segment="t/1", after="1:-1", count=1)
    await truth.apply(truth.batch().create(paths.write_op(TxnId.parse(txn_id), "t/1", 1, 0), op.encode()))
    await end(scraped, txn_id, "commit")
    await end(scraped, await begin(scraped), "commit")
    clock.now_ms += 100_000_000
    await scraped.service.gc_sweep.sweep()
    assert await scraped.value("metatxn_gc_backlog_headers") == 1
    assert (await scraped.http.get("/v1/status")).json()["gc_backlog"] == 1


async def test_index_queries_are_timed(scraped: Scraped) -> None:
    """Of the sweeps and of the lists."""
    name = "pulsar_txn_metadata_store_index_query_seconds_count"
    assert await scraped.value(name) == 0
    await scraped.service.timeout_sweep.sweep()
    await scraped.service.gc_sweep.sweep()
    assert await scraped.value(name) == 3, "by deadline, committed, aborted"
    await scraped.http.get("/v1/txns?state=OPEN")
    assert await scraped.value(name) == 4


async def test_the_size_of_commit_groups_is_seen(etcd: EtcdStore, clock: FakeClock) -> None:
    """On a store that groups: a block of ids, then the applies of a hundred begins in one request."""
    service = CoordinatorService(etcd, clock=clock)
    transport = httpx.ASGITransport(app=service.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://coordinator") as http:
        scraped = Scraped(service, http)
        await http.post("/v1/txns/batch", json={"items": [{"op": "begin"}] * 100})
        assert await scraped.value("metatxn_group_commit_size_sum") == 1 + ceil(100 / TOGETHER)
        assert await scraped.value("metatxn_group_commit_size_bucket", le="1.0") == 1
        assert await scraped.value("metatxn_group_commit_size_count") == 2
