"""Goal: a sealed ledger of which nothing is left leaves the segment, with its bytes, no matter who dies meanwhile; and
no reader notices: positions, the begin and the end of the segment are as before.

Method: a segment over a store with faults and a device with real ledgers, files and objects; as in `test_rewriting`.
DESIGN §5.18.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
import structlog

from metastore.errors import OutcomeUnknown
from metastore.types import Batch
from metatxn.wire.position import Position
from participants.ledger.chain import LedgerChain
from participants.ledger.storage import LedgerMissing, StorageFailed
from participants.segment import rewriting
from participants.segment.indexing import IndexingContext, index_hidden
from participants.segment.segment import Segment
from participants.segment.trimming import delete_trimmed, trim
from tests.participants.devices import ObjectsDevice, on_objects
from tests.participants.segment.faulty_store import Fault
from tests.participants.segment.test_hidden import aborted, record_of, rolled, tended
from tests.participants.segment.world import (
    ALL_BYTES,
    SEGMENT,
    Node,
    World,
    committed,
    payload_of,
    publish,
    released,
    snapshot,
    uncommitted,
)


def drops(batch: Batch) -> bool:
    return any(b'"trimmed":[{' in value for value in batch.puts.values())


async def listed(world: World) -> list[int]:
    return [ledger.id for ledger in (await record_of(world)).ledgers]


async def with_two_to_drop(world: World) -> tuple[Node, Segment]:
    """`a` is in ledger 1 and `b` in ledger 4, which is open. In 2 and 3 everything is aborted."""
    node = await world.first_node()
    segment = await node.open()
    await publish(segment, "a")
    await rolled(segment)
    for _ in range(2):
        await aborted(world, segment, "never", "never")
        await rolled(segment)
    await publish(segment, "b")
    return node, segment


async def with_two_indexed(world: World, monkeypatch: pytest.MonkeyPatch) -> tuple[Node, Segment]:
    """The same, with an index of what is hidden in them. They go with the next upkeep."""
    node, segment = await with_two_to_drop(world)
    with monkeypatch.context() as patch:
        patch.setattr(rewriting, "HIDDEN_PARTS", 0)
        await tended(segment)
    assert await listed(world) == [1, 2, 3, 4] and (await record_of(world)).ledgers[1].hidden == 1
    return node, segment


async def test_a_ledger_of_which_nothing_is_left_leaves_the_segment(world: World) -> None:
    node, segment = await with_two_to_drop(world)
    await tended(segment)
    record = await record_of(world)
    assert [each.id for each in record.ledgers] == [1, 4] and record.trimmed == () and record.first_position == "0:-1"
    assert node.device.ledgers() == {1, 4} == {each.id for each in segment.ledgers.ledgers}
    assert node.device.sealed() == {1}
    for number in range(2):
        assert await committed(segment) == ["a", "b"] == await snapshot(segment) == await uncommitted(segment)
        assert segment.ledgers.start == Position(1, -1) and segment.ledgers.is_left_out(Position(2, 1))
        assert segment.ledgers.entries_between(Position(2, 0), segment.buffer.last_durable) == 1
        segment = await world.reopened()
        assert await listed(world) == [1, 4, 5 + number]


@on_objects
async def test_of_its_objects_only_the_fence_stays(world: World) -> None:
    node, segment = await with_two_to_drop(world)
    await tended(segment)
    assert isinstance(node.device, ObjectsDevice)
    names = [name.split("/", 2)[2] for name in node.device._names() if name.startswith("ledgers/")]
    of_dropped = [name for name in names if int(name.split("/")[0]) in (2, 3)]
    assert of_dropped == [f"{ledger:020}/{3:020}" for ledger in (2, 3)], "the fences"


async def test_readers_pass_over_it_from_every_position(world: World) -> None:
    _, segment = await with_two_to_drop(world)
    places = [Position(1, -1), Position(1, 0), *(Position(ledger, n) for ledger in (2, 3) for n in (-1, 0, 1))]
    before = [await after(segment, each) for each in places]
    times = [frame.publish_ms for frame in (await segment.reader.read_uncommitted(places[0], ALL_BYTES)).frames]
    await tended(segment)
    assert await listed(world) == [1, 4]
    assert [await after(segment, each) for each in places] == before
    assert await segment.reader.last_visible() == Position(4, 0)
    assert await segment.reader.position_at(times[0] + 1) == Position(4, 0)
    assert await segment.reader.position_before(Position(3, 1), 5) == Position(1, 0)
    assert await segment.reader.position_before(Position(4, 1), 1) == Position(4, 0)


async def after(segment: Segment, position: Position) -> list[str]:
    found: list[str] = []
    while not (page := await segment.reader.read_committed(position, ALL_BYTES)).end:
        found += map(payload_of, page.frames)
        position = page.next
    return [*found, *map(payload_of, page.frames)]


async def test_the_first_ledger_stays_because_the_segment_begins_there(world: World) -> None:
    segment = await world.segment()
    for _ in range(3):
        await aborted(world, segment, "never")
        await rolled(segment)
    await publish(segment, "a")
    start = segment.ledgers.start
    await tended(segment)
    assert await listed(world) == [1, 4] and segment.ledgers.start == start == Position(1, -1)
    await trim(segment, world.store, world._nodes[-1].storage, Position(4, 0))
    assert await committed(await world.reopened()) == ["a"]


async def test_the_end_that_readers_are_told_never_moves_backwards(world: World) -> None:
    """It is the last entry of the last ledger with entries, also if nothing of these is left."""
    segment = await world.segment()
    await publish(segment, "a")
    await rolled(segment)
    for _ in range(2):
        await aborted(world, segment, "never", "never")
        await rolled(segment)
    for open_ledger in (4, 5):
        await tended(segment)
        assert segment.ledgers.ledgers[-1].id == open_ledger, "which is empty"
        assert segment.ledgers.shown(segment.buffer.last_durable) == Position(3, 1)
        if open_ledger == 4:
            assert await listed(world) == [1, 3, 4]
            segment = await world.reopened()
    assert await listed(world) == [1, 3, 5]
    await publish(segment, "b")
    await tended(segment)
    assert await listed(world) == [1, 5] and await committed(segment) == ["a", "b"]


async def test_what_an_open_transaction_holds_readers_back_at_is_not_the_new_end(world: World) -> None:
    """The end of what is readable is told as the entry before the first one of the transaction."""
    segment = await world.segment()
    await publish(segment, "a")
    await rolled(segment)
    await aborted(world, segment, "never")
    await rolled(segment)
    txn_id = await world.begin()
    await publish(segment, "inside", txn_id)
    await tended(segment)
    assert segment.ledgers.shown(segment.buffer.max_read_position) == Position(2, 0)
    assert await listed(world) == [1, 2, 3]
    await world.commit(txn_id)
    await released(segment, txn_id)
    await tended(segment)
    assert await listed(world) == [1, 3] and await committed(segment) == ["a", "inside"]


async def test_what_an_earlier_owner_emptied_is_dropped_by_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, segment = await with_two_to_drop(world)

    async def not_yet(*_: object) -> None: ...

    monkeypatch.setattr("participants.segment.recovery.drop_empty", not_yet)
    await tended(segment)
    assert await listed(world) == [1, 2, 3, 4]
    monkeypatch.undo()
    segment = await world.reopened()
    await tended(segment)
    assert await listed(world) == [1, 4, 5] and world._nodes[-1].device.ledgers() == {1, 4, 5}
    assert await committed(segment) == ["a", "b"]


@pytest.mark.parametrize("in_effect", [False, True], ids=["lost request", "lost reply"])
async def test_no_bytes_go_while_the_answer_is_unknown(
    world: World, in_effect: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, segment = await with_two_to_drop(world)
    lost = OutcomeUnknown("the connection was lost")
    fault = Fault(drops)
    fault.before, fault.after = (None, lost) if in_effect else (lost, None)
    fault.hold_before, fault.hold_after = not in_effect, in_effect
    world.store.fault(fault)
    segment.tend()
    await fault.reached.wait()
    assert await committed(segment) == ["a", "b"] and node.device.ledgers() == {1, 2, 3, 4}
    fault.go.set()
    await tended(segment)
    assert await listed(world) == [1, 4] and node.device.ledgers() == {1, 4}
    assert await committed(segment) == ["a", "b"] == await committed(await world.reopened())


async def test_other_upkeep_that_deletes_the_bytes_tells_readers_first(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to the drop is on its way, and a trim finds in the record what is to be deleted. A page that was read
    before needs the index, which goes too."""
    node, segment = await with_two_indexed(world, monkeypatch)
    read = segment.reader._from_storage
    fault = world.store.fault(Fault(drops, hold_after=True))
    forgotten = world.store.fault(Fault(lambda batch: fault.reached.is_set() and not drops(batch), hold_before=True))

    async def and_then_drop(after: Position, reading: Any) -> Any:
        found = await read(after, reading)
        monkeypatch.setattr(segment.reader, "_from_storage", read)
        segment.tend()
        await fault.reached.wait()
        segment.spawn(delete_trimmed(segment, world.store, node.storage))
        await forgotten.reached.wait()
        assert node.device.ledgers() == {1, 4}
        node.context.hidden.forget((SEGMENT, 2, 1))
        return found

    monkeypatch.setattr(segment.reader, "_from_storage", and_then_drop)
    page = await segment.reader.read_committed(Position(1, 0), ALL_BYTES)
    assert [payload_of(frame) for frame in page.frames] == ["b"]
    forgotten.go.set()
    fault.go.set()
    await tended(segment)
    assert await listed(world) == [1, 4] and await committed(segment) == ["a", "b"]


async def test_bytes_that_cannot_be_deleted_are_remembered(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record lists them until they are gone, also for the next owner."""
    node, segment = await with_two_to_drop(world)
    tried = asyncio.Event()

    async def fails(*_: object) -> None:
        tried.set()
        raise StorageFailed("no answer")

    monkeypatch.setattr(node.storage, "delete", fails)
    segment.tend()
    await tried.wait()
    record = await record_of(world)
    assert [each.id for each in record.ledgers] == [1, 4] and [each.id for each in record.trimmed] == [2, 3]
    assert await committed(segment) == ["a", "b"]
    monkeypatch.undo()
    segment = await world.reopened()
    assert (await record_of(world)).trimmed == () and world._nodes[-1].device.ledgers() == {1, 4, 5}
    assert await committed(segment) == ["a", "b"]


async def test_a_page_of_a_ledger_that_is_dropped_before_it_is_judged_is_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index that hides its aborted entries is gone with the ledger."""
    _, segment = await with_two_indexed(world, monkeypatch)
    read = segment.reader._from_storage
    kinds = (segment.reader.read_committed, partial(segment.reader.read_snapshot, revision=None))
    for kind in kinds:

        async def and_then_drop(after: Position, reading: Any) -> Any:
            found = await read(after, reading)
            monkeypatch.setattr(segment.reader, "_from_storage", read)
            await tended(segment)
            return found

        monkeypatch.setattr(segment.reader, "_from_storage", and_then_drop)
        page = await kind(Position(1, 0), ALL_BYTES)
        assert [payload_of(frame) for frame in page.frames] == ["b"]
    assert await listed(world) == [1, 4]


async def test_a_ledger_that_is_dropped_while_its_index_is_loaded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, segment = await with_two_indexed(world, monkeypatch)
    load = node.storage.read_hidden

    async def too_late(*args: Any) -> Any:
        monkeypatch.setattr(node.storage, "read_hidden", load)
        await tended(segment)
        return await load(*args)

    monkeypatch.setattr(node.storage, "read_hidden", too_late)
    page = await segment.reader.read_committed(Position(1, 0), ALL_BYTES)
    assert [payload_of(frame) for frame in page.frames] == ["b"] and await listed(world) == [1, 4]


async def test_a_search_for_the_last_visible_entry_that_a_drop_overtakes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, segment = await with_two_to_drop(world)
    read = LedgerChain.read

    async def and_then_drop(self: LedgerChain, *args: Any) -> Any:
        found = await read(self, *args)
        if found and found[0].position.ledger == 3:
            monkeypatch.setattr(LedgerChain, "read", read)
            await tended(segment)
        return found

    await aborted(world, segment, "never")
    await rolled(segment)
    segment = await world.reopened()
    await aborted(world, segment, "never")
    monkeypatch.setattr(LedgerChain, "read", and_then_drop)
    assert node and await segment.reader.last_visible() == Position(4, 0)


async def test_a_ledger_that_is_dropped_while_it_is_indexed_is_not_damaged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction empties ledgers without an index. The drop comes between a look at the ledger and the read of it."""
    node, segment = await with_two_to_drop(world)
    real = LedgerChain.read

    async def dropped_meanwhile(self: LedgerChain, after: Position, *args: Any) -> Any:
        if after.ledger == 2 and LedgerChain.read is not real:
            monkeypatch.setattr(LedgerChain, "read", real)
            record = await record_of(world)
            gone = record.model_copy(update={"ledgers": (record.ledgers[0], *record.ledgers[2:])})
            segment.recorded(gone, segment.recorded_at)
            raise LedgerMissing("its file is deleted")
        return await real(self, after, *args)

    monkeypatch.setattr(LedgerChain, "read", dropped_meanwhile)
    with structlog.testing.capture_logs() as said:
        await index_hidden(segment, IndexingContext(world.store, node.storage, asyncio.Semaphore()))
    assert LedgerChain.read is real, "it was read"
    assert not [each for each in said if each["log_level"] == "error"]


@on_objects
async def test_a_deposed_owner_drops_nothing(world: World) -> None:
    node, segment = await with_two_to_drop(world)
    others = await world.node(node.device.again())
    fault = world.store.fault(Fault(drops, hold_before=True))
    segment.tend()
    await fault.reached.wait()
    successor = await others.open()
    await tended(successor)
    assert await listed(world) == [1, 4, 5]
    fault.go.set()
    await tended(segment)
    assert segment.lost and await listed(world) == [1, 4, 5] and await committed(segment) == ["a", "b"]
    assert node.device.ledgers() == {1, 4, 5} and await committed(successor) == ["a", "b"]
