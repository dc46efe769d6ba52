"""Goal: no region of a frame can be damaged unnoticed, and a frame torn in any region is a torn tail and nothing else.

Method: frames that have every field there is; every bit of every region is flipped, and every byte is the last one that
reached the disk, in files and in objects, sealed and not. Enumerated, not sampled; `test_frames` and `test_torn_groups`
go on at random.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from metatxn.wire.frames import Entry, Frame, FrameError, PayloadKind, encode_frame, peek
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.ledger.local import LocalStorage
from participants.ledger.object_storage import ObjectStorage
from participants.ledger.objects import HEADER_BYTES, object_name
from participants.ledger.storage import LedgerCorrupt, OpenLedger
from tests.participants.ledger.faulty_bucket import FaultyBucket
from tests.participants.ledger.ledgers import SEGMENT, ledger_file, mark_file, payloads

TXN = TxnId(7, 42)
WRITER, PRODUCER, PAYLOAD = "task-4", "app", b"hello, frame"
SIZES = {
    "length": 4,
    "crc": 4,
    "format version": 1,
    "payload kind": 1,
    "flags": 1,
    "count": 4,
    "publish time": 8,
    "ledger": 8,
    "entry": 8,
    "durable": 8,
    "txn id": 16,
    "writer length": 2,
    "writer": len(WRITER),
    "producer length": 2,
    "producer": len(PRODUCER),
    "sequence": 8,
    "payload": len(PAYLOAD),
}
FRAME_BYTES = sum(SIZES.values())
ENTRIES = 3


def region(name: str) -> range:
    """Where it lies in a frame."""
    before = list(SIZES).index(name)
    start = sum(list(SIZES.values())[:before])
    return range(start, start + SIZES[name])


def whole_frame(entry: int) -> bytes:
    return encode_frame(
        Frame(
            PAYLOAD,
            PayloadKind.BYTES,
            1,
            TXN,
            WRITER,
            PRODUCER,
            entry,
            position=Position(1, entry),
            publish_ms=1_700,
            durable=entry,
        )
    )


def flipped(content: bytes, at: int, bit: int) -> bytes:
    damaged = bytearray(content)
    damaged[at] ^= 1 << bit
    return bytes(damaged)


def one_bit_of_each_byte(name: str, entry: int) -> Iterator[tuple[int, int]]:
    for place in region(name):
        yield entry * FRAME_BYTES + place, (entry * FRAME_BYTES + place) % 8


async def fill(ledger: OpenLedger) -> None:
    """Each entry is synced alone, so that each frame proves the one before it."""
    for entry in range(ENTRIES):
        append = ledger.append(Entry(PAYLOAD, PayloadKind.BYTES, 1, TXN, WRITER, PRODUCER, entry), 1_700)
        await asyncio.shield(append.durable)


@pytest.fixture
async def directory(tmp_path: Path) -> Path:
    """It holds one ledger that was not sealed."""
    async with LocalStorage.open(tmp_path) as storage:
        await fill(await storage.create(SEGMENT, 1))
    assert ledger_file(tmp_path, 1).read_bytes() == b"".join(map(whole_frame, range(ENTRIES)))
    return tmp_path


@pytest.mark.parametrize("name", SIZES)
def test_every_bit_of_every_region_is_under_the_crc(name: str) -> None:
    raw = whole_frame(2)
    assert len(raw) == FRAME_BYTES
    for place in region(name):
        for bit in range(8):
            with pytest.raises(FrameError):
                peek(flipped(raw, place, bit) + raw)


@pytest.mark.parametrize("name", SIZES)
async def test_damage_to_a_sealed_file_fails_the_reads_that_meet_it(directory: Path, name: str) -> None:
    path = ledger_file(directory, 1)
    whole = path.read_bytes()
    async with LocalStorage.open(directory) as storage:
        sealed = await storage.seal(SEGMENT, 1)
        for entry in range(ENTRIES):
            for at, bit in one_bit_of_each_byte(name, entry):
                path.write_bytes(flipped(whole, at, bit))
                for first in range(ENTRIES):
                    if first <= entry:
                        with pytest.raises(LedgerCorrupt):
                            await sealed.read(first, 1 << 20)
                    else:
                        assert len(await sealed.read(first, 1 << 20)) == ENTRIES - first


@pytest.mark.parametrize("name", SIZES)
async def test_damage_to_an_unsealed_file_is_told_but_for_the_last_frame(directory: Path, name: str) -> None:
    """What the last sync has written looks like a torn tail, and is cut; a frame behind it proves the others."""
    path, mark = ledger_file(directory, 1), mark_file(directory, 1)
    whole = path.read_bytes()
    async with LocalStorage.open(directory) as storage:
        for entry in range(ENTRIES):
            for at, bit in one_bit_of_each_byte(name, entry):
                damaged = flipped(whole, at, bit)
                path.write_bytes(damaged)
                if entry < ENTRIES - 1:
                    with pytest.raises(LedgerCorrupt):
                        await storage.seal(SEGMENT, 1)
                    assert path.read_bytes() == damaged and not mark.exists()
                else:
                    assert (await storage.seal(SEGMENT, 1)).entries == ENTRIES - 1
                    assert path.read_bytes() == whole[: entry * FRAME_BYTES]
                    mark.unlink()


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("rest", ["nothing", "zeros", "noise"])
async def test_a_frame_torn_in_any_region_is_cut(directory: Path, name: str, rest: str) -> None:
    path, mark = ledger_file(directory, 1), mark_file(directory, 1)
    whole = path.read_bytes()
    last = (ENTRIES - 1) * FRAME_BYTES
    async with LocalStorage.open(directory) as storage:
        for place in region(name):
            kept = whole[: last + place]
            missing = FRAME_BYTES - place
            tail = {
                "nothing": b"",
                "zeros": bytes(missing),
                "noise": bytes((37 * n + 91) % 256 for n in range(missing)),
            }
            path.write_bytes(kept + tail[rest])
            sealed = await storage.seal(SEGMENT, 1)
            assert await payloads(sealed) == [PAYLOAD] * (ENTRIES - 1)
            assert path.stat().st_size == last
            mark.unlink()


@pytest.mark.parametrize("name", ["object header", *SIZES])
async def test_damage_to_an_object_is_never_served(name: str) -> None:
    """An object is there whole or not at all, so nothing in it is a torn tail."""
    objects = MemoryStore()
    async with await ObjectStorage.open(FaultyBucket(objects)) as storage:
        await fill(await storage.create(SEGMENT, 1))
        places = range(HEADER_BYTES) if name == "object header" else region(name)
        start = 0 if name == "object header" else HEADER_BYTES
        for entry in range(ENTRIES):
            stored = object_name(SEGMENT, 1, entry + 1)
            whole = bytes(objects.get(stored).bytes())
            for place in places:
                objects.put(stored, flipped(whole, start + place, place % 8))
                async with await ObjectStorage.open(FaultyBucket(objects)) as reader:
                    with pytest.raises(LedgerCorrupt):
                        await reader.seal(SEGMENT, 1)
            objects.put(stored, whole)
    async with await ObjectStorage.open(FaultyBucket(objects)) as storage:
        assert await payloads(await storage.seal(SEGMENT, 1)) == [PAYLOAD] * ENTRIES
