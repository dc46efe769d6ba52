"""Offsets of messages, in the segments of topics with the format `kafka` (DESIGN §5.20).

An entry there is a Kafka record batch, whose first eight bytes are the offset of its first message; the batch's
own checksum does not cover them. They are stamped when the append begins, so the stored bytes are final.
"""

from __future__ import annotations

import bisect
import struct
from array import array

from metatxn.wire.frames import Frame, PayloadKind
from metatxn.wire.record_batches import HEADER
from participants.ledger.storage import LedgerCorrupt, ReadableLedger

_OFFSET = struct.Struct(">q")


def stamped(payload: bytes | memoryview, offset: int) -> bytes | memoryview:
    """The batch with this offset. A payload that can be written is not copied."""
    if isinstance(payload, bytes) or payload.readonly:
        return _OFFSET.pack(offset) + bytes(payload[_OFFSET.size :])
    _OFFSET.pack_into(payload, 0, offset)
    return payload


def first_offset(frame: Frame) -> int:
    """The offset of the first message of a stored batch. Raises `LedgerCorrupt` if it is not one."""
    if frame.kind is not PayloadKind.KAFKA:
        raise LedgerCorrupt(f"entry {frame.position} is not a batch with offsets")
    (offset,) = _OFFSET.unpack_from(frame.payload)
    return int(offset)


def offset_after(frame: Frame) -> int:
    """The offset after the last message of a stored batch."""
    return first_offset(frame) + frame.count


def latest_record_ms(payload: bytes | memoryview) -> int:
    """The latest timestamp of the records of a batch, as its header says, or -1 without one."""
    return int(HEADER.unpack_from(payload)[8]) if len(payload) >= HEADER.size else -1


async def end_offset(ledger: ReadableLedger, first: int) -> int:
    """The offset after the last entry that is there in a ledger whose first offset is `first`. Raises as `read`."""
    if ledger.last_kept < 0:
        return first
    (frame,) = await ledger.read(ledger.last_kept, 1)
    return offset_after(frame)


class OpenOffsets:
    """The offsets of the entries of an open ledger, from their appends on.

    What was taken for an append that failed for lack of space is taken again with its position.
    """

    def __init__(self, ledger: int, first: int) -> None:
        self.ledger = ledger
        self.first = first
        self.times = array("q")
        """The latest timestamp in each entry."""
        self._ends = array("q")

    def after(self, entry: int) -> int:
        """The offset after this entry; -1 is the place before the first one."""
        return self._ends[entry] if entry >= 0 else self.first

    def entry_with(self, offset: int) -> int:
        """The first entry with a message at `offset`, which is not before this ledger, or after it."""
        return bisect.bisect_right(self._ends, offset)

    def take(self, entry: int, count: int, latest_ms: int = -1) -> int:
        """The first offset of `entry`, which is appended next and has `count` messages. All that was taken for it, or
        for entries after it, is forgotten."""
        del self._ends[entry:]
        del self.times[entry:]
        self.times.append(latest_ms)
        first = self.after(entry - 1)
        self._ends.append(first + count)
        return first
