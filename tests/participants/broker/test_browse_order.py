"""Goal: the messages of a key are browsed in the order in which they were written, at every broker, across a split
under an open transaction.

Method: three brokers in-process that share an object store. A segment is split while a transaction holds its readers
back; its children take messages that must wait. Found by `make chaos` (mix `short`, seed 201).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from urllib.parse import quote

import pytest
from obstore.store import MemoryStore

from metatxn.wire.broker import hash_of_key
from tests.participants.broker.shared import SharedBroker
from tests.participants.broker.test_peers import browsed
from tests.participants.broker.test_placement import create, spread
from tests.participants.devices import only
from tests.participants.segment.world import World

device = only("objects", "Local files are those of one broker; here several have the same ledgers.")

KEY = "k"


@pytest.fixture
async def brokers(world: World) -> AsyncIterator[list[SharedBroker]]:
    objects = MemoryStore()
    started = [await SharedBroker.start(world, objects, f"http://broker-{number}") for number in range(3)]
    for broker in started:
        broker.can_reach(started)
    await spread(started, await create(started[0], 30))
    yield started
    await asyncio.gather(*(broker.stop() for broker in started))


async def test_a_child_waits_for_what_is_undecided_in_its_sealed_parent(
    brokers: list[SharedBroker], world: World
) -> None:
    segments = (await brokers[0].http.get("/v1/topics/t")).json()["segments"]
    (parent,) = (each for each in segments if each["range"][0] <= hash_of_key(KEY) <= each["range"][1])
    (owner,) = (broker for broker in brokers if broker.url == parent["owner"])

    async def publish(value: str, **params: str) -> None:
        body = {"messages": [{"key": KEY, "value": value}]}
        while (answer := await owner.http.post("/v1/topics/t/messages", params=params, json=body)).status_code == 503:
            await asyncio.sleep(0.001)  # the child is being opened
        assert answer.status_code == 200, answer.text

    txn = await world.begin()
    await publish("first")
    await publish("undecided", txn_id=str(txn))
    await publish("second")
    answer = await owner.http.post(f"/v1/segments/{quote(parent['segment'], safe='')}/split", json={})
    assert answer.status_code == 200, answer.text
    await publish("third")
    for broker in brokers:
        assert await browsed(broker) == ["first"]
        assert await browsed(broker, isolation="read_uncommitted") == ["first", "undecided", "second", "third"]
    ends = [(await broker.http.get("/v1/topics/t/messages?start=latest")).json()["next"] for broker in brokers]
    await world.commit(txn)
    for broker in brokers:
        while len(found := await browsed(broker)) < 4:
            await asyncio.sleep(0.001)
        assert found == ["first", "undecided", "second", "third"]
    for broker, end in zip(brokers, reversed(ends), strict=True):
        assert await browsed(broker, after=end) == ["undecided", "second", "third"]
