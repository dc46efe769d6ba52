"""Ledger storage. The docstrings of this page are its contract.

A segment owns a list of ledgers. A ledger is a run of entries 0, 1, 2, … that is appended to while it is open, then
sealed at its final length forever. The storage knows segments by name and ledgers by number; which ledgers a
segment has, and how long the sealed ones are, is recorded by the layer above.

    LedgerError
    ├── LedgerMissing    this ledger is not in this storage                        definite
    ├── LedgerExists     `create` found one with that number                        definite
    ├── LedgerCorrupt    its bytes are not what was written; never served          definite
    │   └── LedgerTooNew a later release has written them                          definite
    ├── LedgerStopped    this open ledger takes no appends (failed or closed)      definite
    ├── LedgerFenced     another owner has ended this open ledger                  definite
    ├── StorageFull      no space; nothing was written, later appends may succeed  definite, retriable
    ├── StorageLocked    another process (or object) has this storage open         definite, retriable
    ├── StorageRefused   this place cannot hold ledgers safely                     definite
    └── StorageFailed    a read, write or sync failed; an append may be there      NOT definite

The two facts mean what they mean in `metastore.errors`. The answer to a `StorageFailed` append is to seal the ledger
and to read it: an append took effect if it is in the sealed ledger.

All methods run on one event loop. `append`, the properties and `on_durable` belong to that loop's thread.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from metatxn.wire.frames import Entry, RawFrame
from metatxn.wire.position import Position
from participants.ledger.form import Form
from participants.ledger.hidden_index import HiddenIndex, HiddenRanges
from participants.ledger.watermark import Space


class LedgerError(Exception):
    """Root of the tree. Not raised itself."""

    retriable = False
    definite = True


class LedgerMissing(LedgerError):
    """The ledger is not here: it was deleted, or it was written to another storage."""


class LedgerExists(LedgerError):
    """A ledger with this number has been created before. Numbers are never reused, so take the next one."""


class LedgerCorrupt(LedgerError):
    """The ledger is damaged, or shorter or longer than it must be. Nothing of the damaged part is ever served."""


class LedgerTooNew(LedgerCorrupt):
    """A later release has written the ledger, or what is beside it, in a form that this one does not know. It is left
    alone and not served, as if it were damaged; but it needs that release, and no backup."""


class LedgerStopped(LedgerError):
    """This ledger takes no appends: an earlier one failed, or it was sealed or closed. Nothing was written."""


class LedgerFenced(LedgerError):
    """Another owner took the place where the append would have gone: it is not in the ledger, and never will be."""


class StorageFull(LedgerError):
    """There was no space. The append is undone, durably, and its position will be given to a later append."""

    retriable = True


class StorageLocked(LedgerError):
    """The storage is open in another process. It becomes available only when that process ends."""

    retriable = True


class StorageRefused(LedgerError):
    """The place cannot be used: a network file system, or a directory whose storage id was lost."""


class StorageFailed(LedgerError):
    """The device failed. The append may or may not be in the ledger; the ledger is stopped until it is sealed."""

    definite = False


@dataclass(frozen=True, slots=True)
class Append:
    """An append that was begun. `durable` is done once the frame and all frames before it are on the device.

    It fails with `StorageFull` or `LedgerFenced` (the frame is certainly not there) or `StorageFailed` (unknown).
    Cancelling it does not undo the append, so shield it: `await asyncio.shield(append.durable)`.
    """

    position: Position
    durable: asyncio.Future[None]


class ReadableLedger(ABC):
    """The methods that open and sealed ledgers share. An open ledger reads as if it ended at its last durable entry."""

    id: int

    @property
    @abstractmethod
    def entries(self) -> int:
        """The number of (durable) entries."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """The total size of the (durable) frames in bytes."""

    @abstractmethod
    def bytes_of(self, first_entry: int, last_entry: int) -> int:
        """The size of the frames of these entries. An entry that was left out has no bytes."""

    @abstractmethod
    def first_kept(self, entry: int) -> int:
        """The first entry at or after this existing one that was not left out, or the number of entries."""

    @property
    @abstractmethod
    def last_kept(self) -> int:
        """The last entry that was not left out, or -1."""

    def kept_below(self, entry: int) -> int:
        """The last entry below this one that was not left out, or -1. There is an entry right below it, unless it is
        the first."""
        if entry == 0 or self.first_kept(entry - 1) == entry - 1:
            return entry - 1
        return bisect_right(range(entry), entry - 1, key=self.first_kept) - 1

    @property
    def first(self) -> Position:
        """The position of the first entry, even if there is none."""
        return Position(self.id, 0)

    @property
    def last(self) -> Position:
        """The position of the last (durable) entry, or entry -1 if there is none."""
        return Position(self.id, self.entries - 1)

    @abstractmethod
    async def read(self, first_entry: int, max_bytes: int, last_entry: int | None = None) -> list[RawFrame]:
        """Whole frames from entry `first_entry` on, up to and including `last_entry` (None means the last one): no more
        than fit into `max_bytes`, but at least one if there is one. Entries that were left out are skipped.

        The list is empty if there is no such entry (yet). The frames are in buffers of their own, which are never
        changed. The CRC and the position of every frame are checked in each read.

        Raises `LedgerCorrupt` if one of them is damaged, and then returns none; `LedgerMissing` if the ledger has been
        deleted; and `StorageFailed` if the device did not return the bytes.
        """

    @abstractmethod
    async def raw_bytes(self, first_entry: int, last_entry: int) -> memoryview:
        """The bytes of the frames of these existing entries, one after another, as the device returns them now: for a
        copy, whose maker checks them. Raises `LedgerCorrupt` if there are fewer, and as `read`."""

    @abstractmethod
    async def read_part(self, entry: int, start: int, end: int) -> memoryview:
        """The bytes `start` to `end` of the frame of an existing entry, as the device returns them now: there may be
        fewer, and they may be wrong. Raises `LedgerMissing` and `StorageFailed` as `read` does."""


class FrameSource(Protocol):
    """What a form is written from: a sealed ledger, or the copy of one."""

    id: int

    @property
    def entries(self) -> int: ...

    async def read(self, first_entry: int, max_bytes: int, last_entry: int | None = None) -> list[RawFrame]: ...


class SealedLedger(ReadableLedger):
    """A ledger that never changes again. It holds no resource that must be closed."""

    form: Form | None = None
    """The form that this is, or None if it is the ledger as it was sealed."""


@dataclass(frozen=True, slots=True)
class GrowingLedger:
    """A ledger as another process has found it, which may grow. The first `settled` entries never change again."""

    ledger: SealedLedger
    settled: int


class OpenLedger(ReadableLedger):
    """The ledger that accepts a segment's appends.

    `on_durable` is called on the loop each time `last_durable` has moved, after the futures of those appends were
    resolved.
    """

    on_durable: Callable[[], None] | None = None
    first_ms: int | None = None
    """The publish time of the first append that was begun, or None."""
    latest_ms: int | None = None
    """The latest publish time of all appends that were begun, or None. No frame in the ledger is younger."""

    @abstractmethod
    def append(self, entry: Entry, publish_ms: int) -> Append:
        """Begin to append one frame. Returns at once; the order of the calls is the order of the positions.

        The payload must not change before `durable` is done. Raises `ValueError` if the frame does not fit the format
        (see `frames.encode_parts`) and `LedgerStopped`; then nothing was begun.

        After `StorageFull` the positions of all appends that are not durable are given out again: a caller that
        remembers one of them must forget it when its future fails. All futures that fail are failed in one step, before
        any later `append` can run.
        """

    @property
    @abstractmethod
    def last_assigned(self) -> Position:
        """The position of the last begun append (unless `StorageFull` ended it), or entry -1 if there is none."""

    @property
    def last_durable(self) -> Position:
        """The position of the last durable append, or entry -1 if there is none. It never moves backwards."""
        return self.last

    @property
    @abstractmethod
    def stopped(self) -> LedgerError | None:
        """The reason why this ledger accepts no more appends, or None if it does."""

    @abstractmethod
    async def seal(self) -> SealedLedger:
        """Accept no more appends, wait for the begun ones, and fix the length. Idempotent.

        After a failure this is `LedgerStorage.seal`, except that everything after the last durable entry is known to be
        unfinished: damage there is cut, whatever follows it. Appends that ended with `StorageFailed` may be in the
        result. After `LedgerCorrupt`, `LedgerMissing`, `StorageFull` or `StorageFailed` the call can be repeated.
        """

    @abstractmethod
    async def close(self) -> None:
        """Accept no more appends, wait for the begun ones, and release the file without sealing it. Idempotent; `seal`
        may follow."""


class LedgerStorage(ABC):
    """A place that holds ledgers. `storage_id` names it forever.

    An `exclusive` storage is open in one process at a time, which may take its segments at once, because no other one
    can append to them. Any other storage is open in many processes: a segment is first taken by its ownership record,
    and then `seal` fences its ledger off from the process that was appending to it.
    """

    storage_id: str
    exclusive: bool

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @abstractmethod
    async def create(self, segment: str, ledger: int) -> OpenLedger:
        """Create an empty ledger, which survives a crash from the moment at which this returns.

        Raises `LedgerExists`; `StorageFull` if it was not created; and `StorageFailed` if it may exist, so that its
        number must never be used again.
        """

    @abstractmethod
    async def seal(self, segment: str, ledger: int) -> SealedLedger:
        """Recover a ledger: read all of it, cut what was not finished, and fix its length. Idempotent.

        A bad or incomplete frame is cut with everything after it: it was not durable yet, so no one was told about it.
        But if a later frame says that it was durable, it is damage to what may have been acknowledged, and the ledger
        stays as it is (see `recovery`). The result is durable, even if an earlier sync of these bytes had failed.

        Of a ledger of which there are only forms, the result is the highest one.

        A ledger that is open in this process is sealed as by its own `seal`. After `LedgerMissing`, `LedgerCorrupt`
        (also if it was sealed before and is now too short), `StorageFull` or `StorageFailed` the call can be repeated.
        """

    @abstractmethod
    async def open_sealed(self, segment: str, ledger: int, entries: int, form: Form | None = None) -> SealedLedger:
        """Open a ledger that is recorded to have exactly `entries` entries, in this form of it.

        It is never opened with another length, nor as empty. Raises `LedgerMissing`; `LedgerCorrupt` if it is shorter,
        longer, or does not consist of frames; and `StorageFailed`.
        """

    @abstractmethod
    async def look(self, segment: str, ledger: int) -> GrowingLedger:
        """A ledger that another process may be appending to, as far as it is whole now. Changes nothing, and needs no
        lock.

        Everything that was durable before the call is in it. What else is there may not be durable yet: it may still
        become an append that has failed. Raises `LedgerMissing`, `LedgerCorrupt`, `StorageFailed`.
        """

    @abstractmethod
    async def write_hidden(self, segment: str, generation: int, index: HiddenIndex) -> None:
        """Store the index of hidden entries of a sealed ledger, under the generation of its owner. It replaces one of
        the same generation atomically, and is durable when this returns.

        Raises `LedgerMissing` if the ledger was deleted, `StorageFull`, `StorageFailed`.
        """

    @abstractmethod
    async def read_hidden(self, segment: str, ledger: int, generation: int, entries: int) -> HiddenRanges:
        """What the index of this generation hides in a ledger with this many entries.

        A missing index never means that nothing is hidden: raises `LedgerMissing` if
        there is no such index, `LedgerCorrupt` if it is not what was written for this ledger, and `StorageFailed`.
        """

    @abstractmethod
    async def read_index(self, segment: str, ledger: int, generation: int, entries: int) -> HiddenIndex:
        """The whole index of which `read_hidden` says what it hides. Raises as that."""

    @abstractmethod
    async def write_form(
        self,
        segment: str,
        ledger: FrameSource,
        form: Form,
        kept: Sequence[int],
        pace: Callable[[int], Awaitable[None]],
    ) -> SealedLedger:
        """Store another form of a sealed ledger, with these entries, which are in order. It is durable when this
        returns, and nothing counts as this form before. `pace` is awaited after every read, with its size.

        Raises `LedgerMissing` if the ledger was deleted, `LedgerCorrupt`, `StorageFull`, `StorageFailed`. Then this
        name must never be used again.
        """

    @abstractmethod
    async def forms(self, segment: str, ledger: int) -> list[Form]:
        """The complete forms of a ledger, in order. Raises `StorageFailed`."""

    @abstractmethod
    async def delete_forms_before(self, segment: str, ledger: int, form: Form) -> None:
        """Delete the ledger as it was sealed, and every lower form of it, also what was not finished. The indexes of
        hidden entries stay, and so does what fences off a former owner. After `StorageFailed` the call can be repeated.

        Also a deposed owner may call this with a form that it has named in the record, because no lower one is ever
        named after it.
        """

    @abstractmethod
    async def delete(self, segment: str, ledger: int) -> None:
        """Delete a ledger's bytes, forms and indexes, if it has any. After `StorageFailed` the call can be repeated.

        The object that fences off a former owner stays: that owner may be frozen, and wake up after the bytes were
        deleted.
        """

    @abstractmethod
    async def let_go(self, segment: str) -> None:
        """Close the segment's open ledgers, failed ones too, as by their `close`. Its new owner seals them."""

    @abstractmethod
    async def drop(self, segment: str) -> None:
        """Delete everything of a segment that no longer exists, if there is anything. Raises as `delete`."""

    @abstractmethod
    async def directories(self) -> list[str]:
        """The directory of every segment that has anything here (see `directories.segment_directory`), in order. Raises
        `StorageFailed`."""

    @abstractmethod
    async def numbers(self, directory: str, above: int = -1) -> list[int]:
        """The numbers above `above` of the ledgers in a segment's directory, in order; none if the directory does not
        exist. The fence of a deleted ledger does not count as a ledger. Raises `StorageFailed`."""

    @abstractmethod
    async def set_aside(self, directory: str, ledger: int, name: str) -> None:
        """Move a ledger that no process has open to `aside/<name>/<directory>`, unchanged, unless that is already done.
        After `StorageFailed` the call can be repeated."""

    @abstractmethod
    async def space(self) -> Space | None:
        """How much of the disk is used, or None if there is no disk that could be measured. Raises `StorageFailed`."""

    @abstractmethod
    async def read_note(self, name: str) -> bytes | None:
        """The last content that `write_note` has written under this name, or None. Raises `StorageFailed`."""

    @abstractmethod
    async def write_note(self, name: str, content: bytes) -> None:
        """Store a small file beside the ledgers. It replaces the one of this name atomically, and is durable when this
        returns. Raises `StorageFull`, `StorageFailed`."""

    @abstractmethod
    async def close(self) -> None:
        """Close the open ledgers as by their `close`, and release the storage. Idempotent."""
