"""Goal: what a subscription has not acknowledged in time counts as acknowledged for it, and nothing else does.

Method: a broker in this process, on both storages, with a clock that the test sets; a pass is `reconcile`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.participants.broker.test_retention import HOUR_MS, Retaining
from tests.participants.segment.world import World


@pytest.fixture
async def topic(world: World) -> AsyncIterator[Retaining]:
    found = await Retaining.start(world)
    await found.subscribe("s")
    await found.set(ttl_ms=HOUR_MS)
    yield found
    await found.process.stop()


async def backlog(topic: Retaining, name: str = "s") -> int:
    (segment,) = (await topic.asked("GET", f"/subscriptions/{name}"))["segments"]
    return int(segment["backlog"])


async def test_what_is_too_old_is_delivered_to_nobody_and_can_still_be_read(topic: Retaining) -> None:
    await topic.ledger_at(0, "a", "b")
    await topic.ledger_at(0.8, "c")
    topic.at_hour(1.2)
    await topic.passes()
    assert await backlog(topic) == 1
    assert await topic.values("s") == ["c"]
    assert await topic.left() == ["a", "b", "c"]
    topic.at_hour(3)
    await topic.passes()
    assert await backlog(topic) == 0
    topic.process = await topic.process.crash()
    assert await backlog(topic) == 0, "that is durable"
    await topic.publish("d")
    assert await topic.values("s") == ["d"]


async def test_a_consumer_that_is_late_may_acknowledge_what_has_expired(topic: Retaining) -> None:
    ids = await topic.ledger_at(0, "a", "b")
    await topic.receive("s")
    topic.at_hour(3)
    await topic.passes()
    await topic.acked(ids, name="s")
    assert (await topic.ack(ids, await topic.world.begin(), name="s")).json()["code"] == "TXN_CONFLICT"
    assert await topic.values("s", "other") == []


async def test_what_an_open_transaction_has_acknowledged_does_not_expire(topic: Retaining) -> None:
    ids = await topic.ledger_at(0, "a", "b", "c")
    await topic.receive("s")
    txn = await topic.world.begin()
    await topic.acked(ids[1:2], txn, name="s")
    topic.at_hour(3)
    await topic.passes()
    (segment,) = (await topic.asked("GET", "/subscriptions/s"))["segments"]
    assert segment["pending_acks"] == {str(txn): 1}
    await topic.abort(txn)
    assert await topic.values("s", "other") == ["b"], "it returns"
    await topic.passes()
    assert await backlog(topic) == 0


async def test_nothing_expires_that_is_after_an_open_transaction(topic: Retaining) -> None:
    topic.at_hour(0)
    await topic.publish("a")
    txn = await topic.world.begin()
    await topic.publish("b", txn_id=txn)
    await topic.ledger_at(0, "c")
    topic.at_hour(3)
    await topic.passes()
    await topic.commit(txn)
    assert await topic.values("s") == ["b", "c"]


async def test_retention_drops_what_has_expired(topic: Retaining) -> None:
    await topic.set(retention_ms=HOUR_MS, roll_ms=1_000)
    await topic.ledger_at(0, "a")
    topic.at_hour(3)
    await topic.passes()
    assert await topic.left() == []


async def test_a_subscription_that_is_not_open_here_yet_expires_and_without_a_ttl_nothing_does(
    topic: Retaining,
) -> None:
    await topic.ledger_at(0, "a")
    await topic.subscribe("new")
    await topic.set(ttl_ms=-1)
    topic.at_hour(3)
    await topic.passes()
    assert (await backlog(topic), await backlog(topic, "new")) == (1, 1)
    segment = await topic.segment()
    segment.attached._open.clear()  # type: ignore[union-attr]
    await topic.set(ttl_ms=HOUR_MS)
    await topic.passes()
    assert (await backlog(topic), await backlog(topic, "new")) == (0, 0)
