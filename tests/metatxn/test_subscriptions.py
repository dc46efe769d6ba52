"""Consuming through the library and the command line, on a real server."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import metatxn
from metatxn.transport.api import Answer, NoAnswer, Request
from metatxn.transport.pool import HttpTransport
from metatxn.wire.position import Position
from tests.metatxn.command_line import Done, run_here
from tests.metatxn.dev_server import DevServer
from tests.metatxn.waiting import eventually, values

NewTopic = Callable[..., str]


def send(client: metatxn.Client, topic: str, *sent: object) -> None:
    with client.producer(topic) as producer:
        for value in sent:
            producer.send(value)


def taken(consumer: metatxn.Consumer) -> list[metatxn.Message]:
    found = []
    while (message := consumer.receive(timeout_s=0)) is not None:
        found.append(message)
    return found


def test_the_story_of_the_contract(client: metatxn.Client, new_topic: NewTopic) -> None:
    """Scenario 53: input, output and the acknowledgement of the input in one transaction."""
    orders, audit = new_topic(), new_topic()
    send(client, orders, {"id": 7})
    with client.subscribe(orders, "billing", initial="earliest") as consumer:
        message = consumer.receive()
        assert message is not None and message.value == {"id": 7} and message.redelivery_count == 0
        with contextlib.suppress(RuntimeError), client.transaction() as txn:
            client.producer(audit).send({"order": 7}, txn=txn)
            consumer.acknowledge(message, txn=txn)
            raise RuntimeError
        message = consumer.receive()
        assert message is not None and message.redelivery_count == 1
        with client.transaction() as txn:
            client.producer(audit).send({"order": 7}, txn=txn)
            consumer.acknowledge(message, txn=txn)
        eventually(lambda: values(client, audit), [{"order": 7}])
        eventually(lambda: client.subscription(orders, "billing").segments[0].backlog, 0)
        assert consumer.receive(timeout_s=0) is None


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_one_message_acknowledged_on_two_subscriptions_in_one_transaction(
    client: metatxn.Client, new_topic: NewTopic, end: str
) -> None:
    """Scenario 11: each of the two is a participant of its own, and the end reaches both."""
    topic = new_topic()
    send(client, topic, "x")
    with contextlib.ExitStack() as stack:
        consumers = [stack.enter_context(client.subscribe(topic, name, "shared", "earliest")) for name in ("a", "b")]
        txn = client.begin(600_000)
        for consumer in consumers:
            message = consumer.receive()
            assert message is not None
            consumer.acknowledge(message, txn)
        assert {(op.kind, op.subscription) for op in client.operations(txn.id)} == {("ack", "a"), ("ack", "b")}
        (hanging,) = [found for found in client.hanging(0) if found.txn_id == txn.id]
        assert [touched.subscription for touched in hanging.touched] == ["a", "b"]
        getattr(txn, end)()
        backlog = 0 if end == "commit" else 1
        for name in ("a", "b"):
            eventually(lambda name=name: client.subscription(topic, name).segments[0].backlog, backlog)  # type: ignore[misc]
            eventually(lambda name=name: client.subscription(topic, name).segments[0].pending_acks, {})  # type: ignore[misc]
    eventually(lambda: list(client.operations(txn.id)), [])


def test_iterating_waits_for_what_comes(client: metatxn.Client, new_topic: NewTopic) -> None:
    topic = new_topic(segments=3)
    consumer = client.subscribe(topic, "s", "shared", "earliest")
    sending = threading.Thread(target=lambda: send(client, topic, *range(500)))
    sending.start()
    seen = []
    for message in consumer:
        seen.append(message.value)
        consumer.acknowledge(message)
        if len(seen) == 500:
            break
    sending.join()
    assert sorted(seen) == list(range(500))
    consumer.close()
    assert sum(segment.backlog for segment in client.subscription(topic, "s").segments) == 0


def test_what_a_closed_consumer_held_goes_to_the_next_one(client: metatxn.Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    send(client, topic, *range(4))
    first = client.subscribe(topic, "s", "failover", "earliest")
    second = client.consumer(topic, "s")
    held = taken(first)
    first.acknowledge(held[0])
    first.negative_acknowledge(held[2])
    assert [message.value for message in taken(first)] == [2]
    assert taken(second) == []
    first.close()
    assert [message.value for message in taken(second)] == [1, 2, 3]
    second.acknowledge_cumulative(held[3])
    second.close()


def test_exclusive_is_exclusive_and_another_definition_is_refused(client: metatxn.Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    first = client.subscribe(topic, "s", "exclusive", "latest")
    assert first.receive(timeout_s=0) is None
    with pytest.raises(metatxn.AlreadyExists, match="exclusive"):
        client.consumer(topic, "s").receive(timeout_s=0)
    with pytest.raises(metatxn.AlreadyExists, match="another type"):
        client.subscribe(topic, "s", "shared")
    first.close()
    client.drop_subscription(topic, "s")
    with pytest.raises(metatxn.NotFound):
        client.subscription(topic, "s")


def test_subscribing_without_settings_takes_what_is_there_or_creates_what_the_command_line_creates(
    client: metatxn.Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    client.create_subscription(topic, "there", "failover", "latest")
    for name, expected in (("there", ("failover", "latest")), ("new", ("shared", "earliest"))):
        client.subscribe(topic, name).close()
        found = client.subscription(topic, name)
        assert (found.type, found.initial) == expected


def test_many_messages_at_once_and_a_silent_consumer_with_a_short_session(
    client: metatxn.Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    send(client, topic, *range(5))
    with client.subscribe(topic, "s", session_timeout_s=1) as first, client.consumer(topic, "s") as second:
        assert [message.value for message in first.receive_many(3)] == [0, 1, 2]
        assert [message.value for message in first.receive_many(timeout_s=0)] == [3, 4]
        assert first.receive_many(timeout_s=0) == second.receive_many(timeout_s=0) == []
        first._core._alive = first._core.closed = True  # as if it were frozen
        assert len(second.receive_many(timeout_s=60)) == 5
    with pytest.raises(metatxn.InvalidArgument, match="session_timeout_s"):
        client.consumer(topic, "s", session_timeout_s=0.5)
    with pytest.raises(metatxn.InvalidArgument, match="limit"):
        second.receive_many(0)


def later_ms() -> datetime:
    """The time, in another millisecond than the one in which this was called."""
    called = datetime.now(UTC)
    while (now := datetime.now(UTC)) - called < timedelta(milliseconds=1):
        pass
    return now


def test_a_subscription_moves_under_its_consumers(client: metatxn.Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    send(client, topic, *range(3))
    between = later_ms()
    (segment,) = [each.segment for each in client.topic(topic).segments]
    last = client.segment(segment).last_position
    assert client.position_at(segment, between).after == last
    end = str(Position.parse(last).next)
    assert client.position_before(segment, end).position == last
    assert client.position_before(segment, end, entries=9).after == "1:-1"
    with pytest.raises(metatxn.InvalidArgument, match="entries"):
        client.position_before(segment, last, entries=1_001)
    with pytest.raises(metatxn.InvalidArgument, match="before"):
        client.position_before(segment, "yesterday")
    with client.subscribe(topic, "s") as consumer:
        messages = taken(consumer)
        consumer.acknowledge(messages)
        assert client.seek(topic, "s", "earliest").segments[0].backlog == 3
        assert [message.value for message in taken(consumer)] == [0, 1, 2]
        later_ms()
        send(client, topic, 3)
        txn = client.begin()
        consumer.acknowledge(messages[0], txn)
        with pytest.raises(metatxn.TransactionConflict, match=txn.id):
            client.seek(topic, "s", between)
        assert client.seek(topic, "s", between, force=True).aborted == [txn.id]
        with pytest.raises(metatxn.InvalidTransactionState):
            txn.commit()
        assert [message.value for message in taken(consumer)] == [3]
    with pytest.raises(metatxn.InvalidArgument, match="time zone"):
        client.seek(topic, "s", datetime(2026, 11, 22))  # noqa: DTZ001
    with pytest.raises(metatxn.NotFound):
        client.seek(topic, "missing", "earliest")
    with pytest.raises(metatxn.InvalidArgument, match="either"):
        client.seek(topic, "s")
    with pytest.raises(metatxn.InvalidArgument, match="either"):
        client.seek(topic, "s", "earliest", revision=1)


def test_a_transaction_whose_acknowledgement_failed_cannot_be_committed(
    client: metatxn.Client, new_topic: NewTopic
) -> None:
    """PIP-31: a conflict aborts the transaction; here also when the caller looks away."""
    topic = new_topic()
    send(client, topic, "x")
    with client.subscribe(topic, "s", "shared", "earliest") as consumer:
        message = consumer.receive()
        assert message is not None
        winner, loser = client.begin(), client.begin()
        consumer.acknowledge(message, winner)
        with pytest.raises(metatxn.TransactionConflict):
            consumer.acknowledge(message, loser)
        with pytest.raises(metatxn.InvalidTransactionState):
            loser.commit()
        winner.commit()


class LosesOneAnswer(HttpTransport):
    """Takes the first answer to a `receive` that carries messages, and drops it."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = 0

    async def send(self, request: Request) -> Answer:
        answer = await super().send(request)
        if request.url.endswith("/receive") and not self.lost and answer.json()["messages"]:
            self.lost = len(answer.json()["messages"])
            raise NoAnswer("the connection broke")
        return answer


def test_messages_in_an_answer_that_was_lost_come_again(dev: DevServer, new_topic: NewTopic) -> None:
    topic, transport = new_topic(), LosesOneAnswer()
    with metatxn.connect(dev.broker_url, transport=transport) as client:
        send(client, topic, *range(5))
        with client.subscribe(topic, "s", "exclusive", "earliest") as consumer:
            message = consumer.receive(timeout_s=30)
            assert transport.lost and message is not None
            assert [message.value, *(each.value for each in taken(consumer))] == list(range(5))
            assert message.redelivery_count == 1


def test_dead_letters_through_the_library(client: metatxn.Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    dead = f"{topic}-dead"
    send(client, topic, b"poison")
    with client.subscribe(topic, "s", "shared", "earliest", dead_letter_topic=dead, max_redeliveries=1) as consumer:
        for count in range(2):
            message = consumer.receive(timeout_s=30)
            assert message is not None and (message.value, message.redelivery_count) == (b"poison", count)
            consumer.negative_acknowledge(message)
        eventually(lambda: values(client, dead), [b"poison"])
        eventually(lambda: client.subscription(topic, "s").segments[0].backlog, 0)


def test_pending_acknowledgements_survive_kill_9(tmp_path: Path) -> None:
    """Scenarios 82, 83, 107: a real process dies twice; nothing is lost, and nothing comes again."""
    server = DevServer(tmp_path / "data")
    server.start()
    with metatxn.connect(server.broker_url) as client:
        client.create_topic("t")
        send(client, "t", *range(6))
        consumer = client.subscribe("t", "s", "shared", "earliest")
        held = taken(consumer)
        committed, opened, aborted = client.begin(600_000), client.begin(600_000), client.begin(600_000)
        for txn, message in ((committed, held[0]), (opened, held[1]), (aborted, held[2])):
            consumer.acknowledge(message, txn)
        consumer.acknowledge(held[3])
        committed.commit()
        server.stop(signal.SIGKILL)
    server.start()
    with metatxn.connect(server.broker_url) as client:
        with client.subscribe("t", "s", "shared", "earliest") as again:
            assert [message.value for message in taken(again)] == [4, 5]
        client.attach(opened.id).commit()
        client.attach(aborted.id).abort()
        eventually(lambda: client.subscription("t", "s").segments[0].pending_acks, {})
        server.stop(signal.SIGKILL)
    server.start()
    with metatxn.connect(server.broker_url) as client, client.subscribe("t", "s", "shared", "earliest") as last:
        assert [message.value for message in taken(last)] == [2, 4, 5]
    server.stop()


def consume(dev: DevServer, *arguments: str) -> Done:
    return run_here("topic", "consume", *arguments, "--url", dev.broker_url, "--output", "json")


def test_consume_on_the_command_line_acknowledges_what_it_prints(
    client: metatxn.Client, dev: DevServer, new_topic: NewTopic
) -> None:
    topic = new_topic()
    send(client, topic, *range(5))

    def consumed(*more: str) -> list[object]:
        done = consume(dev, topic, "--subscription", "s", *more)
        assert done.returncode == 0, done.stderr
        return [message["value"] for message in json.loads(done.stdout)]

    assert consumed("--limit", "2") == [0, 1]
    txn = client.begin()
    assert consumed("--limit", "2", "--txn", txn.id) == [2, 3]
    assert consumed() == [4]
    txn.abort()
    eventually(lambda: client.subscription(topic, "s").segments[0].pending_acks, {})
    assert consumed() == [2, 3]
    assert consumed() == []


def test_subscriptions_on_the_command_line(client: metatxn.Client, dev: DevServer, new_topic: NewTopic) -> None:
    topic = new_topic()
    send(client, topic, *range(5))

    def asked(*arguments: str, output: str = "json") -> str:
        done = run_here("subscription", *arguments, "--url", dev.broker_url, "--output", output)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert json.loads(asked("list", topic)) == []
    created = json.loads(asked("create", topic, "a", "--type", "failover"))
    assert (created["type"], created["initial"], created["segments"][0]["backlog"]) == ("failover", "earliest", 5)
    asked("create", topic, "b", "--initial", "latest", "--dead-letters", f"{topic}-dead", "--max-redeliveries", "3")
    listed = [(each["name"], each.get("max_redeliveries")) for each in json.loads(asked("list", topic))]
    assert listed == [("a", None), ("b", 3)]
    txn = client.begin()
    with client.consumer(topic, "a", "me") as consumer:
        assert (consumer.topic, consumer.name) == (topic, "me")
        consumer.acknowledge(taken(consumer)[:2], txn)
        shown = asked("show", topic, "a", output="table")
        assert "consumers     me" in shown and f"{txn.id}:2" in shown
    txn.abort()
    assert json.loads(asked("list", "--text", topic)) == json.loads(asked("list", topic))
    assert asked("list", "--text", topic, output="table").split()[:2] == ["TOPIC", "SUBSCRIPTION"]
    send(client, topic, *range(3))
    for choice in ((topic,), ("--text", topic.upper())):
        lags = json.loads(asked("list", "--lag", *choice))
        assert [(each["name"], each["lag"]["messages"]) for each in lags] == [("a", 8), ("b", 3)]
        heads, first, _ = asked("list", "--lag", *choice, output="table").splitlines()
        assert heads.split()[3:5] == ["BACKLOG", "SIZE"] and first.split()[1:4] == ["a", "failover", "8"]
    first_alone = run_here("subscription", "list", "--lag", topic, "--limit", "1", "--url", dev.broker_url)
    assert "note: there are more than these 1" in first_alone.stderr
    both = run_here("subscription", "list", topic, "--text", "x", "--url", dev.broker_url)
    assert "Leave out the topic, or the text" in both.stderr and both.returncode == 1
    asked("drop", topic, "a")
    assert [each.name for each in client.subscriptions(topic)] == ["b"]
    with pytest.raises(metatxn.NotFound):
        next(client.subscriptions(f"none-{uuid.uuid4().hex}"))


def test_consume_says_what_is_wrong(dev: DevServer) -> None:
    done = consume(dev, "none", "--txn", uuid.uuid4().hex)
    assert done.returncode != 0 and "--subscription" in done.stderr
    done = consume(dev, f"none-{uuid.uuid4().hex}", "--subscription", "s")
    assert done.returncode != 0 and "does not exist" in done.stderr
