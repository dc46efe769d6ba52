"""Goal: of deleted topics and dropped subscriptions nothing is left after a while, and no number is used again.

Method: a broker in-process; the time is a parameter, or a bound. DESIGN §5.26; scenarios 38, 85, 96.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metastore.errors import OutcomeUnknown
from metastore.txn import paths
from metastore.txn.records.subscriptions import SubscriptionRecord
from metastore.txn.records.topics import TopicRecord
from metastore.versions import FIRST
from metatxn.wire.names import number_of_segment
from participants.topic import forgetting
from participants.topic.layout import LayoutUpkeep
from tests.participants.broker.process import BrokerProcess
from tests.participants.broker.stories import LOW, TOPIC, assert_lawful, browse, keys_of, send
from tests.participants.reconciling import reconcile_subscribed
from tests.participants.segment.faulty_store import Fault, deletes, puts
from tests.participants.segment.world import World

SUBSCRIPTION = f"/v1/topics/{TOPIC.replace('/', '%2F')}/subscriptions/s"
LATER_MS = 10**15


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers look every time, and forget at once."""
    monkeypatch.setattr(forgetting, "FORGET_AFTER_MS", 0)
    monkeypatch.setattr(forgetting, "LOOK_EVERY_MS", 1)


async def forget(process: BrokerProcess, until_ms: int = LATER_MS) -> None:
    await process.layout.forgetting.forget_due(until_ms)


async def delete(process: BrokerProcess) -> int:
    return (await process.http.delete("/v1/topics/t")).status_code


async def subscribe(process: BrokerProcess) -> None:
    answer = await process.http.put(SUBSCRIPTION, json={"initial": "earliest", "type": "shared"})
    assert answer.status_code < 300, answer.text


async def drop(process: BrokerProcess) -> int:
    return (await process.http.delete(SUBSCRIPTION)).status_code


async def receive(process: BrokerProcess) -> list[Any]:
    answer = await process.http.post(f"{SUBSCRIPTION}/receive", json={"consumer": "c", "max": 10})
    assert answer.status_code == 200, answer.text
    return [item["value"] for item in answer.json()["messages"]]


async def acknowledge_all(process: BrokerProcess) -> None:
    answer = await process.http.post(f"{SUBSCRIPTION}/receive", json={"consumer": "c", "max": 10})
    ids = [item["message_id"] for item in answer.json()["messages"]]
    answer = await process.http.post(f"{SUBSCRIPTION}/acks", json={"kind": "individual", "message_ids": ids})
    assert answer.status_code < 300, answer.text


async def incarnation(world: World) -> int:
    stored: Any = await world.store.get(paths.subscription(TOPIC, "s"))
    return SubscriptionRecord.decode(stored.value).incarnation


async def test_a_deleted_topic_is_forgotten_with_everything_and_its_numbers_go_on(
    process: BrokerProcess, world: World
) -> None:
    (first,) = await process.create("t")
    await send(process, LOW, "x")
    await subscribe(process)
    await acknowledge_all(process)
    claim = {"session": "a", "ttl_ms": 30_000}
    claimed = await process.http.post("/v1/topics/t/exclusive-producer", json=claim)
    assert claimed.status_code == 200, claimed.text
    await forget(process)
    assert await delete(process) == 204 and await delete(process) == 204
    await forget(process)
    assert await keys_of(world, "default%2Ft") == []
    assert await delete(process) == 404, "nobody knows it any more"
    (again,) = await process.create("t")
    assert number_of_segment(again) > number_of_segment(first)
    await subscribe(process)
    assert await incarnation(world) > 1
    epoch = (await process.http.post("/v1/topics/t/exclusive-producer", json=claim)).json()["epoch"]
    assert epoch > claimed.json()["epoch"]
    await assert_lawful(world)


async def test_tombstones_stay_as_long_as_requests_may_be_repeated(process: BrokerProcess, world: World) -> None:
    await process.create("t")
    await subscribe(process)
    assert await drop(process) == 204
    assert await delete(process) == 204
    topic: Any = await world.store.get(paths.topic(TOPIC))
    dropped: Any = await world.store.get(paths.subscription(TOPIC, "s"))
    deleted_ms = TopicRecord.decode(topic.value).deleted_ms
    dropped_ms = SubscriptionRecord.decode(dropped.value).deleted_ms
    assert deleted_ms and dropped_ms and dropped_ms < deleted_ms
    await forget(process, dropped_ms - 1)
    assert await world.store.get(paths.subscription(TOPIC, "s")) is not None
    await forget(process, deleted_ms - 1)
    assert await world.store.get(paths.subscription(TOPIC, "s")) is None
    assert await delete(process) == 204
    await forget(process, deleted_ms)
    assert await delete(process) == 404


async def test_a_dropped_subscription_is_forgotten_and_begins_again(process: BrokerProcess, world: World) -> None:
    await process.create("t")
    await send(process, LOW, "x")
    await subscribe(process)
    await forget(process)
    await acknowledge_all(process)
    assert await keys_of(world, paths.CURSORS) != [], "one that is used is not forgotten"
    assert await drop(process) == 204
    await forget(process)
    assert await keys_of(world, paths.subscriptions(TOPIC)) == []
    assert await drop(process) == 404
    await subscribe(process)
    assert await incarnation(world) == 2
    assert await receive(process) == ["x"]
    await assert_lawful(world)


@pytest.mark.parametrize("left", ["cursor", "acknowledgement"])
async def test_a_subscription_is_kept_while_anything_of_it_is_left(
    process: BrokerProcess, world: World, left: str
) -> None:
    """Its successor would go on with the cursor, and an acknowledgement without a subscription has no meaning."""
    await process.create("t")
    message = await send(process, LOW, "x")
    await subscribe(process)
    await process.http.post(f"{SUBSCRIPTION}/receive", json={"consumer": "c", "max": 10})
    ack: dict[str, Any] = {"kind": "individual", "message_ids": [message]}
    if left == "acknowledgement":
        ack["txn_id"] = str(await world.begin())
    answer = await process.http.post(f"{SUBSCRIPTION}/acks", json=ack)
    assert answer.status_code < 300, answer.text
    prefix = paths.CURSORS if left == "cursor" else paths.OPS
    fault = world.store.fault(Fault(deletes(prefix), before=OutcomeUnknown("lost"), times=10**9))
    dropping = asyncio.create_task(drop(process))
    while await is_live(world):
        await asyncio.sleep(0)
    await forget(process)
    assert await keys_of(world, paths.subscriptions(TOPIC)) != []
    world.store._faults.remove(fault)
    assert await dropping == 204
    await forget(process)
    assert await keys_of(world, paths.subscriptions(TOPIC)) == []
    await assert_lawful(world)


async def is_live(world: World) -> bool:
    stored: Any = await world.store.get(paths.subscription(TOPIC, "s"))
    return not SubscriptionRecord.decode(stored.value).deleted


async def test_a_topic_is_created_above_what_was_forgotten_meanwhile(process: BrokerProcess, world: World) -> None:
    """It lived and went between the reads of its creator and the write of that."""
    key = paths.topic(TOPIC)
    held = world.store.fault(Fault(puts(key), hold_before=True))
    late = asyncio.create_task(process.http.post("/v1/topics", json={"name": "t", "segments": 1}))
    await held.reached.wait()
    (other,) = await process.create("t")
    assert await delete(process) == 204
    await forget(process)
    held.go.set()
    assert (await late).status_code == 201
    (segment,) = (await process.http.get("/v1/topics/t")).json()["segments"]
    assert number_of_segment(segment["segment"]) > number_of_segment(other)


async def test_a_tombstone_that_is_forgotten_while_its_topic_is_created_again_does_not_count_as_the_topic(
    process: BrokerProcess, world: World
) -> None:
    await process.create("t")
    assert await delete(process) == 204
    held = world.store.fault(Fault(puts(paths.topic(TOPIC)), hold_before=True))
    again = asyncio.create_task(process.http.post("/v1/topics", json={"name": "t", "segments": 1}))
    await held.reached.wait()
    await forget(process)
    held.go.set()
    assert (await again).status_code == 201


async def test_a_subscription_is_created_above_what_was_forgotten_meanwhile(
    process: BrokerProcess, world: World
) -> None:
    await process.create("t")
    held = world.store.fault(Fault(puts(paths.subscription(TOPIC, "s")), hold_before=True))
    late = asyncio.create_task(subscribe(process))
    await held.reached.wait()
    await subscribe(process)
    assert await drop(process) == 204
    await forget(process)
    held.go.set()
    await late
    assert await incarnation(world) == 2


async def test_a_broker_that_never_heard_of_a_drop_finds_the_subscription_missing(
    process: BrokerProcess, world: World
) -> None:
    (name,) = await process.create("t")
    await send(process, LOW, "x")
    await subscribe(process)
    assert await receive(process) == ["x"]
    segment = await process.broker.segment(name)
    attached: Any = segment.attached
    (known,) = list(attached)
    stored: Any = await world.store.get(paths.subscription(TOPIC, "s"))
    await world.store.apply(world.store.batch().remove(stored))
    await reconcile_subscribed(segment)
    assert known.dropped and list(attached) == []
    answer = await process.http.post(f"{SUBSCRIPTION}/receive", json={"consumer": "c", "max": 10})
    assert answer.status_code == 404, answer.text


async def test_a_topic_is_kept_until_its_bytes_are_gone(process: BrokerProcess, world: World) -> None:
    """The broker that has them finds them by the record of the segment, and must not take them for lost ones."""
    await process.create("t")
    await send(process, LOW, "x")
    await process.stop()
    other = await BrokerProcess(world, world.new_device("other"), "http://other").start()
    assert await delete(other) == 204
    await forget(other)
    assert await world.store.get(paths.topic(TOPIC)) is not None
    back = await process.again()
    while await keys_of(world, paths.SEGMENTS):
        await back.broker.reconcile()
        await asyncio.sleep(0)
    await forget(other)
    assert await keys_of(world, "default%2Ft") == []
    await back.stop()
    await other.stop()


@pytest.mark.usefixtures("soon")
async def test_nothing_is_forgotten_while_there_are_earlier_releases(process: BrokerProcess, world: World) -> None:
    await process.create("t")
    assert await delete(process) == 204
    process.broker.version.current = FIRST
    looking = process.layout.forgetting
    for _ in range(3):
        await looking.look()
    assert await world.store.get(paths.topic(TOPIC)) is not None


@pytest.mark.usefixtures("soon")
async def test_brokers_look_from_time_to_time(process: BrokerProcess, world: World) -> None:
    await process.create("t")
    assert await delete(process) == 204
    layout: LayoutUpkeep = process.layout
    await layout.reconcile(set())
    while await world.store.get(paths.topic(TOPIC)) is not None:
        await asyncio.sleep(0.001)
        await layout.reconcile(set())
    await process.create("t")
    await send(process, LOW, "y")
    assert await browse(process, "t") == ["y"]
