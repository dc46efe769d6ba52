"""Beginning, ending, finding and fencing transactions through the library, on a real server."""

from __future__ import annotations

import random
import threading
import uuid
from collections.abc import Callable

import pytest

import metatxn
from tests.metatxn.waiting import eventually, values

NewTopic = Callable[..., str]


def test_header_and_listing(client: metatxn.Client) -> None:
    owner = uuid.uuid4().hex
    txn = client.begin(timeout_ms=30_000, owner=owner, properties={"job": "nightly"})
    assert len(txn.id) == 32 and txn.state == "OPEN" and not txn.already_committed
    assert txn.header.properties == {"job": "nightly"}
    assert [header.txn_id for header in client.transactions("OPEN", owner=owner)] == [txn.id]
    assert txn.commit().state == "COMMITTED"
    assert list(client.transactions("OPEN", owner=owner)) == []


def test_ending_twice(client: metatxn.Client) -> None:
    txn = client.begin()
    assert txn.commit() == txn.commit()
    with pytest.raises(metatxn.InvalidTransactionState):
        txn.abort()


def test_someone_else_ends_it(client: metatxn.Client, new_topic: NewTopic) -> None:
    """Scenario 87: by id, from another client."""
    topic = new_topic()
    txn = client.begin()
    with client.producer(topic) as producer:
        producer.send("x", txn=txn)
    other = client.attach(txn.id)
    assert [operation.kind for operation in client.operations(txn.id)] == ["write"]
    assert other.state == "OPEN"
    other.commit()
    eventually(lambda: values(client, topic), ["x"])
    assert txn.state == "OPEN" and txn.refresh().state == "COMMITTED"


def test_unknown_and_malformed_ids(client: metatxn.Client) -> None:
    with pytest.raises(metatxn.TransactionNotFound):
        client.attach("f" * 32).refresh()
    with pytest.raises(metatxn.InvalidArgument, match="txn_id"):
        client.attach("zz").commit()


def test_timeout_is_noticed(client: metatxn.Client, new_topic: NewTopic) -> None:
    """Scenarios 42 and 43."""
    topic = new_topic()
    txn = client.begin(timeout_ms=1)
    eventually(lambda: txn.refresh().state, "ABORTED")
    with pytest.raises(metatxn.ExpiredTransaction):
        client.producer(topic).send("late", txn=txn).result(60)
    with pytest.raises(metatxn.ExpiredTransaction):
        client.attach(txn.id).commit()


def test_what_a_transaction_did_that_nobody_ended_is_undone(client: metatxn.Client, new_topic: NewTopic) -> None:
    """Scenarios 39 and 41: its messages are never seen, later ones are, and what it acknowledged is given again."""
    topic = new_topic()
    producer = client.producer(topic)
    producer.send("before").result(60)
    with client.subscribe(topic, "s", "shared", "earliest") as consumer:
        message = consumer.receive()
        assert message is not None
        txn = client.begin(600_000)
        consumer.acknowledge(message, txn)
        producer.send("dangling", txn=txn).result(60)
        producer.send("after").result(60)
        assert values(client, topic) == ["before"]
        txn.keep_alive(1)
        eventually(lambda: values(client, topic), ["before", "after"])
        again = [consumer.receive() for _ in range(2)]
    assert [(given.value, given.redelivery_count > 0) for given in again if given] == [
        ("before", True),
        ("after", False),
    ]
    assert txn.refresh().expired_by == "timeout"


def test_keep_alive(client: metatxn.Client) -> None:
    txn = client.begin(timeout_ms=60_000)
    before = txn.header.deadline_ms
    after = txn.keep_alive(600_000).deadline_ms
    assert before is not None and after is not None and after > before + 500_000
    txn.abort()


def test_transaction_key(client: metatxn.Client, new_topic: NewTopic) -> None:
    """Scenario 116: taking over fences; a version that was committed is done."""
    topic, key = new_topic(), f"key-{uuid.uuid4().hex}"
    old_epoch = client.connect_key(key).epoch
    old = client.begin(key=key, epoch=old_epoch, version=1)
    assert client.begin(key=key, epoch=old_epoch, version=1).id == old.id
    taken = client.connect_key(key)
    assert taken.aborted_txn_id == old.id
    with pytest.raises(metatxn.ExpiredTransaction):
        old.commit()
    with pytest.raises(metatxn.NotAllowed):
        client.begin(key=key, epoch=old_epoch, version=1)
    with client.transaction(key=key, epoch=taken.epoch, version=1) as txn:
        client.producer(topic).send("once", txn=txn)
    assert client.begin(key=key, epoch=taken.epoch, version=1).already_committed
    assert client.key(key).last_version == 1
    listed = [found.key for found in client.keys()]  # noqa: SIM118  it is no dict
    assert key in listed
    client.delete_key(key)
    with pytest.raises(metatxn.NotFound):
        client.key(key)


def test_bank_transfers(client: metatxn.Client, new_topic: NewTopic) -> None:
    """Scenario 31: threads move money between two topics, some abort; no cut ever shows another sum."""
    topics = [new_topic(), new_topic()]
    stop = threading.Event()
    failures: list[Exception] = []

    def transfer(seed: int) -> None:
        dice = random.Random(seed)
        producers = [client.producer(topic) for topic in topics]
        try:
            for _ in range(30):
                amount = dice.randint(1, 100)
                txn = client.begin()
                for producer, sign in zip(producers, (-1, 1), strict=True):
                    producer.send({"amount": sign * amount}, txn=txn)
                txn.commit() if dice.random() < 0.6 else txn.abort()
        except Exception as error:  # noqa: BLE001  reported by the test's own thread
            failures.append(error)

    def audit() -> None:
        try:
            while not stop.is_set():
                assert balance(client, topics) == 0
        except Exception as error:  # noqa: BLE001  reported by the test's own thread
            failures.append(error)

    threads = [threading.Thread(target=transfer, args=(seed,)) for seed in range(4)]
    auditor = threading.Thread(target=audit)
    for thread in (*threads, auditor):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    auditor.join()
    assert not failures, failures
    assert balance(client, topics) == 0
    assert any(table.num_rows for table in client.read_table(topics, isolation="snapshot").values())


def balance(client: metatxn.Client, topics: list[str]) -> int:
    tables = client.read_table(topics, isolation="snapshot")
    return sum(row["amount"] for table in tables.values() for row in table.to_pylist())


def test_many_threads_share_a_producer(client: metatxn.Client, new_topic: NewTopic) -> None:
    topic = new_topic(segments=4)
    with client.transaction() as txn, client.producer(topic) as producer:

        def send(number: int) -> None:
            for index in range(200):
                producer.send([number, index], key=str(number), txn=txn)

        threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    eventually(lambda: len(values(client, topic)), 1600)
    found = values(client, topic)
    for number in range(8):
        assert [index for sender, index in found if sender == number] == list(range(200))
