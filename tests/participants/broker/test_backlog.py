"""Goal: a subscription that is too far behind holds the producers of its topic up, or loses its oldest messages, as the
policy says; and nothing is written of what is refused.

Method: a broker in this process, on both storages, with a clock that the test sets; a pass is `reconcile`. Issue 20, §2
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from metastore.txn import paths
from metatxn.wire.ids import TxnId
from metatxn.wire.policies import PolicySettings, effective
from metatxn.wire.position import Position
from participants.topic.backlog import Unacknowledged, evicted
from tests.participants.broker.stories import quoted
from tests.participants.broker.test_retention import HOUR_MS, Retaining
from tests.participants.segment.world import World


@pytest.fixture
async def topic(world: World) -> AsyncIterator[Retaining]:
    found = await Retaining.start(world)
    await found.subscribe("s")
    yield found
    await found.process.stop()


async def sent(topic: Retaining, value: Any = "x", txn_id: TxnId | None = None) -> httpx.Response:
    inside = f"?txn_id={txn_id}" if txn_id else ""
    return await topic.ask("POST", f"/messages{inside}", {"messages": [{"value": value}]})


async def held(topic: Retaining) -> bool:
    answer = await sent(topic)
    assert answer.status_code in (200, 429), answer.text
    return answer.status_code == 429


async def backlog(topic: Retaining, name: str = "s") -> int:
    return sum(each["backlog"] for each in (await topic.asked("GET", f"/subscriptions/{name}"))["segments"])


async def test_a_producer_is_held_before_it_writes_anything_until_consumers_have_caught_up(topic: Retaining) -> None:
    await topic.set(backlog_bytes=200)
    ids = await topic.publish_each("a" * 100, "b" * 100)
    txn = await topic.world.begin()
    assert not await held(topic), "it is found by a pass"
    await topic.passes()
    answer = await sent(topic, txn_id=txn)
    assert (answer.status_code, answer.json()["code"], answer.headers["Retry-After"]) == (429, "RATE_LIMITED", "1")
    assert (answer.json()["subscription"], answer.json()["definite"]) == ("s", True)
    assert not (await topic.world.store.inner.scan(f"{paths.OPS}{txn}")).records, "the transaction was told in time"
    assert topic.process.metrics.held_publishes._value.get() == 1
    given = await topic.receive("s")
    assert len(given) == 3, "everything else goes on"
    inside = await topic.world.begin()
    await topic.acked([each["message_id"] for each in given], inside, name="s")
    await topic.passes()
    assert await held(topic), "that may yet be aborted"
    await topic.commit(inside)
    await topic.passes()
    assert (await sent(topic, txn_id=txn)).status_code == 200
    assert ids and not await held(topic)


async def test_a_hold_is_found_again_and_ends_with_its_policy_or_its_subscription(topic: Retaining) -> None:
    await topic.set(backlog_bytes=10)
    await topic.publish("a")
    topic.process = await topic.process.crash()
    await topic.passes()
    assert await held(topic)
    await topic.set(backlog_bytes=None)
    await topic.passes()
    assert not await held(topic)
    await topic.set(backlog_bytes=10, retention_ms=HOUR_MS)
    await topic.passes()
    assert await held(topic)
    await topic.set(backlog_bytes=None)
    await topic.passes()
    assert not await held(topic)
    await topic.set(backlog_bytes=10)
    await topic.passes()
    assert await held(topic)
    await topic.asked("DELETE", "/subscriptions/s")
    await topic.passes()
    assert not await held(topic)


async def test_a_retry_of_what_was_appended_is_no_new_message(topic: Retaining) -> None:
    path = f"/v1/segments/{quoted(topic.segments[0])}/entries?producer=p&sequence=1"
    first = await topic.process.http.post(path, content=b"once")
    await topic.set(backlog_bytes=1)
    await topic.passes()
    assert await held(topic)
    again = await topic.process.http.post(path, content=b"once")
    assert (again.status_code, again.json()["position"]) == (200, first.json()["position"])


async def test_a_backlog_in_one_segment_holds_all_of_the_topic(world: World) -> None:
    topic = await Retaining.start(world, 4)
    await topic.subscribe("s")
    await topic.set(backlog_bytes=10)
    await topic.publish("a")
    await topic.passes()
    for name in topic.segments:
        answer = await topic.process.http.post(f"/v1/segments/{quoted(name)}/entries", content=b"x")
        assert answer.status_code == 429
    await topic.process.stop()


async def test_what_is_too_old_holds_producers_up_and_what_is_aborted_does_not(topic: Retaining) -> None:
    await topic.set(backlog_ms=HOUR_MS)
    topic.at_hour(0)
    txn = await topic.world.begin()
    await topic.publish("never", txn_id=txn)
    await topic.abort(txn)
    await topic.values("s")
    topic.at_hour(1.1)
    await topic.passes()
    topic.at_hour(3)
    await topic.passes()
    assert not await held(topic), "a consumer has passed it over"
    topic.at_hour(4.1)
    await topic.passes()
    topic.at_hour(5.2)
    await topic.passes()
    assert await held(topic)
    await topic.acked([each["message_id"] for each in await topic.receive("s")], name="s")
    await topic.passes()
    assert not await held(topic)


async def test_the_age_of_a_ledger_that_a_crash_has_sealed_counts(topic: Retaining) -> None:
    await topic.set(backlog_ms=HOUR_MS)
    topic.at_hour(0)
    await topic.publish("a")
    topic.process = await topic.process.crash()
    topic.at_hour(3)
    await topic.passes()
    assert await held(topic)


async def test_the_oldest_ledgers_are_evicted_for_who_is_too_far_behind(topic: Retaining) -> None:
    await topic.subscribe("diligent")
    first = await topic.publish_each("a" * 100)
    await topic.set(backlog_bytes=500, backlog="evict")
    for value in "bcdef":
        await topic.acked([each["message_id"] for each in await topic.receive("diligent")], name="diligent")
        await topic.ledger_at(0, value * 100)
    await topic.passes()
    assert first and not await held(topic)
    assert await backlog(topic, "diligent") == 2
    left = await topic.values("s")
    assert 2 <= len(left) < 6 and left[-2] == "f" * 100, "the newest stay"
    assert len(await topic.left()) == 7, "all can be read"


async def test_what_is_too_old_is_evicted_but_not_what_an_open_transaction_has(topic: Retaining) -> None:
    await topic.set(backlog_ms=HOUR_MS, roll_ms=1_000, backlog="evict")
    ids = await topic.ledger_at(0, "a", "b", "c")
    await topic.receive("s")
    txn = await topic.world.begin()
    await topic.acked(ids[1:2], txn, name="s")
    topic.at_hour(3)
    await topic.passes()
    await topic.abort(txn)
    assert await topic.values("s", "other") == ["b"], "it returns"
    await topic.passes()
    assert await backlog(topic) == 0


def test_who_evicts_takes_the_oldest_ledgers_of_the_whole_topic() -> None:
    row = [
        Unacknowledged("one", 10, Position(1, 4), 100),
        Unacknowledged("one", 10, Position(2, 4), 300),
        Unacknowledged("two", 10, Position(1, 9), 200),
        Unacknowledged("two", 5),
    ]

    def found(**settings: Any) -> dict[str, Position]:
        return evicted(effective(("topic", PolicySettings(backlog="evict", **settings))), row, 1_000)

    assert found(backlog_bytes=35) == {}
    assert found(backlog_bytes=34) == {"one": Position(1, 4)}
    assert found(backlog_bytes=15) == {"one": Position(1, 4), "two": Position(1, 9)}
    assert found(backlog_bytes=1) == {"one": Position(2, 4), "two": Position(1, 9)}, "an open ledger stays"
    assert found(backlog_ms=800) == {"one": Position(1, 4)}
    assert found(backlog_ms=699, backlog_bytes=35) == {"one": Position(2, 4), "two": Position(1, 9)}
