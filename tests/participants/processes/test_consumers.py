"""Goal: anyone who consumes a topic that is spread over brokers, acknowledges in transactions and sends on what he made
of it, does so exactly once, while the brokers are killed under him.

Method: real processes on a real etcd; two consumers of a shared subscription move numbers from one topic to another,
each batch in a transaction with its acknowledgements, while the owner of some segments, then the home of the
subscription is killed with -9. What conflicts or fails is aborted and given back. Scenarios 53, 79, 82, 83, 118.
"""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

import pytest

import metatxn
from tests.participants.processes.cluster import PATIENCE_S, Cluster, visible

NUMBERS = 600
BATCH = 20


class Mover:
    """One consumer, in a thread of its own."""

    def __init__(self, cluster: Cluster, counts: list[int]) -> None:
        self._url = cluster.url
        self._counts = counts
        self._thread = threading.Thread(target=self._work)
        self.stop = threading.Event()
        self._thread.start()

    def join(self) -> None:
        self.stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _work(self) -> None:
        with (
            metatxn.connect(self._url, request_timeout_s=PATIENCE_S) as client,
            client.consumer("in", "s") as consumer,
        ):
            while not self.stop.is_set():
                # A client that has never reached a broker does not wait until another one is known to have its place.
                with contextlib.suppress(metatxn.ServiceUnreachable):
                    if (first := consumer.receive(timeout_s=1)) is not None:
                        self._move(client, consumer, first)

    def _move(self, client: metatxn.Client, consumer: metatxn.Consumer, first: metatxn.Message) -> None:
        batch, txn = [first], None
        try:
            while len(batch) < BATCH and (message := consumer.receive(timeout_s=0)) is not None:
                batch.append(message)
            txn = client.begin(timeout_ms=600_000)
            producer = client.producer("out")
            for message in batch:
                producer.send(message.value, str(message.value), txn)
            producer.flush()
            consumer.acknowledge(batch, txn)
            txn.commit()
        except metatxn.MetatxnError:
            with contextlib.suppress(metatxn.MetatxnError):
                if txn is not None:
                    txn.abort()
            with contextlib.suppress(metatxn.MetatxnError):
                consumer.negative_acknowledge(batch)
        else:
            self._counts.append(len(batch))


@pytest.mark.timeout(900)
def test_53_118_what_is_consumed_and_sent_on_in_transactions_counts_once_over_kill_9(tmp_path: Path) -> None:
    with Cluster(tmp_path, f"file://{tmp_path}/objects") as cluster:
        client = cluster.client
        brokers = {broker.url: broker for broker in (cluster.broker(), cluster.broker())}
        client.create_topic("in", segments=12)
        client.create_topic("out", segments=3)
        cluster.wait(lambda: set(cluster.owners("in").values()) == set(brokers))
        client.subscribe("in", "s", "shared", "earliest").close()
        with client.producer("in", max_entry_messages=5) as producer:
            for number in range(NUMBERS):
                producer.send(number, str(number))
        moved: list[int] = []
        movers = [Mover(cluster, moved) for _ in range(2)]
        try:
            for part, kill_home in ((4, False), (2, True)):
                cluster.wait(lambda part=part: sum(moved) >= NUMBERS // part)  # type: ignore[misc]
                home = next(iter(cluster.owners("in").values()))
                victim = next(url for url in brokers if (url == home) is kill_home)
                brokers.pop(victim).kill()
                joined = cluster.broker()
                brokers[joined.url] = joined
                cluster.wait(lambda: set(cluster.owners("in").values()) == set(brokers))
            cluster.wait(lambda: sum(moved) >= NUMBERS)
        finally:
            for mover in movers:
                mover.join()
        assert sum(moved) == NUMBERS
        cluster.wait(lambda: sorted(visible(client, "out")) == list(range(NUMBERS)))
        cluster.wait(lambda: all(not part.backlog for part in client.subscription("in", "s").segments))
        for each in client.subscription("in", "s").segments:
            assert (each.unacked, each.pending_acks) == (0, {})
