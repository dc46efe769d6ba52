"""Goal: in a topic with the format `kafka` every message has an offset, dense in the order of the entries, whatever
fails, dies, is rolled, hidden or rewritten.

Method: a segment with offsets, over a store and a device with faults; the payload is a batch of which only the first
eight bytes matter here. DESIGN §5.20.
"""

from __future__ import annotations

import asyncio
import struct
from itertools import pairwise

import pytest

from metastore.errors import OutcomeUnknown
from metastore.txn import paths
from metastore.txn.records.segments import SegmentRecord
from metatxn.wire import errors
from metatxn.wire.frames import MIN_FRAME_BYTES, Entry, PayloadKind
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.ledger.offsets import OpenOffsets, first_offset, offset_after, stamped
from participants.segment import rewriting
from participants.segment.rolling import roll
from participants.segment.segment import Segment
from participants.segment.trimming import trim
from tests.participants.devices import on_local_files
from tests.participants.ledger.faults import no_space
from tests.participants.segment.faulty_store import Fault, puts
from tests.participants.segment.test_hidden import tended
from tests.participants.segment.world import ALL_BYTES, SEGMENT, Node, World, entry, materialized

RECORD = puts(paths.segment(SEGMENT))
SIZE = 16


async def first_node(world: World) -> Node:
    node = await world.node()
    record = SegmentRecord(topic="public/default/t", range=(0, 0xFFFF), storage=node.storage.storage_id, next_offset=0)
    await world.store.apply(world.store.batch().create(paths.segment(SEGMENT), record.encode()))
    return node


def batch(count: int, txn_id: TxnId | None = None) -> Entry:
    return Entry(bytes(SIZE), PayloadKind.KAFKA, count, txn_id)


async def publish(segment: Segment, count: int, txn_id: TxnId | None = None) -> Position:
    return (await segment.publish(batch(count, txn_id)))[0]


async def spans(segment: Segment) -> list[tuple[int, int]]:
    """The offsets of every entry: its first one, and the one behind it."""
    seen, at = [], segment.ledgers.start
    while True:
        page = await segment.reader.read_uncommitted(at, ALL_BYTES)
        seen += [(first_offset(frame), offset_after(frame)) for frame in page.frames]
        if page.end:
            return seen
        at = page.next


async def quiet(segment: Segment) -> None:
    while segment._tasks:
        await asyncio.wait(segment._tasks)


async def record_of(world: World) -> SegmentRecord:
    stored = await world.store.inner.get(paths.segment(SEGMENT))
    assert stored is not None
    return SegmentRecord.decode(stored.value)


def test_an_entry_takes_the_offsets_behind_the_one_before() -> None:
    offsets = OpenOffsets(1, 7)
    assert [offsets.take(entry, count) for entry, count in enumerate((3, 1, 5))] == [7, 10, 11]
    assert [offsets.after(entry) for entry in (-1, 0, 1, 2)] == [7, 10, 11, 16]
    assert [offsets.entry_with(offset) for offset in (7, 9, 10, 15, 16)] == [0, 0, 1, 2, 3]
    assert offsets.take(1, 2) == 10, "its append had failed, and so had the next one's"
    assert offsets.after(1) == 12


def test_a_payload_that_can_be_written_is_stamped_in_place() -> None:
    buffer = bytearray(SIZE)
    stamped(memoryview(buffer), 258)
    assert buffer == struct.pack(">q", 258) + bytes(SIZE - 8)
    fixed = bytes(SIZE)
    assert stamped(fixed, 1) == struct.pack(">q", 1) + bytes(SIZE - 8) and fixed == bytes(SIZE)


async def test_offsets_are_dense_and_go_on_behind_a_crash(world: World) -> None:
    segment = await (await first_node(world)).open()
    await asyncio.gather(*(publish(segment, count) for count in (3, 1, 5)))
    assert await spans(segment) == [(0, 3), (3, 4), (4, 9)]
    assert (await segment.offsets.start(), segment.offsets.end) == (0, 9)
    segment = await world.reopened()
    assert (await segment.offsets.start(), segment.offsets.end) == (0, 9)
    await publish(segment, 2)
    assert await spans(segment) == [(0, 3), (3, 4), (4, 9), (9, 11)]
    record = await record_of(world)
    assert [ledger.first_offset for ledger in record.ledgers] == [0, None] and record.next_offset == 9


async def test_ledgers_without_an_entry_lose_no_offset(world: World) -> None:
    """Every death in between leaves an empty ledger, or a length without a ledger behind it."""
    segment = await (await first_node(world)).open()
    await publish(segment, 4)
    for _ in range(3):
        segment = await world.reopened()
        assert segment.offsets.end == 4
    node = await world.crash()
    world.store.fault(Fault(RECORD, after=OutcomeUnknown("lost")))
    with pytest.raises(OutcomeUnknown):  # planned, with the lengths of all others, and never created
        await node.open()
    segment = await world.reopened()
    await publish(segment, 1)
    assert await spans(segment) == [(0, 4), (4, 5)]


@on_local_files
async def test_a_full_disk_gives_the_offsets_back(world: World) -> None:
    node = await first_node(world)
    segment = await node.open()
    await publish(segment, 2)
    node.disk.write_error = no_space()
    failed = await asyncio.gather(*(publish(segment, count) for count in (5, 7)), return_exceptions=True)
    assert all(isinstance(error, errors.StorageFull) for error in failed)
    node.disk.write_error = None
    assert segment.offsets.end == 2
    await publish(segment, 1)
    assert await spans(segment) == [(0, 2), (2, 3)]


async def test_a_rolled_ledger_is_followed_by_the_next_offset(world: World) -> None:
    world.max_ledger_bytes = MIN_FRAME_BYTES + SIZE + 1
    segment = await (await first_node(world)).open()
    for count in (2, 3, 4, 1, 6):
        await publish(segment, count)
        await quiet(segment)
    found = await spans(segment)
    assert all(one[1] == other[0] for one, other in pairwise(found)) and found[-1][1] == 16
    record = await record_of(world)
    assert [ledger.first_offset for ledger in record.ledgers] == [0, 5, None] and record.next_offset == 10
    for offset in range(16):
        place = await segment.offsets.place_of(offset)
        assert await segment.offsets.after(place) <= offset < await segment.offsets.after(place) + 6
        page = await segment.reader.read_uncommitted(place, 1)
        assert first_offset(page.frames[0]) <= offset < offset_after(page.frames[0])
    await trim(segment, world.store, segment.hidden._storage, Position(2, 1))
    await quiet(segment)
    assert await segment.offsets.start() == 9
    assert await segment.offsets.after(await segment.offsets.place_of(0)) == 9
    segment = await world.reopened()
    assert (await segment.offsets.start(), segment.offsets.end) == (9, 16)


async def test_a_roll_whose_answer_is_lost_records_the_offsets_once(world: World) -> None:
    world.max_ledger_bytes = MIN_FRAME_BYTES + SIZE + 1
    segment = await (await first_node(world)).open()
    await publish(segment, 2)
    sealed = Fault(lambda batch: RECORD(batch) and b'"next_offset":5' in b"".join(batch.puts.values()))
    sealed.after = OutcomeUnknown("lost")
    world.store.fault(sealed)
    await publish(segment, 3)
    await quiet(segment)
    record = await record_of(world)
    assert [ledger.first_offset for ledger in record.ledgers] == [0, None] and record.next_offset == 5


async def test_hidden_records_keep_their_offsets(world: World) -> None:
    segment = await (await first_node(world)).open()
    lost, kept = await world.begin(), await world.begin()
    await publish(segment, 2)
    await publish(segment, 3, lost)
    assert (await segment.offsets.stable_end(), segment.offsets.end) == (2, 5)
    await publish(segment, 1, kept)
    await world.abort(lost)
    await world.commit(kept)
    await materialized(segment, lost, kept)
    page = await segment.reader.read_committed(segment.ledgers.start, ALL_BYTES)
    assert [first_offset(frame) for frame in page.frames] == [0, 5]
    assert await segment.offsets.stable_end() == segment.offsets.end == 6


async def test_what_is_left_out_does_not_move_the_first_offset(world: World) -> None:
    """Only a trim does: a consumer that asks for an offset in between gets the next record that is there."""
    node = await first_node(world)
    segment = await node.open()
    lost = await world.begin()
    for _ in range(4):
        await publish(segment, 3, lost)
    kept = await publish(segment, 1)
    for _ in range(4):
        await publish(segment, 3, lost)
    await world.abort(lost)
    await materialized(segment, lost)
    await roll(segment, world.store, node.storage)
    await publish(segment, 2)
    assert await segment.offsets.start() == 0
    await tended(segment)
    assert (await record_of(world)).ledgers[0].form is not None
    assert await spans(segment) == [(12, 13), (25, 27)]
    assert await segment.offsets.start() == 0
    starts = []
    for before in (1, kept.entry, kept.entry + 1, kept.entry + 3, kept.entry + 5):
        await trim(segment, world.store, node.storage, Position(kept.ledger, before))
        starts.append(await segment.offsets.start())
    assert starts == [0, 12, 13, 13, 25], "of what is left out nobody knows more than where it ends at the earliest"
    assert await segment.offsets.after(segment.ledgers.start) == 25
    segment = await world.reopened()
    assert await segment.offsets.start() == 25


@pytest.mark.parametrize("meanwhile", [False, True])
async def test_rewriting_does_not_move_the_first_offset_backwards(
    world: World, meanwhile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entries around the place up to which was trimmed are hidden; the trim may come before the new form, or before
    the record names it."""
    node = await first_node(world)
    segment = await node.open()
    lost = await world.begin()
    for _ in range(6):
        await publish(segment, 3, lost)
    kept = await publish(segment, 1)
    await world.abort(lost)
    await materialized(segment, lost)
    await roll(segment, world.store, node.storage)
    named = world.store.fault(Fault(lambda batch: any(b'"form":[' in each for each in batch.puts.values())))
    named.hold_before = meanwhile
    if meanwhile:
        segment.tend()
        await named.reached.wait()
    else:
        monkeypatch.setattr(rewriting, "HIDDEN_PARTS", 0)
        await tended(segment)
        monkeypatch.setattr(rewriting, "HIDDEN_PARTS", 2)
    await trim(segment, world.store, node.storage, Position(kept.ledger, 2))
    assert await segment.offsets.start() == 6
    named.go.set()
    for _ in range(2):
        await tended(segment)
    assert (await record_of(world)).ledgers[0].form is not None
    assert await segment.offsets.start() == 6 and await spans(segment) == [(18, 19)]
    segment = await world.reopened()
    assert await segment.offsets.start() == 6
    await trim(segment, world.store, world._nodes[-1].storage, kept)
    assert await segment.offsets.start() == 18
    await tended(segment)
    assert await segment.offsets.start() == 18


async def test_what_has_no_offset_is_refused_and_the_other_way_round(world: World) -> None:
    segment = await (await first_node(world)).open()
    with pytest.raises(errors.InvalidArgument, match="format kafka"):
        await segment.publish(entry("bytes"))
    assert segment.offsets.end == 0
    other = "segment://public/default/u/0000-ffff-0"
    record = SegmentRecord(topic="public/default/u", range=(0, 0xFFFF), storage=segment.record.storage)
    await world.store.apply(world.store.batch().create(paths.segment(other), record.encode()))
    plain = await world._nodes[-1].open(other)
    with pytest.raises(errors.InvalidArgument, match="no record batches"):
        await plain.publish(batch(1))
