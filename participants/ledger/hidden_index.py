"""The index of hidden entries: what readers skip in one sealed ledger, in a file or an object beside it (DESIGN §5.6).

    offset  size  field
         0     8  magic         "mtxnhide"
         8     4  crc           CRC-32 of everything after it
        12     1  version       1
        13     8  ledger        its number; little-endian, as all numbers
        21     8  entries       of the ledger
        29     4  transactions  how many follow, in the order of their ids:
         .    16  id            in the order of its hexadecimal text
         .     1  reason        0 aborted, 1 of writers that do not count
         .     4  ranges        how many follow, in order, with visible entries between them:
         .     8  first         the first hidden entry …
         .     8  last          … and the last one

The record of the segment names the index that counts; a file alone says nothing. Whatever is not exactly what was
written for this ledger is damage: it is never taken for an index that hides less.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Self

from metatxn.wire.crc import crc32
from metatxn.wire.ids import TxnId
from participants.ledger.byte_order import little_endian

_MAGIC = b"mtxnhide"
_VERSION = 1
_CRC = struct.Struct("<I")
_HEAD = struct.Struct("<BQQI")
_TRANSACTION = struct.Struct("<16sBI")
_RANGE = struct.Struct("<QQ")
_CRC_AT = len(_MAGIC)
_BODY_AT = _CRC_AT + _CRC.size


class IndexDamaged(Exception):
    """The bytes are not the index of hidden entries of the ledger."""


class IndexTooNew(IndexDamaged):
    """A later release has written the index."""


class HiddenReason(IntEnum):
    ABORTED = 0
    VOID_WRITERS = 1


@dataclass(frozen=True, slots=True)
class HiddenTransaction:
    """The hidden entries of one transaction: `ranges` are pairs of the first and the last one, in order."""

    txn_id: TxnId
    reason: HiddenReason
    ranges: tuple[tuple[int, int], ...]


class HiddenRanges:
    """The hidden entries of one ledger, whatever hides them: as little memory as looking them up needs."""

    def __init__(self, ranges: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts, self._lasts = array("Q"), array("Q")
        for first, last in sorted(ranges):
            if self._lasts and first == self._lasts[-1] + 1:
                self._lasts[-1] = last
            else:
                self._firsts.append(first)
                self._lasts.append(last)

    def __contains__(self, entry: int) -> bool:
        found = bisect_right(self._firsts, entry)
        return found > 0 and entry <= self._lasts[found - 1]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The first and the last entry of each range, in order."""
        return zip(self._firsts, self._lasts, strict=True)

    @property
    def size_bytes(self) -> int:
        """About how much memory it takes."""
        return 200 + 2 * self._firsts.itemsize * len(self._firsts)


@dataclass(frozen=True, slots=True)
class HiddenIndex:
    """See the module docstring. No entry is in two transactions."""

    ledger: int
    entries: int
    transactions: tuple[HiddenTransaction, ...]

    @property
    def ranges(self) -> HiddenRanges:
        return HiddenRanges(found for each in self.transactions for found in each.ranges)

    def encode(self) -> bytes:
        body = bytearray(_HEAD.pack(_VERSION, self.ledger, self.entries, len(self.transactions)))
        for each in self.transactions:
            body += _TRANSACTION.pack(bytes.fromhex(each.txn_id), each.reason, len(each.ranges))
            body += little_endian(array("Q", (bound for found in each.ranges for bound in found))).tobytes()
        return _MAGIC + _CRC.pack(crc32(body)) + body

    @classmethod
    def decode(cls, content: bytes, ledger: int, entries: int) -> Self:
        """The index of this ledger. Raises `IndexDamaged` for anything else."""
        try:
            transactions = tuple(_transactions(_body(content, ledger, entries)))
        except (struct.error, ValueError) as error:
            raise IndexDamaged(str(error)) from error
        if not all(first <= last < entries for each in transactions for first, last in each.ranges):
            raise IndexDamaged("it hides entries that the ledger does not have")
        return cls(ledger, entries, transactions)


def _body(content: bytes, ledger: int, entries: int) -> memoryview:
    """Decode what follows the CRC. Raises `ValueError` unless it is of this ledger, `IndexTooNew`, and
    `struct.error`."""
    body = memoryview(content)[_BODY_AT:]
    if content[:_CRC_AT] != _MAGIC:
        raise ValueError("it is not an index of hidden entries")
    if _CRC.unpack_from(content, _CRC_AT)[0] != crc32(body):
        raise ValueError("it does not match its CRC")
    version, *of, _ = _HEAD.unpack_from(body)
    if version < _VERSION:
        raise ValueError(f"its version {version} has never been written")
    if version > _VERSION:
        raise IndexTooNew(f"its version is {version}, and this release knows {_VERSION}")
    if of != [ledger, entries]:
        raise ValueError(f"it is of ledger {of[0]} with {of[1]} entries")
    return body


def _transactions(body: memoryview) -> Iterator[HiddenTransaction]:
    """Raises `struct.error` and `ValueError`."""
    at, previous = _HEAD.size, ""
    for _ in range(_HEAD.unpack_from(body)[-1]):
        raw, reason, ranges = _TRANSACTION.unpack_from(body, at)
        at += _TRANSACTION.size
        end = at + ranges * _RANGE.size
        if end > len(body):
            raise ValueError("it ends too early")
        bounds = little_endian(array("Q", body[at:end].tobytes()))
        found = tuple(zip(bounds[::2], bounds[1::2], strict=True))
        txn_id = TxnId.parse(raw.hex())
        if txn_id <= previous or any(later[0] <= one[1] for one, later in pairwise(found)):
            raise ValueError("it is not in order")
        yield HiddenTransaction(txn_id, HiddenReason(reason), found)
        at, previous = end, txn_id
    if at != len(body):
        raise ValueError("something follows its end")
