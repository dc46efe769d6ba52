"""What readers see of transactions: scenarios 17 to 26 and 32, through the library and a real server.

Method: a development server in a process of its own; readers read at read-committed unless the test says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import metatxn
from tests.metatxn.waiting import eventually, values

NewTopic = Callable[..., str]


@pytest.mark.parametrize("batch", [1, 1000], ids=["one by one", "batched"])
def test_two_interleaved_transactions(client: metatxn.Client, new_topic: NewTopic, batch: int) -> None:
    """Scenario 17."""
    topic, count = new_topic(), 1000 if batch > 1 else 200
    first, second = client.begin(), client.begin()
    with client.producer(topic, max_entry_messages=batch) as producer:
        for number in range(count):
            producer.send(number, txn=(first, second)[number % 2])
        producer.flush()
        assert values(client, topic) == []
        first.commit()
        second.commit()
        eventually(lambda: sorted(values(client, topic)), list(range(count)))


def test_aborted_transaction_and_sentinel(client: metatxn.Client, new_topic: NewTopic) -> None:
    """Scenarios 18 and 19."""
    topic = new_topic()
    txn = client.begin()
    with client.producer(topic) as producer:
        producer.send("never", txn=txn).result(60)
        txn.abort("on purpose")
        producer.send("sentinel").result(60)
    eventually(lambda: values(client, topic), ["sentinel"])
    assert txn.refresh().reason == "on purpose"


def test_open_transaction_holds_back_what_is_behind_it(client: metatxn.Client, new_topic: NewTopic) -> None:
    """Scenarios 20 and 21."""
    topic = new_topic()
    txn = client.begin()
    with client.producer(topic) as producer:
        producer.send("A").result(60)
        producer.send("B", txn=txn).result(60)
        producer.send("C").result(60)
    assert values(client, topic) == ["A"]
    assert values(client, topic, isolation="read_uncommitted") == ["A", "B", "C"]
    txn.commit()
    eventually(lambda: values(client, topic), ["A", "B", "C"])


def test_half_commit_half_abort(client: metatxn.Client, new_topic: NewTopic) -> None:
    """Scenario 22: six transactions, ten interleaved messages each."""
    topic = new_topic()
    transactions = [client.begin() for _ in range(6)]
    with client.producer(topic) as producer:
        for number in range(10):
            for index, txn in enumerate(transactions):
                producer.send([index, number], txn=txn)
        producer.flush()
    for index, txn in enumerate(transactions):
        txn.commit() if index % 2 else txn.abort()
    expected = sorted([index, number] for index in (1, 3, 5) for number in range(10))
    eventually(lambda: sorted(values(client, topic)), expected)


def test_keyed_over_three_segments(client: metatxn.Client, new_topic: NewTopic) -> None:
    """Scenario 23."""
    topic = new_topic(segments=3)
    with client.transaction() as txn:
        producer = client.producer(topic)
        for number in range(60):
            producer.send(number, key=str(number), txn=txn)
        producer.flush()
        used = [segment.segment for segment in client.topic(topic).segments]
        assert all(client.segment(segment).open_transactions for segment in used)
        assert values(client, topic) == []
    eventually(lambda: sorted(values(client, topic)), list(range(60)))


def test_two_topics(client: metatxn.Client, new_topic: NewTopic) -> None:
    """Scenario 24."""
    topics = [new_topic(), new_topic()]
    with client.transaction() as txn:
        for topic in topics:
            client.producer(topic).send(topic, txn=txn).result(60)
        assert [values(client, topic) for topic in topics] == [[], []]
    eventually(lambda: [values(client, topic) for topic in topics], [[topic] for topic in topics])


def test_order_inside_transactions(client: metatxn.Client, new_topic: NewTopic) -> None:
    """Scenarios 25 and 26: rounds of a thousand messages arrive in the order sent."""
    topic = new_topic()
    producer = client.producer(topic)
    for _ in range(10):
        with client.transaction() as txn:
            for number in range(1000):
                producer.send(number, txn=txn)
    eventually(lambda: len(values(client, topic)), 10_000)
    assert values(client, topic) == list(range(1000)) * 10


def test_send_after_the_end_is_refused(client: metatxn.Client, new_topic: NewTopic) -> None:
    """Scenario 32."""
    topic = new_topic()
    txn = client.begin()
    txn.commit()
    with pytest.raises(metatxn.TransactionConflict):
        client.producer(topic).send("late", txn=txn).result(60)
    assert values(client, topic, isolation="read_uncommitted") == []


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_finished_transaction_that_is_taken_for_an_open_one_holds_nobody_up(
    client: metatxn.Client, new_topic: NewTopic, end: str
) -> None:
    """Scenario 35: somebody who has heard of no end writes again. It is refused, and what comes later is read."""
    topic = new_topic()
    txn = client.begin(600_000)
    client.producer(topic).send("inside", txn=txn).result(60)
    getattr(txn, end)()
    with pytest.raises(metatxn.TransactionConflict):
        client.producer(topic).send("late", txn=client.attach(txn.id)).result(60)
    client.producer(topic).send("after").result(60)
    eventually(lambda: values(client, topic), ["inside", "after"] if end == "commit" else ["after"])


def test_send_to_a_topic_that_does_not_exist(client: metatxn.Client) -> None:
    with pytest.raises(metatxn.NotFound, match="nowhere"):
        client.producer("nowhere").send("x")


def test_values_and_bytes_come_back_as_they_were(client: metatxn.Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    sent = [None, True, 1.5, "ü", [1, {"a": None}], {"b": 2}, b"\x00\xff", b""]
    with client.producer(topic, name="by hand") as producer:
        for value in sent:
            producer.send(value, key="k", properties={"p": "q"})
    messages = list(client.reader(topic))
    assert [message.value for message in messages] == sent
    assert {(message.key, message.properties["p"], message.txn_id) for message in messages} == {("k", "q", None)}
    assert len({message.message_id for message in messages}) == len(sent)


def test_what_is_no_json_is_refused(client: metatxn.Client, new_topic: NewTopic) -> None:
    producer = client.producer(new_topic())
    with pytest.raises(TypeError):
        producer.send({1, 2})
    with pytest.raises(ValueError, match="JSON"):
        producer.send(float("nan"))


def test_reader_goes_on_from_its_token(client: metatxn.Client, new_topic: NewTopic) -> None:
    topic = new_topic(segments=2)
    with client.producer(topic) as producer:
        for number in range(2500):
            producer.send(number, key=str(number))
    reader = client.reader(topic)
    assert sorted(message.value for message in reader) == list(range(2500))
    latest = client.reader(topic, start="latest")
    client.producer(topic).send("more").result(60)
    assert [message.value for message in reader] == ["more"]
    assert [message.value for message in latest] == ["more"]
    assert reader.token is not None
    assert list(client.reader(topic, start=reader.token)) == []


def test_follow_waits_for_more(client: metatxn.Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    client.producer(topic).send(1).result(60)
    messages = iter(client.reader(topic, follow=True))
    assert next(messages).value == 1
    client.producer(topic).send(2)
    assert next(messages).value == 2
