"""Goal: segments are split and merged in the middle of transactions, and readers and consumers see each committed
message once and nothing of what was aborted; what is left in the store of each segment is bounded.

Method: as in `test_keeping`. DESIGN §5.6, §5.13 and §5.14; scenarios 18, 22, 23, 89 to 92 and 96.
"""

from __future__ import annotations

from collections import Counter

import metatxn
from metastore.txn import paths
from tests.participants.every_store.running import HIGH, HOUR_MS, LOW, Running

ROUNDS = 2


def kept(cluster: Running, segment: str) -> Counter[str]:
    """How many records of each kind the store has of a segment."""
    kinds = {
        "outcomes": paths.outcomes(segment),
        "writes": f"{paths.WRITES_INDEX}{paths.writes_by_segment(segment)}",
        "acks": f"{paths.ACKS_INDEX}{paths.acks_by_segment(segment)}",
    }
    return Counter({kind: len(cluster.keys(prefix)) for kind, prefix in kinds.items()})


def test_transactions_go_on_over_splits_and_merges_and_leave_nothing(cluster: Running) -> None:
    client = cluster.client
    topic = cluster.topic(retention_ms=HOUR_MS, retention="hard")
    client.create_subscription(topic, "s", "key_shared")
    expected: dict[str, list[int]] = {LOW: [], HIGH: []}
    for number in range(ROUNDS):
        goes, lost, over = cluster.begin(), cluster.begin(), cluster.begin()
        (parent,) = cluster.active(topic)
        for key in (LOW, HIGH):
            first, plain, second, third = range(4 * number, 4 * number + 4)
            for txn, value in ((goes, first), (lost, 99), (over, 98), (None, plain), (goes, second)):
                cluster.put(topic, value, key=key, txn=txn)
            expected[key] += [first, plain, second, third]
        cluster.abort(over)
        children = client.split_segment(parent)
        assert len(children) == 2 == len(cluster.active(topic))
        for key in (LOW, HIGH):
            for txn, value in ((lost, 97), (goes, third)):
                cluster.put(topic, value, key=key, txn=txn)
        before = sorted(expected[LOW][: 4 * number] + expected[HIGH][: 4 * number])
        assert sorted(cluster.read(topic)) == before, "nothing is seen behind what is open"
        (merged,) = client.merge_segments(*children)
        assert cluster.active(topic) == [merged]
        cluster.abort(lost)
        cluster.commit(goes)
        cluster.passes(1)
        for segment in (parent, *children):
            assert not +kept(cluster, segment), "what is hidden is in an index beside the ledger"
        for key in (LOW, HIGH):
            found = [message.value for message in client.reader(topic) if message.key == key]
            assert found == expected[key]
    with client.consumer(topic, "s") as consumer:
        given: list[metatxn.Message] = []
        while len(given) < 8 * ROUNDS:
            more = consumer.receive_many(100, 30)
            assert more, f"{len(given)} of {8 * ROUNDS} have come"
            given += more
            consumer.acknowledge(more)
        for key in (LOW, HIGH):
            assert [message.value for message in given if message.key == key] == expected[key]
        assert consumer.receive(0) is None and cluster.backlog(topic) == 0
    cluster.later(2 * HOUR_MS)
    cluster.passes(3 * ROUNDS)
    assert len(cluster.segments(topic)) == 1, "those of which nothing is left are removed"
    gone = [key for prefix in ("/segment-state/", "/cursor/", "/idx/", "/txn-op/") for key in cluster.keys(prefix)]
    assert [key for key in gone if topic.rpartition("/")[2] in key and merged.rpartition("/")[2] not in key] == []
    cluster.put(topic, 100, key=LOW)
    assert cluster.read(topic) == [100]
