"""Goal: a service tells what it has done in the last quarter of an hour, in samples of ten seconds each.

Method: the counters of both services, looked at by hand; and the endpoint, asked.
"""

from __future__ import annotations

from pathlib import Path

import httpx

from coordinator.local import local_commits
from coordinator.service import CoordinatorService
from metastore.backends.memory import MemoryStore
from metastore.txn.store import INDEXES
from metatxn.service.throughput import REMEMBERED, Throughput
from metatxn.wire.broker import TrafficRates
from metatxn.wire.ids import TxnId
from participants.common.metrics import BrokerMetrics
from participants.common.traffic import MINUTE_IN_LOOKS, SegmentTraffic
from participants.service import BrokerService


def test_a_sample_is_what_was_counted_since_the_one_before() -> None:
    counted, now_ms = {"messages_in": 5}, 0
    throughput = Throughput(lambda: dict(counted), lambda: now_ms)
    for now_ms in range(REMEMBERED + 10):
        counted["messages_in"] += now_ms
        throughput.look()
    told = throughput.answer()
    assert [(each.at_ms, each.messages_in) for each in told.samples] == [(at, at) for at in range(10, REMEMBERED + 10)]


def test_a_broker_counts_what_goes_through_all_of_its_topics() -> None:
    traffic = BrokerMetrics().traffic
    traffic.of("a/b/c").came_in(3, 30)
    traffic.of("a/b/d").came_in(4, 40)
    traffic.of("a/b/d").went_out(2, 20)
    assert traffic.counts() == {"messages_in": 7, "bytes_in": 70, "messages_out": 2, "bytes_out": 20}


def test_a_segment_knows_what_went_through_it_in_the_last_minute_and_its_topic_counts_it_too() -> None:
    topic = BrokerMetrics().traffic.of("a/b/c")
    one, other = SegmentTraffic(topic), SegmentTraffic(topic)
    one.came_in(1_000, 0)
    one.look()
    assert one.rates() is None, "nobody knows since when"
    for _ in range(2 * MINUTE_IN_LOOKS):
        one.came_in(20, 400)
        one.went_out(10, 100)
        one.look()
    other.redelivered(2)
    assert one.rates() == TrafficRates(messages_in=2, bytes_in=40, messages_out=1, bytes_out=10)
    assert (topic.messages_in, topic.bytes_out, topic.redeliveries) == (1_240, 1_200, 2)
    for _ in range(MINUTE_IN_LOOKS):
        one.look()
    assert one.rates() == TrafficRates(messages_in=0, bytes_in=0, messages_out=0, bytes_out=0)


async def test_a_coordinator_counts_what_begins_and_ends_there() -> None:
    store = MemoryStore(INDEXES)
    service = CoordinatorService(store)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(service.app), base_url="http://service") as http:
        assert (await http.get("/v1/throughput")).json()["samples"] == []
        for end in ("commit", "commit", "abort", None):
            txn = (await http.post("/v1/txns")).json()["txn_id"]
            if end is not None:
                assert (await http.post(f"/v1/txns/{txn}/{end}")).status_code == 200
        service.throughput.look()
        (sample,) = (await http.get("/v1/throughput")).json()["samples"]
    del sample["at_ms"]
    assert sample == {"transactions_begun": 4, "transactions_committed": 2, "transactions_aborted": 1}
    await store.close()


async def test_a_service_looks_as_long_as_it_runs(tmp_path: Path) -> None:
    """What happened before it began to look is not counted, and nothing looks any more once it is stopped."""
    store = MemoryStore(INDEXES)
    for service in (CoordinatorService(store, port=0), BrokerService(store, data_dir=tmp_path, port=0)):
        await service.start()
        throughput = getattr(service, "throughput", None) or getattr(service, "_throughput", None)
        assert isinstance(throughput, Throughput) and throughput._timer is not None
        await service.stop()
        assert throughput._timer is None
    await store.close()


async def test_171_a_broker_tells_of_the_commits_that_came_with_entries(tmp_path: Path) -> None:
    """Unless a coordinator in its process counts them."""
    store = MemoryStore(INDEXES)
    coordinator = CoordinatorService(store, port=0)
    begun = (await coordinator.transactions.begin()).txn_id
    assert begun is not None
    alone = BrokerService(store, data_dir=tmp_path / "alone", commits=local_commits)
    beside = BrokerService(store, data_dir=tmp_path / "beside", commits=lambda *_: coordinator.commits)
    for broker in (alone, beside):
        assert broker._committer is not None
        await broker._committer.commit(TxnId.parse(begun))
    assert alone._counts()["transactions_committed"] == 1
    assert "transactions_committed" not in beside._counts()
    await store.close()
