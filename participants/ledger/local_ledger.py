"""The two ledgers of local storage: one that grows by group commit, and one that never changes."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from array import array
from collections.abc import Callable

from metatxn.wire.frames import RawFrame
from participants.ledger.append_queue import GroupOutcome, LedgerMetrics, Pending, QueuedLedger
from participants.ledger.form import Form, first_kept, last_kept
from participants.ledger.group_commit import write_group
from participants.ledger.local_files import LedgerFiles, form_path
from participants.ledger.reading import checked_frames, end_of_read
from participants.ledger.storage import LedgerCorrupt, ReadableLedger, SealedLedger
from participants.ledger.workers import Workers

AT_ONCE_BYTES = (4 << 20) + (64 << 10)
"""The largest read that need not go through a thread, if the bytes are in memory: as much as one answer holds. Reading
and checking it takes the event loop 0.6 ms. A thread passes the interpreter's lock back and forth, so an answer of this
size takes 2.5 ms of CPU with one, and 1.9 without."""


class _LocalLedger(ReadableLedger):
    def __init__(self, files: LedgerFiles, workers: Workers, segment: str, ledger: int) -> None:
        self.id = ledger
        self.segment = segment
        self._files = files
        self._path = files.path(segment, ledger)
        self._workers = workers

    @property
    @abstractmethod
    def _index(self) -> array[int]:
        """The offsets of the readable entries."""

    @property
    def entries(self) -> int:
        return len(self._index) - 1

    @property
    def size_bytes(self) -> int:
        return self._index[-1] - self._index[0]

    def bytes_of(self, first_entry: int, last_entry: int) -> int:
        return self._index[last_entry + 1] - self._index[first_entry]

    def first_kept(self, entry: int) -> int:
        return first_kept(self._index, entry)

    @property
    def last_kept(self) -> int:
        return last_kept(self._index)

    async def read(self, first_entry: int, max_bytes: int, last_entry: int | None = None) -> list[RawFrame]:
        assert first_entry >= 0, first_entry
        index = self._index
        if first_entry >= self.entries:
            return []
        end = end_of_read(index, first_entry, max_bytes, last_entry)
        # The thread gets a copy of the slice: the index of an open ledger grows meanwhile.
        wanted = index[first_entry : end + 1]
        if wanted[0] == wanted[-1]:
            return []  # all of them were left out
        small = wanted[-1] - wanted[0] <= AT_ONCE_BYTES
        if small and (content := self._read_at_once(wanted[0], wanted[-1])) is not None:
            frames = checked_frames(content, self.id, first_entry, wanted)  # while the processor has them in its cache
            await asyncio.sleep(0)  # who reads many ledgers, one after the other, lets others have their turn
            return frames
        return await self._workers.run(self._files.read, self._path, self.id, first_entry, wanted)

    def _read_at_once(self, begin: int, end: int) -> memoryview | None:
        """The bytes, if they can be had without waiting for a device. What was read or appended lately is in the page
        cache."""
        return self._files.read_at_once(self._path, begin, end)

    async def raw_bytes(self, first_entry: int, last_entry: int) -> memoryview:
        begin, end = self._index[first_entry], self._index[last_entry + 1]
        content = await self._workers.run(self._files.read_bytes, self._path, self.id, begin, end)
        if len(content) != end - begin:
            raise LedgerCorrupt(f"{self._path.name} ends at byte {begin + len(content)}, and has had {end}")
        return content

    async def read_part(self, entry: int, start: int, end: int) -> memoryview:
        offset = self._index[entry]
        return await self._workers.run(self._files.read_bytes, self._path, self.id, offset + start, offset + end)


class LocalSealedLedger(_LocalLedger, SealedLedger):
    def __init__(
        self,
        files: LedgerFiles,
        workers: Workers,
        segment: str,
        ledger: int,
        offsets: array[int],
        form: Form | None = None,
    ) -> None:
        super().__init__(files, workers, segment, ledger)
        self.form = form
        if form is not None:
            self._path = form_path(self._path, form)
        # A segment may have hundreds of these: four bytes for an entry, where they are enough.
        self._offsets = array("I", offsets) if offsets[-1] < 1 << 32 else offsets

    @property
    def _index(self) -> array[int]:
        return self._offsets


class LocalOpenLedger(_LocalLedger, QueuedLedger):
    """An open ledger. One group is written at a time, in a thread, by one write and one sync. Appends that arrive
    meanwhile form the next group.

    The `durable` of a frame is the entry with which its group begins, because groups do not overlap; recovery relies on
    this.
    """

    def __init__(
        self,
        files: LedgerFiles,
        workers: Workers,
        writers: Workers,
        segment: str,
        ledger: int,
        fd: int,
        metrics: LedgerMetrics,
        on_ended: Callable[[LocalOpenLedger], None],
    ) -> None:
        _LocalLedger.__init__(self, files, workers, segment, ledger)
        QueuedLedger.__init__(self, segment, ledger, metrics)
        self._writers = writers
        self._fd = fd
        self._on_ended = on_ended
        self._end_lock = asyncio.Lock()
        self._sealed: LocalSealedLedger | None = None

    @property
    def _index(self) -> array[int]:
        return self.offsets

    def _read_at_once(self, begin: int, end: int) -> memoryview | None:
        """The file is open for its appends."""
        return self._files.disk.read_at_once(self._fd, end - begin, begin) if self._fd >= 0 else None

    def write(self, group: list[Pending], durable: int) -> asyncio.Future[GroupOutcome]:
        frames = [(pending.draft, pending.payload) for pending in group]
        return self._writers.begin_with_others(
            write_group, self._files.disk, self._fd, frames, durable, self.offsets[-1], self.metrics.clock
        )

    async def seal(self) -> SealedLedger:
        await self._end()
        async with self._end_lock:
            if self._sealed is None:
                if self.failure is None:
                    seal = self._workers.begin(self._files.seal_finished, self.segment, self.id, self.offsets)
                else:
                    seal = self._workers.begin(self._files.seal_failed, self.segment, self.id, self.offsets[-1])
                offsets = await asyncio.shield(seal)
                self._sealed = LocalSealedLedger(self._files, self._workers, self.segment, self.id, offsets)
                self._on_ended(self)
        return self._sealed

    async def close(self) -> None:
        await self._end()
        self._on_ended(self)

    async def _end(self) -> None:
        await self.no_more_appends()
        async with self._end_lock:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                await self._workers.run(self._files.close, fd)
