"""Goal: a consumer that holds as many messages as the topic's policy lets it hold gets no more, until it acknowledges.

Method: a broker in this process, and for a topic over several brokers three of them on an object store. A pass of the
upkeep looks at the policy.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from participants.subscription.segment_subscriptions import subscriptions_of
from tests.participants.segment.world import World
from tests.participants.subscription.consuming import Consuming
from tests.participants.subscription.spreading import Spreading

LIMIT = {"max_unacked_per_consumer": 4}


@pytest.fixture
async def topic(world: World) -> AsyncIterator[Consuming]:
    found = await Consuming.start(world, 2)
    await found.asked("PATCH", "", LIMIT)
    await found.subscribe()
    yield found
    await found.process.stop()


async def test_a_consumer_gets_no_more_than_it_may_hold_and_is_shown(topic: Consuming) -> None:
    ids = await topic.publish(*range(10))
    assert await topic.values() == [0, 1, 2, 3]
    assert await topic.values() == []
    assert await topic.values(consumer="d", limit=3) == [4, 5, 6], "each consumer may hold as many"
    shown = await topic.asked("GET", "/subscriptions/s")
    assert shown["blocked"] == ["c"]
    assert {name: held for each in shown["segments"] for name, held in each["held"].items()} == {"c": 4, "d": 3}
    await topic.acked(ids[:2], for_all=False)
    assert (await topic.asked("GET", "/subscriptions/s"))["blocked"] == []
    assert await topic.values() == [7, 8]


async def test_what_an_open_transaction_has_acknowledged_counts_until_it_ends(topic: Consuming) -> None:
    ids = await topic.publish(*range(6))
    txn, aborted = await topic.world.begin(), await topic.world.begin()
    await topic.receive()
    await topic.acked(ids[:2], txn)
    await topic.acked(ids[2:4], aborted)
    assert await topic.values() == []
    await topic.commit(txn)
    assert await topic.values() == [4, 5]
    await topic.abort(aborted)
    assert await topic.values() == [2, 3], "they are given to it again"
    assert await topic.values() == []


async def test_a_waiting_consumer_gets_more_as_soon_as_it_has_acknowledged(topic: Consuming) -> None:
    ids = await topic.publish(*range(5))
    await topic.receive()
    waiting = asyncio.create_task(topic.values(wait_ms=60_000))
    parts = [part for name in topic.segments for part in subscriptions_of(await topic.segment(name))]
    while not any(part.dispatch.refused_more for part in parts):
        await asyncio.sleep(0)
    await topic.acked(ids[:1], for_all=False)
    assert await waiting == [4]


async def test_the_bound_can_be_changed_and_removed(topic: Consuming) -> None:
    await topic.publish(*range(10))
    await topic.receive()
    await topic.asked("PATCH", "", {"max_unacked_per_consumer": 5})
    await topic.process.broker.reconcile()
    assert await topic.values() == [4]
    await topic.asked("PATCH", "", {"max_unacked_per_consumer": -1})
    await topic.process.broker.reconcile()
    assert await topic.values() == [5, 6, 7, 8, 9]


async def test_it_holds_over_all_brokers_of_a_topic(world: World) -> None:
    topic = await Spreading.begin(world, segments=6)
    await topic.asked("PATCH", "", {"max_unacked_per_consumer": 7})
    await topic.subscribe()
    ids = await topic.publish_keys(*range(40))
    got: list[int] = []
    for _ in range(4):
        got += await topic.all_values()
    assert len(got) == len(set(got)) == 7
    (blocked,) = (await topic.asked("GET", "/subscriptions/s"))["blocked"]
    assert blocked == "c"
    while len(got) < 40:
        await topic.acked([ids[value] for value in got], for_all=False)
        more = await topic.all_values(wait_ms=60_000)
        assert 0 < len(more) <= 7
        got += more
    assert sorted(got) == list(range(40))
    await topic.stop()
