"""Goal: a segment goes on in a new ledger when its open one is full, and nobody notices: order, sequences, horizons and
open transactions are as in one ledger, plain publishes go on while the store is away, and a restart reads the last
ledger only.

Method: a segment whose ledgers are full after a few entries, over a store and a disk with faults. DESIGN §5.9, §5.13.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from metastore.errors import CheckFailed, OutcomeUnknown, StoreUnavailable
from metastore.txn import paths
from metastore.txn.records.segments import SegmentRecord
from metastore.types import Batch
from metatxn.wire import errors
from metatxn.wire.errors import ErrorCode
from metatxn.wire.frames import MIN_FRAME_BYTES, RawFrame
from metatxn.wire.position import Position
from participants.ledger.chain import LedgerChain
from participants.segment.dedup_snapshot import SnapshotMissing, chunks_of, write_snapshot
from participants.segment.reading import SegmentReader
from participants.segment.sealing import seal
from participants.segment.segment import Segment
from participants.segment.trimming import trim
from participants.txn.memory_buffer import MemoryTransactionBuffer
from tests.participants.devices import on_local_files, on_objects
from tests.participants.ledger.faults import broken, no_space
from tests.participants.segment.faulty_store import Fault, Matches, puts
from tests.participants.segment.world import (
    SEGMENT,
    World,
    committed,
    entry,
    materialized,
    publish,
    released,
    sending,
    uncommitted,
    until,
)

RECORD = puts(paths.segment(SEGMENT))
PER_LEDGER = 3


@pytest.fixture(autouse=True)
def _small_ledgers(world: World) -> None:
    world.max_ledger_bytes = (PER_LEDGER - 1) * (MIN_FRAME_BYTES + 1) + 1


async def record_of(world: World) -> SegmentRecord:
    stored = await world.store.inner.get(paths.segment(SEGMENT))
    assert stored is not None
    return SegmentRecord.decode(stored.value)


def puts_open_ledger(number: int) -> Matches:
    """The apply that lists this ledger."""

    def matches(batch: Batch) -> bool:
        value = batch.puts.get(paths.segment(SEGMENT))
        ledgers = SegmentRecord.decode(value).ledgers if value is not None else ()
        return bool(ledgers) and ledgers[-1].id == number

    return matches


def nth_of(matches: Matches, number: int) -> Matches:
    """The apply of this number among those that match."""
    numbers = count(1)
    return lambda batch: matches(batch) and next(numbers) == number


async def rolled(segment: Segment) -> None:
    """Until nothing goes on behind the publishes."""
    while segment._tasks:
        await asyncio.wait(segment._tasks)


async def test_ledgers_are_rolled_sealed_and_recorded_and_read_as_one(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    values = [str(number) for number in range(10)]
    positions = []
    for value in values:
        positions.append(await publish(segment, value))
        await rolled(segment)
    assert positions == sorted(positions)
    assert [position.ledger for position in positions] == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4]
    record = await record_of(world)
    assert [ledger.entries for ledger in record.ledgers] == [3, 3, 3, None]
    assert node.device.ledgers() == {1, 2, 3, 4}
    assert await committed(segment) == values
    assert node.device.sealed() == {1, 2, 3}
    assert await committed(await world.reopened()) == values


async def test_a_ledger_of_many_small_entries_is_full_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart looks at each entry of the last ledger, so its size alone would not bound that."""
    world.max_ledger_bytes = 1 << 40
    monkeypatch.setattr("participants.segment.segment.MAX_LEDGER_ENTRIES", PER_LEDGER)
    segment = await world.segment()
    for number in range(2 * PER_LEDGER + 1):
        await publish(segment, str(number))
        await rolled(segment)
    assert [ledger.entries for ledger in (await record_of(world)).ledgers] == [PER_LEDGER, PER_LEDGER, None]


async def test_concurrent_publishes_keep_the_order_in_which_they_came(world: World) -> None:
    """Many appends wait for each change-over; those that come in the moment in which it ends must not overtake."""
    segment = await world.segment()
    sent = [sending(segment, str(number), producer="p", sequence=number) for number in range(100)]
    for number in range(100, 200):
        await asyncio.sleep(0)
        sent.append(sending(segment, str(number), producer="p", sequence=number))
    await asyncio.gather(*sent)
    await rolled(segment)
    assert await committed(segment) == [str(number) for number in range(200)]
    assert len((await record_of(world)).ledgers) > 1


async def test_the_late_answer_to_a_trim_takes_back_nothing_that_a_roll_has_recorded(world: World) -> None:
    """Found by the simulation: the snapshot that the store's record names was deleted as an old one. DESIGN §5.13."""
    node = await world.first_node()
    segment = await node.open()
    dropped = [await publish(segment, value) for value in "abc"]
    await rolled(segment)
    answer = world.store.fault(Fault(RECORD, hold_after=True))
    trimming = asyncio.create_task(trim(segment, world.store, node.storage, dropped[-1].next))
    await answer.reached.wait()
    cleaning = world.store.fault(Fault(nth_of(RECORD, 4), hold_before=True))  # behind plan, list and seal
    for sequence in range(PER_LEDGER):
        await publish(segment, str(sequence), producer="p", sequence=sequence)
    await cleaning.reached.wait()
    answer.go.set()
    await trimming
    cleaning.go.set()
    await rolled(segment)
    recorded = await record_of(world)
    assert segment.record == recorded.model_copy(update={"trimmed": segment.record.trimmed})
    segment = await world.reopened()
    await publish(segment, "again", producer="p", sequence=0)
    assert await committed(segment) == ["0", "1", "2"]


async def test_5_2_an_answer_that_is_overtaken_takes_nothing_back(world: World) -> None:
    """Not even until the record is read again, as it is after a trim."""
    node = await world.first_node()
    segment = await node.open()
    earlier, version = segment.record, segment.recorded_at
    for number in range(PER_LEDGER):
        await publish(segment, str(number))
    await rolled(segment)
    latest = segment.record
    assert latest != earlier
    segment.recorded(earlier, version)
    assert segment.record == latest == (await record_of(world))


async def test_a_time_is_found_where_a_trimmed_ledger_is_not_dropped_yet(world: World) -> None:
    """Found by the simulation: the search began in the trimmed ledger, again and again."""
    node = await world.first_node()
    segment = await node.open()
    held = world.store.fault(Fault(nth_of(RECORD, 3), hold_before=True))
    positions = [await publish(segment, str(number)) for number in range(PER_LEDGER)]
    await held.reached.wait()
    positions += [await publish(segment, "more"), await publish(segment, "and more")]
    await trim(segment, world.store, node.storage, positions[4])
    assert segment.ledgers.ledgers[0].id < segment.ledgers.start.ledger, "it is still listed"
    assert await segment.reader._find_position_at(0) == positions[4], "at once: a refusal is tried again forever"
    assert await segment.reader.position_at(0) == positions[4]
    held.go.set()


@pytest.mark.parametrize("trimmed", [None, 4, 5])
async def test_entries_are_counted_backwards_over_ledgers(world: World, trimmed: int | None) -> None:
    node = await world.first_node()
    segment = await node.open()
    positions = [await publish(segment, str(number)) for number in range(3 * PER_LEDGER + 1)]
    await rolled(segment)
    if trimmed is not None:
        await trim(segment, world.store, node.storage, positions[trimmed])
        positions = positions[trimmed:]
    reader, end = segment.reader, segment.ledgers.last_durable.next
    for below, position in [*enumerate(positions), (len(positions), end)]:
        for count_back in range(1, len(positions) + 2):
            expected = positions[max(below - count_back, 0)]
            assert await reader.position_before(position, count_back) == expected, (position, count_back)
    beyond = Position(end.ledger + 1, 0)
    assert await reader.position_before(beyond, 1) == await reader.position_before(end, 1) == positions[-1]
    newest = segment.ledgers.ledgers[-1].first
    assert await reader.position_before(newest.before, 1) == await reader.position_before(newest, 1)
    assert await reader.position_before(Position(0, 5), 3) == segment.ledgers.start.next, "there is nothing before it"


@pytest.mark.parametrize("trimmed", [None, 10, 29])
async def test_a_time_is_found_with_a_few_reads_whatever_the_number_of_ledgers(
    world: World, monkeypatch: pytest.MonkeyPatch, trimmed: int | None
) -> None:
    node = await world.first_node()
    segment = await node.open()
    positions = []
    for number in range(16 * PER_LEDGER):
        positions.append(await publish(segment, str(number)))
        await rolled(segment)
    if trimmed is not None:
        await trim(segment, world.store, node.storage, positions[trimmed])
        positions = positions[trimmed + 1 :]
    frames = [await segment.reader.frame_at(position) for position in positions]
    assert len(segment.ledgers.ledgers) > 5
    reads, read = count(), SegmentReader.frame_at

    async def counted(reader: SegmentReader, position: Position) -> RawFrame:
        next(reads)
        return await read(reader, position)

    monkeypatch.setattr(SegmentReader, "frame_at", counted)
    for at_ms in (at_ms for frame in frames for at_ms in (frame.publish_ms, frame.publish_ms + 1)):
        before = next(reads)
        later = (frame.position for frame in frames if frame.publish_ms >= at_ms)
        assert await segment.reader.position_at(at_ms) == next(later, segment.ledgers.last_durable.next)
        assert next(reads) - before - 1 <= 7


@pytest.mark.parametrize("commit", [True, False])
async def test_a_transaction_over_several_ledgers(world: World, commit: bool) -> None:
    segment = await world.segment()
    txn = await world.begin()
    for number in range(8):
        await publish(segment, f"t{number}", txn)
        await publish(segment, f"p{number}")
    await rolled(segment)
    assert await committed(segment) == []
    segment = await world.reopened()
    assert await committed(segment) == [], "the horizon stays below a frame that is ledgers ago"
    await publish(segment, "t8", txn)
    await (world.commit(txn) if commit else world.abort(txn))
    await materialized(segment, txn)
    seen = await committed(segment)
    expected = [f"{kind}{number}" for number in range(8) for kind in "tp"] + ["t8"]
    assert seen == [value for value in expected if commit or value.startswith("p")]
    assert await committed(await world.reopened()) == seen


async def test_while_the_store_is_away_plain_publishes_go_on_in_the_full_ledger(world: World) -> None:
    segment = await world.segment()
    world.store.away = StoreUnavailable("away")
    for number in range(10):
        await publish(segment, str(number))
    assert {ledger.id for ledger in segment.ledgers.ledgers} == {1}
    world.store.away = None
    while len((await record_of(world)).ledgers) < 2:
        await publish(segment, "more")
    await rolled(segment)
    assert (await committed(segment))[:10] == [str(number) for number in range(10)]


@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("step", range(3))
async def test_a_store_that_does_not_answer_rolls_once(world: World, step: int, landed: bool) -> None:
    """The plan, the list, the seal: each answer is lost once."""
    node = await world.first_node()
    segment = await node.open()
    matches, lost = nth_of(RECORD, step + 1), OutcomeUnknown("no answer")
    world.store.fault(Fault(matches, after=lost) if landed else Fault(matches, before=lost))
    for number in range(4):
        await publish(segment, str(number))
        await rolled(segment)
    record = await record_of(world)
    assert [ledger.entries for ledger in record.ledgers] == [3, None]
    assert record.planned is None
    assert await committed(segment) == ["0", "1", "2", "3"]
    again = await world.crash()
    segment = await again.open()
    assert await committed(segment) == ["0", "1", "2", "3"]
    assert again.device.ledgers() == {ledger.id for ledger in (await record_of(world)).ledgers}


@on_local_files
@pytest.mark.parametrize("error", [no_space(), broken()], ids=["full", "broken"])
async def test_a_ledger_that_cannot_be_created_leaves_the_full_one_open(world: World, error: OSError) -> None:
    node = await world.first_node()
    segment = await node.open()
    node.disk.open_error = error
    for number in range(5):
        await publish(segment, str(number))
    assert {ledger.id for ledger in segment.ledgers.ledgers} == {1}
    node.disk.open_error = None
    await rolled(segment)
    await publish(segment, "5")
    assert segment.ledgers.open is not None and segment.ledgers.open.id > 1
    assert await committed(segment) == [str(number) for number in range(6)]
    assert (await record_of(world)).planned is None
    assert node.device.ledgers() == {ledger.id for ledger in (await record_of(world)).ledgers}


@on_objects
async def test_a_former_owner_deletes_no_ledger_that_the_next_one_has_planned(world: World) -> None:
    """It begins to roll, and meets the ledger that is about to be listed by an opening elsewhere."""
    node = await world.first_node()
    former = await node.open()
    looks = world.store.hold_read(lambda keys: paths.segment(SEGMENT) in keys, unread=True)
    for number in range(PER_LEDGER):
        await publish(former, str(number))
    await looks.reached.wait()
    listing = world.store.fault(Fault(puts_open_ledger(2), hold_before=True))
    opening = asyncio.create_task((await world.node(node.device)).open())
    await listing.reached.wait()
    assert (await record_of(world)).planned == 2
    looks.go.set()
    await until(former, lambda: former.lost)
    await rolled(former)
    listing.go.set()
    await publish(await opening, "of the next owner")
    again = await (await world.node(node.device)).open()
    assert await committed(again) == ["0", "1", "2", "of the next owner"]


async def test_an_append_that_fails_while_appends_change_over_is_no_end(world: World) -> None:
    """The new ledger is listed, the last append of the full one fails: the segment is lost, nothing acknowledged is."""
    node = await world.first_node()
    segment = await node.open()
    held = world.store.fault(Fault(RECORD, hold_before=True))
    for number in range(3):
        await publish(segment, str(number))
    await held.reached.wait()
    node.device.fail()
    node.device.hold()
    failing = sending(segment, "unknown")
    waiting = sending(segment, "waits")
    held.go.set()
    await asyncio.sleep(0)
    node.device.go()
    for each in (failing, waiting):
        with pytest.raises(errors.MetatxnError):
            await each
    assert segment.lost
    node.device.heal()
    segment = await world.reopened()
    assert (await committed(segment))[:3] == ["0", "1", "2"]


async def test_appends_do_not_change_over_if_one_fails_for_which_they_have_waited(world: World) -> None:
    """The new ledger is listed, and nothing is ever in it: what the full one has is known only once that is sealed."""
    node = await world.first_node()
    segment = await node.open()
    listed = world.store.fault(Fault(puts_open_ledger(2), hold_after=True))
    for number in range(PER_LEDGER):
        await publish(segment, str(number))
    await listed.reached.wait()
    node.device.hold()
    failing = sending(segment, "unknown")
    await node.device.held()
    listed.go.set()
    while not segment.publisher.appending.locked():
        await asyncio.sleep(0)
    node.device.fail()
    node.device.go()
    with pytest.raises(errors.MetatxnError) as error:
        await failing
    assert error.value.code == ErrorCode.OUTCOME_UNKNOWN
    await rolled(segment)
    assert segment.lost and segment.ledgers.open is not None and segment.ledgers.open.id == 1
    node.device.heal()
    assert (await committed(await world.reopened()))[:PER_LEDGER] == ["0", "1", "2"]


async def test_sequences_are_remembered_across_ledgers_and_a_restart_reads_only_the_last(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = await world.segment()
    for number in range(11):
        await publish(segment, str(number), producer="p", sequence=number)
        await rolled(segment)
    record = await record_of(world)
    assert record.dedup is not None and record.dedup.through == record.ledgers[-2].id
    chunks = await world.store.scan(paths.dedup_snapshots(SEGMENT))
    assert len(chunks.records) == record.dedup.chunks, "older snapshots are deleted"
    node = await world.crash()
    reads: set[int] = set()
    original = LedgerChain.read

    async def noted(chain: LedgerChain, *where: Any) -> list[RawFrame]:
        found = await original(chain, *where)
        reads.update(frame.position.ledger for frame in found)
        return found

    monkeypatch.setattr(LedgerChain, "read", noted)
    segment = await node.open()
    assert reads == {record.ledgers[-1].id}
    for number in range(11):
        _, duplicate = await segment.publish(entry("?", producer="p", sequence=number))
        assert duplicate


async def test_a_snapshot_is_through_a_ledger_when_it_holds_what_that_tells(world: World) -> None:
    """Restart by restart: the second one does not read again what the first one has read."""
    segment = await world.segment()
    for number in range(4):
        await publish(segment, str(number), producer="p", sequence=number)
        await rolled(segment)
    for number in range(4, 7):
        segment = await world.reopened()
        await publish(segment, str(number), producer="p", sequence=number)
    for _ in range(2):
        segment = await world.reopened()
    for number in range(7):
        assert (await segment.publish(entry("?", producer="p", sequence=number)))[1]


async def test_a_segment_that_has_lost_a_part_of_its_snapshot_is_not_served(world: World) -> None:
    """It would append again what was acknowledged."""
    segment = await world.segment()
    for number in range(4):
        await publish(segment, str(number), producer="p", sequence=number)
        await rolled(segment)
    node = await world.crash()
    chunks = await world.store.scan(paths.dedup_snapshots(SEGMENT))
    assert chunks.records
    await world.store.apply(world.store.batch().remove(chunks.records[0]))
    with pytest.raises(SnapshotMissing, match="cannot recognize retries"):
        await node.open()


async def test_a_child_whose_parent_the_store_has_lost_is_not_served(world: World) -> None:
    """It would append again what its parent has acknowledged."""
    node = await world.node()
    parent = SEGMENT.replace("-0", "-7")
    record = SegmentRecord(
        topic="public/default/t", range=(0, 0xFFFF), storage=node.storage.storage_id, parents=(parent,)
    )
    await world.store.apply(world.store.batch().create(paths.segment(SEGMENT), record.encode()))
    with pytest.raises(SnapshotMissing, match=f"the parent {parent} does not exist"):
        await node.open()


async def test_a_snapshot_is_written_once_and_by_its_owner(world: World) -> None:
    """Writing it again is no change. Other sequences under its name, or those of a deposed owner, are refused."""
    segment = await world.segment()
    check, snapshots = segment.ownership.check, []
    for number in range(2):
        await publish(segment, str(number), producer="p", sequence=number)
        snapshots.append(chunks_of(segment.dedup))
    for _ in range(2):
        written = await write_snapshot(world.store, SEGMENT, check, "x", snapshots[0], 1)
        assert (written.name, written.chunks, written.through) == ("x", 1, 1)
    with pytest.raises(CheckFailed):
        await write_snapshot(world.store, SEGMENT, check, "x", snapshots[1], 1)
    owner = await world.store.get(check.key)
    assert owner is not None
    await world.store.apply(world.store.batch().replace(owner, owner.value))
    with pytest.raises(CheckFailed) as deposed:
        await write_snapshot(world.store, SEGMENT, check, "y", snapshots[1], 1)
    assert deposed.value.check == check
    stored = await world.store.scan(paths.dedup_snapshots(SEGMENT))
    assert [record.value for record in stored.records] == [snapshots[0][0].encode()]


async def test_what_is_acknowledged_while_appends_change_over_is_in_the_snapshot(world: World) -> None:
    """The appends that a full ledger takes last have only just become durable when its snapshot is taken."""
    segment = await world.segment()
    sent = [sending(segment, "0", producer="p", sequence=0)]
    while len(segment.ledgers.ledgers) < 3:
        sent.append(sending(segment, str(len(sent)), producer="p", sequence=len(sent)))
        await (asyncio.sleep(0) if len(sent) < 100 else sent[-100])  # so that no sequence is forgotten for its age
    positions = await asyncio.gather(*sent)
    await rolled(segment)
    segment = await world.reopened()
    for number, position in enumerate(positions):
        assert await segment.publish(entry(str(number), producer="p", sequence=number)) == (position, True)


async def test_a_segment_of_many_ledgers_makes_larger_ones(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the list of them would outgrow what a store takes in one record."""
    monkeypatch.setattr("participants.segment.segment.MANY_LEDGERS", 2)
    segment = await world.segment()
    for _ in range(18):
        await publish(segment, "x")
        await rolled(segment)
    entries = [ledger.entries for ledger in (await record_of(world)).ledgers]
    assert entries == [3, 5, 5, None]
    assert await committed(segment) == ["x"] * 18


async def test_sealed_ledgers_are_trimmed_while_the_segment_lives(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    positions = []
    for number in range(10):
        positions.append(await publish(segment, str(number)))
        await rolled(segment)
    await trim(segment, world.store, node.storage, positions[7])
    await rolled(segment)
    assert node.device.ledgers() == {3, 4}
    assert await committed(segment) == ["7", "8", "9"]
    assert await committed(await world.reopened()) == ["7", "8", "9"]


@pytest.mark.parametrize("dies", [False, True])
async def test_a_full_ledger_is_trimmed_before_its_seal_is_recorded_and_its_sequences_stay(
    world: World, dies: bool
) -> None:
    """Only its frames tell its sequences until the snapshot is recorded. So it is in the list until then."""
    node = await world.first_node()
    segment = await node.open()
    held = world.store.fault(Fault(nth_of(RECORD, 3), hold_before=True))
    positions = [await publish(segment, str(number), producer="p", sequence=number) for number in range(3)]
    await held.reached.wait()
    positions.append(await publish(segment, "3", producer="p", sequence=3))
    await trim(segment, world.store, node.storage, positions[3])
    if dies:
        node = await world.crash()
        segment = await node.open()
    else:
        held.go.set()
        await rolled(segment)
        assert [ledger.id for ledger in (await record_of(world)).ledgers] == [2]
        assert node.device.ledgers() == {2}
        segment = await world.reopened()
    for number, position in enumerate(positions):
        assert await segment.publish(entry("?", producer="p", sequence=number)) == (position, True)
    assert await committed(segment) == ["3"]


async def test_a_ledger_that_was_trimmed_whole_while_its_owner_died_goes_with_the_next_opening(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    held = world.store.fault(Fault(nth_of(RECORD, 3), hold_before=True))
    for number in range(3):
        await publish(segment, str(number))
    await held.reached.wait()
    await trim(segment, world.store, node.storage, await publish(segment, "more"))
    node = await world.crash()
    assert await committed(await node.open()) == ["more"]
    assert node.device.ledgers() == {ledger.id for ledger in (await record_of(world)).ledgers} == {2, 3}


async def test_a_full_ledger_that_is_trimmed_before_its_seal_is_answered_is_not_recorded_again(world: World) -> None:
    """The answer is lost: the seal is repeated, and finds that all is done."""
    node = await world.first_node()
    segment = await node.open()
    answer = world.store.fault(Fault(nth_of(RECORD, 3), hold_after=True, after=OutcomeUnknown("no answer")))
    positions = [await publish(segment, str(number), producer="p", sequence=number) for number in range(PER_LEDGER)]
    await answer.reached.wait()
    positions.append(await publish(segment, "3", producer="p", sequence=3))
    await trim(segment, world.store, node.storage, positions[-1])
    while (await record_of(world)).trimmed:
        await asyncio.sleep(0.001)
    before = list(filter(RECORD, world.store.applied))
    answer.go.set()
    await rolled(segment)
    assert list(filter(RECORD, world.store.applied)) == before
    assert segment.record == await record_of(world)
    assert [ledger.id for ledger in segment.record.ledgers] == [2] and node.device.ledgers() == {2}
    segment = await world.reopened()
    for number, position in enumerate(positions):
        assert await segment.publish(entry("?", producer="p", sequence=number)) == (position, True)


@pytest.mark.parametrize("planned", [True, False])
async def test_a_segment_that_is_sealed_while_it_begins_to_roll_ends_with_the_full_ledger(
    world: World, planned: bool
) -> None:
    """The new ledger is planned by then, or the plan has failed and would be tried again."""

    async def succession(_: Batch, record: SegmentRecord) -> SegmentRecord:
        return record

    async def installation(_: SegmentRecord) -> None:
        return None

    node = await world.first_node()
    segment = await node.open()
    lost = None if planned else StoreUnavailable("gone")
    plan = world.store.fault(Fault(RECORD, before=lost, hold_before=not planned, hold_after=planned))
    for number in range(PER_LEDGER):
        await publish(segment, str(number))
    await plan.reached.wait()
    await seal(segment, world.store, succession, installation)
    plan.go.set()
    await rolled(segment)
    record = await record_of(world)
    assert (record.state, [ledger.id for ledger in record.ledgers]) == ("sealed", [1])
    assert record.planned == (2 if planned else None)
    assert node.device.ledgers() == ({1, 2} if planned else {1})
    node = await world.crash()
    assert await committed(await node.open()) == ["0", "1", "2"]
    assert (await record_of(world)).planned is None and node.device.ledgers() == {1}


async def test_an_owner_that_dies_between_two_ledgers_leaves_the_sequences_of_both(world: World) -> None:
    """Neither is sealed, and no snapshot tells of the first one."""
    segment = await world.segment()
    held = world.store.fault(Fault(nth_of(RECORD, 3), hold_before=True))
    for number in range(3):
        await publish(segment, str(number), producer="p", sequence=number)
    await held.reached.wait()
    await publish(segment, "3", producer="p", sequence=3)
    assert [ledger.entries for ledger in (await record_of(world)).ledgers] == [None, None]
    segment = await world.reopened()
    for number in range(4):
        assert (await segment.publish(entry("?", producer="p", sequence=number)))[1]


async def test_a_deposed_owner_rolls_nothing(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    owner = await world.store.get(segment.ownership.check.key)
    assert owner is not None
    await world.store.apply(world.store.batch().replace(owner, owner.value))
    before = await record_of(world)
    for number in range(3):
        with suppress(errors.MetatxnError):
            await publish(segment, str(number))
    await rolled(segment)
    assert segment.lost
    assert await record_of(world) == before


async def test_a_deposed_owner_rolls_nothing_although_its_successor_has_no_ledger_yet(world: World) -> None:
    node = await world.first_node()
    segment = await node.open()
    held = world.store.fault(Fault(puts_open_ledger(2), hold_before=True, before=StoreUnavailable("gone")))
    for number in range(PER_LEDGER):
        await publish(segment, str(number))
    await held.reached.wait()
    owner, stored = await world.store.get(segment.ownership.check.key), await world.store.get(paths.segment(SEGMENT))
    assert owner is not None and stored is not None
    taken = SegmentRecord.decode(stored.value).model_copy(update={"ledgers": ()})
    await world.store.apply(world.store.batch().replace(owner, owner.value).replace(stored, taken.encode()))
    held.go.set()
    await rolled(segment)
    assert segment.lost
    assert await record_of(world) == taken


async def test_an_open_transaction_is_released_in_the_ledger_it_wrote_to_last(world: World) -> None:
    segment = await world.segment()
    txn = await world.begin()
    await publish(segment, "a", txn)
    for number in range(6):
        await publish(segment, str(number))
    await rolled(segment)
    last = await publish(segment, "b", txn)
    await world.abort(txn)
    await released(segment, txn)
    assert await committed(segment) == [str(number) for number in range(6)]
    assert await uncommitted(segment) == ["a", *map(str, range(6)), "b"]
    buffer = segment.buffer
    assert isinstance(buffer, MemoryTransactionBuffer)
    outcome = await world.outcome(txn) or buffer._outcomes[txn]
    assert outcome.highest == str(last)
