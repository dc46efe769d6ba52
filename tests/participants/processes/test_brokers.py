"""Goal: brokers that share object storage divide the segments, take over from one that died, and keep one that was
frozen from doing anything; one with local files is back at once. Nothing is lost, shown twice, or shown though aborted.

Method: real processes on a real etcd, killed with -9, stopped and continued by signals, restarted under load; objects
in a shared directory, and once behind a server that speaks S3; there `make test-all` has both. Issue 5.5; scenarios 79,
118.
"""

from __future__ import annotations

import itertools
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

import metatxn
from tests.extent import usually
from tests.participants.processes.cluster import PATIENCE_S, BrokerProcess, Cluster, visible
from tests.servers import S3Server

KEYS = [f"k{number}" for number in range(60)]
LIVES = usually(2, 4)


@pytest.fixture(params=usually(["s3"], ["file", "s3"]))
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        if request.param == "s3":
            s3 = stack.enter_context(S3Server(tmp_path))
            yield stack.enter_context(Cluster(tmp_path, f"s3://{S3Server.BUCKET}/ledgers", s3.environment))
        else:
            yield stack.enter_context(Cluster(tmp_path, f"file://{tmp_path}/objects"))


only_files = pytest.mark.parametrize("cluster", ["file"], indirect=True)


def spread_over(cluster: Cluster, topic: str, brokers: list[BrokerProcess]) -> None:
    cluster.wait(lambda: set(cluster.owners(topic).values()) == {broker.url for broker in brokers})


@pytest.mark.timeout(600)
def test_79_kill_9_moves_the_segments_and_the_transaction_goes_on(cluster: Cluster) -> None:
    brokers = [cluster.broker() for _ in range(3)]
    client = cluster.client
    client.create_topic("t", segments=24)
    spread_over(cluster, "t", brokers)
    with client.transaction(timeout_ms=600_000) as txn:
        producer = client.producer("t")
        for key in KEYS:
            producer.send(f"before {key}", key, txn)
        producer.flush()
        aborted = client.begin(timeout_ms=600_000)
        for key in KEYS:
            producer.send(f"aborted {key}", key, aborted)
        producer.flush()
        brokers[0].kill()
        for key in KEYS:
            producer.send(f"after {key}", key, txn)
        producer.flush()
        assert visible(client, "t") == []
        aborted.abort()
    spread_over(cluster, "t", brokers[1:])
    wanted = sorted(f"{when} {key}" for when in ("before", "after") for key in KEYS)
    cluster.wait(lambda: sorted(visible(client, "t")) == wanted)


@only_files
@pytest.mark.timeout(600)
def test_a_broker_frozen_past_its_lease_acknowledges_nothing_and_makes_nothing_visible(cluster: Cluster) -> None:
    """Requests wait in its sockets while it is frozen: it answers them in its first moments, before it can know."""
    frozen, client = cluster.broker(), cluster.client
    (segment,) = (each.segment for each in client.create_topic("t").segments)
    producer = client.producer("t")
    producer.send("acknowledged").result(PATIENCE_S)
    txn = client.begin(timeout_ms=600_000)
    producer.send("open", txn=txn).result(PATIENCE_S)
    frozen.signal(signal.SIGSTOP)
    alive = cluster.broker()
    topic = f"{alive.url}/v1/topics/{quote('public/default/t', safe='')}"  # the client would wait for the frozen one
    cluster.wait(lambda: httpx.get(topic).json()["segments"][0]["owner"] == alive.url)
    with metatxn.connect(alive.url, request_timeout_s=PATIENCE_S) as other:
        other.producer("t").send("new").result(PATIENCE_S)
        entries = f"{frozen.url}/v1/segments/{quote(segment, safe='')}/entries"
        with ThreadPoolExecutor(12) as pool, httpx.Client(timeout=PATIENCE_S) as http:
            appends = [pool.submit(http.post, entries, content=b"zombie") for _ in range(4)]
            appends += [pool.submit(http.post, entries, content=b"zombie", params={"txn_id": txn.id}) for _ in range(4)]
            snapshots = [pool.submit(http.get, entries, params={"isolation": "snapshot"}) for _ in range(2)]
            reads = [pool.submit(http.get, entries) for _ in range(2)]
            frozen.signal(signal.SIGCONT)
            # 504 where its own store or the ledger's did not answer in time: unknown, which acknowledges nothing.
            assert {answer.result().status_code for answer in appends} <= {307, 503, 504}
            # A cut that lacks "new" would be wrong; one that has it was answered as the owner of today.
            assert {answer.result().status_code for answer in snapshots} <= {307, 503}
            for answer in reads:
                assert answer.result().status_code in (200, 307, 503)
                if answer.result().status_code == 200:
                    assert b"zombie" not in answer.result().content and b"open" not in answer.result().content
        txn.commit()
        cluster.wait(lambda: visible(other, "t") == ["acknowledged", "open", "new"])
        # It takes part again: what it is sent on to is the truth.
        alive.stop()
        cluster.wait(lambda: cluster.owners("t")[segment] == frozen.url)
    with metatxn.connect(frozen.url, request_timeout_s=PATIENCE_S) as other:
        cluster.wait(lambda: visible(other, "t") == ["acknowledged", "open", "new"])


@only_files
def test_local_files_are_served_again_at_once_after_kill_9(cluster: Cluster, tmp_path: Path) -> None:
    """Without waiting for the lease of the life before: the directory's lock tells that it has ended."""
    where = ("--data-dir", str(tmp_path / "data"))
    first, client = cluster.broker(*where), cluster.client
    client.create_topic("t", segments=3)
    producer = client.producer("t")
    for key in KEYS:
        producer.send(key, key)
    producer.flush()
    first.kill()
    again = cluster.broker(*where)
    assert httpx.get(f"{again.url}/readyz", timeout=60).status_code == 200
    assert set(cluster.owners("t").values()) == {again.url}
    with metatxn.connect(again.url) as other:
        assert sorted(visible(other, "t")) == sorted(KEYS)


@only_files
@pytest.mark.timeout(900)
def test_118_brokers_restarted_under_load_lose_nothing_repeat_nothing_and_show_nothing_aborted(
    cluster: Cluster,
) -> None:
    brokers = [cluster.broker(), cluster.broker()]
    client = cluster.client
    client.create_topic("t", segments=6)
    committed: list[str] = []
    unknown: set[str] = set()
    stop = threading.Event()

    def write() -> None:
        for number in itertools.count():
            if stop.is_set():
                return
            txn = client.begin(timeout_ms=600_000)
            producer = client.producer("t")
            values = [f"{number}/{key}" for key in KEYS[:12]]
            for value, key in zip(values, KEYS, strict=False):
                producer.send(value, key, txn)
            try:
                producer.flush()
                if number % 3:
                    txn.commit()
                    committed.extend(values)
                else:
                    txn.abort()
            except metatxn.MetatxnError:
                unknown.update(values)
                txn.abort()

    writing = threading.Thread(target=write)
    writing.start()

    def two_more_transactions() -> None:
        seen = len(committed)
        cluster.wait(lambda: len(committed) >= seen + 24)

    try:
        for life in range(LIVES):
            two_more_transactions()
            victim = brokers.pop(0)
            if life % 2:
                victim.stop()
            else:
                victim.kill()
            brokers.append(cluster.broker())
        two_more_transactions()
    finally:
        stop.set()
        writing.join()
    cluster.wait(lambda: sorted(visible(client, "t")) == sorted(committed))
    assert not unknown
