"""Goal: what a policy drops is dropped, with its bytes; what somebody needs stays; and who may not write is told so.

Method: real services, stores and storages in one process; the clock is set ahead, and passes are made by the story.
Scenarios 17, 18, 47, 55 and 130. Issue 20, §2.
"""

from __future__ import annotations

import pytest

import metatxn
from tests.participants.every_store.running import HIGH, HOUR_MS, LOW, MINUTE_MS, Running


def ledger(cluster: Running, topic: str, *values: str, txn: metatxn.Transaction | None = None) -> None:
    """A ledger that has these messages, and is closed a minute later."""
    cluster.put(topic, *values, txn=txn)
    cluster.later(MINUTE_MS)
    cluster.passes(1)


def test_messages_are_kept_as_long_as_time_or_a_subscription_or_a_reader_needs_them(cluster: Running) -> None:
    client = cluster.client
    topic = cluster.topic(retention_ms=HOUR_MS, roll_ms=1_000)
    (segment,) = cluster.segments(topic)
    client.create_subscription(topic, "s")
    ledger(cluster, topic, "a", "b")
    ledger(cluster, topic, "c")
    cluster.put(topic, "d")
    assert len(cluster.ledgers(segment)) == 3
    cluster.later(2 * HOUR_MS)
    cluster.passes()
    assert cluster.read(topic) == ["a", "b", "c", "d"], "the subscription has them to come"
    with client.consumer(topic, "s") as consumer:
        first, second = consumer.receive_many(2, 30)
        consumer.acknowledge(first)
        txn = cluster.begin()
        consumer.acknowledge(second, txn)
        cluster.passes()
        assert cluster.read(topic) == ["a", "b", "c", "d"], "that may yet be aborted"
        cluster.commit(txn)
    with client.read_hold(topic):
        cluster.passes()
        assert cluster.read(topic) == ["a", "b", "c", "d"], "a reader holds them"
    cluster.passes()
    assert cluster.read(topic) == ["c", "d"]
    record = cluster.record(segment)
    assert cluster.ledgers(segment) == [each.id for each in record.ledgers], "their bytes have gone"
    with pytest.raises(metatxn.PositionTrimmed) as told:
        client.read_frames(segment, after="0:-1")
    assert told.value.members["first_position"] == record.first_position
    client.set_topic_policy(topic, retention="hard")
    ledger(cluster, topic, "young")
    cluster.passes()
    assert cluster.read(topic) == ["young"] and len(cluster.record(segment).ledgers) == 2
    with client.consumer(topic, "s") as consumer:
        assert [each.value for each in consumer.receive_many(10, 30)] == ["young"], "it goes on behind what was dropped"


def test_nothing_is_dropped_behind_an_open_transaction_and_the_latest_bytes_stay(cluster: Running) -> None:
    topic = cluster.topic(retention_ms=HOUR_MS, roll_ms=1_000)
    ledger(cluster, topic, "a")
    txn, lost = cluster.begin(), cluster.begin()
    ledger(cluster, topic, "b", txn=txn)
    ledger(cluster, topic, "lost", txn=lost)
    cluster.later(2 * HOUR_MS)
    cluster.passes()
    assert cluster.read(topic) == [] and cluster.read(topic, isolation="read_uncommitted") == ["b", "lost"]
    cluster.client.set_topic_policy(topic, retention_ms=-1)
    cluster.abort(lost)
    cluster.commit(txn)
    assert cluster.read(topic) == ["b"]
    cluster.client.set_topic_policy(topic, retention_ms=None, roll_ms=None, retention_bytes=300)
    sent = [f"{number}" for number in range(6)]
    for value in sent:
        cluster.put(topic, value)
        cluster.passes(1)
    cluster.passes()
    left = cluster.read(topic)
    sizes = [each.bytes or 0 for each in cluster.record(cluster.segments(topic)[0]).ledgers]
    assert 0 < len(left) < len(sent) and left == sent[-len(left) :]
    assert sum(sizes) >= 300 > sum(sizes[1:])


def test_messages_expire_for_subscriptions_but_not_what_a_transaction_has(cluster: Running) -> None:
    client = cluster.client
    topic = cluster.topic(ttl_ms=HOUR_MS)
    for name in ("s", "busy"):
        client.create_subscription(topic, name)
    cluster.put(topic, "a", "b", "c")
    cluster.later(HOUR_MS // 2)
    cluster.put(topic, "young")
    with client.consumer(topic, "busy") as busy, client.consumer(topic, "s") as consumer:
        given = busy.receive_many(10, 30)
        assert [each.value for each in given] == ["a", "b", "c", "young"]
        txn = cluster.begin()
        busy.acknowledge(given[1], txn)
        cluster.later(HOUR_MS * 2 // 3)
        cluster.passes(1)
        assert (cluster.backlog(topic), cluster.backlog(topic, "busy")) == (1, 3)
        assert [each.value for each in consumer.receive_many(10, 30)] == ["young"]
        late = cluster.begin()
        with pytest.raises(metatxn.TransactionConflict):
            busy.acknowledge(given[0], late)
        cluster.abort(late)
        assert cluster.left(topic, "busy")[0].pending_acks == {txn.id: 1}
        cluster.abort(txn)
    with client.consumer(topic, "busy") as busy:
        assert [each.value for each in busy.receive_many(10, 30)] == ["b", "c", "young"], "what was aborted returns"
    cluster.passes(1)
    assert cluster.backlog(topic, "busy") == 1
    cluster.later(HOUR_MS)
    cluster.passes(1)
    assert (cluster.backlog(topic), cluster.backlog(topic, "busy")) == (0, 0)
    assert cluster.read(topic) == ["a", "b", "c", "young"], "what has expired can be read"


def test_a_subscription_that_is_too_far_behind_holds_producers_up(cluster: Running) -> None:
    client = cluster.client
    topic = cluster.topic(segments=2, backlog_bytes=600)
    client.create_subscription(topic, "s")
    txn = cluster.begin()
    cluster.put(topic, "x" * 300, "y" * 300)
    cluster.put(topic, "inside", txn=txn)
    cluster.passes()
    for inside in (None, txn):
        for key in (LOW, HIGH):
            refused = cluster.refused(metatxn.RateLimited, topic, key, inside)
            assert refused.definite and refused.members["subscription"] == "s"
    assert len(list(client.operations(txn.id))) == 1, "nothing is written of what is refused"
    with client.consumer(topic, "s") as consumer:
        given = consumer.receive_many(10, 30)
        assert len(given) == 2
        acknowledging = cluster.begin()
        consumer.acknowledge(given, acknowledging)
        cluster.passes()
        assert cluster.refused(metatxn.RateLimited, topic), "that may yet be aborted"
        cluster.commit(acknowledging)
    cluster.passes()
    cluster.put(topic, "more", txn=txn)
    cluster.commit(txn)
    assert sorted(cluster.read(topic))[:2] == ["inside", "more"] and cluster.backlog(topic) == 2


def test_who_is_too_far_behind_loses_the_oldest_messages_and_nobody_else_does(cluster: Running) -> None:
    client = cluster.client
    topic = cluster.topic(backlog_ms=HOUR_MS, roll_ms=1_000, backlog="evict")
    for name in ("s", "other"):
        client.create_subscription(topic, name)
    ledger(cluster, topic, "a", "b", "c")
    with client.consumer(topic, "other") as other:
        given = other.receive_many(3, 30)
        txn = cluster.begin()
        other.acknowledge(given[0], txn)
        cluster.later(2 * HOUR_MS)
        ledger(cluster, topic, "d")
        cluster.passes()
        assert (cluster.backlog(topic), cluster.backlog(topic, "other")) == (1, 4), "nor what a transaction has"
        cluster.commit(txn)
    cluster.passes()
    assert (cluster.backlog(topic), cluster.backlog(topic, "other")) == (1, 1)
    for name in ("s", "other"):
        with client.consumer(topic, name) as consumer:
            (last,) = consumer.receive_many(10, 30)
            assert last.value == "d"
            consumer.acknowledge(last)
    client.set_topic_policy(topic, backlog_ms=None, backlog_bytes=700)
    for value in "efgh":
        ledger(cluster, topic, value * 100)
    cluster.passes()
    with client.consumer(topic, "s") as consumer:
        left = "".join(each.value[0] for each in consumer.receive_many(10, 30))
        assert 1 < len(left) < 4 and "efgh".endswith(left), "as many as the bound allows, the newest ones"
    assert [value[0] for value in cluster.read(topic)] == list("abcdefgh")


def test_a_full_disk_takes_no_new_messages_and_everything_else_goes_on(cluster: Running) -> None:
    """An object store is never full."""
    client = cluster.client
    topic = cluster.topic()
    (segment,) = cluster.segments(topic)
    client.create_subscription(topic, "s")
    cluster.put(topic, "a")
    txn, lost = cluster.begin(), cluster.begin()
    cluster.put(topic, "b", txn=txn)
    (at,) = cluster.put(topic, "lost", txn=lost)
    with cluster.disk_used(90) as has_disk, client.consumer(topic, "s") as consumer:
        for inside in (None, txn):
            if has_disk:
                assert cluster.refused(metatxn.StorageFull, topic, inside=inside).definite
            else:
                cluster.put(topic, "more", txn=inside)
        message = consumer.receive(30)
        assert message is not None and message.value == "a"
        consumer.acknowledge(message, txn)
        cluster.abort(lost)
        cluster.commit(txn)
        more = [] if has_disk else ["more", "more"]
        assert cluster.read(topic) == ["a", "b", *more] and cluster.backlog(topic) == 1 + len(more)
        assert [each.value for each in consumer.receive_many(10, 30)] == ["b", *more]
        client.trim_segment(segment, at)
        assert cluster.read(topic) == more
        client.create_topic(cluster.name())
    cluster.put(topic, "again")
    assert cluster.read(topic) == [*more, "again"]
