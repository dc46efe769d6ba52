"""Goal: several topics are consumed as one: each message comes once, no topic starves, and what becomes of topics that
come and go is told.

Method: a cluster in one process, with the blocking client.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import pytest

import metatxn
from tests.metatxn.waiting import eventually


@pytest.fixture
def family(client: metatxn.Client) -> Callable[[str], str]:
    """Makes topics of one prefix."""
    prefix = f"family-{uuid.uuid4().hex[:8]}-"
    return lambda name: client.create_topic(prefix + name).name


def put(client: metatxn.Client, topic: str, *values: int) -> None:
    with client.producer(topic) as producer:
        for value in values:
            producer.send(value)


def backlog(client: metatxn.Client, topic: str) -> int:
    return client.subscription(topic, "s").segments[0].backlog


def test_messages_of_several_topics_are_acknowledged_where_they_come_from(
    client: metatxn.Client, new_topic: Callable[..., str]
) -> None:
    one, two = new_topic(), new_topic()
    put(client, one, *range(50))
    put(client, two, 100, 101)
    with client.subscribe_topics([one, two], "s") as consumer:
        assert consumer.topics == sorted([one, two])
        found = [message for message in (consumer.receive(10) for _ in range(52)) if message is not None]
        assert len(found) == 52
        assert [message.value for message in found if message.topic == one] == list(range(50))
        assert consumer.receive(0) is None and consumer.others_hold is False
        consumer.negative_acknowledge(found[0])
        assert consumer.receive(10) == replace(found[0], redelivery_count=1)
        with client.transaction() as txn:
            consumer.acknowledge(found, txn)
    for topic in (one, two):
        eventually(partial(backlog, client, topic), 0)


def test_a_pattern_finds_topics_that_come_later_and_leaves_out_those_that_are_deleted(
    client: metatxn.Client, family: Callable[[str], str]
) -> None:
    first = family("a")
    put(client, first, 1)
    pattern = re.compile(re.escape(first[:-1]) + ".")
    with client.subscribe_topics(pattern, "s", "shared", "latest", look_every_s=3_600) as consumer:
        assert consumer.topics == [first] and consumer.receive(0) is None
        second = family("b")
        put(client, second, 2)
        family("not this one")
        consumer.look()
        assert consumer.topics == [first, second]
        message = consumer.receive(10)
        assert message is not None and message.value == 2, "it is consumed from its earliest message on"
        client.delete_topic(first)
        put(client, second, 3)
        assert [message.value for message in consumer.receive_many(5, 10)] == [3]
        while consumer.topics != [second]:
            assert consumer.receive(0.1) is None
    with client.subscribe_topics(pattern, "s", "shared", "latest") as again:
        found = [again.receive(10), again.receive(10)]
        assert sorted(message.value for message in found if message) == [2, 3]


def test_a_list_names_topics_that_exist(client: metatxn.Client, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    with pytest.raises(metatxn.NotFound):
        client.subscribe_topics([topic, "nowhere"], "s")
    with pytest.raises(metatxn.InvalidArgument, match="topics"):
        client.subscribe_topics(topic, "s")
    with client.subscribe_topics([topic], "s") as consumer:
        other = metatxn.Message("public/default/other", "id", 1)
        with pytest.raises(metatxn.InvalidArgument, match="public/default/other"):
            consumer.acknowledge(other)
        with pytest.raises(metatxn.InvalidArgument, match="limit"):
            consumer.receive_many(0)
        client.delete_topic(topic)
        with pytest.raises(metatxn.NotFound):
            consumer.receive(10)


def test_a_consumer_moves_its_subscription_and_forgets_what_it_has_fetched(
    client: metatxn.Client, new_topic: Callable[..., str]
) -> None:
    one, two = new_topic(), new_topic()
    put(client, one, 1, 2)
    put(client, two, 3)
    with client.subscribe(one, "s") as consumer:
        assert consumer.receive_many(1)[0].value == 1
        consumer.seek("latest")
        assert consumer.receive(0) is None
        consumer.seek("earliest")
        found = [consumer.receive(10), consumer.receive(10)]
        assert [message and message.value for message in found] == [1, 2]
        consumer.acknowledge([message for message in found if message])
    with client.subscribe_topics([one, two], "t") as both:
        assert both.receive(10) is not None
        both.seek(datetime.now(UTC))
        assert both.receive(0) is None
        both.seek("earliest")
        assert sorted(message.value for message in (both.receive(10) for _ in range(3)) if message) == [1, 2, 3]
