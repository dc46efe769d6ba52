"""Goal: a broker that was away for longer than finished transactions are remembered loses nothing, and once it has come
back nothing is left of them (DESIGN §5.7, issue 4 item 6; scenarios D34, M92, M93).

Method: real processes on a real etcd. A broker is killed in the middle of one transaction of every kind; then they are
decided, and a coordinator that forgets after a millisecond collects all that it may. Then the broker starts again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import metatxn
from metastore.check import StoreCheck
from metastore.txn import paths
from metastore.urls import open_store
from tests.coordinator.processes import CoordinatorProcess
from tests.metatxn.waiting import eventually, values
from tests.participants.processes.cluster import PATIENCE_S, Cluster

FORGETFUL = ("--gc-retention-ms", "1", "--gc-interval-ms", "50", "--log-level", "error")
OF_TRANSACTIONS = (
    *(paths.HEADERS, paths.OPS, paths.LEASES, paths.PREPARED, paths.REMEMBERED_WRITERS),
    *(paths.WRITES_INDEX, paths.ACKS_INDEX, paths.DEADLINE_INDEX, paths.FINAL_STATE_INDEX),
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path, "unused") as cluster:
        yield cluster


def left(store_url: str) -> list[str]:
    """Keys that a quiet store must not have; all records agree with each other."""

    async def read() -> list[str]:
        store = await open_store(store_url)
        try:
            assert [finding async for finding in StoreCheck(store).findings()] == []
            keys = [record.key for record in (await store.range("/", "0", keys_only=True)).records]
            assert any(key.startswith(paths.TOPICS) for key in keys)
            return [key for key in keys if key.startswith(OF_TRANSACTIONS)]
        finally:
            await store.close()

    return asyncio.run(read())


def backlog(url: str) -> float:
    """Headers past retention that the last sweep had to keep."""
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=60).text)
    return next(family.samples[0].value for family in families if family.name == "metatxn_gc_backlog_headers")


def test_a_broker_that_was_away_for_longer_than_retention(cluster: Cluster, tmp_path: Path) -> None:
    client, data_dir = cluster.client, str(tmp_path / "data")
    broker = cluster.broker("--data-dir", data_dir)
    client.create_topic("t")
    with client.producer("t") as producer:
        producer.send("plain")
    consumer = client.subscribe("t", "s", "shared", "earliest")
    message = consumer.receive()
    assert message is not None

    begun = {name: client.begin(600_000) for name in ("committed", "aborted", "kept alive", "prepared")}
    begun["fenced"] = client.begin(600_000, "k", client.connect_key("k").epoch)
    with client.producer("t") as producer:
        for name, txn in begun.items():
            producer.send(name, txn=txn)
    consumer.acknowledge(message, begun["committed"])
    begun["nothing written"] = client.begin(600_000)
    broker.kill()

    def post(name: str, verb: str, **body: object) -> None:
        assert httpx.post(f"{cluster.url}/v1/txns/{begun[name].id}/{verb}", json=body, timeout=60).is_success

    post("kept alive", "keep-alive", timeout_ms=900_000)
    post("prepared", "prepare")
    for name in ("committed", "kept alive", "prepared", "nothing written"):
        client.attach(begun[name].id).commit()
    client.attach(begun["aborted"].id).abort()
    assert client.connect_key("k").aborted_txn_id == begun["fenced"].id

    with CoordinatorProcess(cluster.store_url, *FORGETFUL) as forgetful:
        eventually(lambda: backlog(forgetful.url), 5, PATIENCE_S)
        with pytest.raises(metatxn.TransactionNotFound):
            client.attach(begun.pop("nothing written").id).commit()
        states = {name: client.attach(txn.id).header.state for name, txn in begun.items()}
        cluster.broker("--data-dir", data_dir)
        eventually(lambda: sorted(values(client, "t")), ["committed", "kept alive", "plain", "prepared"], PATIENCE_S)
        eventually(lambda: left(cluster.store_url), [], PATIENCE_S)
    assert states == {
        **dict.fromkeys(("committed", "kept alive", "prepared"), "COMMITTED"),
        **dict.fromkeys(("aborted", "fenced"), "ABORTED"),
    }
    (segment,) = client.subscription("t", "s").segments
    assert (segment.backlog, segment.pending_acks) == (3, {}), "the plain message is acknowledged, the others are not"
