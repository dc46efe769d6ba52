"""Goal: what is not acknowledged in time returns, and what returns waits for as long as its subscription says, and no
longer than that; the order of a key stays.

Method: the time is handed in, or the shortest times are set and the messages are waited for.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from participants.subscription.deliveries import Deliveries
from participants.subscription.keyed_deliveries import KeyedDeliveries
from participants.subscription.places import START, Place, Span, entry_span
from participants.subscription.redelivery import Redelivery
from tests.participants.subscription.consuming import Consuming

FIRST, SECOND = Place(1, 0, 0), Place(1, 1, 0)
HOUR_MS = 3_600_000


def test_what_is_held_for_the_ack_timeout_is_overdue_and_what_has_left_is_not() -> None:
    deliveries = Deliveries(START, Redelivery(ack_timeout_s=30))
    for place in (FIRST, SECOND):
        deliveries.give(place, 1, 7, now_s=100)
    assert deliveries.next_s == 130 and deliveries.ripen(129.9) == []
    deliveries.let_go(SECOND)
    assert deliveries.ripen(130) == [FIRST] and deliveries.held_by(7) == [FIRST]
    assert deliveries.next_s == 160, "for as long again, if a transaction has it now"


def test_the_delay_doubles_up_to_its_bound_and_ends() -> None:
    deliveries = Deliveries(START, Redelivery(delay_s=1, max_delay_s=3))
    now_s, waits = 0.0, []
    for _ in range(4):
        deliveries.give(FIRST, 1, 7, now_s)
        deliveries.returned([FIRST], now_s)
        assert deliveries.first_waiting() is None and deliveries.next_s is not None
        waits.append(deliveries.next_s - now_s)
        now_s = deliveries.next_s
        assert deliveries.ripen(now_s) == [] and deliveries.first_waiting() == FIRST
    assert waits == [1, 2, 3, 3]


def test_who_leaves_has_not_failed() -> None:
    deliveries = Deliveries(START, Redelivery(delay_s=1, max_delay_s=1))
    deliveries.give(FIRST, 1, 7, 0)
    deliveries.returned([FIRST])
    assert deliveries.first_waiting() == FIRST


def test_the_delay_stays_the_same_without_a_longer_one_and_counts_to_any_number() -> None:
    assert Redelivery(delay_s=2, max_delay_s=2).due_at(10, 1_000) == 12
    assert Redelivery(delay_s=1, max_delay_s=86_400).due_at(0, 1_000) == 86_400


def test_a_delayed_message_that_is_acknowledged_or_reserved_does_not_come() -> None:
    deliveries = Deliveries(START, Redelivery(delay_s=1, max_delay_s=1))
    for place in (FIRST, SECOND):
        deliveries.give(place, 1, 7, 0)
    deliveries.returned([FIRST, SECOND], 0)
    deliveries.gone(_span(FIRST))
    deliveries.reserved(_span(SECOND))
    assert deliveries.next_s is None and deliveries.ripen(1) == [] and deliveries.first_waiting() is None


def test_a_delayed_message_holds_back_the_later_ones_of_its_key() -> None:
    deliveries = KeyedDeliveries(START, Redelivery(delay_s=1, max_delay_s=1))
    for place in (FIRST, SECOND):
        deliveries.read_ahead(place, 1, key=5)
    deliveries.give(FIRST, 1, 7, 0)
    deliveries.returned([FIRST], 0)
    last = Place(2, 0, 0)
    assert deliveries.next_in(SECOND.position, last, 10, lambda _: True) == []
    assert deliveries.waits(_span(FIRST)) and deliveries.up_to([_span(SECOND)]) == set()
    deliveries.ripen(1)
    assert deliveries.next_in(FIRST.position, last, 10, lambda _: True) == [0]


async def test_what_is_not_acknowledged_in_time_goes_to_somebody_else(consuming: Consuming) -> None:
    await consuming.subscribe(ack_timeout_ms=1)
    await consuming.publish("a")
    await consuming.receive(consumer="forgetful")
    (message,) = await consuming.receive(consumer="other", wait_ms=60_000)
    assert message["value"] == "a" and message["redelivery_count"] > 0


async def test_what_an_open_transaction_has_acknowledged_does_not_time_out(consuming: Consuming) -> None:
    await consuming.subscribe(ack_timeout_ms=1)
    ids = await consuming.publish_each("acknowledged", "not")
    assert len(await consuming.receive()) == 2
    txn = await consuming.world.begin()
    await consuming.acked(ids[:1], txn)
    for _ in range(3):
        assert "acknowledged" not in await consuming.values(consumer="other", wait_ms=60_000)
    await consuming.abort(txn)
    found: set[str] = set()
    while "acknowledged" not in found:
        found.update(await consuming.values(consumer="other", wait_ms=60_000))


async def test_a_message_that_times_out_too_often_is_a_dead_letter(consuming: Consuming) -> None:
    await consuming.subscribe(dead_letter_topic="dead", max_redeliveries=1, ack_timeout_ms=1)
    await consuming.publish("poison")
    for _ in range(2):
        assert await consuming.values(wait_ms=60_000) == ["poison"]
    segment = await consuming.segment()
    while not segment.traffic.dead_letters:
        await asyncio.sleep(0)
    await consuming.idle()
    assert (await consuming.shown())["backlog"] == 0


async def test_what_is_returned_waits_and_comes_then(consuming: Consuming) -> None:
    await consuming.subscribe("soon", redelivery_delay_ms=1)
    await consuming.subscribe("late", redelivery_delay_ms=HOUR_MS)
    await consuming.publish("a")
    for name in ("soon", "late"):
        assert await consuming.values(name) == ["a"]
        assert await consuming.redeliver(name=name) == 1
    (message,) = await consuming.receive("soon", wait_ms=60_000)
    assert message["redelivery_count"] == 1
    assert await consuming.values("late") == []
    assert (await consuming.shown("late"))["backlog"] == 1
    await consuming.asked("DELETE", "/subscriptions/late/consumers/c")
    assert await consuming.values("late") == [], "who leaves does not make it come sooner"


async def test_the_settings_are_shown_and_are_those_of_the_subscription(consuming: Consuming) -> None:
    times: dict[str, Any] = {"ack_timeout_ms": 60_000, "redelivery_delay_ms": 10, "max_redelivery_delay_ms": 20}
    await consuming.subscribe(**times)
    shown = await consuming.asked("GET", "/subscriptions/s")
    (listed,) = (await consuming.asked("GET", "/subscriptions"))["items"]
    assert times.items() <= shown.items() and times.items() <= listed.items()
    answer = await consuming.asked("POST", "/subscriptions/s/receive", {"consumer": "c"})
    assert answer["ack_timeout_ms"] == 60_000
    other = await consuming.ask("PUT", "/subscriptions/s", {"type": "shared", "initial": "earliest"})
    assert other.status_code == 409 and "ack_timeout_ms" in other.json()["detail"]


@pytest.mark.parametrize("wrong", [{"max_redelivery_delay_ms": 5}, {"redelivery_delay_ms": 6}])
async def test_a_longest_delay_needs_a_shorter_one(consuming: Consuming, wrong: dict[str, int]) -> None:
    body = {"type": "shared", "initial": "earliest", "max_redelivery_delay_ms": 5} | wrong
    answer = await consuming.ask("PUT", "/subscriptions/s", body)
    assert answer.status_code == 422 and answer.json()["field"] == "max_redelivery_delay_ms"
    assert (await consuming.ask("GET", "/subscriptions/s")).status_code == 404


def _span(place: Place) -> Span:
    return entry_span(place.position)
