"""Goal: a subscription that is not isolated delivers every durable message once, in its turn, whatever becomes of its
transaction; others still see what is committed, and when.

Method: as in `test_individual_acks`.
"""

from __future__ import annotations

from typing import Any

from tests.participants.subscription.consuming import Consuming


async def subscribed(consuming: Consuming, kind: str = "shared") -> None:
    await consuming.subscribe("all", kind, isolation="read_uncommitted")
    await consuming.subscribe("committed", kind)


async def counted(consuming: Consuming, name: str) -> Any:
    return (await consuming.shown(name))["backlog"]


async def test_what_is_open_or_aborted_is_delivered_acknowledged_and_counted(consuming: Consuming) -> None:
    await subscribed(consuming)
    txn, other = await consuming.world.begin(), await consuming.world.begin()
    ids = await consuming.publish_each("open", "open, too", txn_id=txn)
    ids += await consuming.publish_each("aborted", txn_id=other)
    assert await consuming.values("all", limit=1) == ["open"]
    assert await consuming.values("all", wait_ms=60_000) == ["open, too", "aborted"]
    assert await consuming.values("committed") == []
    await consuming.acked(ids[:1], name="all")
    assert await counted(consuming, "all") == 2
    await consuming.abort(other)
    await consuming.acked(ids[1:], name="all")
    shown = await consuming.shown("all")
    assert (shown["backlog"], shown["mark_delete"]) == (0, str((await consuming.segment()).buffer.last_durable))
    await consuming.commit(txn)
    assert await consuming.values("committed") == ["open", "open, too"]
    assert await consuming.values("all") == []


async def test_each_isolation_counts_for_itself(consuming: Consuming) -> None:
    await subscribed(consuming)
    txn = await consuming.world.begin()
    await consuming.publish(*range(3), txn_id=txn)
    await consuming.publish("plain")
    assert (await counted(consuming, "committed"), await counted(consuming, "all")) == (0, 4)
    await consuming.abort(txn)
    assert (await counted(consuming, "committed"), await counted(consuming, "all")) == (1, 4)


async def test_what_was_acknowledged_before_its_decision_stays_so_after_a_crash(consuming: Consuming) -> None:
    await subscribed(consuming)
    txn = await consuming.world.begin()
    ids = await consuming.publish_each(*range(3), txn_id=txn)
    assert await consuming.values("all") == [0, 1, 2]
    await consuming.acked(ids[:2], name="all")
    await consuming.crash()
    assert await consuming.values("all") == [2]
    await consuming.commit(txn)
    assert await consuming.values("all") == []
    assert await consuming.values("committed") == [0, 1, 2]
    assert await consuming.findings() == []


async def test_by_key_uncommitted_messages_keep_their_order_and_can_be_acknowledged_in_a_transaction(
    consuming: Consuming,
) -> None:
    await subscribed(consuming, "key_shared")
    written, acknowledging = await consuming.world.begin(), await consuming.world.begin()
    (first,) = await consuming.publish("first", txn_id=written)
    await consuming.publish("second")
    assert await consuming.values("all") == ["first", "second"]
    await consuming.acked([first], acknowledging, name="all", for_all=False)
    await consuming.abort(written)
    await consuming.abort(acknowledging)
    (again,) = await consuming.receive("all")
    assert (again["value"], again["redelivery_count"]) == ("first", 1)


async def test_the_isolation_is_shown_and_is_that_of_the_subscription(consuming: Consuming) -> None:
    await subscribed(consuming)
    shown = [(await consuming.asked("GET", f"/subscriptions/{name}"))["isolation"] for name in ("all", "committed")]
    assert shown == ["read_uncommitted", "read_committed"]
    body = {"type": "shared", "initial": "earliest"}
    assert (await consuming.ask("PUT", "/subscriptions/all", body)).status_code == 409
    assert (await consuming.ask("PUT", "/subscriptions/committed", body | {"isolation": "read_committed"})).is_success
    wrong = await consuming.ask("PUT", "/subscriptions/s", body | {"isolation": "snapshot"})
    assert wrong.status_code == 422
