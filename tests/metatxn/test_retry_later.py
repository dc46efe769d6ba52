"""Goal: what a program puts off comes again when it is due, exactly once, and is given up after this many times.

Method: the blocking client and a development server.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

import metatxn
from metatxn.wire.errors import ErrorCode
from tests.metatxn.waiting import eventually

NOW = timedelta(0)


@pytest.fixture
def topics(new_topic: Callable[..., str]) -> tuple[str, str, str]:
    """The topic, its retry topic and its dead-letter topic."""
    return new_topic(), new_topic(), new_topic()


def send(client: metatxn.Client, topic: str, *values: object) -> None:
    with client.producer(topic) as producer:
        for value in values:
            producer.send(value, "key", properties={"of": "the user"})


def received(consumer: metatxn.TopicsConsumer) -> metatxn.Message:
    message = consumer.receive(60)
    assert message is not None
    return message


def test_a_message_comes_again_with_its_count_and_is_given_up_at_last(
    client: metatxn.Client, topics: tuple[str, str, str]
) -> None:
    topic, retry, dead = topics
    send(client, topic, {"id": 7}, b"\x00\xff")
    origins = {message.message_id for message in client.reader(topic)}
    given_up = 0
    with client.subscribe_topics([topic, retry], "s", "shared", "earliest") as consumer:
        while given_up < 2:
            message = received(consumer)
            made = message.properties.get("metatxn.retries")
            assert (message.topic, made) in ((topic, None), (retry, "1"), (retry, "2"))
            client.retry_later(consumer, message, NOW, retry, max_retries=2, dead_letter_topic=dead)
            given_up += made == "2"
        letters = list(client.reader(dead))
        assert consumer.receive(0) is None
    assert {letter.properties["metatxn.origin-message-id"] for letter in letters} == origins
    assert sorted((letter.value for letter in letters), key=repr) == [b"\x00\xff", {"id": 7}]
    for letter in letters:
        expected = {"of": "the user", "metatxn.retries": "2", "metatxn.origin-subscription": "s"}
        assert expected.items() <= letter.properties.items() and letter.key == "key"
    for each in (topic, retry):
        eventually(lambda each=each: client.subscription(each, "s").segments[0].backlog, 0)  # type: ignore[misc]


def test_it_takes_effect_with_the_transaction_that_it_is_part_of(
    client: metatxn.Client, topics: tuple[str, str, str]
) -> None:
    topic, retry, _ = topics
    send(client, topic, 1)
    with client.subscribe_topics([topic, retry], "s", "shared", "earliest") as consumer:
        txn = client.begin()
        client.retry_later(consumer, received(consumer), NOW, retry, txn=txn)
        txn.abort()
        again = received(consumer)
        assert (again.topic, again.redelivery_count) == (topic, 1)
        with client.transaction() as txn:
            client.retry_later(consumer, [again], NOW, retry, txn=txn)
        assert received(consumer).topic == retry
    assert len(list(client.reader(retry))) == 1


def test_it_is_not_delivered_before_it_is_due(client: metatxn.Client, topics: tuple[str, str, str]) -> None:
    topic, retry, _ = topics
    send(client, topic, 1, 2)
    with client.subscribe_topics([topic, retry], "s", "shared", "earliest") as consumer:
        client.retry_later(consumer, received(consumer), timedelta(days=1), retry)
        following = received(consumer)
        assert following.value == 2, "what is behind it goes on"
        consumer.acknowledge(following)
        assert consumer.receive(0) is None


def test_a_wrong_call_puts_nothing_off(client: metatxn.Client, topics: tuple[str, str, str]) -> None:
    topic, retry, _ = topics
    send(client, topic, 1)
    with client.subscribe_topics([topic, retry], "s", "shared", "earliest") as consumer:
        message = received(consumer)
        with pytest.raises(metatxn.MetatxnError) as negative:
            client.retry_later(consumer, message, timedelta(seconds=-1), retry)
        assert negative.value.code == ErrorCode.INVALID_ARGUMENT
        with pytest.raises(metatxn.NotFound):
            client.retry_later(consumer, message, NOW, f"{topic}-nowhere")
        consumer.acknowledge(message)
    assert list(client.reader(retry)) == []
