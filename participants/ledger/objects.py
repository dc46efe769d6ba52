"""The format of the objects of a ledger, and how each is put exactly once.

    ledgers/<escaped segment>/<ledger, 20 digits>/
        00000000000000000000      start: the ledger exists
        00000000000000000001 …    frames: one group each
        00000000000000000017      fence: the ledger ends here, forever
        index                     of a sealed ledger: the place of each entry; may be missing
        hidden.7                  the index of hidden entries that owner 7 wrote (see `hidden_index`)
        form.7.1                  another form of the ledger (see `form`), the first one of owner 7: its header
        form.7.1.1 …              the frames of that form, as objects of the kind 1

    offset  size  field
         0     8  magic      "mtxnobj1"
         8     4  crc        CRC-32 of the 33 bytes after it
        12     1  kind       0 start, 1 frames, 2 fence
        13    16  token      who wrote it: one per opening of a ledger, and per fence
        29     8  first      number of the first entry in it; little-endian, as all numbers
        37     8  durable    how many entries of the ledger were durable when it was sent
        45     .  frames     one after another (see `frames`); none in a start or a fence

An object never changes, and an object store shows it whole or not at all. So there are no torn tails here: any
difference from what was written is damage.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from metastore import keys
from metatxn.service import retry
from metatxn.wire.crc import crc32
from metatxn.wire.frames import FrameError, peek
from metatxn.wire.position import Position
from participants.ledger.bucket import Bucket
from participants.ledger.byte_order import little_endian
from participants.ledger.directories import segment_directory
from participants.ledger.form import Form, first_kept
from participants.ledger.reading import unreadable
from participants.ledger.recovery import new_offsets
from participants.ledger.storage import LedgerCorrupt, LedgerTooNew, StorageFailed

_MAGIC = b"mtxnobj1"
_LATER_MAGICS = [b"mtxnobj%d" % version for version in range(2, 10)]
_INDEX_MAGIC = b"mtxnidx1"
_CRC = struct.Struct("<I")
_BODY = struct.Struct("<B16sQQ")
_INDEX_HEAD_BYTES = len(_INDEX_MAGIC) + _CRC.size
_BODY_OFFSET = len(_MAGIC) + _CRC.size
HEADER_BYTES = _BODY_OFFSET + _BODY.size
_PUT_ATTEMPTS = 5
LEDGERS = "ledgers"
"""The name below which the segments are."""
START = 0
"""The number of the object that every ledger begins with."""


class ObjectKind(IntEnum):
    START = 0
    FRAMES = 1
    FENCE = 2


@dataclass(frozen=True, slots=True)
class ObjectHeader:
    kind: ObjectKind
    token: bytes
    first: int = 0
    durable: int = 0

    def encode(self) -> bytes:
        body = _BODY.pack(self.kind, self.token, self.first, self.durable)
        return _MAGIC + _CRC.pack(crc32(body)) + body

    @classmethod
    def decode(cls, content: bytes, name: str) -> ObjectHeader:
        """Raises `LedgerCorrupt`."""
        body = content[_BODY_OFFSET:HEADER_BYTES]
        if content[: len(_MAGIC)] in _LATER_MAGICS:
            raise LedgerTooNew(f"{name} is of a later release: it begins with {content[: len(_MAGIC)].decode()}")
        if len(body) < _BODY.size or content[:_BODY_OFFSET] != _MAGIC + _CRC.pack(crc32(body)):
            raise LedgerCorrupt(f"{name} is not an object of a ledger, or is damaged")
        kind, token, first, durable = _BODY.unpack(body)
        if kind > ObjectKind.FENCE:
            raise LedgerTooNew(f"{name} is of a later release: its kind {kind} is unknown")
        return cls(ObjectKind(kind), token, first, durable)


def segment_prefix(segment: str) -> str:
    return f"{LEDGERS}/{segment_directory(segment)}"


def ledger_prefix(segment: str, ledger: int) -> str:
    return f"{segment_prefix(segment)}/{keys.number(ledger)}"


def object_name(segment: str, ledger: int, number: int) -> str:
    return f"{ledger_prefix(segment, ledger)}/{keys.number(number)}"


def index_name(segment: str, ledger: int) -> str:
    return f"{ledger_prefix(segment, ledger)}/index"


def hidden_name(segment: str, ledger: int, generation: int) -> str:
    return f"{ledger_prefix(segment, ledger)}/hidden.{generation}"


def form_name(segment: str, ledger: int, form: Form) -> str:
    """The header of a form, which is put last."""
    return f"{ledger_prefix(segment, ledger)}/form.{form}"


def form_part_name(segment: str, ledger: int, form: Form, number: int) -> str:
    return f"{form_name(segment, ledger, form)}.{number}"


class NameTaken(Exception):
    """Another writer has put an object with that name."""


async def put_once(bucket: Bucket, name: str, content: bytes, token: bytes) -> None:
    """Create an object that contains `token`, even if single replies are lost.

    If the name is taken, it may be by our own put whose reply was lost (the library repeats some puts by itself); the
    token shows it. Raises `NameTaken` if this content is not there and never will be, and `StorageFailed` if it may be
    there.
    """
    pauses = retry.backoff()
    for _ in range(_PUT_ATTEMPTS - 1):
        try:
            return await _put_once(bucket, name, content, token)
        except StorageFailed:
            await pauses.pause()
    return await _put_once(bucket, name, content, token)


async def _put_once(bucket: Bucket, name: str, content: bytes, token: bytes) -> None:
    try:
        await bucket.create(name, content)
    except FileExistsError:
        if await token_of(bucket, name) != token:
            raise NameTaken(f"{name} was written by another owner") from None


async def token_of(bucket: Bucket, name: str) -> bytes | None:
    """The token of an object. None means that it has been deleted since, so it was not put by the caller."""
    try:
        return ObjectHeader.decode(await bucket.get_range(name, 0, HEADER_BYTES), name).token
    except FileNotFoundError:
        return None


# -- where entries lie -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ObjectExtent:
    """Entries `first` up to but not including `last`, all in object `number`."""

    number: int
    first: int
    last: int


@dataclass(slots=True)
class ObjectIndex:
    """The index of a ledger. `offsets` are as in a local ledger, as if the frames of all objects were in one file.
    `firsts[n]` is the first entry of object n + 1."""

    offsets: array[int] = field(default_factory=new_offsets)
    firsts: array[int] = field(default_factory=lambda: array("Q"))

    @property
    def entries(self) -> int:
        return len(self.offsets) - 1

    def copy(self) -> ObjectIndex:
        return ObjectIndex(self.offsets[:], self.firsts[:])

    def add(self, ends: array[int]) -> None:
        """Add an object. `ends` are the ends of its frames, counted from the first one."""
        base = self.offsets[-1]
        self.firsts.append(self.entries)
        self.offsets.extend(base + end for end in ends)

    def parts(self, first: int, last: int) -> Iterator[ObjectExtent]:
        """The objects that hold the entries from `first` up to but not including `last`. Entries without bytes, which
        were left out, are in none, unless they lie between others."""
        first = min(first_kept(self.offsets, first), last)
        while first < last:
            number = bisect_right(self.firsts, first)
            end = self.firsts[number] if number < len(self.firsts) else self.entries
            yield ObjectExtent(number, first, min(end, last))
            first = end if end >= self.entries else first_kept(self.offsets, end)

    def bounds(self, part: ObjectExtent) -> array[int]:
        """The offsets of the frames of `part` in their object, and the end of the last one."""
        base = self.offsets[self.firsts[part.number - 1]] - HEADER_BYTES
        return array("Q", (offset - base for offset in self.offsets[part.first : part.last + 1]))

    def size(self, number: int) -> int:
        """The size of an object in bytes."""
        end = self.firsts[number] if number < len(self.firsts) else self.entries
        return self.offsets[end] - self.offsets[self.firsts[number - 1]] + HEADER_BYTES

    # The stored form:
    #     offset  size  field
    #          0     8  magic    "mtxnidx1"
    #          8     4  crc      CRC-32 of everything behind it
    #         12     8  number of objects with frames
    #         20     8  × objects        `firsts`
    #          .     8  × (entries + 1)  `offsets`; all little-endian

    def encode(self) -> bytes:
        numbers = array("Q", [len(self.firsts), *self.firsts, *self.offsets])
        body = little_endian(numbers).tobytes()
        return _INDEX_MAGIC + _CRC.pack(crc32(body)) + body

    @classmethod
    def decode(cls, content: bytes) -> ObjectIndex | None:
        """The index, or None if this is not a complete one: then everything in it can be read from the objects."""
        head, body = content[:_INDEX_HEAD_BYTES], content[_INDEX_HEAD_BYTES:]
        if head != _INDEX_MAGIC + _CRC.pack(crc32(body)) or len(body) % 8 or len(body) < 16:
            return None
        numbers = little_endian(array("Q", body))
        objects = numbers[0]
        if objects > len(numbers) - 2:
            return None
        return cls(numbers[1 + objects :], numbers[1 : 1 + objects])


def frame_ends(content: bytes, ledger: int, first: int, name: str) -> array[int]:
    """Read all frames of an object. Raises `LedgerCorrupt` unless they are exactly the entries from `first` on."""
    view, ends, at = memoryview(content)[HEADER_BYTES:], array("Q"), 0
    while at < len(view):
        expected = Position(ledger, first + len(ends))
        try:
            frame = peek(view, at)
        except FrameError as error:
            raise unreadable(f"entry {expected} in {name}", error) from error
        if frame.position != expected:
            raise LedgerCorrupt(f"{name} has {frame.position} at the place of entry {expected}")
        at = frame.end
        ends.append(at)
    if not ends:
        raise LedgerCorrupt(f"{name} holds no entry")
    return ends
