"""Goal: a read at revision R shows every transaction decided at or before R and none decided after, on all segments.

Method: as in `test_intents`; headers are collected by hand. DESIGN §7.
"""

from __future__ import annotations

import asyncio

import pytest

from metastore.errors import StoreUnavailable
from metastore.txn import paths
from metatxn.wire import errors
from metatxn.wire.errors import ErrorCode
from tests.participants.segment.faulty_store import INTENT, Fault
from tests.participants.segment.world import (
    ALL_BYTES,
    SEGMENT,
    World,
    committed,
    materialized,
    payload_of,
    publish,
    released,
    sending,
    snapshot,
    uncommitted,
)

OTHER = SEGMENT.replace("/t/", "/u/")


async def test_a_revision_between_two_commits_shows_the_first_on_both_segments_and_the_second_on_none(
    world: World,
) -> None:
    node = await world.first_node(SEGMENT, OTHER)
    here, there = await node.open(), await node.open(OTHER)
    first, second = await world.begin(), await world.begin()
    for segment in (here, there):
        await publish(segment, "second", second)
        await publish(segment, "first", first)
    before = await world.store.current_revision()
    between = await world.commit(first)
    after = await world.commit(second)
    await released(here, first, second)
    await released(there, first, second)
    for segment in (here, there):
        assert await snapshot(segment, before) == []
        assert await snapshot(segment, between) == ["first"]
        assert await snapshot(segment, after) == await snapshot(segment) == ["second", "first"]
        assert await committed(segment) == ["second", "first"]


async def test_it_reads_behind_the_horizon_of_those_who_are_still_open(world: World) -> None:
    """An open transaction before a committed one holds `read_committed` back, and not the snapshot."""
    segment = await world.segment()
    slow, quick = await world.begin(), await world.begin()
    await publish(segment, "slow", slow)
    await publish(segment, "quick", quick)
    revision = await world.commit(quick)
    await released(segment, quick)
    assert await committed(segment) == []
    assert await snapshot(segment, revision) == ["quick"]


async def test_the_owner_catches_up_with_decisions_no_watch_has_told(world: World) -> None:
    segment = await world.segment()
    good, bad = await world.begin(), await world.begin()
    await publish(segment, "good", good)
    await publish(segment, "bad", bad)
    world.store.events_flow.clear()
    await world.commit(good)
    revision = await world.abort(bad)
    assert await committed(segment) == []
    assert await snapshot(segment, revision) == ["good"]
    assert await committed(segment) == ["good"], "what was decided is closed and drained, not only filtered"


@pytest.mark.parametrize("commits", [True, False])
async def test_a_transaction_that_was_forgotten_and_came_again_is_decided_with_what_it_has_written(
    world: World, commits: bool
) -> None:
    """Found by the simulation: the snapshot had seen it before its first intent was refused by the store."""
    node = await world.first_node()
    segment = await node.open()
    txn = await world.begin()
    intent = world.store.fault(Fault(INTENT, hold_before=True, before=StoreUnavailable("refused")))
    first = sending(segment, "x", txn)
    await intent.reached.wait()
    held = world.store.hold_read(lambda keys: paths.header(txn) in keys, unread=True)
    reading = asyncio.create_task(snapshot(segment))
    await held.reached.wait()
    intent.go.set()
    with pytest.raises(StoreUnavailable):
        await first
    await publish(segment, "x", txn)
    world.store.events_flow.clear()
    await (world.commit(txn) if commits else world.abort(txn))
    held.go.set()
    assert await reading == [], "it was decided after the revision of the read"
    world.store.events_flow.set()
    await materialized(segment, txn)
    await publish(segment, "y")
    assert segment.buffer.pinned_by is None
    wanted = ["x", "y"] if commits else ["y"]
    assert await committed(segment) == wanted
    await world.collect(txn)
    assert await committed(await world.reopened()) == wanted


async def test_it_drains_what_was_decided_before_it_takes_the_end(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    txn = await world.begin()
    node.device.hold()
    sent = sending(segment, "begun", txn)
    await node.device.held()
    revision = await world.commit(txn)
    reading = asyncio.create_task(snapshot(segment, revision))
    for _ in range(50):
        await asyncio.sleep(0)
    assert not reading.done()
    node.device.go()
    assert await reading == ["begun"]
    await sent


@pytest.mark.parametrize("writer", [None, "another"])
async def test_nothing_can_be_appended_to_what_a_snapshot_has_shown(world: World, writer: str | None) -> None:
    """The store's answer is on its way while the snapshot is taken, to an intent or to the read for a later entry; the
    frame comes too late, and is refused."""
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "one", txn)
    held = (
        world.store.fault(Fault(INTENT, hold_after=True))
        if writer
        else world.store.hold_read(lambda keys: paths.header(txn) in keys)
    )
    late = sending(segment, "two", txn, writer=writer)
    await held.reached.wait()
    world.store.events_flow.clear()
    revision = await world.commit(txn)
    assert await snapshot(segment, revision) == ["one"]
    held.go.set()
    with pytest.raises(errors.MetatxnError):
        await late
    assert await snapshot(segment, revision) == ["one"]


async def test_void_writers_are_outside_the_cut(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "good", txn, writer="good")
    await publish(segment, "void", txn, writer="void")
    await publish(segment, "unnamed", txn)
    before = await world.store.current_revision()
    revision = await world.commit(txn, writers=["good"])
    assert await snapshot(segment, before) == []
    assert await snapshot(segment, revision) == ["good", "unnamed"]
    await materialized(segment, txn)
    await world.collect(txn)
    assert await snapshot(segment) == ["good", "unnamed"]


async def test_after_a_collection_older_revisions_are_refused_and_newer_ones_still_right(world: World) -> None:
    segment = await world.segment()
    good, bad, later = [await world.begin() for _ in range(3)]
    for name, txn in (("good", good), ("bad", bad), ("later", later)):
        await publish(segment, name, txn)
    await publish(segment, "plain")
    first = await world.abort(bad)
    second = await world.commit(good)
    await materialized(segment, good, bad)
    for txn in (good, bad):
        await world.collect(txn)
    with pytest.raises(errors.MetatxnError) as error:
        await snapshot(segment, first)
    assert error.value.code == ErrorCode.INVALID_ARGUMENT
    assert error.value.members["field"] == "revision"
    assert await snapshot(segment, second) == ["good", "plain"]
    third = await world.commit(later)
    assert await snapshot(segment, second) == ["good", "plain"]
    assert await snapshot(segment, third) == ["good", "later", "plain"]
    again = await world.reopened()
    assert await snapshot(again, third) == ["good", "later", "plain"]


async def test_a_collection_during_the_read_refuses_the_page(world: World) -> None:
    """The header goes while the frames are being read. Absent means committed, so only the horizon, read after that,
    tells that this page would show too much."""
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "x", txn)
    before = await world.store.current_revision()
    await world.commit(txn)
    await materialized(segment, txn)
    assert await snapshot(segment, before) == []
    reading = asyncio.create_task(snapshot(segment, before))
    await asyncio.sleep(0)  # it waits for the disk now
    await world.collect(txn)
    with pytest.raises(errors.MetatxnError) as error:
        await reading
    assert error.value.members["field"] == "revision"


async def test_a_revision_of_the_future_is_refused(world: World) -> None:
    segment = await world.segment()
    with pytest.raises(errors.MetatxnError) as error:
        await snapshot(segment, await world.store.current_revision() + 1)
    assert error.value.code == ErrorCode.INVALID_ARGUMENT
    assert error.value.members["field"] == "revision"


async def test_pages_of_one_snapshot_do_not_see_what_is_decided_between_them(world: World) -> None:
    segment = await world.segment()
    first, second = await world.begin(), await world.begin()
    for number in range(10):
        await publish(segment, f"first {number}", first)
        await publish(segment, f"second {number}", second)
    await world.commit(first)
    seen: list[str] = []
    page = await segment.reader.read_snapshot(segment.ledgers.start, 1, None)
    revision = page.revision
    await world.commit(second)
    while True:
        seen += map(payload_of, page.frames)
        if page.end:
            break
        page = await segment.reader.read_snapshot(page.next, 1, revision)
    assert seen == [f"first {number}" for number in range(10)]


async def test_a_segment_that_is_lost_during_a_snapshot_answers_with_an_error(world: World) -> None:
    """Its memory ends there: a later owner may have hidden what this one never heard of."""
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "x", txn)
    held = world.store.hold_read(lambda keys: paths.GC_HORIZON in keys)
    reading = asyncio.create_task(snapshot(segment))
    await held.reached.wait()
    segment.lose("deposed")
    held.go.set()
    with pytest.raises(errors.MetatxnError) as error:
        await reading
    assert error.value.code == ErrorCode.STORE_UNAVAILABLE


@pytest.mark.parametrize("isolation", ["committed", "uncommitted", "snapshot"])
async def test_a_ledger_that_cannot_be_read_is_an_error_with_a_reason(world: World, isolation: str) -> None:
    node = await world.first_node()
    segment = await node.open()
    await publish(segment, "x")
    node.device.lose(1)
    reader = {"committed": committed, "uncommitted": uncommitted, "snapshot": snapshot}[isolation]
    with pytest.raises(errors.MetatxnError) as error:
        await reader(segment)
    assert error.value.code == ErrorCode.STORE_UNAVAILABLE


async def test_reading_behind_the_end_and_in_ledgers_that_never_were(world: World) -> None:
    segment = await world.segment()
    last = await publish(segment, "x")
    for after in (last, last.next.next, type(last)(99, 5), type(last)(99, (1 << 64) - 1)):
        page = await segment.reader.read_committed(after, ALL_BYTES)
        assert page.frames == [] and page.end and page.next == after
    page = await segment.reader.read_committed(type(last)(0, 7), ALL_BYTES)
    assert list(map(payload_of, page.frames)) == ["x"]
