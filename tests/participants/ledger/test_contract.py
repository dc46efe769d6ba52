"""Goal: a ledger behaves alike wherever it lies, as the page `participants.ledger.storage` says.

Method: every storage of `storages`, the object store behind a server that speaks S3 among them, opened again as a
restarted process would.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from metatxn.wire.frames import MAX_PAYLOAD_BYTES, MIN_FRAME_BYTES, Entry, PayloadKind
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.ledger.append_queue import LedgerMetrics, TraceLabels
from participants.ledger.directories import segment_directory
from participants.ledger.hidden_index import HiddenIndex, HiddenReason, HiddenTransaction
from participants.ledger.storage import LedgerCorrupt, LedgerExists, LedgerMissing, LedgerStopped, LedgerStorage
from tests.participants.ledger.ledgers import SEGMENT, append, append_all, payloads
from tests.participants.ledger.storages import STORAGES
from tests.servers import S3Server

Open = Callable[[], Awaitable[LedgerStorage]]


@pytest.fixture(params=STORAGES)
def opening(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens the same storage each time."""
    if request.param == "objects-in-s3":
        request.getfixturevalue("s3")
    return lambda: STORAGES[request.param](tmp_path / "data", LedgerMetrics())


@pytest.fixture
async def storage(opening: Open) -> AsyncIterator[LedgerStorage]:
    async with await opening() as opened:
        yield opened


async def test_appends_are_durable_in_the_order_of_their_calls(storage: LedgerStorage) -> None:
    ledger = await storage.create(SEGMENT, 1)
    told: list[int] = []

    async def publish(number: int) -> Position:
        begun = append(ledger, b"%d" % number)
        await begun.durable
        told.append(number)
        return begun.position

    for batch in range(5):
        positions = await asyncio.gather(*(publish(batch * 20 + number) for number in range(20)))
        assert positions == [Position(1, batch * 20 + number) for number in range(20)]
    assert told == list(range(100))
    assert await payloads(ledger) == [b"%d" % number for number in range(100)]
    assert (ledger.last_assigned, ledger.last_durable) == (Position(1, 99), Position(1, 99))


async def test_on_durable_sees_the_new_end_and_resolved_futures(storage: LedgerStorage) -> None:
    ledger = await storage.create(SEGMENT, 1)
    seen: list[tuple[Position, bool]] = []
    begun = append(ledger, b"a")
    ledger.on_durable = lambda: seen.append((ledger.last_durable, begun.durable.done()))
    await begun.durable
    assert seen == [(Position(1, 0), True)]


async def test_a_cancelled_append_happens_all_the_same(storage: LedgerStorage) -> None:
    ledger = await storage.create(SEGMENT, 1)
    append(ledger, b"a").durable.cancel()
    await append_all(ledger, [b"b"])
    assert await payloads(ledger) == [b"a", b"b"]


async def test_a_refused_frame_takes_no_position(storage: LedgerStorage) -> None:
    ledger = await storage.create(SEGMENT, 1)
    with pytest.raises(ValueError):
        ledger.append(Entry(b"", PayloadKind.BYTES, -1), 0)
    with pytest.raises(ValueError):
        ledger.append(Entry(memoryview(b"every other")[::2], PayloadKind.BYTES, 1), 0)
    assert (await append_all(ledger, [b"a"]))[0].position == Position(1, 0)


async def test_sealing_waits_for_begun_appends_and_takes_no_more(storage: LedgerStorage) -> None:
    ledger = await storage.create(SEGMENT, 1)
    begun = [append(ledger, b"a"), append(ledger, b"b")]
    sealing = asyncio.create_task(ledger.seal())
    await asyncio.sleep(0)
    with pytest.raises(LedgerStopped):
        append(ledger, b"c")
    sealed = await sealing
    assert all(append.durable.done() for append in begun)
    assert (sealed.entries, sealed.last) == (2, Position(1, 1))
    assert await payloads(sealed) == [b"a", b"b"]
    assert await ledger.seal() is sealed


async def test_reads_stop_at_max_bytes_but_give_one_frame(storage: LedgerStorage) -> None:
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"x" * 53] * 10)  # 100 bytes each, in one group
    assert ledger.size_bytes == 1000
    for max_bytes, frames in [(0, 1), (99, 1), (199, 1), (200, 2), (250, 2), (10_000, 10)]:
        assert len(await ledger.read(0, max_bytes)) == frames
    assert len(await ledger.read(9, 1000)) == 1
    assert await ledger.read(10, 1000) == []


async def test_reads_stop_at_the_last_entry_that_was_asked_for(storage: LedgerStorage) -> None:
    """A reader that may go no further than the horizon does not pay for what lies behind it."""
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"x" * 53] * 10)
    for readable in (ledger, await ledger.seal()):
        assert [len(await readable.read(3, 10_000, last)) for last in (3, 5, 9, 20)] == [1, 3, 7, 7]
        assert len(await readable.read(3, 250, 9)) == 2, "whatever ends first"


async def test_a_frame_is_read_again_in_parts(storage: LedgerStorage) -> None:
    """Of small groups and of a large one, which an object store reads in ranges."""
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a", b"b"])
    await append_all(ledger, [b"c", random.Random(1).randbytes(3 << 20), b"e"])
    for readable in (ledger, await ledger.seal()):
        for entry in range(5):
            (frame,) = await readable.read(entry, 1)
            size = len(frame.data)
            for start, end in [(0, size), (0, size // 2), (size // 2, size), (size - 1, size)]:
                assert await readable.read_part(entry, start, end) == frame.data[start:end]
    await storage.delete(SEGMENT, 1)
    with pytest.raises(LedgerMissing):
        await readable.read_part(3, 0, 1)


async def test_ledgers_of_two_segments_do_not_meet(storage: LedgerStorage) -> None:
    one, other = await storage.create("a", 1), await storage.create("a/b", 1)
    await asyncio.gather(append_all(one, [b"1"]), append_all(other, [b"2"]))
    assert (await payloads(one), await payloads(other)) == ([b"1"], [b"2"])


async def test_segment_names_of_any_length_and_alphabet(storage: LedgerStorage) -> None:
    names = ["ü" * 300 + end for end in "ab"] + ["a%2Fb", "a/b", "%", "..", "one two?#&+=\\"]
    for name in names:
        await append_all(await storage.create(name, 1), [name.encode()])
    for name in names:
        assert await payloads(await storage.seal(name, 1)) == [name.encode()]


async def test_a_number_is_used_once(storage: LedgerStorage) -> None:
    await storage.create(SEGMENT, 1)
    with pytest.raises(LedgerExists):
        await storage.create(SEGMENT, 1)


async def test_closing_finishes_what_was_begun(opening: Open) -> None:
    storage = await opening()
    ledger = await storage.create(SEGMENT, 1)
    begun = append(ledger, b"a")
    await storage.close()
    await storage.close()
    assert begun.durable.done()
    for call in (storage.create(SEGMENT, 2), storage.seal(SEGMENT, 1), ledger.seal(), ledger.read(0, 1)):
        with pytest.raises(LedgerStopped):
            await call


async def test_who_has_ended_appends_finds_all_of_them_answered(storage: LedgerStorage) -> None:
    """What a segment remembers of their sequences is written then, as all that this ledger tells."""
    ledger = await storage.create(SEGMENT, 1)
    begun = [append(ledger, b"a"), append(ledger, b"b")]
    await ledger.close()
    assert [each.durable.done() for each in begun] == [True, True]


async def test_a_closed_ledger_is_read_and_can_be_sealed(storage: LedgerStorage) -> None:
    """What a segment does that goes on in another ledger: the appends leave at once, the seal follows."""
    ledger = await storage.create("s", 1)
    await append_all(ledger, [b"a", b"b"])
    await ledger.close()
    assert (ledger.last_assigned, ledger.last_durable) == (Position(1, 1), Position(1, 1))
    assert len(await ledger.read(0, 1 << 20)) == 2
    sealed = await ledger.seal()
    assert (sealed.entries, sealed.last) == (2, Position(1, 1))
    assert (await storage.open_sealed("s", 1, 2)).entries == 2


async def test_a_storage_is_itself_when_it_is_opened_again(opening: Open) -> None:
    async with await opening() as storage:
        first = storage.storage_id
        await append_all(await storage.create(SEGMENT, 1), [b"a", b"b"])
        await append_all(await storage.create(SEGMENT, 2), [b"c"])
    async with await opening() as storage:
        assert storage.storage_id == first
        assert await payloads(await storage.seal(SEGMENT, 1)) == [b"a", b"b"]
        assert await payloads(await storage.seal(SEGMENT, 2)) == [b"c"]
        assert await payloads(await storage.open_sealed(SEGMENT, 1, 2)) == [b"a", b"b"]


async def test_sealing_again_changes_nothing(opening: Open) -> None:
    async with await opening() as storage:
        await append_all(await storage.create(SEGMENT, 1), [b"a", b"b"])
    for _ in range(2):
        async with await opening() as storage:
            for _ in range(2):
                assert await payloads(await storage.seal(SEGMENT, 1)) == [b"a", b"b"]


@pytest.mark.parametrize("recorded", [0, 1, 3])
async def test_another_length_than_recorded_is_refused(storage: LedgerStorage, recorded: int) -> None:
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a", b"b"])
    await ledger.seal()
    with pytest.raises(LedgerCorrupt):
        await storage.open_sealed(SEGMENT, 1, recorded)


async def test_a_missing_ledger_never_recovers_as_empty(storage: LedgerStorage) -> None:
    with pytest.raises(LedgerMissing):
        await storage.seal(SEGMENT, 1)
    with pytest.raises(LedgerMissing):
        await storage.open_sealed(SEGMENT, 1, 0)


async def test_an_empty_ledger_is_a_ledger(opening: Open) -> None:
    async with await opening() as storage:
        await storage.create(SEGMENT, 1)
    async with await opening() as storage:
        sealed = await storage.seal(SEGMENT, 1)
        assert (sealed.entries, sealed.last) == (0, Position(1, -1))
        assert await sealed.read(0, 1) == []
        assert (await storage.open_sealed(SEGMENT, 1, 0)).entries == 0


async def test_large_frames_and_small_ones(opening: Open) -> None:
    wanted = [
        bytes(3 << 20),
        b"small",
        b"x" * (1 << 20),
        b"y" * ((1 << 20) - MIN_FRAME_BYTES),
        b"z" * MAX_PAYLOAD_BYTES,
    ]
    async with await opening() as storage:
        ledger = await storage.create(SEGMENT, 1)
        for payload in wanted:
            await append_all(ledger, [payload])
        assert await payloads(ledger) == wanted
    async with await opening() as storage:
        assert await payloads(await storage.seal(SEGMENT, 1)) == wanted


async def test_deleting_may_be_repeated(storage: LedgerStorage) -> None:
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a"])
    sealed = await ledger.seal()
    await storage.create(SEGMENT, 2)
    for number in (1, 2, 2, 3):
        await storage.delete(SEGMENT, number)
    with pytest.raises(LedgerMissing):
        await sealed.read(0, 1)
    for number in (1, 2):
        with pytest.raises(LedgerMissing):
            await storage.seal(SEGMENT, number)


async def test_a_dropped_segment_leaves_nothing_and_its_neighbours_alone(storage: LedgerStorage) -> None:
    kept = await storage.create(f"{SEGMENT}0", 1)
    await append_all(kept, [b"kept"])
    await append_all(await storage.create(SEGMENT, 1), [b"a"])
    await (await storage.create(SEGMENT, 2)).seal()
    for _ in range(2):
        await storage.drop(SEGMENT)
    for number in (1, 2):
        with pytest.raises(LedgerMissing):
            await storage.seal(SEGMENT, number)
    assert await payloads(kept) == [b"kept"]


@pytest.mark.parametrize("name", STORAGES)
async def test_metrics_are_told(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if name == "objects-in-s3":
        request.getfixturevalue("s3")
    appends: list[tuple[float, TraceLabels]] = []
    syncs: list[tuple[float, TraceLabels]] = []
    ticks = iter(range(1000))
    traces: Iterator[TraceLabels] = iter([None, {"trace_id": "of b"}])
    metrics = LedgerMetrics(
        lambda *told: appends.append(told), lambda *told: syncs.append(told), traces.__next__, lambda: next(ticks)
    )
    async with await STORAGES[name](tmp_path, metrics) as storage:
        await append_all(await storage.create(SEGMENT, 1), [b"a", b"b"])
    assert syncs == [(1, {"trace_id": "of b"})]
    assert appends == [(4, None), (3, {"trace_id": "of b"})]


def test_the_s3_server_is_a_real_one(s3: S3Server) -> None:
    """Else the parametrization above could quietly test something else."""
    assert s3.environment["AWS_ENDPOINT_URL"].endswith(str(s3.port))


def hiding(*entries: int, ledger: int = 1, of: int = 3) -> HiddenIndex:
    ranges = tuple((entry, entry) for entry in entries)
    return HiddenIndex(ledger, of, (HiddenTransaction(TxnId(1, 1), HiddenReason.ABORTED, ranges),))


async def test_an_index_of_hidden_entries_is_kept_beside_its_ledger_and_goes_with_it(opening: Open) -> None:
    async with await opening() as storage:
        ledger = await storage.create(SEGMENT, 1)
        await append_all(ledger, [b"a", b"b", b"c"])
        await ledger.seal()
        await storage.write_hidden(SEGMENT, 7, hiding(0))
        await storage.write_hidden(SEGMENT, 8, hiding(2))
        await storage.write_hidden(SEGMENT, 8, hiding(1))
    async with await opening() as storage:
        for generation, hidden in [(7, 0), (8, 1)]:
            found = await storage.read_hidden(SEGMENT, 1, generation, 3)
            assert [entry for entry in range(4) if entry in found] == [hidden]
        assert await payloads(await storage.seal(SEGMENT, 1)) == [b"a", b"b", b"c"]
        assert await payloads(await storage.open_sealed(SEGMENT, 1, 3)) == [b"a", b"b", b"c"]
        with pytest.raises(LedgerMissing):
            await storage.read_hidden(SEGMENT, 1, 9, 3)
        with pytest.raises(LedgerCorrupt):
            await storage.read_hidden(SEGMENT, 1, 7, 4)
        await storage.delete(SEGMENT, 1)
        for generation in (7, 8):
            with pytest.raises(LedgerMissing):
                await storage.read_hidden(SEGMENT, 1, generation, 3)
        with pytest.raises(LedgerMissing):
            await storage.write_hidden(SEGMENT, 8, hiding(1))


async def test_a_ledger_is_sealed_and_set_aside_with_its_index_of_hidden_entries(storage: LedgerStorage) -> None:
    """In a restored store a ledger that has an index may be unsealed again."""
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a", b"b", b"c"])
    await storage.write_hidden(SEGMENT, 7, hiding(0))
    await storage.let_go(SEGMENT)
    assert (await storage.seal(SEGMENT, 1)).entries == 3
    directory = segment_directory(SEGMENT)
    assert await storage.numbers(directory) == [1]
    for _ in range(2):
        await storage.set_aside(directory, 1, "away")
        assert await storage.numbers(directory) == []
    with pytest.raises(LedgerMissing):
        await storage.read_hidden(SEGMENT, 1, 7, 3)
