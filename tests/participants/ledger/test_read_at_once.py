"""Goal: what was appended or read last is read without a thread, if that waits for nothing, and is checked like any
other read.

Method: a disk that says what is in memory, and counts the reads that may wait; the real one, on a real file.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from participants.ledger.disk import Disk
from participants.ledger.local import LocalStorage
from participants.ledger.local_ledger import AT_ONCE_BYTES
from participants.ledger.open_files import OpenFiles
from participants.ledger.storage import LedgerCorrupt, LedgerMissing
from tests.participants.ledger.faults import FaultyDisk
from tests.participants.ledger.ledgers import SEGMENT, append_all, payloads


class Remembering(FaultyDisk):
    """Has everything in memory, or nothing; or something else than what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.damage = b""
        self.reads = 0

    def read(self, fd: int, size: int, offset: int) -> bytes:
        self.reads += 1
        return super().read(fd, size, offset)

    def read_at_once(self, fd: int, size: int, offset: int) -> memoryview | None:
        content = os.pread(fd, size, offset)
        return memoryview(self.damage + content[len(self.damage) :]) if self.remembers else None


@pytest.fixture
def disk() -> Remembering:
    return Remembering()


async def test_what_is_in_memory_is_read_without_a_thread(storage: LocalStorage, disk: Remembering) -> None:
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a", b"b", b"c"])
    assert await payloads(ledger) == [b"a", b"b", b"c"]
    assert [bytes(frame.payload) for frame in await ledger.read(1, 1)] == [b"b"]
    assert disk.reads == 0


async def test_what_is_not_in_memory_is_read_in_a_thread(storage: LocalStorage, disk: Remembering) -> None:
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a"])
    disk.remembers = False
    assert await payloads(ledger) == [b"a"]
    assert disk.reads == 1


async def test_a_large_read_keeps_nobody_waiting(storage: LocalStorage, disk: Remembering) -> None:
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [bytes(AT_ONCE_BYTES), b"a"])
    assert [len(frame.payload) for frame in await ledger.read(0, 1)] == [AT_ONCE_BYTES]
    assert disk.reads == 1
    assert [bytes(frame.payload) for frame in await ledger.read(1, 1)] == [b"a"]
    assert disk.reads == 1


async def test_what_is_in_memory_is_checked(storage: LocalStorage, disk: Remembering) -> None:
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a"])
    disk.damage = b"damage"
    with pytest.raises(LedgerCorrupt):
        await ledger.read(0, 1)


async def test_a_ledger_whose_file_was_closed_is_read_in_a_thread(storage: LocalStorage, disk: Remembering) -> None:
    """The number of its descriptor may be that of another file by then."""
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a"])
    await ledger.seal()
    before = disk.reads
    assert await payloads(ledger) == [b"a"]
    assert disk.reads == before + 1


async def test_a_sealed_ledger_that_was_read_before_is_read_without_a_thread(
    storage: LocalStorage, disk: Remembering
) -> None:
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a", b"b", bytes(AT_ONCE_BYTES)])
    sealed = await ledger.seal()
    assert await payloads(sealed) == [b"a", b"b", bytes(AT_ONCE_BYTES)]
    before = disk.reads
    assert [bytes(frame.payload) for frame in await sealed.read(0, 1, 1)] == [b"a"]
    assert disk.reads == before
    await sealed.read(0, 10 * AT_ONCE_BYTES)
    assert disk.reads == before + 1, "it is too large"
    disk.damage = b"damage"
    with pytest.raises(LedgerCorrupt):
        await sealed.read(0, 1)
    disk.damage, disk.remembers = b"", False
    assert [bytes(frame.payload) for frame in await sealed.read(1, 1, 1)] == [b"b"]
    assert disk.reads == before + 2


async def test_a_deleted_ledger_is_not_read_from_a_descriptor_that_was_kept(
    storage: LocalStorage, disk: Remembering
) -> None:
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a"])
    sealed = await ledger.seal()
    for _ in range(2):
        assert await payloads(sealed) == [b"a"]
    await storage.delete(SEGMENT, 1)
    with pytest.raises(LedgerMissing):
        await sealed.read(0, 1)


def test_a_file_is_not_waited_for(tmp_path: Path) -> None:
    """The event loop would wait for a thread that opens another one."""
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    files = OpenFiles(Disk(), 3)
    assert files.read_at_once(path, 4, 3) is None, "it is not open"
    with files.reading(path):
        pass
    assert files.read_at_once(path, 4, 3) in (b"3456", None)
    with files._lock:
        assert files.read_at_once(path, 4, 3) is None
    files.forget(path)
    assert files.read_at_once(path, 4, 3) is None


def test_the_disk_answers_with_all_or_nothing(tmp_path: Path) -> None:
    """Not every file system can say what is in memory, and none has to keep it there."""
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    fd = os.open(path, os.O_RDONLY)
    assert Disk().read_at_once(fd, 4, 3) in (b"3456", None)
    assert Disk().read_at_once(fd, 8, 3) is None, "one byte is missing"
    os.close(fd)
    assert Disk().read_at_once(fd, 4, 3) is None


def test_a_short_read_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    flags_given: list[int] = []

    def short(fd: int, buffers: list[bytearray], offset: int, flags: int) -> int:
        flags_given.append(flags)
        return len(buffers[0]) - 1

    monkeypatch.setattr(os, "preadv", short)
    assert Disk().read_at_once(0, 4, 0) is None
    assert flags_given == [os.RWF_NOWAIT], "otherwise the loop would wait for the device"
