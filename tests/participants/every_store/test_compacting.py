"""Goal: of each key the latest committed value stays, and a deletion for its time, also while a transaction is open
that may replace something; anyone who reads gets the same from the topic and from its compacted view.

Method: as in `test_keeping`. DESIGN §5.19; scenarios 20, 21 and 22.
"""

from __future__ import annotations

from typing import Any

from tests.participants.every_store.running import HOUR_MS, MINUTE_MS, Running


def seen(cluster: Running, topic: str, **options: Any) -> list[tuple[str | None, Any]]:
    return [(message.key, message.value) for message in cluster.client.reader(topic, **options)]


def compacted(cluster: Running) -> None:
    cluster.later(MINUTE_MS)
    cluster.passes(4)


def test_the_latest_committed_value_of_each_key_stays_and_a_deletion_for_its_time(cluster: Running) -> None:
    client = cluster.client
    topic = cluster.topic(cleanup="compact", roll_ms=1_000, delete_retention_ms=HOUR_MS)
    client.create_subscription(topic, "s")
    for key, value in (("a", 1), ("b", 1), (None, "no key"), ("a", 2), ("gone", 1)):
        cluster.put(topic, value, key=key)
    before = {(message.key, message.value): message.message_id for message in client.reader(topic)}
    compacted(cluster)
    after = {(message.key, message.value): message.message_id for message in client.reader(topic)}
    assert after == {each: place for each, place in before.items() if each != ("a", 1)}, "each stays where it is"
    assert seen(cluster, topic) == [("b", 1), (None, "no key"), ("a", 2), ("gone", 1)]
    txn, lost = cluster.begin(), cluster.begin()
    cluster.put(topic, 9, key="b", txn=txn)
    cluster.put(topic, 99, key="a", txn=lost)
    for value in (3, 4):
        cluster.put(topic, value, key="a")
    cluster.put(topic, None, key="gone")
    compacted(cluster)
    assert seen(cluster, topic) == [("b", 1), (None, "no key"), ("a", 2), ("gone", 1)], "the transaction may replace it"
    everything = [("b", 9), ("a", 99), ("a", 3), ("a", 4), ("gone", None)]
    assert seen(cluster, topic, isolation="read_uncommitted")[-5:] == everything
    assert sorted(seen(cluster, topic, compacted=True)) == [("a", 2), ("b", 1), ("gone", 1)]
    with client.read_hold(topic, seconds=3_600):
        cluster.abort(lost)
        cluster.commit(txn)
        compacted(cluster)
        whole = [("b", 1), (None, "no key"), ("a", 2), ("gone", 1), ("b", 9), ("a", 3), ("a", 4), ("gone", None)]
        assert seen(cluster, topic) == whole, "a reader holds it"
    compacted(cluster)
    assert seen(cluster, topic) == [(None, "no key"), ("b", 9), ("a", 4), ("gone", None)]
    assert sorted(seen(cluster, topic, compacted=True)) == [("a", 4), ("b", 9)]
    with client.consumer(topic, "s") as consumer:
        assert [each.value for each in consumer.receive_many(10, 30)] == ["no key", 9, 4, None]
    cluster.later(2 * HOUR_MS)
    for value in (1, 2):
        cluster.put(topic, value, key="b")
    compacted(cluster)
    assert seen(cluster, topic) == [(None, "no key"), ("a", 4), ("b", 2)]
    assert sorted(seen(cluster, topic, compacted=True)) == [("a", 4), ("b", 2)]
    record = cluster.record(cluster.segments(topic)[0])
    assert record.compaction is not None and sum(each.entries or 0 for each in record.ledgers) == 12
