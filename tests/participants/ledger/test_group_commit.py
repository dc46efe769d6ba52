"""Goal: appends are ordered by their calls, share syncs, and an acknowledged one is there.

Method: a disk that counts syncs and can hold one back while more appends are made.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from metatxn.wire.frames import MAX_PAYLOAD_BYTES, decode_frames
from metatxn.wire.position import Position
from participants.ledger.disk import WRITE_BYTES
from participants.ledger.local import LocalStorage
from participants.ledger.storage import LedgerStopped
from tests.participants.ledger.faults import FaultyDisk
from tests.participants.ledger.ledgers import SEGMENT, append, append_all, ledger_file, payloads


async def test_appends_of_one_step_share_one_sync(storage: LocalStorage, disk: FaultyDisk) -> None:
    ledger = await storage.create(SEGMENT, 1)

    async def publish(number: int) -> Position:
        begun = append(ledger, b"%d" % number)
        await begun.durable
        return begun.position

    positions = await asyncio.gather(*(publish(number) for number in range(100)))
    assert positions == [Position(1, entry) for entry in range(100)]
    assert disk.syncs == 1
    assert await payloads(ledger) == [b"%d" % number for number in range(100)]


async def test_appends_made_during_a_sync_share_the_next_one(storage: LocalStorage, disk: FaultyDisk) -> None:
    ledger = await storage.create(SEGMENT, 1)
    disk.may_sync.clear()
    first = append(ledger, b"first")
    await asyncio.to_thread(disk.in_sync.wait, 60)
    behind = [append(ledger, b"%d" % number) for number in range(50)]
    assert (ledger.last_assigned, ledger.last_durable) == (Position(1, 50), Position(1, -1))
    assert await payloads(ledger) == []  # written, but not durable: not to be read
    disk.may_sync.set()
    await asyncio.gather(first.durable, *(begun.durable for begun in behind))
    assert disk.syncs == 2
    assert len(await payloads(ledger)) == 51


async def test_a_frame_says_what_was_durable_when_its_group_was_written(
    tmp_path: Path, storage: LocalStorage, disk: FaultyDisk
) -> None:
    """Not when it was appended: the later, the more it proves about damage (see `recovery`)."""
    ledger = await storage.create(SEGMENT, 1)
    disk.may_sync.clear()
    begun = [append(ledger, b"a"), append(ledger, b"b")]
    await asyncio.to_thread(disk.in_sync.wait, 60)
    begun += [append(ledger, b"c"), append(ledger, b"d"), append(ledger, b"e")]
    disk.may_sync.set()
    await asyncio.gather(*(one.durable for one in begun))
    await append_all(ledger, [b"f"])
    assert [frame.durable for frame in decode_frames(ledger_file(tmp_path, 1).read_bytes())] == [0, 0, 2, 2, 2, 5]


async def test_a_group_is_bounded(storage: LocalStorage, disk: FaultyDisk) -> None:
    """Recovery relies on how far back an unsynced group can reach."""
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [bytes(MAX_PAYLOAD_BYTES)] * 2)
    assert disk.syncs == 2


async def test_short_writes_are_continued(storage: LocalStorage, disk: FaultyDisk) -> None:
    disk.max_write = 7
    ledger = await storage.create(SEGMENT, 1)
    wanted = [b"x" * size for size in range(20)]
    await append_all(ledger, wanted)
    assert await payloads(ledger) == wanted


async def test_large_frames_are_written_in_pieces_that_are_small(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Larger ones cost up to ten times as much in a virtual machine, see `WRITE_BYTES`."""
    sizes: list[int] = []

    def seen(fd: int, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        sizes.append(sum(map(len, buffers)))
        return written(fd, buffers, offset)

    written = os.pwritev
    monkeypatch.setattr(os, "pwritev", seen)
    ledger = await storage.create(SEGMENT, 1)
    wanted = [os.urandom(size) for size in (1, WRITE_BYTES - 1, WRITE_BYTES, 3 * WRITE_BYTES + 1, 1, 1)]
    await append_all(ledger, wanted)
    assert max(sizes) == WRITE_BYTES
    assert await payloads(ledger) == wanted


async def test_more_frames_than_one_system_call_takes(tmp_path: Path) -> None:
    async with LocalStorage.open(tmp_path) as storage:
        ledger = await storage.create(SEGMENT, 1)
        wanted = [b"%d" % number for number in range(3000)]
        await append_all(ledger, wanted)
        assert await payloads(ledger) == wanted


async def test_sealing_waits_for_begun_appends_and_takes_no_more(storage: LocalStorage, disk: FaultyDisk) -> None:
    ledger = await storage.create(SEGMENT, 1)
    disk.may_sync.clear()
    begun = [append(ledger, b"a"), append(ledger, b"b")]
    sealing = asyncio.create_task(ledger.seal())
    await asyncio.to_thread(disk.in_sync.wait, 60)
    with pytest.raises(LedgerStopped):
        append(ledger, b"c")
    disk.may_sync.set()
    sealed = await sealing
    assert all(append.durable.done() for append in begun)
    assert (sealed.entries, sealed.last) == (2, Position(1, 1))
    assert await payloads(sealed) == [b"a", b"b"]
    assert await ledger.seal() is sealed


async def test_a_creation_nobody_waits_for_is_closed_with_the_storage(tmp_path: Path) -> None:
    storage = LocalStorage.open(tmp_path)
    creating = asyncio.create_task(storage.create(SEGMENT, 1))
    await asyncio.sleep(0)
    creating.cancel()
    await storage.close()
    assert creating.cancelled()
    assert ledger_file(tmp_path, 1).exists()
