"""Goal: an acknowledged entry survives every device fault, and a refused one never shows up.

Method: a disk that runs out of space, fails to write, sync or truncate, or whose page cache lies afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from metatxn.wire.position import Position
from participants.ledger.local import LocalStorage
from participants.ledger.storage import (
    LedgerMissing,
    LedgerStopped,
    OpenLedger,
    StorageFailed,
    StorageFull,
)
from tests.participants.ledger.faults import FaultyDisk, LyingDisk, broken, no_space
from tests.participants.ledger.ledgers import SEGMENT, append, append_all, ledger_file, mark_file, payloads


async def outcomes(ledger: OpenLedger, count: int) -> set[type[BaseException] | None]:
    begun = [append(ledger, b"lost %d" % number) for number in range(count)]
    results = await asyncio.gather(*(one.durable for one in begun), return_exceptions=True)
    return {None if result is None else type(result) for result in results}


async def test_no_space_undoes_the_group_and_the_ledger_goes_on(
    tmp_path: Path, storage: LocalStorage, disk: FaultyDisk
) -> None:
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a", b"b"])
    durable = ledger_file(tmp_path, 1).read_bytes()
    disk.capacity = len(durable) + 60  # one frame and a part of the next
    assert await outcomes(ledger, 3) == {StorageFull}
    assert ledger_file(tmp_path, 1).read_bytes() == durable
    assert ledger.last_assigned == ledger.last_durable == Position(1, 1)
    assert ledger.stopped is None

    disk.capacity = None
    assert (await append_all(ledger, [b"c"]))[0].position == Position(1, 2)
    assert await payloads(await ledger.seal()) == [b"a", b"b", b"c"]


async def test_no_space_is_answered_after_the_truncation_is_durable(tmp_path: Path) -> None:
    """Else a refused frame could be found, whole and valid, after a power cut."""

    class EagerDisk(FaultyDisk):
        """Writes back at once; only a truncation waits for a sync."""

        truncated = False

        def truncate(self, fd: int, size: int) -> None:
            super().truncate(fd, size)
            self.truncated = True

        def fsync(self, fd: int) -> None:
            super().fsync(fd)
            self.truncated = False

    disk = EagerDisk()
    async with LocalStorage.open(tmp_path, disk=disk) as storage:
        ledger = await storage.create(SEGMENT, 1)
        disk.capacity = 60
        begun = append(ledger, b"a"), append(ledger, b"b")
        undone: list[bool] = []
        begun[0].durable.add_done_callback(lambda _: undone.append(not disk.truncated))
        await asyncio.gather(*(one.durable for one in begun), return_exceptions=True)
        assert undone == [True]


async def test_no_space_fails_what_waits_behind_the_group_too(storage: LocalStorage, disk: FaultyDisk) -> None:
    """Their positions follow those of the group; a ledger has no gaps."""
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a"])
    disk.capacity = ledger.size_bytes + 5
    disk.may_truncate.clear()
    group = append(ledger, b"b")
    await asyncio.to_thread(disk.in_truncate.wait, 60)
    behind = append(ledger, b"c")
    disk.capacity = None  # there is space again, but it is too late for both
    disk.may_truncate.set()
    results = await asyncio.gather(group.durable, behind.durable, return_exceptions=True)
    assert [type(result) for result in results] == [StorageFull, StorageFull]
    assert (await append_all(ledger, [b"d"]))[0].position == group.position
    assert await payloads(ledger) == [b"a", b"d"]


async def test_a_truncation_that_fails_leaves_the_outcome_unknown(
    tmp_path: Path, storage: LocalStorage, disk: FaultyDisk
) -> None:
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a"])
    disk.capacity, disk.truncate_error = ledger.size_bytes + 60, broken()
    assert await outcomes(ledger, 3) == {StorageFailed}
    assert isinstance(ledger.stopped, StorageFailed)
    disk.capacity = disk.truncate_error = None
    sealed = await ledger.seal()
    assert await payloads(sealed) == [b"a", b"lost 0"]  # it had been written whole
    assert ledger_file(tmp_path, 1).stat().st_size == sealed.size_bytes


@pytest.mark.parametrize(
    ("fault", "error"), [("write_error", broken), ("sync_error", broken), ("sync_error", no_space)]
)
async def test_any_other_failure_stops_the_ledger(
    storage: LocalStorage, disk: FaultyDisk, fault: str, error: Callable[[], OSError]
) -> None:
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a"])
    setattr(disk, fault, error())
    syncs = disk.syncs
    assert await outcomes(ledger, 3) == {StorageFailed}
    setattr(disk, fault, None)
    with pytest.raises(LedgerStopped):
        append(ledger, b"b")
    assert disk.syncs - syncs <= 1  # a failed sync is not tried again
    assert ledger.last_durable == Position(1, 0)
    assert (await payloads(ledger)) == [b"a"]
    sealed = await storage.seal(SEGMENT, 1)
    assert (await payloads(sealed))[:1] == [b"a"]


async def test_a_failed_sync_fails_what_waits_behind_it(storage: LocalStorage, disk: FaultyDisk) -> None:
    ledger = await storage.create(SEGMENT, 1)
    disk.may_sync.clear()
    first = append(ledger, b"a")
    await asyncio.to_thread(disk.in_sync.wait, 60)
    second = append(ledger, b"b")
    disk.sync_error = broken()
    disk.may_sync.set()
    results = await asyncio.gather(first.durable, second.durable, return_exceptions=True)
    assert [type(result) for result in results] == [StorageFailed, StorageFailed]
    assert disk.syncs == 1
    assert await payloads(await ledger.seal()) == [b"a"]  # the second one was never written


@pytest.mark.parametrize("restart", [False, True])
async def test_what_a_seal_returns_is_on_the_device_although_a_sync_failed(tmp_path: Path, restart: bool) -> None:
    """The page cache shows frames which the device never got, and the next sync would not write them."""
    disk = LyingDisk()
    storage = LocalStorage.open(tmp_path, disk=disk)
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a"])
    disk.sync_error = broken()
    assert await outcomes(ledger, 2) == {StorageFailed}
    disk.sync_error = None
    path = ledger_file(tmp_path, 1)
    assert disk.on_device(path) != path.read_bytes()
    if restart:
        await storage.close()
        storage = LocalStorage.open(tmp_path, disk=disk)
    async with storage:
        assert await payloads(await storage.seal(SEGMENT, 1)) == [b"a", b"lost 0", b"lost 1"]
    assert disk.on_device(path) == path.read_bytes()


@pytest.mark.parametrize("restart", [False, True])
async def test_what_was_cut_is_off_the_device_although_a_sync_failed(tmp_path: Path, restart: bool) -> None:
    """A part of a frame had no space, was cut off, and the sync of that failed: the file looks as if it were cut.

    Found by the simulation: after a power cut the file was longer than its mark, and the segment unavailable forever.
    """
    disk = LyingDisk()
    storage = LocalStorage.open(tmp_path, disk=disk)
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a"])
    disk.capacity, disk.fsync_error = ledger.size_bytes + 10, broken()
    assert await outcomes(ledger, 1) == {StorageFailed}
    disk.capacity = disk.fsync_error = None
    path = ledger_file(tmp_path, 1)
    assert len(disk.on_device(path)) == len(path.read_bytes()) + 10
    if restart:
        await storage.close()
        storage = LocalStorage.open(tmp_path, disk=disk)
    async with storage:
        assert await payloads(await storage.seal(SEGMENT, 1)) == [b"a"]
    assert disk.on_device(path) == path.read_bytes()


async def test_damage_behind_the_durable_end_is_cut_whatever_follows_it(
    tmp_path: Path, storage: LocalStorage, disk: FaultyDisk
) -> None:
    """The process that lived through the failure knows what was durable."""
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a"])
    durable = ledger.size_bytes
    disk.sync_error = broken()
    assert await outcomes(ledger, 3) == {StorageFailed}
    with ledger_file(tmp_path, 1).open("r+b") as file:
        file.seek(durable + 10)
        file.write(b"\xff")
    assert await payloads(await ledger.seal()) == [b"a"]


class NoSpaceForMarks(FaultyDisk):
    refused = 0

    def write(self, fd: int, buffers: Sequence[bytes | memoryview], offset: int) -> int:
        if bytes(buffers[0]) == b"mtxnseal":
            self.refused += 1
            raise no_space()
        return super().write(fd, buffers, offset)


async def test_a_full_disk_does_not_keep_a_ledger_from_being_sealed(tmp_path: Path, storage: LocalStorage) -> None:
    ledger = await storage.create(SEGMENT, 1)
    await append_all(ledger, [b"a"])
    await storage.close()
    disk = NoSpaceForMarks()
    async with LocalStorage.open(tmp_path, disk=disk) as again:
        assert await payloads(await again.seal(SEGMENT, 1)) == [b"a"]
        assert disk.refused == 1
        assert not list(mark_file(tmp_path, 1).parent.glob("*.sealed*"))
        assert await payloads(await again.open_sealed(SEGMENT, 1, 1)) == [b"a"]


async def test_a_creation_without_space_leaves_nothing(tmp_path: Path) -> None:
    class Full(FaultyDisk):
        full = False

        def fsync(self, fd: int) -> None:
            if self.full:
                raise no_space()
            super().fsync(fd)

    disk = Full()
    async with LocalStorage.open(tmp_path, disk=disk) as storage:
        disk.full = True
        with pytest.raises(StorageFull):
            await storage.create(SEGMENT, 1)
        disk.full = False
        with pytest.raises(LedgerMissing):
            await storage.seal(SEGMENT, 1)
        await append_all(await storage.create(SEGMENT, 1), [b"a"])
