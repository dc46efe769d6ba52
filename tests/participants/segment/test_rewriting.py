"""Goal: a ledger that is mostly hidden is replaced by one without what is hidden; every reader finds what it found
before, at the same positions, at every moment, and no matter who owns the segment next.

Method: a segment over a store with faults and a device with real ledgers; as in `test_hidden`. DESIGN §5.18.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import structlog

from metastore.errors import OutcomeUnknown
from metatxn.wire.errors import ErrorCode
from metatxn.wire.position import Position
from participants.ledger.form import Form
from participants.ledger.storage import LedgerMissing, StorageFailed, StorageFull
from participants.segment.segment import Segment
from participants.segment.trimming import trim
from tests.participants.devices import on_objects
from tests.participants.segment.faulty_store import Fault, puts
from tests.participants.segment.test_hidden import aborted, code_of_read, outcomes, record_of, rolled, tended
from tests.participants.segment.world import (
    ALL_BYTES,
    Node,
    World,
    committed,
    payload_of,
    publish,
    snapshot,
    uncommitted,
)


async def mostly_hidden(world: World) -> tuple[Node, Segment]:
    """Ledger 1 is full: `a` and `b` are visible, five others are aborted; in ledger 2, which is open, there is `c`."""
    node = await world.first_node()
    segment = await node.open()
    await publish(segment, "a")
    await aborted(world, segment, *["never"] * 4)
    await publish(segment, "b")
    await aborted(world, segment, "never")
    await rolled(segment)
    await publish(segment, "c")
    return node, segment


async def forms(world: World) -> list[tuple[int, int] | None]:
    return [ledger.form for ledger in (await record_of(world)).ledgers]


async def test_a_ledger_that_is_mostly_hidden_is_rewritten(world: World) -> None:
    node, segment = await mostly_hidden(world)
    before = segment.ledgers.size_bytes
    await tended(segment)
    record = await record_of(world)
    assert await outcomes(world) == set() and await forms(world) == [(1, 1), None]
    assert record.ledgers[0].former is None and record.ledgers[0].bytes == segment.ledgers.ledgers[0].size_bytes
    assert segment.ledgers.size_bytes < before / 2 + segment.ledgers.ledgers[1].size_bytes
    assert await node.storage.forms(segment.id, 1) == [Form(1, 1)] and node.device.ledgers() == {1, 2}
    assert node.metrics.rewritten_ledgers._value.get() == 1
    for _ in range(2):
        assert segment.ledgers.ledgers[0].entries == 7
        assert await committed(segment) == ["a", "b", "c"] == await snapshot(segment) == await uncommitted(segment)
        segment = await world.reopened()
    await tended(segment)
    assert (await forms(world))[0] == (1, 1), "nothing more can be left out"


async def test_positions_are_as_before(world: World) -> None:
    """Of entries that are there, of those that are not, and by time."""
    _, segment = await mostly_hidden(world)
    times = [frame.publish_ms for frame in (await segment.reader.read_uncommitted(Position(1, -1), ALL_BYTES)).frames]
    last = segment.buffer.last_durable
    await tended(segment)
    for after, expected in [(-1, ["a", "b"]), (0, ["b"]), (3, ["b"]), (5, ["c"]), (6, ["c"])]:
        page = await segment.reader.read_committed(Position(1, after), ALL_BYTES)
        found = [payload_of(frame) for frame in page.frames]
        assert found == expected and all(Position(1, after) < frame.position for frame in page.frames), after
    assert await segment.reader.last_visible() == last == Position(2, 0)
    assert [await segment.reader.position_at(ms) for ms in (times[0], times[1], times[5], times[6])] == [
        Position(1, 0),
        Position(1, 5),
        Position(1, 5),
        Position(2, 0),
    ]
    assert await segment.reader.position_at(times[6] + 1_000) == Position(2, 1)
    assert [await segment.reader.position_before(Position(2, 1), count) for count in range(1, 5)] == [
        Position(2, 0),
        Position(1, 5),
        Position(1, 0),
        Position(1, 0),
    ]


async def test_the_last_visible_entry_is_found_behind_what_was_left_out(world: World) -> None:
    segment = await world.segment()
    await publish(segment, "a")
    await aborted(world, segment, *["never"] * 4)
    await rolled(segment)
    await tended(segment)
    assert await forms(world) != [None, None]
    segment = await world.reopened()
    assert await segment.reader.last_visible() == Position(1, 0)
    assert await segment.reader.position_at(0) == Position(1, 0)


async def test_what_is_less_than_half_hidden_stays(world: World) -> None:
    segment = await world.segment()
    for number in range(3):
        await publish(segment, f"a{number}")
    await aborted(world, segment, "no")
    await rolled(segment)
    await tended(segment)
    assert (await record_of(world)).ledgers[0].hidden == 1 and await forms(world) == [None, None]
    assert len(await uncommitted(segment)) == 4


async def test_a_ledger_of_which_nothing_is_left_keeps_its_positions(world: World) -> None:
    segment = await world.segment()
    await aborted(world, segment, "never", "never")
    await rolled(segment)
    await tended(segment)
    assert (await record_of(world)).ledgers[0].bytes == 0
    await publish(segment, "a")
    for _ in range(2):
        assert await committed(segment) == ["a"] and segment.ledgers.start == Position(1, -1)
        segment = await world.reopened()
    await trim(segment, world.store, world._nodes[-1].storage, Position(2, 0))
    assert await committed(await world.reopened()) == ["a"]


async def test_a_page_that_was_read_before_is_judged_by_the_index_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change comes between the read of the frames and their judgement."""
    _, segment = await mostly_hidden(world)
    monkeypatch.setattr("participants.segment.rewriting.HIDDEN_PARTS", 0)
    await tended(segment)
    monkeypatch.setattr("participants.segment.rewriting.HIDDEN_PARTS", 2)
    read = segment.reader._from_storage

    async def and_then_rewrite(after: Position, reading: Any) -> Any:
        found = await read(after, reading)
        monkeypatch.setattr(segment.reader, "_from_storage", read)
        await tended(segment)
        return found

    monkeypatch.setattr(segment.reader, "_from_storage", and_then_rewrite)
    page = await segment.reader.read_committed(Position(1, -1), ALL_BYTES)
    assert (await forms(world))[0] is not None
    assert [payload_of(frame) for frame in page.frames] == ["a", "b"]


async def test_a_read_of_the_earlier_form_that_is_gone_reads_the_new_one(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, segment = await mostly_hidden(world)
    old = segment.ledgers
    read_old, asked = old.ledgers[0].read, asyncio.Event()
    go = asyncio.Event()

    async def late(first: int, max_bytes: int, last: int | None = None) -> Any:
        asked.set()
        await go.wait()
        if node.storage.exclusive:
            node.storage._files.stop_reading()  # type: ignore[attr-defined]  # so that it must be opened again
        return await read_old(first, max_bytes, last)

    monkeypatch.setattr(old.ledgers[0], "read", late)
    reading = asyncio.create_task(committed(segment))
    await asked.wait()
    monkeypatch.setattr(old.ledgers[0], "read", read_old)
    await tended(segment)
    if not node.storage.exclusive:
        node.storage._reach.cache.forget("")  # type: ignore[attr-defined]
    go.set()
    assert await reading == ["a", "b", "c"]


@pytest.mark.parametrize("in_effect", [False, True], ids=["lost request", "lost reply"])
async def test_nothing_is_deleted_while_the_answer_is_unknown(
    world: World, in_effect: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, segment = await mostly_hidden(world)
    monkeypatch.setattr("participants.segment.rewriting.HIDDEN_PARTS", 0)
    await tended(segment)
    monkeypatch.setattr("participants.segment.rewriting.HIDDEN_PARTS", 2)
    lost = OutcomeUnknown("the connection was lost")
    fault = Fault(puts("/segment/"), hold_after=True)
    fault.before, fault.after = (None, lost) if in_effect else (lost, None)
    if not in_effect:
        fault.hold_before, fault.hold_after = True, False
    world.store.fault(fault)
    segment.tend()
    await fault.reached.wait()
    assert await committed(segment) == ["a", "b", "c"]
    assert (await node.storage.open_sealed(segment.id, 1, 7)).size_bytes == segment.ledgers.ledgers[0].size_bytes
    fault.go.set()
    await tended(segment)
    assert await forms(world) == [(1, 1), None] and await node.storage.forms(segment.id, 1) == [Form(1, 1)]
    assert await committed(await world.reopened()) == ["a", "b", "c"]


async def test_a_form_that_nobody_named_says_nothing_and_goes_with_the_next(world: World) -> None:
    node, segment = await mostly_hidden(world)

    async def no_pace(_: int) -> None: ...

    full = await node.storage.open_sealed(segment.id, 1, 7)
    await node.storage.write_form(segment.id, full, Form(1, 9), [], no_pace)
    segment = await world.reopened()
    assert await committed(segment) == ["a", "b", "c"]
    await tended(segment)
    assert await forms(world) == [(3, 1), None, None]
    assert await world._nodes[-1].storage.forms(segment.id, 1) == [Form(3, 1)]
    assert await committed(segment) == ["a", "b", "c"]


@pytest.mark.parametrize("error", [StorageFull("no space"), StorageFailed("no answer")], ids=str)
async def test_a_form_that_cannot_be_written_is_tried_again(
    world: World, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, segment = await mostly_hidden(world)

    async def fails(*_: object) -> None:
        raise error

    write = node.storage.write_form
    monkeypatch.setattr(node.storage, "write_form", fails)
    await tended(segment)
    assert await forms(world) == [None, None]
    monkeypatch.setattr(node.storage, "write_form", write)
    await tended(segment)
    assert await forms(world) == [(1, 2), None]


async def test_a_ledger_that_is_trimmed_meanwhile_is_not_written_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, segment = await mostly_hidden(world)
    write = node.storage.write_form

    async def late(*args: Any) -> Any:
        written = await write(*args)
        await trim(segment, world.store, node.storage, Position(2, 0))
        return written

    monkeypatch.setattr(node.storage, "write_form", late)
    await tended(segment)
    assert node.device.ledgers() == {2} and await forms(world) == [None]
    assert await node.storage.forms(segment.id, 1) == []
    assert await committed(segment) == ["c"]
    assert node.metrics.rewritten_ledgers._value.get() == 0


@pytest.mark.parametrize("trimmed", [True, False])
async def test_only_what_nobody_has_trimmed_deserves_a_warning(
    world: World, monkeypatch: pytest.MonkeyPatch, trimmed: bool
) -> None:
    node, segment = await mostly_hidden(world)

    async def fails(*_: object) -> None:
        if trimmed:
            await trim(segment, world.store, node.storage, Position(2, 0))
        raise LedgerMissing("its file is deleted")

    monkeypatch.setattr(node.storage, "write_form", fails)
    with structlog.testing.capture_logs() as said:
        await tended(segment)
    warnings = [each["event"] for each in said if each["log_level"] == "warning"]
    assert warnings == ([] if trimmed else ["a ledger is not rewritten"])


@on_objects
async def test_a_deposed_owner_names_no_form(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody takes local ledgers from a process that lives."""
    node, segment = await mostly_hidden(world)
    write = node.storage.write_form
    others = await world.node(node.device.again())

    async def late(*args: Any) -> Any:
        written = await write(*args)
        await tended(await others.open())
        return written

    monkeypatch.setattr(node.storage, "write_form", late)
    await tended(segment)
    assert segment.lost
    assert (await forms(world))[0] == (3, 1)
    node.storage._reach.cache.forget("")  # type: ignore[attr-defined]
    assert await code_of_read(segment, Position(1, -1)) is ErrorCode.STORE_UNAVAILABLE
    assert await committed(await world.reopened()) == ["a", "b", "c"]


async def test_the_rate_is_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    paces: list[float] = []

    class Limit:
        at_once = asyncio.Semaphore(1)

        async def pace(self, copied_bytes: int) -> None:
            paces.append(copied_bytes)

    monkeypatch.setattr("participants.ledger.reading.COPIED_BYTES", 1)
    node = await world.first_node()
    object.__setattr__(node.context, "rewriting", Limit())
    segment = await node.open()
    for number in range(3):
        await publish(segment, f"a{number}")
        await aborted(world, segment, "never")
    await rolled(segment)
    await tended(segment)
    assert await committed(segment) == ["a0", "a1", "a2"]
    assert len(paces) == 3 and sum(paces) == segment.ledgers.ledgers[0].size_bytes
