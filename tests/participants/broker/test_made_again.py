"""Goal: a topic that was deleted and made again is the new one for every broker that knew the old one.

Method: two brokers in-process, each with a disk of its own or both with one object store; each in turn makes the topic,
deletes it and makes it again. Brokers are made to remember the old one, and answers of the store to arrive late.
Scenarios 38, 96.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from metastore.txn import paths
from metatxn.wire.broker import ARROW_MEDIA_TYPE
from tests.participants.broker.process import BrokerProcess, in_process
from tests.participants.broker.shared import SharedBroker
from tests.participants.broker.stories import TOPIC, browse, quoted
from tests.participants.devices import only
from tests.participants.segment.world import World

device = only("local", "The tests have disks and an object store of their own, and run on both.")

Brokers = list[BrokerProcess] | list[SharedBroker]


@pytest.fixture
async def own(world: World, tmp_path: Path) -> AsyncIterator[list[BrokerProcess]]:
    """Each with a disk of its own."""
    started = [
        await BrokerProcess(world, world.new_device(name), f"http://{name}").start() for name in ("here", "there")
    ]
    for broker in started:
        broker.can_reach(started)
    yield started
    for broker in started:
        await broker.stop()


@pytest.fixture
async def sharing(world: World) -> AsyncIterator[list[SharedBroker]]:
    objects = MemoryStore()
    started = [await SharedBroker.start(world, objects, f"http://{name}") for name in ("here", "there")]
    for broker in started:
        broker.can_reach(started)
    yield started
    for broker in started:
        await broker.stop()


@pytest.fixture(params=["own", "sharing"])
def brokers(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def clients(brokers: Brokers) -> list[httpx.AsyncClient]:
    """To each of them, and to where it sends."""
    ways = {broker.broker.url: broker.http for broker in brokers}
    return [in_process(ways, base_url=url, follow_redirects=True) for url in ways]


async def make(client: httpx.AsyncClient, brokers: Brokers) -> list[str]:
    """A topic of two segments; returns once they are served."""
    answer = await client.post("/v1/topics", json={"name": "t", "segments": 2})
    assert answer.status_code == 201, answer.text
    segments = [each["segment"] for each in answer.json()["segments"]]
    while not {each for broker in brokers for each in broker.broker.served}.issuperset(segments):
        await asyncio.sleep(0.001)
    return segments


async def gone(brokers: Brokers, segments: list[str]) -> None:
    """Until nobody serves them any more."""
    while any(not broker.broker.served.keys().isdisjoint(segments) for broker in brokers):
        for broker in brokers:
            await broker.broker.reconcile()
        await asyncio.sleep(0.001)


async def use(client: httpx.AsyncClient, value: str) -> None:
    """Everything that begins with the name of the topic."""
    topic = "/v1/topics/t"
    answers = [await client.post(f"{topic}/messages", json={"messages": [{"key": "k", "value": value}]})]
    browsed = await client.get(f"{topic}/messages")
    assert [message["value"] for message in browsed.json()["messages"]] == [value], browsed.text
    subscription = f"{topic}/subscriptions/s"
    answers.append(await client.put(subscription, json={"type": "shared", "initial": "earliest"}))
    received = await client.post(f"{subscription}/receive", json={"consumer": "c"})
    ids = [message["message_id"] for message in received.json()["messages"]]
    assert [message["value"] for message in received.json()["messages"]] == [value]
    answers.append(await client.post(f"{subscription}/acks", json={"kind": "individual", "message_ids": ids}))
    assert all(answer.is_success for answer in answers), [answer.text for answer in answers]
    segments = (await client.get(subscription)).json()["segments"]
    assert [each["backlog"] for each in segments] == [0, 0]


@pytest.mark.parametrize(("made", "deleted", "made_again"), list(product((0, 1), repeat=3)))
async def test_whoever_knew_a_topic_finds_the_one_that_was_made_again(
    brokers: Brokers, made: int, deleted: int, made_again: int
) -> None:
    asked = clients(brokers)
    before = await make(asked[made], brokers)
    await use(asked[0], "old")
    assert (await asked[deleted].delete("/v1/topics/t")).status_code == 204
    await gone(brokers, before)
    after = await make(asked[made_again], brokers)
    assert set(before).isdisjoint(after)
    await use(asked[0], "new")


def arrow(column: str) -> bytes:
    """One row."""
    table = pa.table({column: [1]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


async def append(process: BrokerProcess, segment: str, column: str) -> int:
    answer = await process.http.post(
        f"/v1/segments/{quoted(segment)}/entries", content=arrow(column), headers={"Content-Type": ARROW_MEDIA_TYPE}
    )
    return answer.status_code


async def columns(process: BrokerProcess) -> list[str]:
    schema = (await process.http.get("/v1/topics/t")).json()["schema"]
    return [field["name"] for field in schema["fields"]] if schema else []


async def test_the_columns_of_the_old_topic_are_not_those_of_the_new_one(own: list[BrokerProcess]) -> None:
    here, there = own
    (old,) = await here.create("t")
    assert await append(here, old, "old") == 200
    await there.http.delete("/v1/topics/t")
    await gone(own, [old])
    (new,) = await here.create("t")
    assert await append(here, new, "new") == 200
    assert await append(here, new, "old") == 409
    assert await columns(here) == ["new"]


async def test_an_answer_about_the_old_topic_that_arrives_late_is_not_remembered(
    own: list[BrokerProcess], world: World
) -> None:
    here, there = own
    (old,) = await here.create("t")
    assert await append(here, old, "old") == 200
    here.broker.forget_topic(TOPIC)
    held = world.store.hold_read(lambda keys: list(keys) == [paths.topic(TOPIC)])
    asking = asyncio.create_task(here.http.get("/v1/topics/t/messages"))
    await held.reached.wait()
    await there.http.delete("/v1/topics/t")
    await gone(own, [old])
    (new,) = await here.create("t")
    assert await append(here, new, "new") == 200
    held.go.set()
    assert [message["value"] for message in (await asking).json()["messages"]] == [{"new": 1}], "it looked again"
    assert await append(here, new, "old") == 409
    assert await browse(here) == [{"new": 1}]


async def test_a_write_into_the_old_topic_names_no_columns_of_the_new_one(own: list[BrokerProcess]) -> None:
    """Its broker has not heard yet that it was deleted."""
    here, there = own
    (old,) = await here.create("t")
    await there.http.delete("/v1/topics/t")
    await there.create("t")
    assert old in here.broker.served
    assert await append(here, old, "old") == 404
    assert await columns(there) == []
