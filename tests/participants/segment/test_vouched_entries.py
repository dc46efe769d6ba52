"""Goal: an entry whose sender vouches that nobody had committed its transaction waits for no answer of the store, and
is treated like every other one in all else: it needs an intent, and the decision closes its transaction (DESIGN §5.1,
scenarios 114 and 170).

Method: the store is away, or its watch is blind, when the entry arrives.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from metastore.errors import StoreUnavailable
from metatxn.wire import errors
from metatxn.wire.errors import ErrorCode
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.segment.segment import Segment
from tests.participants.segment.faulty_store import INTENT, Fault
from tests.participants.segment.world import World, committed, entry, materialized, publish, released, uncommitted


async def vouched(segment: Segment, payload: str, txn: TxnId, writer: str | None = None) -> Position:
    position, _ = await segment.publish(replace(entry(payload, txn, writer=writer), before_commit=True))
    return position


async def test_170_a_later_entry_does_not_wait_for_the_store(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await vouched(segment, "1", txn)
    world.store.away = StoreUnavailable("gone")
    await vouched(segment, "2", txn)
    with pytest.raises(StoreUnavailable):
        await publish(segment, "asks", txn)
    world.store.away = None
    await world.commit(txn)
    await materialized(segment, txn)
    assert await committed(segment) == ["1", "2"]


async def test_170_the_first_entry_of_each_writer_stores_its_intent(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await vouched(segment, "1", txn)
    await vouched(segment, "2", txn, "w")
    assert len(await world.operations(txn)) == 2
    world.store.away = StoreUnavailable("gone")
    with pytest.raises(StoreUnavailable):
        await vouched(segment, "3", txn, "v")
    world.store.away = None
    assert await uncommitted(segment) == ["1", "2"]


async def test_170_an_entry_relies_on_no_intent_that_may_not_be_stored(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    lost = world.store.fault(Fault(INTENT, before=StoreUnavailable("gone"), hold_before=True))
    first = asyncio.create_task(vouched(segment, "1", txn))
    await lost.reached.wait()
    second = asyncio.create_task(vouched(segment, "2", txn))
    await asyncio.sleep(0)
    lost.go.set()
    with pytest.raises(StoreUnavailable):
        await first
    await second
    assert len(await world.operations(txn)) == 1
    assert await uncommitted(segment) == ["2"]


async def test_170_the_intent_of_an_earlier_owner_covers_nothing(world: World) -> None:
    txn = await world.begin()
    await vouched(await world.segment(), "1", txn)
    segment = await world.reopened()
    await vouched(segment, "2", txn)
    assert len(await world.operations(txn)) == 2
    world.store.away = StoreUnavailable("gone")
    await vouched(segment, "3", txn)
    world.store.away = None


@pytest.mark.parametrize("crash", [False, True], ids=["same owner", "next owner"])
async def test_170_what_arrives_after_an_abort_that_the_owner_has_not_heard_of_stays_hidden(
    world: World, crash: bool
) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await vouched(segment, "1", txn)
    world.store.events_flow.clear()
    await world.abort(txn)
    await vouched(segment, "2", txn)
    await publish(segment, "plain")
    if crash:
        segment = await world.reopened()
    world.store.events_flow.set()
    await materialized(segment, txn)
    assert await committed(segment) == ["plain"]
    assert await world.operations(txn) == []
    assert await committed(await world.reopened()) == ["plain"]


@pytest.mark.parametrize("aborted", [False, True], ids=["committed", "aborted"])
async def test_170_an_owner_that_has_heard_of_the_decision_refuses(world: World, aborted: bool) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await vouched(segment, "1", txn)
    await (world.abort(txn) if aborted else world.commit(txn))
    await released(segment, txn)
    with pytest.raises(errors.MetatxnError) as refused:
        await vouched(segment, "2", txn)
    assert refused.value.code == ErrorCode.TXN_CONFLICT
    await materialized(segment, txn)
    with pytest.raises(errors.MetatxnError):
        await vouched(segment, "3", txn)
    assert await committed(segment) == ([] if aborted else ["1"])


async def test_170_vouched_for_by_mistake_it_counts_as_a_whole_or_not_at_all(world: World) -> None:
    """Somebody else has committed it. What the owner takes until it hears of that becomes visible with the rest."""
    segment = await world.segment()
    txn = await world.begin()
    await vouched(segment, "1", txn)
    world.store.events_flow.clear()
    await world.commit(txn)
    await vouched(segment, "2", txn)
    assert await committed(segment) == []
    world.store.events_flow.set()
    await materialized(segment, txn)
    assert await committed(segment) == ["1", "2"]
    with pytest.raises(errors.MetatxnError):
        await vouched(segment, "3", txn)


async def test_170_an_intent_that_was_announced_ahead_covers_the_first_entry(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await segment.publisher.intents.announce_ahead([txn])
    world.store.away = StoreUnavailable("gone")
    await vouched(segment, "1", txn)
    world.store.away = None
    await world.commit(txn)
    await materialized(segment, txn)
    assert await committed(segment) == ["1"]
