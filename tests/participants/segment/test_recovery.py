"""Goal: whatever died, a segment that is opened again hides, shows and finishes exactly what it must.

Method: `World.crash` kills a node and opens a copy of its directory. Each test says what was open, decided or
half-way then. Scenarios 69-79, 83, 105, 106; DESIGN §5.3-9.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from metastore.errors import CheckFailed, OutcomeUnknown, StoreUnavailable
from metastore.txn import paths
from metastore.txn.records.processes import Incarnation
from metastore.txn.records.segments import SegmentRecord
from metastore.types import Batch
from metatxn.wire import errors
from metatxn.wire.errors import ErrorCode
from participants.ledger.directories import segment_directory
from participants.ledger.storage import LedgerCorrupt, LedgerMissing
from participants.segment.recovery import SegmentUnavailable
from tests.participants.devices import on_local_files
from tests.participants.ledger.ledgers import append_all
from tests.participants.segment.faulty_store import CLEANUP, INTENT, Fault, puts
from tests.participants.segment.world import (
    SEGMENT,
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

SEGMENT_RECORD = puts("/segment/")


async def stuck_cleanup(world: World) -> Fault:
    """From now on no decision becomes durable, as if the broker were about to die."""
    return world.store.fault(Fault(CLEANUP, before=StoreUnavailable("gone"), times=10**6))


def heal(world: World) -> None:
    world.store._faults.clear()


async def record_of(world: World) -> SegmentRecord:
    record = await world.store.get(paths.segment(SEGMENT))
    assert record is not None
    return SegmentRecord.decode(record.value)


# -- what was open, committed, aborted -------------------------------------------------------------------------------


async def test_78_recovery_of_nothing_becomes_ready(world: World) -> None:
    await world.segment()
    segment = await world.reopened()
    assert await committed(segment) == []
    assert await publish(segment, "x")


async def test_an_opening_that_read_a_planned_ledger_deletes_none_that_was_recorded_since(world: World) -> None:
    """The record of a first opening is on its way while a second one reads: it lands, and the ledger is written to,
    before the second one takes the segment."""
    node = await world.first_node()

    def recorded(batch: Batch) -> bool:
        value = batch.puts.get(paths.segment(SEGMENT))
        return value is not None and bool(SegmentRecord.decode(value).ledgers)

    record = world.store.fault(Fault(recorded, hold_before=True))
    first = asyncio.create_task(node.open())
    await record.reached.wait()
    claim = world.store.fault(Fault(puts(paths.SEGMENT_OWNERS), hold_before=True))
    second = asyncio.create_task(node.open())
    await claim.reached.wait()
    record.go.set()
    await publish(await first, "x")
    claim.go.set()
    with pytest.raises(CheckFailed):
        await second
    assert await committed(await world.reopened()) == ["x"]


async def test_69_committed_data_is_visible_after_a_restart(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "x", txn)
    await world.commit(txn)
    await materialized(segment, txn)
    assert await committed(await world.reopened()) == ["x"]


async def test_70_72_aborted_data_stays_hidden_after_a_restart_and_after_its_header_is_gone(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "never", txn)
    await publish(segment, "sentinel")
    await world.abort(txn)
    await materialized(segment, txn)
    assert await committed(await world.reopened()) == ["sentinel"]
    await world.collect(txn)
    again = await world.reopened()
    assert await committed(again) == ["sentinel"]
    assert again.buffer.aborted_count == 1


async def test_37_71_a_collected_committed_transaction_is_visible_because_unknown_means_committed(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "x", txn)
    await world.commit(txn)
    await materialized(segment, txn)
    await world.collect(txn)
    assert await committed(segment) == ["x"]
    assert await committed(await world.reopened()) == ["x"]


async def test_73_an_open_transaction_holds_readers_back_after_a_restart_until_it_ends(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "A")
    await publish(segment, "B", txn)
    await publish(segment, "C")
    segment = await world.reopened()
    assert await committed(segment) == ["A"]
    await publish(segment, "D")
    assert await committed(segment) == ["A"]
    await world.commit(txn)
    await materialized(segment, txn)
    assert await committed(segment) == ["A", "B", "C", "D"]
    assert await world.operations(txn) == []


async def test_106_the_first_writes_ever_belong_to_an_open_transaction(world: World) -> None:
    """The dirty read of the first implementation: with nothing else to go by it fell back to the last entry."""
    segment = await world.segment()
    txn = await world.begin()
    for number in range(3):
        await publish(segment, str(number), txn)
    for _ in range(3):
        segment = await world.reopened()
        assert await committed(segment) == []
    await world.abort(txn)
    await materialized(segment, txn)
    assert await committed(segment) == []
    assert await committed(await world.reopened()) == []


async def test_74_a_transaction_of_another_segment_is_not_tracked_here(world: World) -> None:
    other = SEGMENT.replace("/t/", "/u/")
    node = await world.first_node(SEGMENT, other)
    here, there = await node.open(), await node.open(other)
    txn = await world.begin()
    await publish(there, "x", txn)
    await publish(here, "plain")
    node = await world.crash()
    here = await node.open()
    assert list(here.buffer.tracked()) == []
    assert await committed(here) == ["plain"]
    assert await committed(await node.open(other)) == []


async def test_75_two_aborts_that_were_never_made_durable_are_hidden_the_instant_recovery_ends(world: World) -> None:
    segment = await world.segment()
    one, two = await world.begin(), await world.begin()
    await stuck_cleanup(world)
    for txn in (one, two):
        await publish(segment, f"never {txn}", txn)
    await publish(segment, "sentinel")
    await world.abort(one)
    await world.abort(two)
    await released(segment, one, two)
    assert await world.outcome(one) is None
    segment = await world.reopened()
    assert await committed(segment) == ["sentinel"], "although nothing of it can be made durable yet"
    heal(world)
    await materialized(segment, one, two)
    assert await world.outcome(one) and await world.outcome(two)
    assert await world.operations(one) == await world.operations(two) == []
    assert await committed(segment) == ["sentinel"]


async def test_76_recovery_finishes_a_committed_transaction_with_leftover_operations(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "x", txn)
    await stuck_cleanup(world)
    await world.commit(txn)
    await released(segment, txn)
    heal(world)
    node = await world.crash()
    segment = await node.open()
    assert await committed(segment) == ["x"]
    await materialized(segment, txn)
    assert await world.operations(txn) == []
    assert await world.outcome(txn) is None
    assert_at_the_floor(segment, node)


async def test_79_a_transaction_goes_on_with_the_new_owner(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "before", txn, writer="w", sequence=1)
    segment = await world.reopened()
    _, duplicate = await segment.publish(entry("before", txn, writer="w", sequence=1))
    assert duplicate, "the retry of an unanswered publish is told by the durable frame"
    await publish(segment, "after", txn, writer="w", sequence=2)
    assert await committed(segment) == []
    await world.commit(txn)
    await released(segment, txn)
    assert await committed(segment) == ["before", "after"]


async def test_a_decision_while_nobody_served_the_segment_is_found_by_recovery(world: World) -> None:
    segment = await world.segment()
    good, bad = await world.begin(), await world.begin()
    await publish(segment, "good", good)
    await publish(segment, "bad", bad)
    await segment.close()
    await world.commit(good)
    await world.abort(bad)
    segment = await world.reopened()
    assert await committed(segment) == ["good"]
    await materialized(segment, good, bad)
    assert await committed(await world.reopened()) == ["good"]


# -- intents and frames ----------------------------------------------------------------------------------------------


async def test_an_intent_without_a_frame_pins_nothing_after_a_restart(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "A")
    held = world.store.fault(Fault(INTENT, hold_after=True))
    never = sending(segment, "never", txn)
    await held.reached.wait()
    await publish(segment, "B")
    segment = await world.reopened()
    with pytest.raises(errors.MetatxnError):
        await never
    assert len(await world.operations(txn)) == 1
    assert await committed(segment) == ["A", "B"]
    await world.abort(txn)
    await materialized(segment, txn)
    assert await world.operations(txn) == []
    assert await world.outcome(txn) is None


async def test_an_intent_without_a_frame_does_not_answer_its_retry(world: World) -> None:
    """Sequences are remembered from durable frames, never from intents (DESIGN §5.13)."""
    segment = await world.segment()
    txn = await world.begin()
    held = world.store.fault(Fault(INTENT, hold_after=True))
    never = sending(segment, "A", txn, writer="w", sequence=1)
    await held.reached.wait()
    segment = await world.reopened()
    with pytest.raises(errors.MetatxnError):
        await never
    again = [await publish(segment, "A", txn, writer="w", sequence=1) for _ in range(2)]
    assert again[0] == again[1]
    assert len(await world.operations(txn)) == 2
    await world.commit(txn, ["w"])
    await materialized(segment, txn)
    assert await committed(segment) == ["A"]
    assert await world.operations(txn) == []


async def test_an_intent_that_lands_behind_a_takeover_is_refused(world: World) -> None:
    """It was sent by the owner and is late. The next owner has read the operations by then, or the segment was deleted
    with them: then nobody would ever clean this one up."""
    node = await world.first_node()
    old = await node.open()
    txn = await world.begin()
    late = world.store.fault(Fault(INTENT, hold_before=True))
    publishing = sending(old, "x", txn)
    await late.reached.wait()
    await node.open()
    late.go.set()
    with pytest.raises(errors.MetatxnError) as error:
        await publishing
    assert error.value.code is ErrorCode.STORE_UNAVAILABLE
    assert old.lost
    assert await world.operations(txn) == []


@on_local_files
async def test_a_frame_is_found_although_a_full_disk_had_rolled_positions_back(world: World) -> None:
    """`after` must stay a lower bound. While the intent is on its way two appends before it fail for lack of space;
    its own frame then lands below the position that was the last one assigned when the intent was made."""
    node = await world.first_node()
    segment = await node.open()
    txn = await world.begin()
    await publish(segment, "A")
    node.device.hold()
    blocker = sending(segment, "B")
    await node.device.held()
    node.disk.capacity = 0
    failing = [sending(segment, f"full {number}") for number in range(3)]
    while segment.ledgers.last_assigned.entry < 4:
        await asyncio.sleep(0)
    intent = world.store.fault(Fault(INTENT, hold_after=True))
    sent = sending(segment, "secret", txn)
    await intent.reached.wait()
    node.device.go()
    await blocker
    for full in failing:
        with pytest.raises(errors.MetatxnError) as error:
            await full
        assert error.value.code == ErrorCode.STORAGE_FULL
    node.disk.capacity = None
    intent.go.set()
    await sent
    assert await committed(segment) == ["A", "B"]
    for generation in range(3):  # later ledgers, so that the frame's is not the last one
        segment = await world.reopened()
        assert await committed(segment) == ["A", "B"]
        await publish(segment, f"hidden behind it {generation}")
    await world.abort(txn)
    await materialized(segment, txn)
    assert "secret" not in await committed(segment)
    assert "secret" not in await committed(await world.reopened())


async def test_frames_in_old_ledgers_are_found_behind_the_lowest_after(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "0", txn)
    for number in range(1, 4):
        segment = await world.reopened()
        await publish(segment, str(number), txn)
    segment = await world.reopened()
    assert await committed(segment) == []
    await world.commit(txn)
    await released(segment, txn)
    assert await committed(segment) == ["0", "1", "2", "3"]


# -- half-way through materializing ----------------------------------------------------------------------------------


async def test_void_writers_stay_void_and_others_stay_visible_when_it_dies_between_two_slices(world: World) -> None:
    """The outcome record is there, most operations are gone: what is left of them must not make a new outcome."""
    segment = await world.segment()
    txn = await world.begin()
    for number in range(45):
        await publish(segment, f"good {number}", txn, writer="good")
    segment = await world.reopened()
    await publish(segment, "void", txn, writer="void")
    await publish(segment, "unnamed", txn)
    world.store.fault(Fault(CLEANUP))  # the first slice passes …
    await stuck_cleanup(world)  # … and no other does
    await world.commit(txn, writers=["good"])
    await released(segment, txn)
    expected = [*(f"good {number}" for number in range(45)), "unnamed"]
    while await world.outcome(txn) is None:
        await asyncio.sleep(0)
    assert await committed(segment) == expected
    for _ in range(2):
        segment = await world.reopened()
        assert await committed(segment) == expected
    heal(world)
    await materialized(segment, txn)
    assert await world.operations(txn) == []
    assert await committed(segment) == expected
    assert await committed(await world.reopened()) == expected


async def test_an_abort_of_many_operations_is_hidden_from_the_first_slice_to_the_last(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await asyncio.gather(*(publish(segment, str(number), txn, writer=f"w{number}") for number in range(100)))
    world.store.fault(Fault(CLEANUP))
    await stuck_cleanup(world)
    await world.abort(txn)
    while await world.outcome(txn) is None:
        await asyncio.sleep(0)
    assert 0 < len(await world.operations(txn)) < 100
    segment = await world.reopened()
    assert await committed(segment) == []
    heal(world)
    await materialized(segment, txn)
    assert await world.operations(txn) == []
    outcome = await world.outcome(txn)
    assert outcome is not None and outcome.aborted


# -- races -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["commit", "abort"])
async def test_recovery_races_the_watch(world: World, ending: str) -> None:
    """The decision comes by the watch, is materialized and forgotten, before recovery's own read is answered."""
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "x", txn)
    node = await world.crash()
    held = world.store.hold_read(lambda keys: paths.header(txn) in keys, unread=True)
    opening = asyncio.create_task(node.open())
    await held.reached.wait()
    done = asyncio.Event()
    node.mirror.follow(txn, lambda *_: done.set())
    await (world.commit(txn) if ending == "commit" else world.abort(txn))
    await done.wait()
    while len(node.mirror._listeners[paths.header(txn)]) > 1:  # until only our own is left
        await asyncio.sleep(0)
    assert await world.operations(txn) == []
    held.go.set()
    segment = await opening
    assert await committed(segment) == (["x"] if ending == "commit" else [])
    await materialized(segment, txn)
    assert list(segment.buffer.tracked()) == []


async def test_a_decision_between_recoverys_read_and_its_end_is_not_missed(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "x", txn)
    node = await world.crash()
    held = world.store.hold_read(lambda keys: paths.header(txn) in keys)
    opening = asyncio.create_task(node.open())
    await held.reached.wait()
    await world.commit(txn)
    held.go.set()
    segment = await opening
    await released(segment, txn)
    assert await committed(segment) == ["x"]


@pytest.mark.parametrize("step", ["claim", "record", "outcomes"])
@pytest.mark.parametrize("landed", [True, False], ids=["landed", "lost"])
async def test_an_opening_that_fails_half_way_can_be_done_again_and_leaves_nothing_behind(
    world: World, step: str, landed: bool
) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "A")
    await publish(segment, "B", txn)
    node = await world.crash()
    unknown = OutcomeUnknown("no answer")
    if step == "outcomes":
        held = world.store.hold_read(lambda keys: paths.header(txn) in keys)
        opening = asyncio.create_task(node.open())
        await held.reached.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
    else:
        matches = puts("/segment-owner/") if step == "claim" else SEGMENT_RECORD
        world.store.fault(Fault(matches, after=unknown) if landed else Fault(matches, before=unknown))
        with pytest.raises(OutcomeUnknown):
            await node.open()
    assert not node.mirror._listeners, "a half-opened segment must not act on decisions"
    assert not node.storage._open, "nor keep its ledger open"  # type: ignore[attr-defined]
    segment = await node.open()
    assert await committed(segment) == ["A"]
    await world.commit(txn)
    await released(segment, txn)
    await publish(segment, "C")
    assert await committed(segment) == ["A", "B", "C"]
    ledgers = (await record_of(world)).ledgers
    assert [ledger.entries for ledger in ledgers if ledger.entries is None] == [None]


# -- storage ---------------------------------------------------------------------------------------------------------


async def test_77_a_missing_ledger_makes_the_segment_unavailable_never_empty(world: World) -> None:
    segment = await world.segment()
    await publish(segment, "x")
    node = await world.crash()
    node.device.lose(1)
    for _ in range(3):
        with pytest.raises(LedgerMissing):
            await node.open()
    assert (await record_of(world)).ledgers[0].id == 1, "the record still names it"


async def test_a_ledger_that_the_store_does_not_know_makes_the_segment_unavailable(world: World) -> None:
    """The store may have been restored: what was acknowledged in that ledger would be passed over."""
    await publish(await world.segment(), "x")
    node = await world.crash()
    number = (await record_of(world)).newest_ledger + 1
    unknown = await node.storage.create(SEGMENT, number)
    await append_all(unknown, [b"acknowledged"])
    await unknown.close()
    with pytest.raises(SegmentUnavailable, match="was it restored"):
        await node.open()
    assert number in await node.storage.numbers(segment_directory(SEGMENT))


async def test_a_planned_ledger_that_was_written_to_is_kept(world: World) -> None:
    """The store may have been restored to where the ledger was not listed yet."""
    await publish(await world.segment(), "x")
    node = await world.crash()
    record = await record_of(world)
    number = record.newest_ledger + 1
    used = await node.storage.create(SEGMENT, number)
    await append_all(used, [b"acknowledged"])
    await used.close()
    planned = record.model_copy(update={"planned": number})
    await world.store.apply(world.store.batch().put(paths.segment(SEGMENT), planned.encode()))
    with pytest.raises(LedgerCorrupt, match="only planned"):
        await node.open()
    assert number in await node.storage.numbers(segment_directory(SEGMENT))


async def test_generations_that_a_restored_store_has_forgotten_are_not_reused(world: World) -> None:
    """Its first owner came after the backup, and so did forms of its ledgers, which are named after it (DESIGN §10)."""
    await world.segment()
    node = await world.crash()
    owner = await world.store.get(paths.segment_owner(SEGMENT))
    assert owner is not None
    restored = Incarnation(id="ab" * 16, begun_ms=1, recovered_ms=5_000)
    batch = world.store.batch().remove(owner).create(paths.INCARNATION, restored.encode())
    await world.store.apply(batch)
    assert (await node.open()).ownership.generation > 5_000


@on_local_files
async def test_a_short_sealed_ledger_makes_the_segment_unavailable(world: World) -> None:
    segment = await world.segment()
    await publish(segment, "x")
    await publish(segment, "y")
    await publish(await world.reopened(), "z")
    node = await world.crash()
    path = min(node.directory.glob("ledgers/*/*.ledger"))
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(LedgerCorrupt):
        await node.open()


async def test_only_the_storage_that_holds_the_ledgers_may_claim_the_segment(world: World) -> None:
    segment = await world.segment()
    await publish(segment, "x")
    owner = await world.store.get(paths.segment_owner(SEGMENT))
    stranger = await world.node()
    with pytest.raises(SegmentUnavailable):
        await stranger.open()
    assert await world.store.get(paths.segment_owner(SEGMENT)) == owner
    assert await publish(segment, "y")


async def test_a_segment_without_a_record_cannot_be_opened(world: World) -> None:
    node = await world.node()
    with pytest.raises(SegmentUnavailable):
        await node.open()
    assert await world.store.get(paths.segment_owner(SEGMENT)) is None


async def test_positions_are_never_reused_and_empty_ledgers_do_not_pile_up(world: World) -> None:
    segment = await world.segment()
    seen = {await publish(segment, "0")}
    for number in range(1, 6):
        segment = await world.reopened()
        if number % 2:
            seen.add(await publish(segment, str(number)))
    assert len(seen) == 4
    assert len((await record_of(world)).ledgers) <= 5
    assert await committed(segment) == ["0", "1", "3", "5"]


@on_local_files
async def test_a_torn_tail_was_never_acknowledged_and_is_cut(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "whole", txn)
    node = await world.crash()
    path = max(node.directory.glob("ledgers/*/*.ledger"))
    path.write_bytes(path.read_bytes() + b"\x40\0\0\0torn")
    segment = await node.open()
    assert await uncommitted(segment) == ["whole"]
    assert await committed(segment) == []


async def test_producers_sequences_of_the_last_ledger_survive_a_restart(world: World) -> None:
    segment = await world.segment()
    position = await publish(segment, "x", producer="p", sequence=1)
    segment = await world.reopened()
    assert await segment.publish(entry("x", producer="p", sequence=1)) == (position, True)
    segment = await world.reopened()
    assert await segment.publish(entry("x", producer="p", sequence=1)) == (position, True)
    assert await committed(segment) == ["x"]


# -- the crash anywhere ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("survives", range(15))
async def test_whatever_number_of_store_writes_survives_the_next_life_tells_the_same_story(
    world: World, survives: int
) -> None:
    """Every prefix of the broker's store writes. One transaction commits, one aborts, one commits without one of
    its writers, one stays open; each has two frames."""
    segment = await world.segment()
    names = ("committed", "aborted", "partly", "open")
    txns = {name: await world.begin() for name in names}
    writes = 0

    def dead(batch: Batch) -> bool:
        nonlocal writes
        writes += INTENT(batch) or CLEANUP(batch)
        return (INTENT(batch) or CLEANUP(batch)) and writes > survives

    world.store.fault(Fault(dead, before=StoreUnavailable("gone"), times=10**6))
    acknowledged: set[str] = set()
    for part, writer in enumerate(("good", "void")):
        for name, txn in txns.items():
            with suppress(StoreUnavailable):
                await publish(segment, f"{name} {part}", txn, writer=writer if name == "partly" else None)
                acknowledged.add(f"{name} {part}")
    await world.commit(txns["committed"])
    await world.abort(txns["aborted"])
    await world.commit(txns["partly"], writers=["good"])
    ended = [txns[name] for name in names[:3]]
    await released(segment, *ended)

    node = await world.crash()
    heal(world)
    segment = await node.open()
    await materialized(segment, *ended)
    decided_visible = {"committed 0", "committed 1", "partly 0"} & acknowledged
    first_open = "open 0" in acknowledged
    assert set(await committed(segment)) == ({"committed 0", "partly 0"} if first_open else decided_visible)
    await world.abort(txns["open"])
    await materialized(segment, txns["open"])
    assert set(await committed(segment)) == decided_visible
    for txn in txns.values():
        assert await world.operations(txn) == []
    assert_at_the_floor(segment, node)
    assert set(await committed(await world.reopened())) == decided_visible


async def test_a_ledger_that_has_failed_keeps_nothing_of_its_segment(world: World) -> None:
    """The storage keeps the ledger until it is sealed; when another broker takes the segment, that is never."""
    node = await world.first_node()
    segment = await node.open()
    ledger = segment.ledgers.open
    assert ledger is not None and ledger.on_durable is not None
    node.device.fail()
    with pytest.raises(errors.OutcomeUnknown):
        await publish(segment, "x")
    await segment.close()
    assert ledger.stopped is not None and ledger.on_durable is None
    node.device.heal()
