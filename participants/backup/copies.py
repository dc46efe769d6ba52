"""Reading what a backup has: its records, and the frames of its ledgers."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Self

from metatxn.wire.frames import FrameError, RawFrame, peek_all
from participants.backup.manifest import BackupDamaged, Chunk, LedgerCopy, Manifest
from participants.backup.place import BackupPlace
from participants.backup.records import parsed_records
from participants.ledger.form import FormHeader, first_kept
from participants.ledger.hidden_index import HiddenIndex, IndexDamaged
from participants.ledger.reading import end_of_read
from participants.ledger.storage import LedgerCorrupt


async def read_records(place: BackupPlace, manifest: Manifest) -> AsyncIterator[tuple[str, bytes]]:
    """The keys and values of the store, in the order of the keys. Raises `BackupDamaged`, `StorageFailed`."""
    for number, page in enumerate(manifest.pages):
        content = await place.page(manifest, number)
        try:
            found = list(parsed_records(content))
        except (ValueError, LookupError) as error:
            raise BackupDamaged(f"page {number} of the records cannot be read: {error}") from error
        if len(found) != page.records:
            raise BackupDamaged(f"page {number} has {len(found)} records instead of {page.records}")
        for record in found:
            yield record


async def read_hidden(place: BackupPlace, copy: LedgerCopy) -> HiddenIndex | None:
    """The index of hidden entries of a ledger, if it has one. Raises `BackupDamaged`, `StorageFailed`."""
    if not copy.hidden:
        return None
    try:
        return HiddenIndex.decode(await place.hidden(copy), copy.ledger, copy.entries)
    except IndexDamaged as error:
        raise BackupDamaged(f"the index of hidden entries of {_named(copy)} is damaged: {error}") from error


async def frames_of_copy(place: BackupPlace, copy: LedgerCopy) -> AsyncIterator[list[RawFrame]]:
    """The frames of a ledger, chunk by chunk. Raises `BackupDamaged`, `StorageFailed`."""
    at = 0
    for chunk in copy.chunks:
        if chunk.first != at:
            raise BackupDamaged(f"{_named(copy)} has no entry {at}")
        frames = list(_frames(await place.chunk(copy, chunk), copy, chunk))
        if copy.form is None and len(frames) != chunk.end - chunk.first:
            raise BackupDamaged(f"{_named(copy)} lacks entries between {chunk.first} and {chunk.end}")
        yield frames
        at = chunk.end
    if at != copy.entries:
        raise BackupDamaged(f"{_named(copy)} ends at entry {at} instead of {copy.entries}")


def _frames(content: bytes, copy: LedgerCopy, chunk: Chunk) -> Iterator[RawFrame]:
    at = chunk.first
    try:
        for frame in peek_all(content):
            if frame.position.ledger != copy.ledger or not at <= frame.position.entry < chunk.end:
                raise BackupDamaged(f"{_named(copy)} has {frame.position} in the place of entry {at}")
            yield frame
            at = frame.position.entry + 1
    except FrameError as error:
        raise BackupDamaged(f"{_named(copy)} is damaged at entry {at}: {error}") from error


def _named(copy: LedgerCopy) -> str:
    return f"ledger {copy.ledger} of {copy.segment}"


class CopiedLedger:
    """A ledger of a backup, from which a form is written (see `FrameSource`)."""

    def __init__(self, place: BackupPlace, copy: LedgerCopy, header: FormHeader, kept: Sequence[int]) -> None:
        """`kept` are the entries that belong to the backup."""
        self.id = copy.ledger
        self.entries = copy.entries
        self.kept = kept
        self.there = len(header.kept)
        self._place = place
        self._copy = copy
        self._offsets = header.offsets()
        self._firsts = [chunk.first for chunk in copy.chunks]
        self._loaded: tuple[int, bytes] = (-1, b"")

    @classmethod
    async def open(cls, place: BackupPlace, copy: LedgerCopy, holds: Callable[[RawFrame], bool]) -> Self:
        """Open a copy, which is read once. Its entries are all before `judged_from`, and of the others those that
        `holds` accepts. Raises `BackupDamaged`, `StorageFailed`."""
        every, kept = FormHeader(copy.ledger, copy.entries), array("Q")
        async for frames in frames_of_copy(place, copy):
            for frame in frames:
                every.add(frame)
                if frame.position.entry < copy.judged_from or holds(frame):
                    kept.append(frame.position.entry)
        return cls(place, copy, every, kept)

    async def read(self, first_entry: int, max_bytes: int, last_entry: int | None = None) -> list[RawFrame]:
        """The frames of one chunk; see `ReadableLedger.read`. Raises `LedgerCorrupt`."""
        end = end_of_read(self._offsets, first_entry, max_bytes, last_entry)
        number = bisect_right(self._firsts, first_kept(self._offsets, first_entry)) - 1
        content = await self._content(number)
        at = self._offsets[self._firsts[number]]
        begin, stop = self._offsets[first_entry] - at, self._offsets[end] - at
        return list(peek_all(memoryview(content)[begin : min(stop, len(content))]))

    async def _content(self, number: int) -> bytes:
        if self._loaded[0] != number:
            try:
                self._loaded = number, await self._place.chunk(self._copy, self._copy.chunks[number])
            except BackupDamaged as error:
                raise LedgerCorrupt(str(error)) from error
        return self._loaded[1]
