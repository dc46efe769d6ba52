"""Goal: a program has a topic for itself until it is closed, replaced, or not heard of; and it hears of that.

Method: a cluster in one process; the clients of several programs. DESIGN §5.23; scenario 129.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import metatxn
from metatxn import exclusive
from tests.metatxn.command_line import run_here
from tests.metatxn.dev_server import DevServer

NewTopic = Callable[..., str]


def values(client: metatxn.Client, topic: str) -> list[Any]:
    return [message.value for message in client.reader(topic)]


def holder(client: metatxn.Client, topic: str) -> str | None:
    found = client.topic(topic).exclusive_producer
    return found.producer if found is not None else None


def test_nobody_else_publishes_until_it_is_closed(client: metatxn.Client, new_topic: NewTopic, dev: DevServer) -> None:
    topic = new_topic(2)
    with metatxn.connect(dev.coordinator_url) as program:
        producer = program.exclusive_producer(topic, "leader")
        with pytest.raises(metatxn.NotAllowed, match="leader"), client.producer(topic) as other:
            other.send("other", key="k")
        with pytest.raises(metatxn.NotAllowed, match="leader"):
            client.exclusive_producer(topic, "other")
        with program.transaction() as txn:
            producer.send("own", key="k", txn=txn)
        client.split_segment(client.topic(topic).segments[0].segment)
        for number in range(10):
            producer.send(number, key=str(number))
        producer.flush()
        assert producer.epoch == 1 and holder(client, topic) == "leader"
        assert "leader, until " in run_here("topic", "show", topic, METATXN_URL=dev.broker_url).stdout
    assert holder(client, topic) is None, "a client that is closed gives it back"
    client.publish(topic, "other", producer="p", sequence=1)
    assert {*values(client, topic)} == {"own", "other", *range(10)}


def test_who_was_replaced_hears_of_it(client: metatxn.Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    first = client.exclusive_producer(topic, "first")
    first.send("first").result()
    with client.exclusive_producer(topic, "second", fence=True) as second:
        assert isinstance(first.send("late").exception(), metatxn.NotAllowed)
        with pytest.raises(metatxn.NotAllowed):
            first.flush()
        hold = first._core._hold
        assert hold is not None and hold.lost is None
        first._background.run(hold.prolong())
        with pytest.raises(metatxn.NotAllowed, match="epoch 1"):
            first.send("not even sent")
        second.send("second").result()
        first.close()
        assert holder(client, topic) == "second"
    assert values(client, topic) == ["first", "second"]


async def test_it_waits_for_the_end_of_another_one_which_is_kept_alive(
    dev: DevServer, client: metatxn.Client, new_topic: NewTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_topic()
    monkeypatch.setattr(exclusive, "LOOK_AGAIN_S", 0.01)
    monkeypatch.setattr(exclusive, "SIGNS_OF_LIFE", 1_000)
    async with metatxn.connect_async(dev.coordinator_url) as program:
        first = await program.exclusive_producer(topic, "first")
        begun = await program.topic(topic)
        waiting = asyncio.create_task(program.exclusive_producer(topic, "second", wait=True))
        while (found := await program.topic(topic)).exclusive_producer == begun.exclusive_producer:
            await asyncio.sleep(0)  # until it is prolonged
        assert found.exclusive_producer is not None and not waiting.done()
        await first.close()
        async with await waiting as second:
            await (await second.send("second"))
    with pytest.raises(metatxn.InvalidArgument, match="session_timeout_s"):
        client.exclusive_producer(topic, session_timeout_s=0.5)
    with pytest.raises(metatxn.NotFound):
        client.exclusive_producer("no-such-topic")
    assert values(client, topic) == ["second"]
