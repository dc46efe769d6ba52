"""Goal: what is trimmed is gone for good, with the state that only it needed; nothing else is, no matter who dies when.

Method: as in `test_recovery`. Scenario 95; DESIGN §5.6.
"""

from __future__ import annotations

import asyncio

import pytest

from metastore.errors import CheckFailed, OutcomeUnknown, StoreUnavailable
from metastore.txn import paths
from metastore.types import Batch
from metatxn.wire import errors
from metatxn.wire.errors import ErrorCode
from metatxn.wire.frames import RawFrame
from metatxn.wire.position import Position
from participants.ledger.chain import LedgerChain
from participants.segment.rolling import roll
from participants.segment.segment import Segment
from participants.segment.trimming import trim
from tests.participants.segment.faulty_store import Fault, puts
from tests.participants.segment.world import (
    ALL_BYTES,
    SEGMENT,
    Node,
    World,
    committed,
    entry,
    materialized,
    publish,
    snapshot,
    uncommitted,
)

RECORD = puts("/segment/")


async def trimmed(world: World, node: Node, segment: Segment, before: Position) -> None:
    """Trim, and wait until nothing of it is left to do."""
    await trim(segment, world.store, node.storage, before)
    await idle(segment)


async def idle(segment: Segment) -> None:
    while segment._tasks:
        await asyncio.wait(segment._tasks)


async def code_of_read(segment: Segment, after: Position) -> ErrorCode | None:
    try:
        await segment.reader.read_committed(after, ALL_BYTES)
    except errors.MetatxnError as error:
        return error.code
    return None


async def test_95_an_aborted_record_goes_once_its_last_entry_is_trimmed_and_not_before(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    txns = [await world.begin() for _ in range(3)]
    positions = [await publish(segment, f"{number}", txn) for number, txn in enumerate(txns)]
    last = await publish(segment, "tail of 1", txns[1])
    for txn in txns:
        await world.abort(txn)
    await publish(segment, "sentinel")
    await materialized(segment, *txns)
    await trimmed(world, node, segment, positions[2])
    assert [await world.outcome(txn) is None for txn in txns] == [True, False, False]
    assert segment.buffer.aborted_count == 2
    await trimmed(world, node, segment, last.next)
    assert [await world.outcome(txn) is None for txn in txns] == [True, True, True]
    assert segment.buffer.aborted_count == 0
    assert await committed(segment) == ["sentinel"] == await snapshot(segment)
    again = await world.reopened()
    assert again.buffer.aborted_count == 0
    assert await committed(again) == ["sentinel"] == await uncommitted(again)


async def test_more_outcomes_than_one_apply_holds_are_pruned_in_slices(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    txns = [await world.begin() for _ in range(90)]
    for txn in txns:
        last = await publish(segment, "x", txn)
        await world.abort(txn)
    await materialized(segment, *txns)
    world.store.ranged.clear()
    await trimmed(world, node, segment, last.next)
    assert all([await world.outcome(txn) is None for txn in txns])
    assert max(len(batch.written()) for batch in world.store.applied) <= 128
    assert world.store.ranged.count(paths.outcomes(SEGMENT)) == 1, "all are read once, not once for each slice"


async def test_an_outcome_that_is_stored_after_the_trim_of_what_it_hides_does_not_stay(world: World) -> None:
    """Found by the simulation, with a store that had no space for it."""
    node = await world.first_node()
    segment = await node.open()
    txn = await world.begin()
    hidden = await publish(segment, "never", txn)
    late = world.store.fault(Fault(puts(paths.outcomes(SEGMENT)), hold_before=True))
    await world.abort(txn)
    await late.reached.wait()
    await trim(segment, world.store, node.storage, hidden.next)
    late.go.set()
    await materialized(segment, txn)
    assert await world.outcome(txn) is None
    assert await world.operations(txn) == []


async def test_an_outcome_stays_while_it_is_unknown_whether_the_trim_has_happened(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    txn = await world.begin()
    hidden = await publish(segment, "never", txn)
    late = world.store.fault(Fault(puts(paths.outcomes(SEGMENT)), hold_before=True))
    world.store.fault(Fault(puts(paths.segment(SEGMENT)), before=OutcomeUnknown("lost")))
    await world.abort(txn)
    await late.reached.wait()
    with pytest.raises(OutcomeUnknown):
        await trim(segment, world.store, node.storage, hidden.next)
    late.go.set()
    await materialized(segment, txn)
    assert await world.outcome(txn) is not None
    assert await committed(await world.reopened()) == []


async def test_a_trim_never_passes_what_readers_have_been_shown(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    txn = await world.begin()
    first = await publish(segment, "A")
    held = await publish(segment, "B", txn)
    for before in (held.next, Position(99, 0)):
        with pytest.raises(errors.MetatxnError) as error:
            await trim(segment, world.store, node.storage, before)
        assert error.value.code == ErrorCode.INVALID_ARGUMENT
        assert error.value.members["max_read_position"] == str(first)
    assert await uncommitted(segment) == ["A", "B"]
    await trimmed(world, node, segment, held)
    assert await uncommitted(segment) == ["B"]
    await world.commit(txn)
    await materialized(segment, txn)
    assert await committed(segment) == ["B"]


async def test_reading_below_is_told_and_reading_on_from_the_last_trimmed_entry_is_not(world: World) -> None:
    """The last entry of one ledger and the first of the next are neighbours, whatever their numbers."""
    segment = await world.segment()
    await publish(segment, "A")
    end = await publish(segment, "B")
    node = await world.crash()
    segment = await node.open()
    start = await publish(segment, "C")
    assert start.ledger > end.ledger
    await trimmed(world, node, segment, Position(start.ledger, -1))
    assert await code_of_read(segment, end.before) == ErrorCode.POSITION_TRIMMED
    assert await code_of_read(segment, Position(0, -1)) == ErrorCode.POSITION_TRIMMED
    assert await code_of_read(segment, end) is None
    assert await committed(segment) == ["C"]
    await trimmed(world, node, segment, end)
    assert await committed(segment) == ["C"], "trimming less than before changes nothing"


async def test_a_read_that_a_trim_has_overtaken_shows_nothing_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has fetched an aborted entry; the trim forgets that it was aborted."""
    node = await world.first_node()
    segment = await node.open()
    txn = await world.begin()
    position = await publish(segment, "never", txn)
    await world.abort(txn)
    await materialized(segment, txn)
    fetched, go = asyncio.Event(), asyncio.Event()
    real = LedgerChain.read

    async def slow(chain: LedgerChain, *args: object) -> list[RawFrame]:
        found = await real(chain, *args)  # type: ignore[arg-type]
        fetched.set()
        await go.wait()
        return found

    monkeypatch.setattr(LedgerChain, "read", slow)
    reading = asyncio.create_task(segment.reader.read_committed(segment.ledgers.start, ALL_BYTES))
    await fetched.wait()
    await trimmed(world, node, segment, position.next)
    go.set()
    with pytest.raises(errors.MetatxnError) as error:
        await reading
    assert error.value.code == ErrorCode.POSITION_TRIMMED


async def lives(world: World, count: int) -> tuple[Node, Segment, list[Position]]:
    """A segment of this many ledgers, each with a remembered sequence; the last one is open."""
    positions = []
    segment = await world.segment()
    node = world._nodes[-1]
    for number in range(count):
        if number:
            node = await world.crash()
            segment = await node.open()
        positions.append(await publish(segment, f"{number}", producer="p", sequence=number))
    return node, segment, positions


async def test_bytes_of_trimmed_ledgers_are_deleted_and_sequences_are_not_forgotten(world: World) -> None:
    node, segment, positions = await lives(world, 4)
    await trimmed(world, node, segment, positions[2])
    assert node.device.ledgers() == {3, 4}
    again = await world.reopened()
    assert await committed(again) == ["2", "3"]
    for number, position in enumerate(positions):
        assert await again.publish(entry("?", producer="p", sequence=number)) == (position, True)


@pytest.mark.parametrize("survives", range(4))
async def test_a_trim_that_dies_anywhere_leaves_nothing_behind(world: World, survives: int) -> None:
    """Both ends are checked: asked again or not, the ledgers of the record are the files of the directory."""
    node, segment, positions = await lives(world, 4)
    writes = 0

    def dead(_: Batch) -> bool:
        nonlocal writes
        writes += 1
        return writes > survives

    world.store.fault(Fault(dead, before=StoreUnavailable("gone"), times=10**6))
    try:
        await trim(segment, world.store, node.storage, positions[2])
        moved = True
    except StoreUnavailable:
        moved = False
    assert moved == (survives > 0)
    node = await world.crash()
    world.store._faults.clear()
    segment = await node.open()
    assert await committed(segment) == (["2", "3"] if moved else ["0", "1", "2", "3"])
    assert node.device.ledgers() == ({3, 4, 5} if moved else {1, 2, 3, 4, 5})
    await trimmed(world, node, segment, positions[2])
    assert await committed(segment) == ["2", "3"]
    assert node.device.ledgers() == {3, 4, 5}


@pytest.mark.parametrize("landed", [True, False])
async def test_nothing_is_told_of_what_a_trim_may_have_taken_until_it_is_known(world: World, landed: bool) -> None:
    """Found by the simulation: readers were told at once that it was trimmed, and the next owner showed it again."""
    node, segment, positions = await lives(world, 3)
    lost = OutcomeUnknown("no answer")
    sent: list[Batch] = []

    def caught(batch: Batch) -> bool:
        sent.append(batch)
        return RECORD(batch)

    world.store.fault(Fault(caught, after=lost) if landed else Fault(caught, before=lost))
    with pytest.raises(OutcomeUnknown):
        await trim(segment, world.store, node.storage, positions[1].next)
    asked = world.store.hold_read(lambda keys: list(keys) == [paths.segment(SEGMENT)])
    await asked.reached.wait()
    assert await code_of_read(segment, Position(0, -1)) == ErrorCode.STORE_UNAVAILABLE
    assert await code_of_read(segment, positions[1]) is None, "what it does not concern is read"
    late = sent[-1]
    asked.go.set()
    await idle(segment)
    if landed:
        assert await code_of_read(segment, Position(0, -1)) == ErrorCode.POSITION_TRIMMED
        assert node.device.ledgers() == {3}, "no more is left to do"
    else:
        with pytest.raises(CheckFailed):
            await world.store.apply(late)  # it comes late
    assert await committed(segment) == await committed(await world.reopened()) == (["2"] if landed else ["0", "1", "2"])


@pytest.mark.parametrize("again", [True, False], ids=["trimmed again", "rolled"])
async def test_the_next_record_shows_whether_a_trim_took_effect(world: World, again: bool) -> None:
    node, segment, positions = await lives(world, 3)
    world.store.fault(Fault(RECORD, before=OutcomeUnknown("no answer")))
    with pytest.raises(OutcomeUnknown):
        await trim(segment, world.store, node.storage, positions[1].next)
    asked = world.store.hold_read(lambda keys: list(keys) == [paths.segment(SEGMENT)])
    await asked.reached.wait()
    if again:
        await trim(segment, world.store, node.storage, positions[0].next)
    else:
        await roll(segment, world.store, node.storage)
    expected = ["1", "2"] if again else ["0", "1", "2"]
    assert await committed(segment) == expected
    asked.go.set()
    await idle(segment)
    assert await committed(segment) == expected


async def test_everything_of_a_segment_can_be_trimmed_and_its_end_stays(world: World) -> None:
    node, segment, positions = await lives(world, 3)
    await trimmed(world, node, segment, positions[-1].next)
    assert await committed(segment) == []
    segment = await world.reopened()
    assert await committed(segment) == []
    assert await publish(segment, "new") > positions[-1]
    assert await committed(segment) == ["new"]


async def test_a_deposed_owner_trims_nothing(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    position = await publish(segment, "x")
    owner = await world.store.get(segment.ownership.check.key)
    assert owner is not None
    await world.store.apply(world.store.batch().replace(owner, owner.value))
    with pytest.raises(errors.MetatxnError) as error:
        await trim(segment, world.store, node.storage, position.next)
    assert error.value.code == ErrorCode.STORE_UNAVAILABLE and segment.lost


async def test_a_trim_and_another_writer_of_the_record_take_turns(world: World) -> None:
    node, segment, positions = await lives(world, 2)
    held = world.store.fault(Fault(RECORD, hold_before=True))
    trimming = asyncio.create_task(trim(segment, world.store, node.storage, positions[1]))
    await held.reached.wait()
    stored = await world.store.get("/segment/segment%3A%2F%2Fpublic%2Fdefault%2Ft%2F0000-ffff-0")
    assert stored is not None
    await world.store.apply(world.store.batch().replace(stored, stored.value))
    held.go.set()
    await trimming
    assert await committed(segment) == ["1"]
