"""Goal: consumers get what their subscription promises them, in its order and at its time, and what a transaction of
theirs has acknowledged counts with it or not at all.

Method: as in `test_keeping`; a leap of the time is one for the timers of the broker, too. DESIGN §5.10; scenarios 20,
21, 47 to 49, 53, 119 and 123 to 125.
"""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import metatxn
from metatxn import redrive
from metatxn.wire.ids import TxnId
from tests.participants.every_store.running import HIGH, LOW, MINUTE_MS, Running, all_of
from tests.participants.subscription.by_key import Model

DAY_S = 86_400.0


def values(messages: list[metatxn.Message]) -> list[Any]:
    return [message.value for message in messages]


def what_is_due(consumer: metatxn.Consumer) -> list[metatxn.Message]:
    found: list[metatxn.Message] = []
    while (message := consumer.receive(0)) is not None:
        found.append(message)
    return found


class Keys:
    """A topic, and a model that judges what its consumers are given."""

    def __init__(self, cluster: Running, topic: str, names: list[str]) -> None:
        self.cluster, self.topic, self.names = cluster, topic, names
        self.model = Model()

    def put(self, value: int) -> None:
        for key in self.names:
            self.cluster.put(self.topic, value, key=key)
        for message in self.cluster.client.reader(self.topic):
            assert message.key is not None
            if message.message_id not in self.model.key_of:
                self.model.published(message.key, message.message_id)

    def given(self, consumer: metatxn.Consumer, messages: list[metatxn.Message]) -> list[metatxn.Message]:
        self.model.given(consumer.name, [{"message_id": message.message_id} for message in messages])
        return messages

    def acknowledge(
        self, consumer: metatxn.Consumer, messages: list[metatxn.Message], txn: metatxn.Transaction | None = None
    ) -> None:
        consumer.acknowledge(messages, txn)
        for message in messages:
            self.model.acknowledged(message.message_id, None if txn is None else TxnId.parse(txn.id))


def test_the_order_of_a_key_stays_while_consumers_come_and_go_and_its_segment_is_split(cluster: Running) -> None:
    client = cluster.client
    topic = cluster.topic()
    (segment,) = cluster.segments(topic)
    client.create_subscription(topic, "s", "key_shared")
    keys = Keys(cluster, topic, [f"k{number}" for number in range(12)])
    keys.put(0)
    keys.put(1)
    with client.consumer(topic, "s") as first:
        held = keys.given(first, all_of(first, 24))
        with client.consumer(topic, "s") as second:
            assert second.receive(0) is None
            keys.put(2)
            assert second.receive(0) is None and second.others_hold, "each key is at the first one"
            blocking = cluster.left(topic)[0].blocking
            assert blocking is not None and blocking.consumer == first.name
            txn = cluster.begin()
            pending = [message for message in held if message.key in keys.names[::2]]
            keys.acknowledge(first, pending, txn)
            keys.acknowledge(first, [message for message in held if message not in pending])
            free = [keys.given(each, what_is_due(each)) for each in (second, first)]
            assert all(free), "both have keys"
            client.split_segment(segment)
            keys.put(3)
            keys.acknowledge(second, free[0])
            cluster.abort(txn)
            keys.model.decided(TxnId.parse(txn.id), commit=False)
            with client.consumer(topic, "s") as third:
                keys.given(first, what_is_due(first))
                first.close()
                keys.model.left(first.name)
                last = cluster.begin()
                for _ in range(12):
                    for each in (second, third):
                        due = keys.given(each, what_is_due(each))
                        keys.acknowledge(each, due[::2])
                        keys.acknowledge(each, due[1::2], last)
                    if len(keys.model.done) + len(keys.model.pending) == 48:
                        break
                    cluster.commit(last)
                    keys.model.decided(TxnId.parse(last.id), commit=True)
                    last = cluster.begin()
                cluster.commit(last)
                keys.model.decided(TxnId.parse(last.id), commit=True)
                assert len(keys.model.done) == 48 and cluster.backlog(topic) == 0


def test_delivery_times_and_dead_letters_are_those_of_the_transaction(
    cluster: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redrive, "WAIT_S", 0.2)
    client = cluster.client
    topic, dead, retry = cluster.topic(), cluster.topic("dead"), cluster.topic("retry")
    client.create_subscription(topic, "s", dead_letter_topic=dead, max_redeliveries=1)
    for other in (dead, retry):
        client.create_subscription(other, "s")
    due = datetime.fromtimestamp((cluster.now_ms() + 20 * MINUTE_MS) / 1000, UTC)
    txn, lost = cluster.begin(), cluster.begin()
    cluster.put(topic, "later", txn=txn, deliver_at=due)
    cluster.put(topic, "now", key="k", txn=txn, properties={"of": "the user"})
    cluster.put(topic, "never", txn=lost, deliver_at=due)
    with client.consumer(topic, "s") as consumer:
        assert consumer.receive(0) is None
        cluster.abort(lost)
        cluster.commit(txn)
        (message,) = all_of(consumer, 1)
        assert message.value == "now" and cluster.left(topic)[0].delayed == 1
        cluster.leap(15 * MINUTE_MS)
        assert consumer.receive(0) is None
        with ThreadPoolExecutor(1) as waiting:
            came = waiting.submit(consumer.receive, 60)
            cluster.leap(6 * MINUTE_MS)
            late = came.result()
        assert late is not None and late.value == "later"
        inside = cluster.begin()
        soon = timedelta(minutes=5, milliseconds=cluster.ahead_ms)  # by the clock of the client
        client.retry_later(consumer, late, soon, retry, txn=inside)
        assert cluster.left(topic)[0].pending_acks == {inside.id: 1}
        cluster.commit(inside)
        consumer.negative_acknowledge(message)
        (message,) = all_of(consumer, 1)
        assert message.redelivery_count == 1
        consumer.negative_acknowledge(message)
        with client.consumer(dead, "s") as letters:
            letter = letters.receive(60)
        assert letter is not None and letter.txn_id is not None
        assert (letter.value, letter.key, letter.properties["of"]) == ("now", "k", "the user")
        assert letter.properties["metatxn.origin-message-id"] == message.message_id
        cluster.carried_out(letter.txn_id)
        assert cluster.backlog(topic) == 0 and consumer.receive(0) is None
        assert len(list(client.reader(dead))) == 1
        assert client.preview_redrive(topic, "s") == client.redrive(topic, "s") == 1
        assert client.preview_redrive(topic, "s") == client.redrive(topic, "s") == 0
        (again,) = all_of(consumer, 1)
        assert (again.value, again.key, again.redelivery_count) == ("now", "k", 0)
        assert again.properties[redrive.REDRIVEN] == message.message_id
        with client.transaction() as last:
            consumer.acknowledge(again, last)
        cluster.carried_out(last.id)
        assert cluster.backlog(topic) == 0
    with client.consumer(retry, "s") as consumer:
        assert consumer.receive(0) is None and cluster.left(retry)[0].delayed == 1
        cluster.leap(6 * MINUTE_MS)
        (once_more,) = all_of(consumer, 1)
        assert once_more.value == "later" and once_more.properties["metatxn.origin-message-id"] == late.message_id


def test_what_is_not_acknowledged_in_time_returns_and_waits_longer_each_time(cluster: Running) -> None:
    client = cluster.client
    topic = cluster.topic()
    client.create_subscription(
        topic,
        "s",
        ack_timeout_ms=5 * MINUTE_MS,
        redelivery_delay_ms=5 * MINUTE_MS,
        max_redelivery_delay_ms=15 * MINUTE_MS,
    )
    cluster.put(topic, "held", "pending")
    with (
        client.consumer(topic, "s") as slow,
        client.consumer(topic, "s") as other,
    ):
        held, pending = all_of(slow, 2)
        txn = cluster.begin()
        slow.acknowledge(pending, txn)

        def comes_after(minutes: int) -> metatxn.Message:
            """And not before."""
            cluster.leap((minutes - 1) * MINUTE_MS)
            assert other.receive(0) is None
            cluster.leap(2 * MINUTE_MS)
            (message,) = all_of(other, 1)
            return message

        cluster.leap(6 * MINUTE_MS)
        message = comes_after(5)
        for number, minutes in ((1, 10), (2, 15), (3, 15)):
            assert (message.message_id, message.redelivery_count) == (held.message_id, number)
            other.negative_acknowledge(message)
            message = comes_after(minutes)
        other.acknowledge(message)
        assert cluster.left(topic)[0].pending_acks == {txn.id: 1}, "as long as that is open"
        cluster.abort(txn)
        (back,) = all_of(other, 1)
        assert (back.value, back.redelivery_count) == ("pending", 1)
        other.acknowledge(back)
    assert cluster.backlog(topic) == 0


def test_a_consumer_holds_no_more_than_it_may_until_what_it_has_acknowledged_counts(cluster: Running) -> None:
    client = cluster.client
    topic = cluster.topic(segments=2, max_unacked_per_consumer=4)
    client.create_subscription(topic, "s")
    for number in range(5):
        cluster.put(topic, 2 * number, key=LOW)
        cluster.put(topic, 2 * number + 1, key=HIGH)
    with client.consumer(topic, "s") as greedy, client.consumer(topic, "s") as modest:
        held = all_of(greedy, 4)
        assert client.subscription(topic, "s").blocked == [greedy.name]
        (other,) = modest.receive_many(1, 30)
        modest.close()
        assert other.value not in values(held)
        txn, lost = cluster.begin(), cluster.begin()
        greedy.acknowledge(held[:1], txn)
        greedy.acknowledge(held[1:2], lost)
        assert greedy.receive(0) is None, "that may yet be aborted"
        cluster.abort(lost)
        (again,) = all_of(greedy, 1)
        assert (again.message_id, again.redelivery_count) == (held[1].message_id, 1)
        cluster.commit(txn)
        (more,) = all_of(greedy, 1)
        assert more.value not in values(held)
        greedy.acknowledge([*held[2:], again, more])
        assert client.subscription(topic, "s").blocked == []
        rest = all_of(greedy, 4)
        assert cluster.backlog(topic) == 5
        client.set_topic_policy(topic, max_unacked_per_consumer=-1)
        cluster.passes(1)
        (last,) = all_of(greedy, 1)
        greedy.acknowledge([*rest, last])
    assert cluster.backlog(topic) == 0
    assert sorted(values([held[0], again, *held[2:], more, *rest, last])) == list(range(10))


def test_who_reads_uncommitted_messages_gets_all_of_them_at_once_and_others_what_counts(cluster: Running) -> None:
    client = cluster.client
    topic = cluster.topic()
    client.create_subscription(topic, "all", isolation="read_uncommitted")
    client.create_subscription(topic, "committed")
    txn, lost = cluster.begin(), cluster.begin()
    cluster.put(topic, "before")
    cluster.put(topic, "open", txn=txn)
    cluster.put(topic, "lost", txn=lost)
    cluster.put(topic, "behind")
    whole = ["before", "open", "lost", "behind"]
    with client.consumer(topic, "all") as everything, client.consumer(topic, "committed") as consumer:
        given = all_of(everything, 4)
        assert values(given) == whole == cluster.read(topic, isolation="read_uncommitted")
        assert values(all_of(consumer, 1)) == ["before"] == cluster.read(topic)
        assert cluster.read(topic, isolation="snapshot") == ["before", "behind"]
        assert (cluster.backlog(topic, "all"), cluster.backlog(topic, "committed")) == (4, 1)
        previews = [client.preview_seek(topic, name, "earliest").segments[0] for name in ("all", "committed")]
        assert [each.messages for each in previews] == [4, 1]
        acknowledging = cluster.begin()
        everything.acknowledge(given[1:3], acknowledging)
        cluster.abort(lost)
        assert values(all_of(consumer, 0)) == []
        cluster.commit(txn)
        assert values(all_of(consumer, 2)) == ["open", "behind"]
        assert cluster.read(topic) == ["before", "open", "behind"] == cluster.read(topic, isolation="snapshot")
        assert (cluster.backlog(topic, "all"), cluster.backlog(topic, "committed")) == (4, 3)
        cluster.abort(acknowledging)
        assert values(all_of(everything, 2)) == ["open", "lost"], "the acknowledgement was aborted"
        everything.acknowledge(given)
        assert (cluster.backlog(topic, "all"), cluster.backlog(topic, "committed")) == (0, 3)


def test_one_consumer_has_all_topics_of_a_pattern_and_acknowledges_them_together(cluster: Running) -> None:
    client = cluster.client
    family = cluster.name("family")
    names = [f"{family}-{letter}" for letter in "abc"]
    for name in names[:2]:
        client.create_topic(name, 2)
        for number, key in enumerate((LOW, HIGH)):
            cluster.put(name, f"{name[-1]}{number}", key=key)
    with client.subscribe_topics(re.compile(re.escape(family) + "-."), "s", "shared", look_every_s=DAY_S) as consumer:
        assert consumer.topics == names[:2]
        given = all_of(consumer, 4)
        assert sorted(values(given)) == ["a0", "a1", "b0", "b1"]
        assert all(message.topic[-1] == message.value[0] for message in given)
        txn = cluster.begin()
        consumer.acknowledge(given, txn)
        assert [cluster.backlog(name) for name in names[:2]] == [2, 2]
        cluster.abort(txn)
        client.create_topic(names[2])
        cluster.put(names[2], "c0")
        assert sorted(values(all_of(consumer, 4))) == ["a0", "a1", "b0", "b1"], "it has not heard of the new one"
        consumer.look()
        assert consumer.topics == names
        new = all_of(consumer, 1)
        assert values(new) == ["c0"]
        txn = cluster.begin()
        consumer.acknowledge([*given, *new], txn)
        cluster.commit(txn)
        assert [cluster.backlog(name) for name in names] == [0, 0, 0]
        client.delete_topic(names[0])
        cluster.put(names[1], "b2", key=LOW)
        assert values(all_of(consumer, 1)) == ["b2"]
        while consumer.topics != names[1:]:
            assert consumer.receive(0.1) is None
        assert consumer.topics == names[1:]
