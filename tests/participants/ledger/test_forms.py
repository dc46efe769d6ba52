"""Goal: a form of a ledger has the entries that were kept at their places, in every storage, and nothing that is not
complete passes for one.

Method: generated headers, every truncation and every flipped bit, the example of the format's page, and forms of
ledgers in every storage. DESIGN §5.18.
"""

from __future__ import annotations

import re
import zlib
from array import array
from collections.abc import AsyncIterator, Sequence
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metatxn.wire.position import Position
from participants.ledger.append_queue import LedgerMetrics
from participants.ledger.chain import LedgerChain
from participants.ledger.directories import segment_directory
from participants.ledger.form import Form, FormDamaged, FormHeader, FormTooNew, whole_header_bytes
from participants.ledger.local import LocalStorage
from participants.ledger.storage import (
    LedgerCorrupt,
    LedgerMissing,
    LedgerStorage,
    LedgerTooNew,
    SealedLedger,
    StorageFull,
)
from tests.participants.ledger.faults import FaultyDisk
from tests.participants.ledger.ledgers import SEGMENT, append_all
from tests.participants.ledger.storages import local_files, objects_in_memory
from tests.participants.prefixes.steps import InPlace, MortalDisk, Steps

PAGE = Path(__file__).parents[3] / "docs" / "ledger-format.md"
EXAMPLE = FormHeader(3, 40, array("Q", [4, 39]), array("Q", [84, 144]), array("Q", [4]))
STORAGES = {"local-files": local_files, "objects-in-memory": objects_in_memory}
FORM = Form(7, 1)


@pytest.fixture(params=STORAGES)
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LedgerStorage]:
    async with await STORAGES[request.param](tmp_path, LedgerMetrics()) as opened:
        yield opened


async def no_pace(_: int) -> None: ...


async def ledger_of(storage: LedgerStorage, entries: int = 6) -> SealedLedger:
    ledger = await storage.create(SEGMENT, 3)
    for number in range(entries):
        await append_all(ledger, [b"%d" % number * 10])
    return await ledger.seal()


async def entries_of(ledger: SealedLedger, max_bytes: int) -> list[int]:
    found: list[int] = []
    at = 0
    while frames := await ledger.read(at, max_bytes):
        assert all(bytes(frame.payload) == b"%d" % frame.position.entry * 10 for frame in frames)
        found += [frame.position.entry for frame in frames]
        at = found[-1] + 1
    return found


# -- the header ------------------------------------------------------------------------------------------------


@given(st.sets(st.integers(0, 60)), st.integers(61, 90))
def test_an_entry_has_bytes_if_and_only_if_it_is_kept(kept: set[int], entries: int) -> None:
    header = FormHeader(3, entries, array("Q", sorted(kept)), array("Q", accumulate(range(1, len(kept) + 1))))
    assert FormHeader.decode(header.encode(), 3, entries) == header
    offsets = header.offsets()
    assert len(offsets) == entries + 1 and offsets[0] == 0
    assert {entry for entry in range(entries) if offsets[entry] < offsets[entry + 1]} == kept
    assert [offsets[entry + 1] for entry in sorted(kept)] == list(header.ends)


def test_the_example_of_the_page() -> None:
    block = re.search(r"## Forms.*?```hex\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    raw = b"".join(bytes.fromhex(line[:50]) for line in block[1].splitlines())
    assert f"{len(raw)} bytes" in block[0]
    assert EXAMPLE.encode() == raw and EXAMPLE.size_bytes == len(raw)


def test_every_truncation_and_every_flipped_bit_is_refused() -> None:
    raw = EXAMPLE.encode()
    damaged = [raw[:size] for size in range(len(raw))] + [raw + b"\0" * 8]
    for bit in range(8 * len(raw)):
        flipped = bytearray(raw)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for content in damaged:
        with pytest.raises(FormDamaged):
            FormHeader.decode(content, 3, 40)


@pytest.mark.parametrize(
    "header",
    [
        FormHeader(3, 40, array("Q", [4, 4]), array("Q", [84, 144])),
        FormHeader(3, 40, array("Q", [4, 5]), array("Q", [84, 84])),
        FormHeader(3, 40, array("Q", [40]), array("Q", [84])),
        FormHeader(3, 41, array("Q", [4]), array("Q", [84])),
        FormHeader(4, 40, array("Q", [4]), array("Q", [84])),
    ],
)
def test_what_fits_its_crc_and_makes_no_sense_is_refused(header: FormHeader) -> None:
    with pytest.raises(FormDamaged):
        FormHeader.decode(header.encode(), 3, 40)


def of_a_later_release(header: bytes) -> bytes:
    body = b"\2" + header[13:]
    return header[:8] + zlib.crc32(body).to_bytes(4, "little") + body


def test_the_form_of_a_later_release_is_not_called_damaged() -> None:
    """Its header may be of another size, so that the version is all that is known of it."""
    newer = of_a_later_release(EXAMPLE.encode())
    with pytest.raises(FormTooNew, match="its version is 2, and this release knows 1"):
        FormHeader.decode(newer, 3, 40)
    with pytest.raises(FormTooNew):
        whole_header_bytes(newer)
    of_no_release = newer[:12] + b"\0" + newer[13:]
    with pytest.raises(FormDamaged, match="does not match its CRC"):
        FormHeader.decode(of_no_release, 3, 40)
    with pytest.raises(FormDamaged, match="its version 0 has never been written"):
        whole_header_bytes(of_no_release)


# -- in every storage ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [[], [0], [5], [1, 3, 4], [0, 1, 2, 3, 4, 5]], ids=str)
@pytest.mark.parametrize("part_bytes", [1, 1 << 20])
async def test_a_form_has_the_entries_that_were_kept_at_their_places(
    storage: LedgerStorage, kept: Sequence[int], part_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("participants.ledger.object_storage.FORM_PART_BYTES", part_bytes)
    monkeypatch.setattr("participants.ledger.reading.COPIED_BYTES", part_bytes)
    sealed = await ledger_of(storage)
    written = await storage.write_form(SEGMENT, sealed, FORM, kept, no_pace)
    again = await storage.open_sealed(SEGMENT, 3, 6, FORM)
    for ledger in (written, again):
        assert (ledger.entries, ledger.form, ledger.last) == (6, FORM, Position(3, 5))
        for max_bytes in (1, 150, 1 << 20):
            assert await entries_of(ledger, max_bytes) == kept
        sizes = [ledger.bytes_of(entry, entry) for entry in range(6)]
        assert [entry for entry, size in enumerate(sizes) if size] == kept
        assert sum(sizes) == ledger.size_bytes == sealed.size_bytes * len(kept) // 6
        assert [ledger.first_kept(entry) for entry in range(6)] == [
            next((each for each in kept if each >= entry), 6) for entry in range(6)
        ]
        assert ledger.last_kept == (kept[-1] if kept else -1)
        assert [frame.position.entry for frame in await ledger.read(0, 1 << 20, 3)] == [e for e in kept if e <= 3]
    assert await entries_of(await storage.open_sealed(SEGMENT, 3, 6), 1 << 20) == list(range(6)), "nothing else changed"


async def test_a_form_of_a_form_and_deleting_what_was_before(storage: LedgerStorage) -> None:
    sealed = await ledger_of(storage)
    first = await storage.write_form(SEGMENT, sealed, FORM, [0, 2, 4], no_pace)
    last = await storage.write_form(SEGMENT, first, Form(10, 2), [2], no_pace)
    assert await storage.forms(SEGMENT, 3) == [FORM, Form(10, 2)]
    await storage.delete_forms_before(SEGMENT, 3, FORM)
    with pytest.raises(LedgerMissing):
        await storage.open_sealed(SEGMENT, 3, 6)
    assert await entries_of(first, 1 << 20) == [0, 2, 4]
    assert await storage.numbers(segment_directory(SEGMENT)) == [3]
    for _ in range(2):
        await storage.delete_forms_before(SEGMENT, 3, Form(10, 2))
    assert await storage.forms(SEGMENT, 3) == [Form(10, 2)]
    with pytest.raises(LedgerMissing):
        await first.read(0, 1)
    for found in (last, await storage.seal(SEGMENT, 3)):
        assert await entries_of(found, 1 << 20) == [2] and found.form == Form(10, 2)
    await storage.delete_forms_before(SEGMENT, 3, FORM)
    assert await entries_of(last, 1 << 20) == [2], "what a deposed owner asks for late deletes nothing later"
    chain = LedgerChain([last], None)
    assert bytes(await chain.read_part(Position(3, 2), 0, 4)) == (await last.read(2, 1))[0].data[:4]
    with pytest.raises(LedgerMissing):
        await chain.read_part(Position(3, 1), 0, 4)
    await storage.delete(SEGMENT, 3)
    assert await storage.numbers(segment_directory(SEGMENT)) == [] == await storage.forms(SEGMENT, 3)
    with pytest.raises(LedgerMissing):
        await storage.write_form(SEGMENT, last, Form(11, 1), [], no_pace)


async def test_a_form_of_another_length_is_refused(storage: LedgerStorage) -> None:
    await storage.write_form(SEGMENT, await ledger_of(storage), FORM, [1], no_pace)
    with pytest.raises(LedgerCorrupt):
        await storage.open_sealed(SEGMENT, 3, 7, FORM)
    with pytest.raises(LedgerMissing):
        await storage.open_sealed(SEGMENT, 3, 6, Form(7, 2))


@pytest.mark.parametrize(("kept", "missing"), [([1], 1), ([1, 2], 1), ([0, 5], 5)])
async def test_no_form_keeps_an_entry_that_was_left_out_before(
    storage: LedgerStorage, kept: Sequence[int], missing: int
) -> None:
    first = await storage.write_form(SEGMENT, await ledger_of(storage), FORM, [0, 2, 4], no_pace)
    with pytest.raises(LedgerCorrupt, match=f"entry {missing} of ledger 3 is not there"):
        await storage.write_form(SEGMENT, first, Form(10, 2), kept, no_pace)
    assert await storage.forms(SEGMENT, 3) == [FORM]
    assert await entries_of(first, 1 << 20) == [0, 2, 4]


async def test_a_chain_goes_on_after_a_ledger_of_which_nothing_is_left(storage: LedgerStorage) -> None:
    empty = await storage.write_form(SEGMENT, await ledger_of(storage), FORM, [], no_pace)
    following = await storage.create(SEGMENT, 4)
    await append_all(following, [b"a"])
    chain = LedgerChain([empty], following)
    assert [frame.position for frame in await chain.read(Position(3, 1), Position(4, 0))] == [Position(4, 0)]
    assert await chain.read(Position(3, 1), Position(3, 5)) == []
    assert chain.last_before(Position(4, 0)) == Position(3, 5)
    await following.close()


# -- in files --------------------------------------------------------------------------------------------------


async def test_a_form_is_durable_before_it_has_its_name(tmp_path: Path) -> None:
    steps = Steps()
    async with LocalStorage.open(tmp_path, disk=MortalDisk(steps), executor=InPlace()) as storage:
        sealed = await ledger_of(storage)
        steps.arm(None)
        await storage.write_form(SEGMENT, sealed, FORM, [1, 3], no_pace)
        steps.disarm()
    name = "00000000000000000003.form.7.1"
    created = [f"create {name}.tmp", "write"]
    assert steps.trace == [*created, *created, "fsync", f"rename to {name}", "fsync of a directory"]


async def test_a_form_for_which_there_is_no_space_leaves_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk()
    async with LocalStorage.open(tmp_path, disk=disk) as storage:
        sealed = await ledger_of(storage)
        disk.capacity = 100
        with pytest.raises(StorageFull):
            await storage.write_form(SEGMENT, sealed, FORM, range(6), no_pace)
        assert not list(tmp_path.glob("ledgers/*/*.form.*")) and await storage.forms(SEGMENT, 3) == []


async def test_a_form_that_lost_its_end_is_recognised(tmp_path: Path) -> None:
    async with LocalStorage.open(tmp_path) as storage:
        await storage.write_form(SEGMENT, await ledger_of(storage), FORM, [1], no_pace)
        (path,) = tmp_path.glob("ledgers/*/*.form.7.1")
        content = path.read_bytes()
        for size in (len(content) - 1, 50, 20):
            path.write_bytes(content[:size])
            with pytest.raises(LedgerCorrupt):
                await storage.open_sealed(SEGMENT, 3, 6, FORM)


async def test_a_file_of_a_later_release_is_left_alone(tmp_path: Path) -> None:
    async with LocalStorage.open(tmp_path) as storage:
        await storage.write_form(SEGMENT, await ledger_of(storage), FORM, [1], no_pace)
        (path,) = tmp_path.glob("ledgers/*/*.form.7.1")
        path.write_bytes(of_a_later_release(path.read_bytes()))
        newer = path.read_bytes()
        with pytest.raises(LedgerTooNew, match=r"form 7.1 of ledger 3 of .* is of a later release: its version is 2"):
            await storage.open_sealed(SEGMENT, 3, 6, FORM)
        assert path.read_bytes() == newer
