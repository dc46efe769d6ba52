"""Goal: a message that has a delivery time is delivered to shared subscriptions then and not before, whatever happens
in between; everything else goes on meanwhile, and what waits is bounded.

Method: a clock that is set by hand, and brokers that die. DESIGN §5.10; scenarios 124-126.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any
from urllib.parse import quote

import pytest

from metatxn.wire.batches import pack_batch, packed_message
from metatxn.wire.frames import Entry, PayloadKind
from participants.subscription import deliveries, dispatch, keyed_deliveries
from participants.subscription.deliveries import Deliveries
from participants.subscription.keyed_deliveries import KeyedDeliveries
from participants.subscription.places import START, Place, Span
from participants.subscription.redelivery import Redelivery
from tests.extent import usually
from tests.gateways.pulsar.client import batch as pulsar_batch
from tests.participants.devices import usually_on
from tests.participants.subscription.by_key import key_of
from tests.participants.subscription.consuming import Consuming, SetClock
from tests.participants.subscription.test_giving_up import letters

device = usually_on("objects", "Where the ledgers lie makes no difference to when a message is delivered.")
SHARED = ["shared", "key_shared"]


@pytest.fixture
def clock(consuming: Consuming) -> SetClock:
    return SetClock(consuming)


async def publish(consuming: Consuming, *messages: dict[str, Any], path: str = "/messages") -> list[str]:
    """One entry of each."""
    found = []
    for message in messages:
        found += (await consuming.asked("POST", path, {"messages": [message]}))["message_ids"]
    return found


def later(clock: SetClock, value: Any, ms: int, **more: Any) -> dict[str, Any]:
    return {"value": value, "deliver_at_ms": clock.ms + ms, **more}


@pytest.mark.parametrize("kind", SHARED)
async def test_124_it_is_delivered_at_its_time_and_not_before(consuming: Consuming, clock: SetClock, kind: str) -> None:
    await consuming.subscribe(kind=kind)
    await publish(consuming, later(clock, "late", 100), {"value": "now"}, later(clock, "later", 200))
    assert await consuming.values() == ["now"]
    clock.ms += 99
    assert await consuming.values() == []
    clock.ms += 1
    (message,) = await consuming.receive()
    assert (message["value"], message["redelivery_count"]) == ("late", 0)
    assert message["deliver_at_ms"] == clock.ms
    clock.ms += 10_000
    assert await consuming.values() == ["later"]


async def test_124_who_waits_is_given_it_when_its_time_comes(consuming: Consuming, clock: SetClock) -> None:
    await consuming.subscribe()
    await publish(consuming, later(clock, "late", 5))
    receiving = asyncio.ensure_future(consuming.values(wait_ms=60_000))
    part = next(iter((await consuming.segment()).attached))  # type: ignore[call-overload]
    while not part.deliveries.not_due:
        await asyncio.sleep(0)
    assert not receiving.done()
    clock.ms += 5
    assert await receiving == ["late"]


async def test_124_whoever_waits_is_told_though_another_one_takes_the_first(
    consuming: Consuming, clock: SetClock
) -> None:
    await consuming.subscribe()
    await publish(consuming, later(clock, "a", 5_000), later(clock, "b", 5_000))
    receiving = asyncio.ensure_future(consuming.values(consumer="waits", wait_ms=60_000))
    part = next(iter((await consuming.segment()).attached))  # type: ignore[call-overload]
    while not part.deliveries.not_due:
        await asyncio.sleep(0)
    clock.ms += 5_000  # the timer has not noticed yet
    assert await consuming.values(consumer="asks", limit=1) == ["a"]
    async with asyncio.timeout(20):
        assert await receiving == ["b"]


@pytest.mark.parametrize("kind", ["failover", "exclusive"])
async def test_others_and_readers_do_not_wait(consuming: Consuming, clock: SetClock, kind: str) -> None:
    await consuming.subscribe(kind=kind)
    await publish(consuming, later(clock, "late", 100))
    (read,) = (await consuming.asked("GET", "/messages"))["messages"]
    assert (read["value"], read["deliver_at_ms"]) == ("late", clock.ms + 100)
    assert await consuming.values() == ["late"]


async def test_a_delay_counts_from_the_moment_when_the_broker_gets_the_message(
    consuming: Consuming, clock: SetClock
) -> None:
    await consuming.subscribe()
    await publish(consuming, {"value": "a", "deliver_after_ms": 10}, {"value": "b", "deliver_after_ms": 0})
    assert await consuming.values() == ["b"]
    clock.ms += 10
    (message,) = await consuming.receive()
    assert (message["value"], message["deliver_at_ms"]) == ("a", clock.ms)


@pytest.mark.parametrize("kind", SHARED)
async def test_messages_of_one_entry_have_times_of_their_own(consuming: Consuming, clock: SetClock, kind: str) -> None:
    await consuming.subscribe(kind=kind)
    body = [later(clock, 0, 20), {"value": 1}, later(clock, 2, 10), {"value": 3}, later(clock, 4, -5)]
    await consuming.asked("POST", "/messages", {"messages": body})
    assert await consuming.values() == [1, 3, 4]
    clock.ms += 10
    assert await consuming.values() == [2]
    clock.ms += 10
    assert await consuming.values() == [0]


async def test_the_batches_of_the_client_have_them_too(consuming: Consuming, clock: SetClock) -> None:
    await consuming.subscribe()
    late = packed_message("late", "k", None, clock.ms + 10)
    batch, count = pack_batch([late, packed_message("now", None, {"a": "b"})])
    await (await consuming.segment()).publish(Entry(batch, PayloadKind.BATCH, count))
    found = (await consuming.asked("GET", "/messages"))["messages"]
    assert [each["deliver_at_ms"] for each in found] == [clock.ms + 10, None]
    assert await consuming.values() == ["now"]
    clock.ms += 10
    assert await consuming.values() == ["late"]


@pytest.mark.parametrize("kind", SHARED)
async def test_entries_of_pulsars_clients_have_one_time(consuming: Consuming, clock: SetClock, kind: str) -> None:
    await consuming.subscribe(kind=kind)
    sent = pulsar_batch({"k": b"a", "l": b"b"}, deliver_at_time=clock.ms + 10)
    await (await consuming.segment()).publish(Entry(sent, PayloadKind.PULSAR, 2))
    assert await consuming.values() == []
    clock.ms += 10
    assert [each["deliver_at_ms"] for each in await consuming.receive()] == [clock.ms] * 2


@pytest.mark.parametrize("kind", SHARED)
async def test_125_another_broker_keeps_the_times(consuming: Consuming, clock: SetClock, kind: str) -> None:
    await consuming.subscribe(kind=kind)
    ids = await publish(consuming, later(clock, "a", 100), {"value": "b"}, later(clock, "c", 50), {"value": "d"})
    assert await consuming.values() == ["b", "d"]
    await consuming.acked([ids[1], ids[3]])
    for _ in range(2):
        await consuming.crash()
        assert await consuming.values() == []
    clock.ms += 60
    await consuming.crash()
    assert await consuming.values() == ["c"]
    await consuming.acked([ids[2]])
    clock.ms += 60
    assert await consuming.values() == ["a"]
    await consuming.acked([ids[0]])
    await consuming.crash()
    assert await consuming.values() == []
    assert (await consuming.shown())["backlog"] == 0


async def test_what_is_acknowledged_is_not_read_again(consuming: Consuming, clock: SetClock) -> None:
    """A message is to be delivered in days, and thousands behind it are acknowledged."""
    await consuming.subscribe()
    ids = await publish(consuming, later(clock, "late", 100), *({"value": n} for n in range(30)))
    assert len(await consuming.values()) == 30
    await consuming.acked(ids[1:])
    await consuming.crash()
    segment = await consuming.segment()
    read = segment.reader.read_committed
    after: list[Any] = []

    async def counted(position: Any, max_bytes: int) -> Any:
        after.append(position)
        return await read(position, max_bytes)

    segment.reader.read_committed = counted  # type: ignore[method-assign, assignment]
    dispatch_bytes, dispatch.READ_BYTES = dispatch.READ_BYTES, 1
    try:
        assert await consuming.values() == []
    finally:
        dispatch.READ_BYTES = dispatch_bytes
    assert len(after) <= 3, "the first entry, and what is behind all of them"


async def test_126_what_waits_is_bounded_and_more_is_read_when_it_is_less(
    consuming: Consuming, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "MAX_LATER", 3)
    await consuming.subscribe()
    await publish(consuming, *(later(clock, n, 10 * (n + 1)) for n in range(5)), {"value": "now"})
    assert await consuming.values() == []
    assert (await consuming.shown())["delayed"] == 3
    clock.ms += 30
    found = []
    while values := await consuming.values():
        found += values
    assert found == [0, 1, 2, "now"]
    clock.ms += 100
    assert await consuming.values() == [3, 4]


async def test_126_many_that_become_due_at_once_come_in_turns(
    consuming: Consuming, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "DUE_AT_ONCE", 2)
    await consuming.subscribe()
    await publish(consuming, *(later(clock, n, 10) for n in range(7)))
    assert await consuming.values() == []
    clock.ms += 10
    found: list[Any] = []
    while len(found) < 7:
        found += await consuming.values(wait_ms=60_000)
    assert found == list(range(7))


async def test_nothing_is_left_now_if_all_that_is_left_comes_later(consuming: Consuming, clock: SetClock) -> None:
    await consuming.subscribe()
    await publish(consuming, later(clock, "late", 10))
    answer = await consuming.asked("POST", "/subscriptions/s/receive", {"consumer": "c"})
    assert answer["messages"] == [] and answer["others_hold"] is False
    shown = await consuming.shown()
    assert (shown["backlog"], shown["unacked"], shown["delayed"]) == (1, 0, 1)


async def test_it_is_acknowledged_in_a_transaction_only_once_it_was_delivered(
    consuming: Consuming, clock: SetClock
) -> None:
    await consuming.subscribe()
    ids = await publish(consuming, later(clock, "late", 10), {"value": "now"})
    assert await consuming.values() == ["now"]
    txn = await consuming.world.begin()
    refused = await consuming.ack(ids[:1], txn, for_all=False)
    assert refused.status_code == 409 and refused.json()["never_given"]
    await consuming.abort(txn)
    clock.ms += 10
    assert await consuming.values() == ["late"]
    txn = await consuming.world.begin()
    await consuming.acked(ids[:1], txn, for_all=False)
    await consuming.commit(txn)
    assert (await consuming.shown())["backlog"] == 1


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("kind", SHARED)
async def test_who_reads_for_all_acknowledges_it_and_an_abort_does_not_make_it_due(
    consuming: Consuming, clock: SetClock, kind: str, crashed: bool
) -> None:
    await consuming.subscribe(kind=kind)
    ids = await publish(consuming, later(clock, "late", 10))
    assert await consuming.values() == []
    txn = await consuming.world.begin()
    await consuming.acked(ids, txn)
    if crashed:
        await consuming.crash()
        assert await consuming.values() == []
    await consuming.abort(txn)
    assert await consuming.values() == []
    clock.ms += 10
    assert await consuming.values() == ["late"]


async def test_it_comes_after_the_commit_at_its_time_or_later(consuming: Consuming, clock: SetClock) -> None:
    await consuming.subscribe()
    kept, gone = await consuming.world.begin(), await consuming.world.begin()
    await publish(consuming, later(clock, "kept", 10), path=f"/messages?txn_id={kept}")
    await publish(consuming, later(clock, "gone", 10), path=f"/messages?txn_id={gone}")
    await consuming.abort(gone)
    clock.ms += 10
    assert await consuming.values() == []
    await consuming.commit(kept)
    assert await consuming.values() == ["kept"]


async def test_it_does_not_hold_back_its_key_and_takes_its_turn_when_it_is_due(
    consuming: Consuming, clock: SetClock
) -> None:
    await consuming.subscribe(kind="key_shared")
    await publish(consuming, later(clock, 0, 10, key="k"), {"value": 1, "key": "k"}, {"value": 2, "key": "k"})
    assert await consuming.values(limit=1) == [1]
    clock.ms += 10
    assert await consuming.values(limit=1) == [0]
    assert await consuming.redeliver() == 2
    assert await consuming.values() == [0, 1, 2], "what returns is in the order of its place"


async def test_as_many_become_due_as_may_wait_for_their_consumer(
    consuming: Consuming, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed_deliveries, "LOOK_AHEAD", 3)
    await consuming.subscribe(kind="key_shared")
    slow, quick = key_of(1, (1, 2)), key_of(2, (1, 2))
    await consuming.receive(consumer="slow", limit=0)
    ids = await publish(consuming, *(later(clock, n, 10, key=slow) for n in range(5)))
    await publish(consuming, later(clock, "other", 20, key=quick))
    assert await consuming.values(consumer="quick") == []
    clock.ms += 20
    assert await consuming.values(consumer="quick") == []
    assert (await consuming.shown())["delayed"] == 3, "beside those three that wait for the slow one"
    receiving = asyncio.ensure_future(consuming.values(consumer="quick", wait_ms=60_000))
    await consuming.acked(ids[:3])
    async with asyncio.timeout(20):
        assert await receiving == ["other"]
    assert await consuming.values(consumer="slow") == [3, 4]


async def test_a_segment_that_was_split_holds_back_nothing_for_what_comes_later(
    consuming: Consuming, clock: SetClock
) -> None:
    await consuming.subscribe(kind="key_shared")
    ids = await publish(consuming, later(clock, "late", 10_000, key="k"), {"value": "now", "key": "k"})
    path = f"/v1/segments/{quote(consuming.segments[0], safe='')}/split"
    assert (await consuming.process.http.post(path, json={})).status_code == 200
    ids += await publish(consuming, {"value": "after", "key": "k"})
    assert await consuming.values() == ["now"], "what is not acknowledged holds the others back, as ever"
    receiving = asyncio.ensure_future(consuming.values(wait_ms=60_000))
    await consuming.acked(ids[1:2])
    assert await receiving == ["after"]
    clock.ms += 10_000
    assert await consuming.values() == ["late"]
    ids += await publish(consuming, {"value": "last", "key": "k"})
    assert await consuming.values() == [], "it takes part in the order once its time has come"
    await consuming.acked(ids[:1])
    assert await consuming.values() == ["last"]


async def test_it_expires_and_is_moved_over_like_any_other(consuming: Consuming, clock: SetClock) -> None:
    await consuming.subscribe()
    await publish(consuming, later(clock, "late", 1_000))
    assert await consuming.values() == []
    await consuming.asked("POST", "/subscriptions/s/seek", {"to": "latest"})
    clock.ms += 2_000
    assert await consuming.values() == []
    await consuming.asked("POST", "/subscriptions/s/seek", {"to": "earliest"})
    assert await consuming.values() == ["late"]


async def test_one_that_is_counted_has_all_of_its_deliveries(consuming: Consuming, clock: SetClock) -> None:
    await consuming.subscribe(dead_letter_topic="dead", max_redeliveries=1)
    await publish(consuming, later(clock, "late", 10), {"value": "now"})
    assert await consuming.values() == ["now"]
    await consuming.crash()
    assert await consuming.values() == ["now"]
    clock.ms += 10
    for count in range(2):
        found = {each["value"]: each for each in await consuming.receive()}
        assert found["late"]["redelivery_count"] == count
        await consuming.redeliver()
    assert "late" in await letters(consuming)


async def test_a_clock_that_is_set_forward_is_noticed(
    consuming: Consuming, clock: SetClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "LOOK_AT_CLOCK_S", 0.01)
    await consuming.subscribe()
    await publish(consuming, later(clock, "in a year", 31_536_000_000))
    receiving = asyncio.ensure_future(consuming.values(wait_ms=60_000))
    for _ in range(20):
        await asyncio.sleep(0)
    clock.ms += 31_536_000_000
    assert await receiving == ["in a year"]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"deliver_at_ms": 1, "deliver_after_ms": 1}, "messages.0"),
        ({"deliver_at_ms": -1}, "messages.0.deliver_at_ms"),
        ({"deliver_at_ms": 253_402_300_800_000}, "messages.0.deliver_at_ms"),
        ({"deliver_after_ms": -1}, "messages.0.deliver_after_ms"),
        ({"deliver_after_ms": 31_536_000_001}, "messages.0.deliver_after_ms"),
        ({"deliver_at_ms": "tomorrow"}, "messages.0.deliver_at_ms"),
    ],
)
async def test_a_time_that_makes_no_sense_is_refused(consuming: Consuming, wrong: dict[str, Any], field: str) -> None:
    answer = await consuming.ask("POST", "/messages", {"messages": [{"value": 1} | wrong]})
    assert answer.status_code == 422 and answer.json()["field"] == field, answer.text
    assert (await consuming.asked("GET", "/messages"))["messages"] == []


async def test_a_relative_time_is_none_of_an_entry_and_no_time_is_of_kafka(consuming: Consuming) -> None:
    http, segment = consuming.process.http, consuming.segments[0].replace("/", "%2F").replace(":", "%3A")
    json_entry = {"Content-Type": "application/vnd.metatxn.messages+json"}
    answer = await http.post(
        f"/v1/segments/{segment}/entries", content=b'[{"value":1,"deliver_after_ms":5}]', headers=json_entry
    )
    assert answer.status_code == 422, answer.text
    assert (await http.post("/v1/topics", json={"name": "k", "format": "kafka"})).status_code == 201
    answer = await http.post("/v1/topics/k/messages", json={"messages": [{"value": 1, "deliver_after_ms": 5}]})
    assert answer.status_code == 422 and answer.json()["field"] == "deliver_at_ms", answer.text


@pytest.mark.parametrize("seed", range(usually(2, 40)))
@pytest.mark.parametrize("kind", SHARED)
async def test_124_125_whatever_happens_each_is_delivered_at_its_time(
    consuming: Consuming, clock: SetClock, kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = Random(seed)
    monkeypatch.setattr(deliveries, "MAX_LATER", random.choice((2, 5, 100)))
    monkeypatch.setattr(dispatch, "READ_BYTES", random.choice((1, 200, 1 << 20)))
    await consuming.subscribe(kind=kind)
    times: dict[int, int] = {}
    done: set[int] = set()
    while len(done) < 40:
        number = len(times)
        if number < 40 and random.random() < 0.6:
            times[number] = clock.ms + random.choice((-5, 0, 10, 30, 200))
            await publish(consuming, {"value": number, "key": str(number % 5), "deliver_at_ms": times[number]})
        clock.ms += random.choice((0, 1, 10))
        consumer = random.choice("ab")
        for message in await consuming.receive(limit=random.choice((1, 3)), consumer=consumer):
            value = message["value"]
            assert times[value] <= clock.ms and value not in done
            if random.random() < 0.6:
                await consuming.acked([message["message_id"]])
                done.add(value)
            elif random.random() < 0.5:
                await consuming.redeliver([message["message_id"]])
        if random.random() < 0.1:
            await consuming.crash()
        elif random.random() < 0.2:
            await consuming.asked("DELETE", f"/subscriptions/s/consumers/{consumer}")
    assert (await consuming.shown())["backlog"] == 0


# -- the deliveries themselves ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Deliveries, KeyedDeliveries])
def test_what_is_put_off_leaves_without_a_trace(kind: type[Deliveries]) -> None:
    found = kind(START, Redelivery())
    for entry in range(3):
        found.put_off(Place(1, entry, 0), 1, 10 + entry, 7)
    assert (len(found), found.not_due, found.undelivered, found.next_due_ms) == (3, 3, 3, 10)
    found.gone(Span(Place(1, 0, 0), Place(1, 1, 0)))
    found.reserved(Span(Place(1, 1, 0), Place(1, 2, 0)))
    assert (len(found), found.not_due, found.next_due_ms) == (2, 1, 12)
    assert found.become_due(11) is False and found.first_waiting() is None
    assert found.become_due(12) is True and found.first_waiting() == Place(1, 2, 0)
    found.returned([Place(1, 1, 0)])
    assert found.next_due_ms == 11 and found.become_due(12)
    assert found.next_due_ms is None and found.not_due == 0 and found.undelivered == 2
