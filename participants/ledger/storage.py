"""Ledger storage: one page, and its docstrings are the contract.

A segment owns a list of ledgers. A ledger is a run of entries 0, 1, 2, … that is appended to while it is open, then
sealed at its final length for ever. The storage knows segments by name and ledgers by number; which ledgers a
segment has, and how long the sealed ones are, is recorded by the layer above.

    LedgerError
    ├── LedgerMissing    there is no such ledger in this storage                   definite
    ├── LedgerExists     `create` found one of that number                         definite
    ├── LedgerCorrupt    its bytes are not what was written; never served          definite
    ├── LedgerStopped    this open ledger takes no appends (failed or closed)      definite
    ├── LedgerFenced     another owner has ended this open ledger                  definite
    ├── StorageFull      no space; nothing was written, later appends may succeed  definite, retriable
    ├── StorageLocked    another process (or object) has this storage open         definite, retriable
    ├── StorageRefused   this place cannot hold ledgers safely                     definite
    └── StorageFailed    a read, write or sync failed; an append may be there      NOT definite

The two facts mean what they mean in `metastore.errors`. The answer to a `StorageFailed` append is to seal the ledger
and to read it: what is in the sealed ledger happened, everything else did not.

All methods run on one event loop. `append`, the properties and `on_durable` belong to that loop's thread.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from metatxn.wire.frames import Entry, RawFrame
from metatxn.wire.position import Position


class LedgerError(Exception):
    """Root of the tree. Not raised itself."""

    retriable = False
    definite = True


class LedgerMissing(LedgerError):
    """There is no such ledger here. It was deleted, or this is not the storage that it was written to."""


class LedgerExists(LedgerError):
    """A ledger of that number has been created before. Numbers are never reused: take the next one."""


class LedgerCorrupt(LedgerError):
    """The ledger is damaged, or shorter or longer than it must be. Nothing of the damaged part is ever served."""


class LedgerStopped(LedgerError):
    """This ledger takes no appends: an earlier one failed, or it was sealed or closed. Nothing was written."""


class LedgerFenced(LedgerError):
    """Another owner took the place where the append would have gone: it is not in the ledger, and never will be."""


class StorageFull(LedgerError):
    """There was no space. The append is undone, durably, and its position will be given to a later append."""

    retriable = True


class StorageLocked(LedgerError):
    """The storage is open elsewhere. Its owner is alive; only its end makes the storage free."""

    retriable = True


class StorageRefused(LedgerError):
    """The place cannot be used: a network file system, or a directory whose storage id was lost."""


class StorageFailed(LedgerError):
    """The device failed. An append that ends so may be in the ledger or not; the ledger is stopped until sealed."""

    definite = False


@dataclass(frozen=True, slots=True)
class Append:
    """An append that was begun: `durable` is done once the frame and all frames before it are on the device.

    It fails with `StorageFull` or `LedgerFenced` (certainly not there) or `StorageFailed` (unknown). Cancelling it does
    not take the append back, so shield it: `await asyncio.shield(append.durable)`.
    """

    position: Position
    durable: asyncio.Future[None]


class ReadableLedger(ABC):
    """What open and sealed ledgers share. An open ledger reads as if it ended at its last durable entry."""

    id: int

    @property
    @abstractmethod
    def entries(self) -> int:
        """Number of (durable) entries."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Size of the (durable) frames together."""

    @property
    def first(self) -> Position:
        """Position of the first entry, whether there is one or not."""
        return Position(self.id, 0)

    @property
    def last(self) -> Position:
        """Position of the last (durable) entry; entry -1 when there is none."""
        return Position(self.id, self.entries - 1)

    @abstractmethod
    async def read(self, first_entry: int, max_bytes: int, last_entry: int | None = None) -> list[RawFrame]:
        """Whole frames from entry `first_entry` on, up to and including `last_entry` (None: the last there is): no more
        than fit into `max_bytes`, but one when there is one.

        An empty list: there is no such entry (yet). The frames lie in buffers of their own, which no one changes.
        The CRC and the position of every frame are checked in each read.

        Raises `LedgerCorrupt` when one of them is damaged: none is returned. `LedgerMissing`: the ledger was
        deleted meanwhile. `StorageFailed`: the device did not give the bytes.
        """

    @abstractmethod
    async def read_part(self, entry: int, start: int, end: int) -> memoryview:
        """Bytes `start` to `end` of the frame of an entry that is there, as the device gives them now: perhaps fewer,
        perhaps others than they should be. Raises `LedgerMissing`, `StorageFailed`, as `read`.
        """


class SealedLedger(ReadableLedger):
    """A ledger that never changes again. Holds no resource that needs closing."""


class OpenLedger(ReadableLedger):
    """The ledger that takes a segment's appends.

    `on_durable` is called on the loop each time `last_durable` has moved, after the futures of those appends were
    resolved.
    """

    on_durable: Callable[[], None] | None = None

    @abstractmethod
    def append(self, entry: Entry, publish_ms: int) -> Append:
        """Begin to append one frame. Returns at once; the order of the calls is the order of the positions.

        The payload must not change before `durable` is done. Raises `ValueError` when the frame does not fit the
        format (see `frames.encode_parts`) and `LedgerStopped`; then nothing was begun.

        After `StorageFull` the positions of all appends not yet durable are given out again: whoever remembers one
        of them must forget it when its future fails. All futures that fail are failed in one step, before any
        later `append` can run.
        """

    @property
    @abstractmethod
    def last_assigned(self) -> Position:
        """Position of the last append begun (and not ended by `StorageFull`); entry -1 when there is none."""

    @property
    def last_durable(self) -> Position:
        """Position of the last append that is durable; entry -1 when there is none. Never moves backwards."""
        return self.last

    @property
    @abstractmethod
    def stopped(self) -> LedgerError | None:
        """Why this ledger takes no appends any more; None while it does."""

    @abstractmethod
    async def seal(self) -> SealedLedger:
        """Take no more appends, wait for the begun ones, and fix the length. Idempotent.

        After a failure this is `LedgerStorage.seal`, except that everything behind the last durable entry is known
        to be unfinished: damage there is cut whatever follows it. Appends that ended with `StorageFailed` may be in
        the result. Raises `LedgerCorrupt`, `LedgerMissing`, `StorageFull`, `StorageFailed`: try again.
        """

    @abstractmethod
    async def close(self) -> None:
        """Take no more appends, wait for those begun, and let the file go, unsealed. Idempotent; `seal` may follow."""


class LedgerStorage(ABC):
    """One place that holds ledgers. `storage_id` names it for ever.

    An `exclusive` one is open in one process at a time: whoever has it open may take its segments at once, because
    nobody else can append to them. Any other is open in many: a segment is taken by its ownership record first, and
    then `seal` fences the ledger off from the process that was appending to it.
    """

    storage_id: str
    exclusive: bool

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @abstractmethod
    async def create(self, segment: str, ledger: int) -> OpenLedger:
        """A new, empty ledger; it survives a crash from the moment this returns.

        Raises `LedgerExists`. `StorageFull`: it was not created. `StorageFailed`: it may exist; never use that
        number again.
        """

    @abstractmethod
    async def seal(self, segment: str, ledger: int) -> SealedLedger:
        """Recovery: read a ledger through, cut what was not finished, and fix its length. Idempotent.

        A bad or incomplete frame is cut, with all behind it: it was not durable yet, so no one was told about it.
        Unless a frame behind it says that it had been durable: then it is damage to what may have been acknowledged,
        and the ledger stays as it is (see `recovery`). What this returns is durable, also when an earlier sync of
        these bytes had failed.

        A ledger that is open in this process is sealed as by its own `seal`. Raises `LedgerMissing`,
        `LedgerCorrupt` (also when it was sealed before and its bytes do not reach that length any more),
        `StorageFull`, `StorageFailed`: try again.
        """

    @abstractmethod
    async def open_sealed(self, segment: str, ledger: int, entries: int) -> SealedLedger:
        """A ledger that is recorded to have exactly `entries` entries.

        It never recovers as another length, nor as empty. Raises `LedgerMissing`; `LedgerCorrupt` when it is
        shorter, longer, or not readable as frames; `StorageFailed`.
        """

    @abstractmethod
    async def delete(self, segment: str, ledger: int) -> None:
        """Remove a ledger's bytes; done already is success. Raises `StorageFailed`: try again.

        What fences off a former owner stays: it may be frozen, and wake up after the bytes are gone.
        """

    @abstractmethod
    async def let_go(self, segment: str) -> None:
        """Close the segment's open ledgers, failed ones too, as by their `close`: whoever owns it now seals them."""

    @abstractmethod
    async def drop(self, segment: str) -> None:
        """Remove all that there is of a segment that exists no more; done already is success. Raises as `delete`."""

    @abstractmethod
    async def directories(self) -> list[str]:
        """The directory of every segment of which there is anything here (see `directories.segment_directory`), in
        order. Raises `StorageFailed`."""

    @abstractmethod
    async def numbers(self, directory: str, above: int = -1) -> list[int]:
        """The numbers above `above` of the ledgers in a segment's directory, in order; none when there is no such
        directory. What fences off the owner of a deleted ledger is no ledger. Raises `StorageFailed`."""

    @abstractmethod
    async def set_aside(self, directory: str, ledger: int, name: str) -> None:
        """Move a ledger that nobody has open out of the way, unchanged, to `aside/<name>/<directory>`. Done already is
        success. Raises `StorageFailed`: try again."""

    @abstractmethod
    async def read_note(self, name: str) -> bytes | None:
        """What `write_note` has written last under this name; None when it never did. Raises `StorageFailed`."""

    @abstractmethod
    async def write_note(self, name: str, content: bytes) -> None:
        """Keep a small file beside the ledgers; it replaces the one of this name, whole or not at all, and is durable
        when this returns. Raises `StorageFull`, `StorageFailed`."""

    @abstractmethod
    async def close(self) -> None:
        """Close the open ledgers as by their `close` and let the storage go. Idempotent."""
