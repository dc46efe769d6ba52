"""Goal: a retried append happens exactly once, and one writer's frames lie in the order in which they arrived.

Method: as in `test_intents`. DESIGN §5.13, scenarios 26 and 112.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from metastore.errors import OutcomeUnknown, StoreUnavailable
from metatxn.wire import errors
from metatxn.wire.errors import ErrorCode
from metatxn.wire.frames import Behind, Entry
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.segment import dedup
from participants.segment.segment import Segment
from tests.participants.devices import on_local_files
from tests.participants.segment.faulty_store import INTENT, Fault
from tests.participants.segment.world import (
    World,
    assert_at_the_floor,
    committed,
    entry,
    materialized,
    publish,
    released,
    sending,
    uncommitted,
)


async def has_ended(task: asyncio.Task[Position]) -> bool:
    """Whether `task` ends although what it must wait for does not come: it gets plenty of turns of the loop."""
    for _ in range(100):
        await asyncio.sleep(0)
    return task.done()


async def test_112_a_retried_sequence_is_answered_with_the_first_position(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    for scope in (entry("x", txn, writer="w", sequence=5), entry("y", producer="p", sequence=5)):
        first, duplicate = await segment.publish(scope)
        assert not duplicate
        assert await segment.publish(scope) == (first, True)
    assert await uncommitted(segment) == ["x", "y"]


def numbered(name: str, sequence: int, behind: Behind) -> Entry:
    return replace(entry(name, producer="p", sequence=sequence), behind=behind)


async def test_127_a_producer_that_numbers_its_messages_appends_behind_what_its_sender_knows(world: World) -> None:
    segment = await world.segment()
    first = numbered("a", 5, Behind())
    position, duplicate = await segment.publish(first)
    assert not duplicate and await segment.publish(first) == (position, True)
    for unaware in (Behind(), Behind(4), Behind(5, 5)):
        with pytest.raises(errors.InvalidArgument) as refused:
            await segment.publish(numbered("b", 9, unaware))
        (told,) = refused.value.members["appended"]
        assert (told["segment"], told["position"], told["sequence"]) == (segment.id, str(position), 5)
    assert not (await segment.publish(numbered("c", 9, Behind(5))))[1]
    with pytest.raises(errors.InvalidArgument):
        await segment.publish(replace(numbered("d", 9, Behind(9)), count=2))
    assert await committed(segment) == ["a", "c"]


async def test_127_what_is_in_flight_is_waited_for(world: World) -> None:
    segment = await world.segment()
    two = numbered("a", 5, Behind()), numbered("b", 3, Behind())
    found = await asyncio.gather(*map(segment.publish, two), return_exceptions=True)
    assert isinstance(found[1], errors.InvalidArgument) and len(found[1].members["appended"]) == 1
    assert await committed(segment) == ["a"]


def test_127_what_a_segment_has_inherited_is_not_its_own() -> None:
    table = dedup.DedupTable((0, 9))
    scope = dedup.Scope(None, None, "p")
    assert table.last(scope) == Behind()
    table.restore(scope, 7, dedup.Remembered(Position(1, 0), 1, ((0, 4),), "parent"))
    assert table.last(scope) == Behind(-1, 7)
    table.durable(scope, 5, Position(2, 0), 1)
    assert table.last(scope) == Behind(5, 7)


@pytest.mark.parametrize("txn_id", [None, TxnId(0, 7)])
def test_the_last_entry_of_a_producer_is_that_with_the_highest_position(txn_id: TxnId | None) -> None:
    """Entries that became durable together are remembered in any order."""
    table, scope = dedup.DedupTable((0, 65_535)), dedup.Scope(txn_id, None, "kafka/9")
    for sequence in (0, 3, 1):
        table.durable(scope, sequence, Position(1, sequence), count=sequence + 1)
    assert table.last_of("kafka/9") == (3, 4) and table.last_of("kafka/8") is None


def test_a_sequence_says_nothing_about_the_keys_of_another_parent() -> None:
    """The child of a merge: one of its parents has appended its part, and the other one has not."""
    table = dedup.DedupTable((0, 9))
    scope = dedup.Scope(None, None, "p")
    low = dedup.Remembered(Position(1, 0), 1, ((0, 4),), "low")
    table.restore(scope, 7, low)
    assert table.find(scope, 7, frozenset({3})) == table.find(scope, 7, frozenset({3, 8})) == (low,)
    assert table.find(scope, 7, frozenset({8})) == table.find(scope, 7, None) == ()
    high = dedup.Remembered(Position(2, 0), 1, ((5, 9),), "high")
    table.restore(scope, 7, high)
    assert table.find(scope, 7, frozenset({8})) == (high,)
    assert table.find(scope, 7, None) == (low, high)


def test_all_that_other_segments_have_appended_under_a_sequence_is_remembered() -> None:
    """Two entries of one segment are two, and two pieces of one entry are one."""
    table = dedup.DedupTable((0, 9))
    scope = dedup.Scope(None, None, "p")
    first, second = (dedup.Remembered(Position(1, entry), 1, ((5 * entry, 5 * entry + 4),), "x") for entry in (0, 1))
    for each in (first, second):
        table.restore(scope, 7, each)
    assert table.find(scope, 7, None) == (first, second)
    assert table.find(scope, 7, frozenset({3})) == (first,)
    table.restore(scope, 8, first)
    table.restore(scope, 8, replace(first, ranges=((5, 9),)))
    assert table.find(scope, 8, None) == (replace(first, ranges=((0, 9),)),)


async def test_a_retry_joins_the_publish_of_its_sequence_that_is_in_flight(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    held = world.store.fault(Fault(INTENT, hold_after=True))
    first = asyncio.create_task(segment.publish(entry("x", txn, writer="w", sequence=1)))
    await held.reached.wait()
    retry = asyncio.create_task(segment.publish(entry("x", txn, writer="w", sequence=1)))
    held.go.set()
    position, _ = await first
    assert await retry == (position, True)
    assert await uncommitted(segment) == ["x"]


async def test_a_retry_survives_the_end_of_the_request_it_joined(world: World) -> None:
    """The first client hangs up: its publish goes on, and the retry gets its answer."""
    segment = await world.segment()
    txn = await world.begin()
    held = world.store.fault(Fault(INTENT, hold_after=True))
    first = asyncio.create_task(segment.publish(entry("x", txn, writer="w", sequence=1)))
    await held.reached.wait()
    retry = asyncio.create_task(segment.publish(entry("x", txn, writer="w", sequence=1)))
    first.cancel()
    held.go.set()
    _, duplicate = await retry
    assert duplicate and first.cancelled()
    assert await uncommitted(segment) == ["x"]


async def test_the_retry_of_a_failed_publish_is_appended(world: World) -> None:
    """Remembered only from durable frames: an intent whose answer was lost is no reason to answer "there already"."""
    segment = await world.segment()
    txn = await world.begin()
    world.store.fault(Fault(INTENT, after=OutcomeUnknown("no answer")))
    with pytest.raises(OutcomeUnknown):
        await publish(segment, "x", txn, writer="w", sequence=1)
    _, duplicate = await segment.publish(entry("x", txn, writer="w", sequence=1))
    assert not duplicate
    await world.commit(txn)
    await released(segment, txn)
    assert await committed(segment) == ["x"]


@on_local_files
@pytest.mark.parametrize("transactional", [True, False])
async def test_the_retry_of_an_append_that_found_no_space_is_appended(world: World, transactional: bool) -> None:
    """Its intent was stored and its position was given out, but neither is a durable frame."""
    node = await world.first_node()
    segment = await node.open()
    txn = await world.begin() if transactional else None
    node.disk.capacity = 0
    with pytest.raises(errors.MetatxnError) as error:
        await publish(segment, "x", txn, producer="p", sequence=1)
    assert error.value.code == ErrorCode.STORAGE_FULL
    node.disk.capacity = None
    _, duplicate = await segment.publish(entry("x", txn, producer="p", sequence=1))
    assert not duplicate
    assert await uncommitted(segment) == ["x"]


async def test_sequences_are_ranges_not_a_maximum(world: World) -> None:
    segment = await world.segment()
    await publish(segment, "nine", producer="p", sequence=9)
    await publish(segment, "three", producer="p", sequence=3)
    assert await committed(segment) == ["nine", "three"]


@pytest.mark.parametrize("restarted", [False, True])
async def test_outside_of_transactions_the_last_sequences_are_remembered_and_no_more(
    world: World, monkeypatch: pytest.MonkeyPatch, restarted: bool
) -> None:
    """The window of docs/brokers.md, smaller: this many of a producer, and of all together, the most silent one's
    first. What is asked here is asked from the latest on, because what was forgotten is appended, and remembered,
    again."""
    monkeypatch.setattr(dedup, "REMEMBERED_SEQUENCES", 3)
    monkeypatch.setattr(dedup, "REMEMBERED_IN_ALL", 5)
    segment = await world.segment()

    async def duplicates(producer: str, *sequences: int) -> list[bool]:
        return [(await segment.publish(entry("x", producer=producer, sequence=number)))[1] for number in sequences]

    assert not any(await duplicates("silent", 1) + await duplicates("busy", 1, 2, 3, 4))
    if restarted:
        segment = await world.reopened()
    assert await duplicates("busy", 4, 3, 2) == [True] * 3
    assert await duplicates("silent", 1) == [True], "four of five"
    assert await duplicates("busy", 1) == [False], "one more than three"
    assert await duplicates("third", 1, 2) == [False] * 2
    if restarted:
        segment = await world.reopened()
    assert await duplicates("third", 2, 1) == [True] * 2
    assert await duplicates("busy", 1, 4, 3) == [True] * 3
    assert await duplicates("silent", 1) == [False], "one more than five, and it was silent for longest"


async def test_sequences_of_other_transactions_and_writers_are_other_sequences(world: World) -> None:
    segment = await world.segment()
    one, two = await world.begin(), await world.begin()
    for txn, writer in ((one, "v"), (one, "w"), (two, "v"), (one, None)):
        _, duplicate = await segment.publish(entry("x", txn, writer=writer, sequence=1))
        assert not duplicate


@pytest.mark.parametrize("replies", ["in order", "reversed"])
async def test_frames_of_one_writer_keep_their_order_whatever_order_the_store_answers_in(
    world: World, replies: str
) -> None:
    """Each has an intent of its own, because that of the first entry had an unknown outcome."""
    segment = await world.segment()
    txn = await world.begin()
    held = [Fault(INTENT, hold_after=True) for _ in range(4)]
    sent = await sending_with_intents(world, segment, txn, held)
    for fault in held:
        await fault.reached.wait()
    for fault in held if replies == "in order" else reversed(held):
        fault.go.set()
    await asyncio.gather(*sent)
    assert await uncommitted(segment) == ["0", "1", "2", "3"]


async def test_a_failure_in_the_middle_does_not_let_a_later_frame_overtake_an_earlier_one(world: World) -> None:
    """0 waits for its answer, 1 fails, 2 is answered: 2 must still wait for 0."""
    segment = await world.segment()
    txn = await world.begin()
    slow, last = Fault(INTENT, hold_after=True), Fault(INTENT, hold_after=True)
    failing = Fault(INTENT, before=StoreUnavailable("gone"))
    zero, one, two = await sending_with_intents(world, segment, txn, [slow, failing, last])
    with pytest.raises(StoreUnavailable):
        await one
    await slow.reached.wait()
    await last.reached.wait()
    last.go.set()
    assert not await has_ended(two), "it waits for its turn"
    slow.go.set()
    await asyncio.gather(zero, two)
    assert await uncommitted(segment) == ["0", "2"]


async def sending_with_intents(
    world: World, segment: Segment, txn: TxnId, faults: Sequence[Fault]
) -> list[asyncio.Task[Position]]:
    """Entries of one writer, `0` and so on, all of which wait for the intent of an earlier one. That has an unknown
    outcome, so each of them puts its own, which meets its own fault."""
    unknown = world.store.fault(Fault(INTENT, before=OutcomeUnknown("no answer"), hold_before=True))
    first = sending(segment, "never", txn, writer="w")
    await unknown.reached.wait()
    for fault in faults:
        world.store.fault(fault)
    sent = [sending(segment, str(number), txn, writer="w") for number in range(len(faults))]
    assert not await has_ended(sent[-1])
    unknown.go.set()
    with pytest.raises(OutcomeUnknown):
        await first
    return sent


async def test_after_the_decision_nothing_of_the_sequences_is_kept(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    txn = await world.begin()
    await asyncio.gather(*(publish(segment, str(n), txn, writer=f"w{n % 7}", sequence=n) for n in range(100)))
    await world.commit(txn)
    await materialized(segment, txn)
    assert_at_the_floor(segment, node)
    with pytest.raises(errors.MetatxnError) as error:
        await publish(segment, "1", txn, writer="w1", sequence=1)
    assert error.value.code == ErrorCode.TXN_CONFLICT


async def test_a_segment_that_closes_answers_those_who_wait(world: World) -> None:
    """Scenarios 29, 61: no hang, and no answer that a client could take for a success or for a crash."""
    segment = await world.segment()
    txn = await world.begin()
    held = world.store.fault(Fault(INTENT, hold_after=True))
    waiting = sending(segment, "x", txn, writer="w", sequence=1)
    await held.reached.wait()
    joined = sending(segment, "x", txn, writer="w", sequence=1)
    assert not await has_ended(joined)
    await segment.close()
    for publisher in (waiting, joined):
        with pytest.raises(errors.MetatxnError) as error:
            await publisher
        assert error.value.code == ErrorCode.OUTCOME_UNKNOWN
    with pytest.raises(errors.MetatxnError) as refused:
        await publish(segment, "y")
    assert refused.value.code == ErrorCode.STORE_UNAVAILABLE
