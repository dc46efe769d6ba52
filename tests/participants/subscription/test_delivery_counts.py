"""Goal: a message is given up after as many deliveries as its subscription allows, whichever brokers and consumers die
on the way: never after fewer, and at most one later. Deliveries cost no write each.

Method: brokers that die behind any write, and a model of counts that is told every delivery. DESIGN §5.10; scenarios
121, 122.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from urllib.parse import quote

import pytest

from metastore.errors import OutcomeUnknown, StoreUnavailable
from metastore.types import Batch
from metatxn.wire.position import Position
from participants.subscription import delivery_counts
from participants.subscription.deliveries import Deliveries
from participants.subscription.delivery_counts import Counted, DeliveryCounts
from participants.subscription.places import START, Place
from participants.subscription.redelivery import Redelivery
from tests.extent import usually
from tests.participants.segment.faulty_store import Fault
from tests.participants.subscription.by_key import put
from tests.participants.subscription.consuming import Consuming
from tests.participants.subscription.test_giving_up import letters


def counting(batch: Batch) -> bool:
    return any(key.endswith("/deliveries") for key in batch.puts)


@pytest.mark.parametrize("kind", ["shared", "failover", "key_shared"])
async def test_121_a_message_that_kills_every_broker_is_given_up(consuming: Consuming, kind: str) -> None:
    await consuming.subscribe(kind=kind, dead_letter_topic="dead", max_redeliveries=2)
    await put(consuming, ("a", "poison"), ("b", "fine"))
    deliveries = 0
    for _ in range(10):
        if await letters(consuming):
            break
        found = {each["value"]: each["message_id"] for each in await consuming.receive()}
        deliveries += "poison" in found
        if "fine" in found and deliveries < 3:
            await consuming.crash()
        elif "fine" in found:
            await consuming.acked([found["fine"]])
            await consuming.crash()
        elif "poison" in found:
            await consuming.crash()
        await consuming.carried_out(await consuming.world.time_out())
    assert deliveries in (3, 4), "one that was not counted when the first broker died"
    assert await letters(consuming) == ["poison"]
    assert await consuming.values() == []


async def test_a_count_survives_its_broker(consuming: Consuming) -> None:
    await consuming.subscribe(dead_letter_topic="dead")
    await consuming.publish("a", "b")
    for count in range(3):
        assert [each["redelivery_count"] for each in await consuming.receive()] == [count, count]
        await consuming.redeliver()
    await consuming.crash()
    assert [each["redelivery_count"] for each in await consuming.receive()] == [3, 3]
    assert await consuming.findings() == []


async def test_nothing_is_given_up_that_was_never_delivered(consuming: Consuming) -> None:
    """The first delivery announces many more, and then the broker dies."""
    await consuming.subscribe(dead_letter_topic="dead", max_redeliveries=0)
    await consuming.publish_each(*range(20))
    assert await consuming.values(limit=1) == [0]
    await consuming.crash()
    assert await consuming.values() == list(range(20))
    assert await letters(consuming) == []


async def test_what_was_counted_and_then_withdrawn_does_not_count_after_a_crash(consuming: Consuming) -> None:
    await consuming.subscribe(kind="key_shared", dead_letter_topic="dead", max_redeliveries=1)
    first, second = await put(consuming, ("k", 1), ("k", 2))
    assert await consuming.values() == [1, 2]
    await consuming.redeliver([second])
    assert await consuming.values() == [2], "its last delivery"
    await consuming.redeliver([first])
    await consuming.idle()
    await consuming.crash()
    assert await consuming.values() == [1, 2], "it only followed the first one"
    assert await letters(consuming) == []


async def test_first_deliveries_share_their_writes_and_later_ones_those_of_their_request(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_counts, "ENTRIES_AHEAD", 10)
    await consuming.subscribe(dead_letter_topic="dead")
    await consuming.publish_each(*range(20))
    store = consuming.world.store
    store.applied.clear()
    for number in range(20):
        assert await consuming.values(limit=1) == [number]
    assert len([batch for batch in store.applied if counting(batch)]) == 2
    await consuming.redeliver()
    store.applied.clear()
    assert len(await consuming.values()) == 20
    assert len([batch for batch in store.applied if counting(batch)]) == 1


async def test_a_subscription_that_gives_nothing_up_stores_no_counts(consuming: Consuming) -> None:
    await consuming.subscribe()
    await consuming.publish("a")
    consuming.world.store.applied.clear()
    for _ in range(2):
        assert await consuming.values() == ["a"]
        await consuming.redeliver()
    assert not any(counting(batch) for batch in consuming.world.store.applied)


@pytest.mark.parametrize("again", [False, True])
async def test_what_cannot_be_counted_is_not_delivered(consuming: Consuming, again: bool) -> None:
    await consuming.subscribe(dead_letter_topic="dead")
    await consuming.publish("a")
    if again:
        await consuming.receive()
        await consuming.redeliver()
    fault = consuming.world.store.fault(Fault(counting, before=StoreUnavailable("away"), times=10**6))
    for _ in range(2):
        refused = await consuming.ask("POST", "/subscriptions/s/receive", {"consumer": "c"})
        assert refused.status_code == 503 and refused.json()["definite"], refused.text
        assert "cannot be counted" in refused.json()["detail"]
    consuming.world.store._faults.remove(fault)
    assert await consuming.values() == ["a"]


async def test_a_lost_answer_to_a_count_delays_the_delivery_and_counts_it_once(consuming: Consuming) -> None:
    await consuming.subscribe(dead_letter_topic="dead", max_redeliveries=1)
    await consuming.publish("a")
    await consuming.receive()
    await consuming.redeliver()
    consuming.world.store.fault(Fault(counting, after=OutcomeUnknown("no answer")))
    refused = await consuming.ask("POST", "/subscriptions/s/receive", {"consumer": "c"})
    assert refused.status_code == 503
    await consuming.idle()
    await consuming.crash()
    assert await consuming.values() == ["a"]
    assert await letters(consuming) == []


async def test_what_is_acknowledged_while_it_is_counted_is_not_delivered(consuming: Consuming) -> None:
    await consuming.subscribe(dead_letter_topic="dead", max_redeliveries=1)
    ids = await consuming.publish_each(0, 1)
    await consuming.receive()
    await consuming.redeliver()
    held = consuming.world.store.fault(Fault(counting, hold_after=True))
    receiving = asyncio.ensure_future(consuming.values())
    await held.reached.wait()
    acknowledging = asyncio.ensure_future(consuming.acked(ids[:1]))
    while consuming.segments and (await consuming.shown())["backlog"] == 2:
        await asyncio.sleep(0)
    held.go.set()
    assert await receiving == [1]
    await acknowledging


async def test_a_message_that_is_delivered_again_within_one_answer_is_in_it_once(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What perhaps was delivered is read back, a page at a time, and given between two pages."""
    await consuming.subscribe(dead_letter_topic="dead")
    ids = await consuming.publish_each(0, 1)
    assert await consuming.values() == [0, 1]
    await consuming.crash()
    monkeypatch.setattr("participants.subscription.dispatch.READ_BYTES", 1)
    returned = consuming.world.store.fault(Fault(counting, hold_after=True))
    receiving = asyncio.ensure_future(consuming.receive())
    await returned.reached.wait()
    second = consuming.world.store.fault(Fault(counting, hold_before=True))
    returned.go.set()
    await second.reached.wait()
    assert await consuming.redeliver(ids[:1]) == 1
    second.go.set()
    found = [each["value"] for each in await receiving]
    assert sorted(found) == [0, 1]


async def test_the_order_stays_when_what_was_perhaps_delivered_comes_again(consuming: Consuming) -> None:
    await consuming.subscribe(kind="failover", dead_letter_topic="dead")
    await consuming.publish_each(*range(10))
    assert await consuming.values(limit=3) == [0, 1, 2]
    await consuming.crash()
    await consuming.publish_each(*range(10, 15))
    found = []
    while values := await consuming.values(limit=4):
        found += values
    assert found == list(range(15))


async def test_the_order_stays_over_a_split_when_what_was_perhaps_delivered_comes_again(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second message of the parent is read back, and then it cannot be counted."""
    await consuming.subscribe(kind="failover", dead_letter_topic="dead")
    for number in range(2):
        await put(consuming, (str(number), number))
    path = f"/v1/segments/{quote(consuming.segments[0], safe='')}/split"
    consuming.segments += (await consuming.process.http.post(path, json={})).json()["children"]
    await put(consuming, *((str(number), 10 + number) for number in range(6)))
    assert await consuming.values(limit=1) == [0]
    await consuming.crash()
    monkeypatch.setattr("participants.subscription.dispatch.READ_BYTES", 1)
    seen: list[Batch] = []

    def second(batch: Batch) -> bool:
        seen.extend([batch] if counting(batch) and not any(batch is each for each in seen) else [])
        return counting(batch) and len(seen) == 2

    consuming.world.store.fault(Fault(second, before=StoreUnavailable("away")))
    assert await consuming.values() == [0]
    found = await consuming.values()
    assert found[0] == 1 and sorted(found[1:]) == list(range(10, 16))


@pytest.mark.parametrize("seed", range(usually(2, 40)))
@pytest.mark.parametrize("kind", ["shared", "key_shared"])
async def test_122_however_brokers_and_consumers_die_a_message_has_its_deliveries(
    consuming: Consuming, kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some messages are never acknowledged, and are delivered until they are given up."""
    random = Random(seed)
    monkeypatch.setattr(delivery_counts, "ENTRIES_AHEAD", random.choice((1, 3, 100)))
    most = random.choice((0, 1, 3))
    await consuming.subscribe(kind=kind, dead_letter_topic="dead", max_redeliveries=most)
    await put(consuming, *((str(number), number) for number in range(4)))
    for number in range(4, 10):
        await put(consuming, (str(number), number))
    poison = set(random.sample(range(10), 4))
    delivered: Counter[int] = Counter()
    done: set[int] = set()
    while len(done) + len(await letters(consuming)) < 10:
        for message in await consuming.receive(limit=random.choice((1, 3, 100)), consumer=random.choice("ab")):
            delivered[message["value"]] += 1
            if message["value"] not in poison and random.random() < 0.7:
                await consuming.acked([message["message_id"]])
                done.add(message["value"])
            elif random.random() < 0.4:
                await consuming.redeliver([message["message_id"]])
        fate = random.random()
        if fate < 0.3:
            await consuming.crash()
            await consuming.carried_out(await consuming.world.time_out())
        elif fate < 0.6:
            await consuming.asked("DELETE", f"/subscriptions/s/consumers/{random.choice('ab')}")
    found = await letters(consuming)
    assert done.isdisjoint(found) and len(set(found)) == len(found)
    for value in found:
        assert most + 1 <= delivered[value] <= most + 2, f"{value} was delivered {delivered[value]} times"


# -- the counts themselves --------------------------------------------------------------------------------------------


def place(entry: int) -> Place:
    return Place(1, entry, 0)


def after_a_restart(counts: DeliveryCounts) -> DeliveryCounts:
    record = counts.take_changes()
    assert record is not None
    return DeliveryCounts.decode(record.encode())


def test_the_highest_counts_are_kept_and_what_was_not_read_again_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_counts, "MAX_RANGES", 3)
    counts = DeliveryCounts()
    counts.announce(Position(1, 9), 1)
    counts.count([Counted(place(n), place(n + 1), times) for n, times in enumerate((1, 4, 2, 3))], place(9))
    later = after_a_restart(counts)
    assert [later.given_before(place(n)) for n in range(5)] == [0, 4, 2, 3, 0]
    later.count([Counted(place(1), place(2), 5)], place(2))
    latest = after_a_restart(later)
    assert [latest.given_before(place(n)) for n in range(5)] == [0, 5, 2, 3, 0]


def test_a_range_of_an_earlier_owner_is_cut_where_it_was_read_again() -> None:
    counts = DeliveryCounts(place(9), [Counted(place(0), place(9), 2)])
    counts.count([Counted(place(0), place(3), 3)], place(4))
    later = after_a_restart(counts)
    assert [later.given_before(place(n)) for n in (0, 2, 3, 4, 8, 9)] == [3, 3, 0, 2, 2, 0]


def test_nothing_is_announced_before_it_is_stored() -> None:
    counts = DeliveryCounts()
    counts.announce(Position(1, 0), 5)
    assert not counts.announces(Position(1, 0)) and counts.changes == 1
    counts.announce(Position(1, 3), 5)
    assert counts.changes == 1, "it is within what is announced"
    record = counts.take_changes()
    counts.untake(record)
    assert counts.take_changes() == record and counts.take_changes() is None
    counts.stored(record)
    last = Position(1, delivery_counts.ENTRIES_AHEAD - 1)
    assert counts.announces(last) and not counts.announces(Position(1, last.entry + 1))
    counts.announce(Position(2, 0), 1_000)
    assert counts.through == Place(2, 1_000, 0)


@pytest.mark.parametrize("times", [(1, 1, 1), (1, 2, 1), (0, 1, 0)])
def test_messages_that_were_delivered_equally_often_have_one_range(times: tuple[int, ...]) -> None:
    deliveries = Deliveries(START, Redelivery(max_redeliveries=5))
    for entry, number in enumerate(times):
        deliveries.come_back(place(entry), 1)
        for _ in range(number):
            deliveries.give(place(entry), 1, 7, 0)
    found = deliveries.counted()
    expected: list[int] = [n for at, n in enumerate(times) if at == 0 or times[at - 1] != n]
    assert [each.times for each in found] == expected
    assert next(each.times for each in deliveries.counted({place(0)})) == times[0] + 1
