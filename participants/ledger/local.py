"""Ledgers in local files, which are as durable as the disk.

    <data directory>/
        lock                                   flock, held for the life of the process, never unlinked
        storage.json                           the storage id (see `storage_id`), written once
        <note>.json                            a note of a broker, replaced atomically
        aside/<name>/<escaped segment>/        ledgers that were set aside
        ledgers/<escaped segment>/
            00000000000000000003.ledger        the frames, one after another
            00000000000000000003.sealed        the seal mark: final length and index
            00000000000000000003.hidden.7      the index of hidden entries that owner 7 wrote (see `hidden_index`)
            00000000000000000003.form.7.1      another form of the ledger (see `form`), the first one of owner 7

Everything that blocks runs in a small pool of threads; the objects themselves belong to the event loop. A read of a
file that is open asks the page cache first, which never blocks. Of a ledger at most one group is being written at any
time, and of a segment at most one file is being created, sealed or deleted, also when the task that asked for it was
cancelled: the thread goes on, and `close` waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Self

from participants.ledger import storage_id
from participants.ledger.append_queue import LedgerMetrics
from participants.ledger.directory_lock import DirectoryLock
from participants.ledger.disk import Disk, make_directory, read_file, replace_file
from participants.ledger.form import Form, FormHeader, header_bytes
from participants.ledger.group_commit import device_errors
from participants.ledger.hidden_index import HiddenIndex, HiddenRanges
from participants.ledger.local_files import LedgerFiles
from participants.ledger.local_ledger import LocalOpenLedger, LocalSealedLedger
from participants.ledger.reading import kept_frames
from participants.ledger.storage import (
    FrameSource,
    GrowingLedger,
    LedgerError,
    LedgerMissing,
    LedgerStopped,
    LedgerStorage,
    OpenLedger,
    SealedLedger,
    StorageRefused,
)
from participants.ledger.watermark import Space
from participants.ledger.workers import Workers

_THREADS = 4
_WRITER_THREADS = 8  # syncs of different ledgers run side by side; the file system joins them


class LocalStorage(LedgerStorage):
    """See the module docstring. Made by `open`."""

    exclusive = True

    def __init__(
        self,
        name: str,
        data_dir: Path,
        lock: DirectoryLock | None,
        files: LedgerFiles,
        metrics: LedgerMetrics,
        executor: Executor | None,
    ) -> None:
        self.storage_id = name
        self._data_dir = data_dir
        self._lock = lock
        self._files = files
        self._workers = Workers(executor, _THREADS)
        # A pool of its own, so that the seals of a long recovery delay no append to the segments that are ready.
        self._writers = Workers(executor, _WRITER_THREADS)
        self._metrics = metrics
        self._open: dict[tuple[str, int], LocalOpenLedger] = {}
        self._creating: set[asyncio.Task[OpenLedger]] = set()
        self._closed = False

    @classmethod
    def open(
        cls,
        data_dir: Path,
        *,
        disk: Disk | None = None,
        metrics: LedgerMetrics | None = None,
        executor: Executor | None = None,
    ) -> Self:
        """Lock `data_dir`, and create it if it does not exist. Blocks for a few syncs.

        Raises `StorageLocked`, `StorageRefused`, `StorageFull`, `StorageFailed`.
        """
        disk = disk or Disk()
        with device_errors(f"cannot open the storage {data_dir}"):
            if not disk.exists(data_dir / storage_id.FILE_NAME):
                _make_directories(disk, data_dir)
            lock = disk.lock(data_dir / "lock")
            try:
                name = _storage_id(disk, data_dir)
                make_directory(disk, data_dir / "ledgers")
            except BaseException:
                lock.close()
                raise
        files = LedgerFiles(disk, data_dir / "ledgers")
        return cls(name, data_dir, lock, files, metrics or LedgerMetrics(), executor)

    @classmethod
    def open_to_read(cls, data_dir: Path, *, disk: Disk | None = None, executor: Executor | None = None) -> Self:
        """A storage that another process may have open: nothing may be changed through this one. Raises
        `StorageRefused`, `StorageFailed`."""
        disk = disk or Disk()
        path = data_dir / storage_id.FILE_NAME
        with device_errors(f"cannot open the storage {data_dir}"):
            if not disk.exists(path):
                raise StorageRefused(f"{data_dir} is not the data directory of a broker: there is no {path.name}")
            name = storage_id.parse(str(path), read_file(disk, path))
        return cls(name, data_dir, None, LedgerFiles(disk, data_dir / "ledgers"), LedgerMetrics(), executor)

    async def create(self, segment: str, ledger: int) -> OpenLedger:
        self._check_open()
        # This is a separate task, because a cancelled caller must not leave a file open without an owner.
        task = asyncio.create_task(self._create(segment, ledger))
        self._creating.add(task)
        task.add_done_callback(self._created)
        return await asyncio.shield(task)

    async def _create(self, segment: str, ledger: int) -> OpenLedger:
        fd = await self._workers.run(self._files.create, segment, ledger)
        created = LocalOpenLedger(
            self._files, self._workers, self._writers, segment, ledger, fd, self._metrics, self._ended
        )
        self._open[segment, ledger] = created
        return created

    def _created(self, task: asyncio.Task[OpenLedger]) -> None:
        self._creating.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, because the caller may have been cancelled

    def _ended(self, ledger: LocalOpenLedger) -> None:
        self._open.pop((ledger.segment, ledger.id), None)

    async def seal(self, segment: str, ledger: int) -> SealedLedger:
        self._check_open()
        mine = self._open.get((segment, ledger))
        if mine is not None:
            return await mine.seal()
        try:
            offsets = await self._workers.run(self._files.seal, segment, ledger)
        except LedgerMissing:
            forms = await self.forms(segment, ledger)
            if not forms:
                raise
            return await self._open_form(segment, ledger, None, forms[-1])
        return LocalSealedLedger(self._files, self._workers, segment, ledger, offsets)

    async def open_sealed(self, segment: str, ledger: int, entries: int, form: Form | None = None) -> SealedLedger:
        self._check_open()
        if form is not None:
            return await self._open_form(segment, ledger, entries, form)
        offsets = await self._workers.run(self._files.open_sealed, segment, ledger, entries)
        return LocalSealedLedger(self._files, self._workers, segment, ledger, offsets)

    async def look(self, segment: str, ledger: int) -> GrowingLedger:
        self._check_open()
        offsets, settled = await self._workers.run(self._files.look, segment, ledger)
        return GrowingLedger(LocalSealedLedger(self._files, self._workers, segment, ledger, offsets), settled)

    async def _open_form(self, segment: str, ledger: int, entries: int | None, form: Form) -> SealedLedger:
        offsets = await self._workers.run(self._files.open_form, segment, ledger, entries, form)
        return LocalSealedLedger(self._files, self._workers, segment, ledger, offsets, form)

    async def write_form(
        self,
        segment: str,
        ledger: FrameSource,
        form: Form,
        kept: Sequence[int],
        pace: Callable[[int], Awaitable[None]],
    ) -> SealedLedger:
        self._check_open()
        path, header = self._files.path(segment, ledger.id), FormHeader(ledger.id, ledger.entries)
        at = header_bytes(len(kept))
        try:
            async for frames in kept_frames(ledger, kept, pace):
                content = [frame.data for frame in frames]
                await self._workers.run(self._files.write_form_part, path, form, at, content)
                at += sum(map(len, content))
                for frame in frames:
                    header.add(frame)
            await self._workers.run(self._files.finish_form, segment, ledger.id, form, header.encode())
        except LedgerError:
            await self._workers.run(self._files.discard_form, path, form)
            raise
        return await self._open_form(segment, ledger.id, ledger.entries, form)

    async def forms(self, segment: str, ledger: int) -> list[Form]:
        self._check_open()
        return await self._workers.run(self._files.forms, segment, ledger)

    async def delete_forms_before(self, segment: str, ledger: int, form: Form) -> None:
        self._check_open()
        await self._workers.run(self._files.delete_forms_before, segment, ledger, form)

    async def write_hidden(self, segment: str, generation: int, index: HiddenIndex) -> None:
        self._check_open()
        await self._workers.run(self._files.write_hidden, segment, generation, index)

    async def read_hidden(self, segment: str, ledger: int, generation: int, entries: int) -> HiddenRanges:
        self._check_open()
        return await self._workers.run(self._files.read_hidden, segment, ledger, generation, entries)

    async def read_index(self, segment: str, ledger: int, generation: int, entries: int) -> HiddenIndex:
        self._check_open()
        return await self._workers.run(self._files.read_index, segment, ledger, generation, entries)

    async def delete(self, segment: str, ledger: int) -> None:
        self._check_open()
        mine = self._open.get((segment, ledger))
        if mine is not None:
            await mine.close()
        await self._workers.run(self._files.delete, segment, ledger)

    async def let_go(self, segment: str) -> None:
        await asyncio.gather(*(mine.close() for (name, _), mine in list(self._open.items()) if name == segment))

    async def drop(self, segment: str) -> None:
        self._check_open()
        await self.let_go(segment)
        await self._workers.run(self._files.drop, segment)

    async def directories(self) -> list[str]:
        self._check_open()
        return await self._workers.run(self._files.directories)

    async def numbers(self, directory: str, above: int = -1) -> list[int]:
        self._check_open()
        return [number for number in await self._workers.run(self._files.numbers, directory) if number > above]

    async def set_aside(self, directory: str, ledger: int, name: str) -> None:
        self._check_open()
        await self._workers.run(self._files.set_aside, directory, ledger, self._data_dir / "aside" / name)

    async def space(self) -> Space:
        self._check_open()
        return await self._workers.run(self._files.space)

    async def read_note(self, name: str) -> bytes | None:
        self._check_open()
        return await self._workers.run(self._files.read_note, self._data_dir / name)

    async def write_note(self, name: str, content: bytes) -> None:
        self._check_open()
        await self._workers.run(self._files.write_note, self._data_dir / name, content)

    async def close(self) -> None:
        self._closed = True
        if self._creating:
            await asyncio.wait(self._creating)
        await asyncio.gather(*(ledger.close() for ledger in list(self._open.values())))
        await self._writers.close()
        await self._workers.close()
        self._files.stop_reading()
        # This comes last: while a thread may still write, no other process may open this storage.
        if self._lock is not None:
            self._lock.close()

    def _check_open(self) -> None:
        if self._closed:
            raise LedgerStopped("this storage was closed")


def _make_directories(disk: Disk, path: Path) -> None:
    if not disk.exists(path) and not disk.exists(path.parent):
        _make_directories(disk, path.parent)
    make_directory(disk, path)


def _storage_id(disk: Disk, data_dir: Path) -> str:
    path = data_dir / storage_id.FILE_NAME
    if disk.exists(path):
        disk.fsync_dir(data_dir)  # its writer may have died before it did so
        return storage_id.parse(str(path), read_file(disk, path))
    if disk.exists(data_dir / "ledgers"):
        raise storage_id.lost(str(path))
    content = storage_id.describe_new()
    replace_file(disk, path, [content])
    return storage_id.parse(str(path), content)
