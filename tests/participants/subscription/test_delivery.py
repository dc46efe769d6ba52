"""Goal: every message is given to somebody, to one at a time, again when it returns, never what is hidden, and no more
often than allowed.

Method: as in `test_individual_acks`; consumers are names. Scenarios 18, 21, 22, 53, 69, 70, 100, 119.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from metastore.errors import StoreUnavailable
from metastore.txn import paths
from metatxn.wire import errors
from metatxn.wire.frames import RawFrame
from metatxn.wire.names import MessageId
from metatxn.wire.position import Position
from participants.segment.trimming import trim
from participants.subscription import deliveries
from participants.subscription.dispatch import Dispatch
from participants.subscription.segment_subscriptions import subscriptions_of
from participants.topic.messages import Messages
from participants.topic.subscriptions import Subscriptions
from tests.participants.segment.faulty_store import Fault, puts
from tests.participants.segment.world import World
from tests.participants.subscription.consuming import TOPIC, Consuming


async def given(consuming: Consuming, consumer: str = "c") -> Any:
    """One message, waited for."""
    (message,) = await consuming.receive(consumer=consumer, limit=1, wait_ms=60_000)
    return message


async def test_shared_consumers_share_and_what_one_holds_returns_when_it_leaves(consuming: Consuming) -> None:
    await consuming.subscribe()
    await consuming.publish(*range(6))
    assert await consuming.values(consumer="a", limit=2) == [0, 1]
    assert await consuming.values(consumer="b", limit=2) == [2, 3]
    assert await consuming.values(consumer="a") == [4, 5]
    waiting = asyncio.create_task(consuming.receive(consumer="b", wait_ms=60_000))
    await asyncio.sleep(0)
    await consuming.asked("DELETE", "/subscriptions/s/consumers/a")
    back = await waiting
    assert [(message["value"], message["redelivery_count"]) for message in back] == [(0, 1), (1, 1), (4, 1), (5, 1)]


async def test_two_requests_at_once_never_get_the_same_message(consuming: Consuming) -> None:
    await consuming.subscribe()
    for start in range(0, 300, 10):
        await consuming.publish(*range(start, start + 10))
    parts = await asyncio.gather(*(consuming.values(consumer=str(number), limit=7) for number in range(60)))
    seen = [value for part in parts for value in part]
    assert sorted(seen) == list(range(300))


async def test_what_is_given_back_while_an_answer_is_made_is_in_it_once(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulation: a late request to give it again came between the reads of two entries."""
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(2))
    assert await consuming.values(consumer="a") == [0, 1]
    await consuming.redeliver(ids)
    read, reads = Dispatch.frame, []

    async def slow(part: Dispatch, position: Position) -> RawFrame | None:
        frame = await read(part, position)
        reads.append(position)
        if len(reads) == 2:
            await consuming.redeliver(ids[:1])
        return frame

    monkeypatch.setattr(Dispatch, "frame", slow)
    assert await consuming.values(consumer="b") == [0, 1]
    assert len(reads) == 2


async def test_a_silent_consumer_is_gone_and_a_waiting_one_is_not(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("participants.topic.subscriptions.SESSION_TIMEOUT_MS", 1)
    await consuming.subscribe(kind="failover")
    await consuming.publish_each(*range(2))
    assert await consuming.values(consumer="a", limit=1) == [0]
    message = await given(consuming, consumer="b")  # it waits for longer than that, and is the next one
    assert (message["value"], message["redelivery_count"]) == (0, 1)


async def test_failover_gives_to_one_and_the_next_one_takes_over_in_order(consuming: Consuming) -> None:
    await consuming.subscribe(kind="failover")
    ids = await consuming.publish_each(*range(4))
    assert await consuming.values(consumer="a", limit=3) == [0, 1, 2]
    assert await consuming.values(consumer="b") == []
    await consuming.acked(ids[1:2])
    waiting = asyncio.create_task(consuming.values(consumer="b", wait_ms=60_000))
    await asyncio.sleep(0)
    await consuming.asked("DELETE", "/subscriptions/s/consumers/a")
    assert await waiting == [0, 2, 3]
    assert (await consuming.asked("GET", "/subscriptions/s"))["consumers"] == ["b"]


async def test_exclusive_refuses_a_second_consumer(consuming: Consuming) -> None:
    await consuming.subscribe(kind="exclusive")
    await consuming.publish(0)
    await consuming.receive(consumer="a")
    answer = await consuming.ask("POST", "/subscriptions/s/receive", {"consumer": "b"})
    assert (answer.status_code, answer.json()["code"]) == (409, "ALREADY_EXISTS")
    assert answer.json()["consumer"] == "a"
    await consuming.asked("DELETE", "/subscriptions/s/consumers/a")
    assert await consuming.values(consumer="b") == [0]


async def test_21_22_only_what_readers_may_see_is_given_and_hidden_entries_do_not_hold_the_cursor(
    consuming: Consuming,
) -> None:
    """Scenarios 18-22."""
    await consuming.subscribe()
    await consuming.publish("before")
    txns = [await consuming.world.begin() for _ in range(6)]
    for round_number in range(10):
        for number, txn in enumerate(txns):
            await consuming.publish(f"{number}/{round_number}", txn_id=txn)
    await consuming.publish("after")
    assert await consuming.values() == ["before"]
    for number, txn in enumerate(txns):
        await (consuming.commit(txn) if number % 2 else consuming.abort(txn))
    rest = await consuming.receive()
    expected = [f"{number}/{at}" for at in range(10) for number in (1, 3, 5)]
    assert [message["value"] for message in rest] == [*expected, "after"]
    await consuming.redeliver()
    again = await consuming.receive()
    assert [message["value"] for message in again] == ["before", *expected, "after"], "scenario 119"
    await consuming.acked([message["message_id"] for message in again])
    segment = await consuming.segment()
    assert (await consuming.shown())["mark_delete"] == str(segment.buffer.last_durable)
    (subscription,) = subscriptions_of(segment)
    assert len(subscription.cursor._acked) == 0, "aborted entries leave no gaps"


async def test_an_aborted_message_cannot_be_acknowledged(consuming: Consuming) -> None:
    await consuming.subscribe()
    txn = await consuming.world.begin()
    ids = await consuming.publish("x", txn_id=txn)
    assert (await consuming.ack(ids)).status_code == 422
    await consuming.abort(txn)
    answer = await consuming.ack(ids)
    assert answer.status_code == 422 and answer.json()["field"] == "message_ids"


async def test_53_consume_transform_produce_takes_effect_together(consuming: Consuming) -> None:
    await consuming.subscribe("in")
    await consuming.subscribe("out")
    (source,) = await consuming.publish("input")
    await consuming.receive("in")
    await consuming.receive("out")
    txn = await consuming.world.begin()
    await consuming.acked([source], txn, name="in")
    await consuming.publish("output", txn_id=txn)
    assert await consuming.values("out") == []
    await consuming.commit(txn)
    assert await consuming.values("out") == ["output"]
    await consuming.redeliver(name="in")
    assert await consuming.values("in") == ["output"]


async def test_69_70_a_subscription_made_after_a_restart_sees_what_was_committed(consuming: Consuming) -> None:
    good, bad = await consuming.world.begin(), await consuming.world.begin()
    await consuming.publish("good", txn_id=good)
    await consuming.publish("bad", txn_id=bad)
    await consuming.publish("plain")
    await consuming.commit(good)
    await consuming.abort(bad)
    await consuming.crash()
    await consuming.subscribe()
    assert await consuming.values() == ["good", "plain"]


async def test_latest_begins_behind_what_can_be_seen_then_also_after_a_restart(consuming: Consuming) -> None:
    await consuming.publish("old")
    txn = await consuming.world.begin()
    await consuming.publish("decided later", txn_id=txn)
    await consuming.subscribe(initial="latest")
    await consuming.crash()
    await consuming.publish("new")
    await consuming.commit(txn)
    assert await consuming.values() == ["decided later", "new"]


async def test_a_receive_waits_for_a_message_without_reading_again_and_again(consuming: Consuming) -> None:
    """Scenario 100, for subscriptions."""
    await consuming.subscribe()
    segment = await consuming.segment()
    reads, read = 0, segment.reader.read_committed

    async def counted(*arguments: Any) -> Any:
        nonlocal reads
        reads += 1
        return await read(*arguments)

    segment.reader.read_committed = counted  # type: ignore[assignment]
    waiting = asyncio.create_task(given(consuming))
    for _ in range(100):
        await asyncio.sleep(0)
    assert reads == 1
    await consuming.publish("x")
    assert (await waiting)["value"] == "x"
    assert reads <= 4


async def test_no_more_is_given_out_than_memory_allows(consuming: Consuming, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until some of it is acknowledged."""
    monkeypatch.setattr(deliveries, "MAX_OUTSTANDING", 3)
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(6))
    assert await consuming.values(limit=3) == [0, 1, 2]
    assert await consuming.values() == []
    await consuming.acked(ids[:1])
    assert await consuming.values() == [3, 4, 5]


async def test_what_is_trimmed_is_not_given_and_does_not_hold_the_cursor(consuming: Consuming) -> None:
    """Before it was read, and after."""
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(6))
    assert await consuming.values(limit=2) == [0, 1]
    segment = await consuming.segment()
    await trim(segment, consuming.world.store, consuming.process.storage, MessageId.parse(ids[3]).position)
    await consuming.redeliver()
    assert await consuming.values() == [3, 4, 5]
    shown = await consuming.shown()
    assert (shown["backlog"], shown["unacked"]) == (3, 3)
    await consuming.acked(ids[3:])
    assert (await consuming.shown())["mark_delete"] == str(segment.buffer.last_durable)


async def test_what_is_dead_goes_to_the_dead_letter_topic_once_and_is_acknowledged(consuming: Consuming) -> None:
    await consuming.subscribe(dead_letter_topic="dead", max_redeliveries=2)
    (_, bad) = await consuming.publish("good", {"bad": True})
    for count in range(3):
        message = (await consuming.receive())[-1]
        assert (message["message_id"], message["redelivery_count"]) == (bad, count)
        if count == 2:
            consuming.world.store.fault(Fault(puts(paths.CURSORS), before=StoreUnavailable("gone")))
        assert await consuming.redeliver([bad]) == 1
    await consuming.idle()
    assert await consuming.values() == []
    answer = await consuming.process.http.get("/v1/topics/dead/messages")
    (letter,) = answer.json()["messages"]
    assert letter["value"] == {"bad": True}
    assert letter["properties"]["metatxn.origin-message-id"] == bad
    await consuming.crash()
    assert await consuming.values() == ["good"]
    txn = await consuming.world.begin()
    assert await consuming.conflicts([bad], txn)


async def test_the_same_put_again_is_no_news_and_another_one_is_a_conflict(consuming: Consuming) -> None:
    first = await consuming.subscribe(kind="shared")
    assert await consuming.subscribe(kind="shared") == first
    for change in ({"type": "failover"}, {"initial": "latest"}, {"dead_letter_topic": "d", "max_redeliveries": 1}):
        body = {"type": "shared", "initial": "earliest", **change}
        answer = await consuming.ask("PUT", "/subscriptions/s", body)
        assert (answer.status_code, answer.json()["code"]) == (409, "ALREADY_EXISTS"), change
    parts = await asyncio.gather(*(consuming.subscribe("race", kind="shared") for _ in range(5)))
    assert all(part == parts[0] for part in parts)


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("type", {"initial": "earliest"}),
        ("initial", {"type": "shared", "initial": "middle"}),
        ("max_redeliveries", {"type": "shared", "initial": "latest", "max_redeliveries": 3}),
        ("dead_letter_topic", {"type": "shared", "initial": "latest", "dead_letter_topic": "t"}),
        ("dead_letter_topic", {"type": "shared", "initial": "latest", "dead_letter_topic": "a/b"}),
    ],
)
async def test_a_definition_that_makes_no_sense_is_refused(
    consuming: Consuming, field: str, body: dict[str, object]
) -> None:
    answer = await consuming.ask("PUT", "/subscriptions/s", body)
    assert answer.status_code == 422 and answer.json()["field"] == field


async def test_what_is_not_there_is_not_found(consuming: Consuming) -> None:
    for method, path, body in (
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "/receive", {"consumer": "c"}),
        ("POST", "/redeliver", {}),
        ("POST", "/acks", {"kind": "individual", "message_ids": await consuming.publish("x")}),
    ):
        answer = await consuming.ask(method, f"/subscriptions/none{path}", body)
        assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND"), path
    body = {"type": "shared", "initial": "earliest"}
    answer = await consuming.process.http.put("/v1/topics/none/subscriptions/s", json=body)
    assert answer.status_code == 404


async def test_a_topic_of_several_segments_is_one_subscription(world: World, tmp_path: Path) -> None:
    consuming = await Consuming.start(world, segments=3)
    await consuming.subscribe()
    messages = [{"key": str(number), "value": number} for number in range(60)]
    await consuming.asked("POST", "/messages", {"messages": messages})
    found = await consuming.receive()
    assert sorted(message["value"] for message in found) == list(range(60))
    txn = await world.begin()
    await consuming.acked([message["message_id"] for message in found if message["value"] % 2], txn)
    assert await consuming.conflicts([message["message_id"] for message in found], await world.begin())
    await consuming.commit(txn)
    await consuming.crash()
    assert sorted(await consuming.values()) == list(range(0, 60, 2))
    shown = (await consuming.asked("GET", "/subscriptions/s"))["segments"]
    assert len(shown) == 3 and sum(part["unacked"] for part in shown) == 30
    await consuming.process.stop()


async def test_while_a_segment_is_not_served_nobody_is_shown_half_a_subscription(world: World) -> None:
    """Nor is half of what consumers hold given to others."""
    consuming = await Consuming.start(world, segments=2)
    await consuming.subscribe()
    messages = [{"key": str(number), "value": number} for number in range(20)]
    await consuming.asked("POST", "/messages", {"messages": messages})
    assert len(await consuming.receive()) == 20
    away = consuming.segments[1]
    opening = world.store.hold_read(lambda keys: list(keys) == [paths.segment(away)])
    (await consuming.segment(away)).lose("for the test")
    await opening.reached.wait()
    for method, path, body in (("GET", "", None), ("POST", "/redeliver", {})):
        answer = await consuming.ask(method, f"/subscriptions/s{path}", body)
        assert (answer.status_code, answer.json()["code"]) == (503, "STORE_UNAVAILABLE")
        assert answer.json()["segment"] == away
    opening.go.set()
    while consuming.process.broker.not_ready:
        await consuming.process.broker._opened.wait()
    shown = (await consuming.asked("GET", "/subscriptions/s"))["segments"]
    unacked = {each["segment"]: each["unacked"] for each in shown}
    assert unacked[consuming.segments[0]] > 0 and unacked[away] == 0, "only what it held has returned"
    await consuming.process.stop()


async def test_a_home_that_was_replaced_gives_nothing_to_who_has_asked_it(consuming: Consuming) -> None:
    """Neither to those that wait, nor to one whose request comes late."""
    await consuming.subscribe()
    broker = consuming.process.broker
    served = await Subscriptions(broker, Messages(broker)).at_home(TOPIC, "s")
    waiting = asyncio.create_task(served.receive("waits", 1, 60_000))
    while not served.consumers:
        await asyncio.sleep(0)
    served.close()
    with pytest.raises(errors.StoreUnavailable, match="has begun again"):
        await waiting
    await consuming.publish(0)
    with pytest.raises(errors.StoreUnavailable, match="has begun again"):
        await served.receive("comes late", 1, 0)
    assert await consuming.values() == [0]


async def test_a_home_whose_segment_is_opened_again_while_it_reads_the_layout_gives_nothing(
    consuming: Consuming,
) -> None:
    """It is another home then, which may have given the messages to others already."""
    await consuming.subscribe()
    broker, segment = consuming.process.broker, await consuming.segment()
    served = await Subscriptions(broker, Messages(broker)).at_home(TOPIC, "s")
    waiting = asyncio.create_task(served.receive("c", 1, 60_000))
    for _ in range(100):
        await asyncio.sleep(0)
    broker.forget_topic(TOPIC)
    reading = consuming.world.store.hold_read(lambda keys: list(keys) == [paths.topic(TOPIC)])
    segment.changed.notify()
    await reading.reached.wait()
    segment.lose("for the test")
    while broker.served.get(segment.id) in (None, segment):
        await asyncio.sleep(0.001)
    await consuming.publish(0)
    reading.go.set()
    with pytest.raises(errors.StoreUnavailable, match="has begun again"):
        await waiting
    assert await consuming.values() == [0]


async def test_89_a_split_keeps_the_order_of_keys_and_loses_nothing(consuming: Consuming) -> None:
    """Messages of the parent come before those of its children; acks on both end with one transaction."""
    await consuming.subscribe("ordered", kind="failover")
    await consuming.subscribe("late", kind="shared", initial="latest")
    for start in (0, 20):
        messages = [{"key": str(number % 5), "value": start + number} for number in range(20)]
        await consuming.asked("POST", "/messages", {"messages": messages})
        if not start:
            path = f"/v1/segments/{quote(consuming.segments[0], safe='')}/split"
            answer = await consuming.process.http.post(path, json={})
            assert answer.status_code == 200, answer.text
            consuming.segments += answer.json()["children"]
    assert await consuming.values("ordered", limit=5) == list(range(5))
    rest = [await consuming.receive("ordered", limit=7) for _ in range(10)]
    values = [message["value"] for part in rest for message in part]
    assert values[:15] == list(range(5, 20)) and sorted(values) == list(range(5, 40))
    for key in range(5):
        assert [value for value in values if value % 5 == key] == list(range(5 + key, 40, 5))
    txn = await consuming.world.begin()
    await consuming.acked([message["message_id"] for part in rest for message in part], txn, name="ordered")
    await consuming.crash()
    await consuming.commit(txn)
    assert await consuming.values("ordered") == list(range(5))
    late = await consuming.values("late")
    assert sorted(value for value in late if value >= 20) == list(range(20, 40)), "children begin at their start"


async def test_85_deleting_the_topic_leaves_nothing_and_its_next_life_knows_no_subscription(
    consuming: Consuming,
) -> None:
    await consuming.subscribe()
    ids = await consuming.publish_each(*range(3))
    txn = await consuming.world.begin()
    await consuming.acked(ids[:1], txn)
    await consuming.acked(ids[1:2])
    assert (await consuming.ask("DELETE", "")).status_code == 204
    for prefix in (paths.CURSORS, paths.ACKS_INDEX, paths.OPS):
        assert await consuming.keys(prefix) == []
    await consuming.world.commit(txn)
    consuming.segments = await consuming.process.create("t")
    assert (await consuming.ask("GET", "/subscriptions/s")).status_code == 404
    await consuming.subscribe()
    await consuming.publish("new")
    assert await consuming.values() == ["new"]
    assert await consuming.findings() == []


async def test_a_deleted_topic_is_not_remembered_by_the_home_of_its_subscriptions(consuming: Consuming) -> None:
    """Found by the simulation: the segment, with all that it knew of its transactions, stayed for as long as the broker
    lived, or until a topic of that name was consumed again."""
    await consuming.subscribe()
    await consuming.publish_each(*range(3))
    assert await consuming.values(limit=1) == [0]
    segment = weakref.ref(await consuming.segment())
    assert (await consuming.ask("DELETE", "")).status_code == 204
    await asyncio.sleep(0)  # the one who was cancelled has ended
    gc.collect()
    assert segment() is None
