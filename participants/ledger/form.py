"""Another form of a sealed ledger: the same positions with fewer entries (DESIGN §5.18).

    offset  size  field
         0     8  magic    "mtxnform"
         8     4  crc      CRC-32 of everything after it, up to the frames
        12     1  version  1
        13     8  ledger   its number; little-endian, as all numbers
        21     8  entries  of the ledger, with those that are left out
        29     8  kept     how many entries are there
        37     4  parts    how many objects hold their frames; 0: the frames follow here
         .     8  × kept   which entries are there, in order
         .     8  × kept   where the frame of each of them ends, counted from the first frame
         .     8  × parts  the first entry of each object
         .     .  the frames, byte for byte as in the ledger, unless objects hold them

The record of the segment names the form that counts. A form is written once, under a name that no other one ever has,
and is complete as soon as it has that name.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, repeat
from typing import NamedTuple, Self

from metatxn.wire.crc import crc32
from metatxn.wire.frames import RawFrame
from participants.ledger.byte_order import little_endian

_MAGIC = b"mtxnform"
_VERSION = 1
_CRC = struct.Struct("<I")
_HEAD = struct.Struct("<BQQQI")
_CRC_AT = len(_MAGIC)
_BODY_AT = _CRC_AT + _CRC.size
FORM_HEAD_BYTES = _BODY_AT + _HEAD.size
"""The number of bytes that say how long the whole header is."""


class FormDamaged(Exception):
    """The bytes are not the header of a form of the ledger."""


class FormTooNew(FormDamaged):
    """A later release has written the form."""


class Form(NamedTuple):
    """The name of a form: the generation of the owner that wrote it, and which one of this owner it is. A later form
    has a higher name, whichever owner wrote it."""

    generation: int
    number: int

    def __str__(self) -> str:
        return f"{self.generation}.{self.number}"

    @classmethod
    def parse(cls, text: str) -> Self:
        generation, _, number = text.partition(".")
        return cls(int(generation), int(number))


@dataclass(slots=True)
class FormHeader:
    """The header of a form. `ends` are where the frames of the `kept` entries end. `firsts` are the first entries of
    the objects that hold them, if objects do."""

    ledger: int
    entries: int
    kept: array[int] = field(default_factory=lambda: array("Q"))
    ends: array[int] = field(default_factory=lambda: array("Q"))
    firsts: array[int] = field(default_factory=lambda: array("Q"))

    def add(self, frame: RawFrame) -> None:
        self.kept.append(frame.position.entry)
        self.ends.append((self.ends[-1] if self.ends else 0) + len(frame.data))

    @property
    def size_bytes(self) -> int:
        """The size of the encoded header."""
        return header_bytes(len(self.kept), len(self.firsts))

    def offsets(self) -> array[int]:
        """Where each entry of the ledger begins, and where the last one ends. One that is left out has no bytes."""
        found, at = array("Q"), 0
        for entry, end in zip(self.kept, self.ends, strict=True):
            found.extend(repeat(at, entry + 1 - len(found)))
            at = end
        found.extend(repeat(at, self.entries + 1 - len(found)))
        return found

    def encode(self) -> bytes:
        body = bytearray(_HEAD.pack(_VERSION, self.ledger, self.entries, len(self.kept), len(self.firsts)))
        for numbers in (self.kept, self.ends, self.firsts):
            body += little_endian(numbers).tobytes()
        return _MAGIC + _CRC.pack(crc32(body)) + body

    @classmethod
    def decode(cls, content: bytes, ledger: int, entries: int | None) -> Self:
        """The header of a form of this ledger, which has this many entries, if that is known. Raises `FormDamaged` for
        anything else."""
        try:
            found = cls._decode(content)
        except (struct.error, ValueError) as error:
            raise FormDamaged(str(error)) from error
        if found.ledger != ledger or found.entries != (found.entries if entries is None else entries):
            raise FormDamaged(f"it is of ledger {found.ledger} with {found.entries} entries")
        return found

    @classmethod
    def _decode(cls, content: bytes) -> Self:
        body = memoryview(content)[_BODY_AT:]
        if content[:_CRC_AT] != _MAGIC:
            raise ValueError("it is not a form of a ledger")
        if _CRC.unpack_from(content, _CRC_AT)[0] != crc32(body):
            raise ValueError("it does not match its CRC")
        version, ledger, entries, kept, parts = _HEAD.unpack_from(body)
        _refuse_other(version)
        numbers = little_endian(array("Q", body[_HEAD.size :].tobytes()))
        if len(numbers) != 2 * kept + parts:
            raise ValueError("it does not have the size that it says")
        found = cls(ledger, entries, numbers[:kept], numbers[kept : 2 * kept], numbers[2 * kept :])
        for ascending in (found.kept, found.ends, found.firsts):
            if any(later <= one for one, later in pairwise(ascending)):
                raise ValueError("it is not in order")
        if kept and found.kept[-1] >= entries:
            raise ValueError("it has entries that the ledger does not have")
        return found


def header_bytes(kept: int, parts: int = 0) -> int:
    """The size of the header of a form with these numbers of entries and objects."""
    return FORM_HEAD_BYTES + 8 * (2 * kept + parts)


def whole_header_bytes(head: bytes) -> int:
    """The size of the header that begins with these bytes. Raises `FormDamaged`."""
    try:
        version, _, _, kept, parts = _HEAD.unpack_from(head, _BODY_AT)
    except struct.error as error:
        raise FormDamaged(str(error)) from error
    if head.startswith(_MAGIC):
        _refuse_other(version)
    return header_bytes(kept, parts)


def _refuse_other(version: int) -> None:
    """Raises `FormTooNew`, `FormDamaged`."""
    if version > _VERSION:
        raise FormTooNew(f"its version is {version}, and this release knows {_VERSION}")
    if version < _VERSION:
        raise FormDamaged(f"its version {version} has never been written")


def first_kept(offsets: Sequence[int], entry: int) -> int:
    """The first entry from `entry` on that has bytes, or the number of entries if there is none."""
    return bisect_right(offsets, offsets[entry]) - 1


def last_kept(offsets: Sequence[int]) -> int:
    """The last entry that has bytes, or -1."""
    return bisect_left(offsets, offsets[-1]) - 1
