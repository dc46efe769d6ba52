"""The seal mark: a small file beside a sealed ledger that fixes its length and holds its index.

    offset  size  field
         0     8  magic     "mtxnseal"
         8     4  crc       CRC-32 of everything after it
        12     8  × (entries + 1): where each frame begins, and where the last one ends; little-endian

It is written after the ledger itself is durable. With it, opening a sealed ledger reads no frames, and a ledger that
lost its end after it was sealed is recognised, instead of being cut once more. Without it (the disk was full then, or
the file was not restored) everything still works, by reading the whole ledger.
"""

from __future__ import annotations

from array import array
from pathlib import Path

from metatxn.wire.crc import crc32
from participants.ledger.byte_order import little_endian
from participants.ledger.disk import Disk, read_file, replace_file

_MAGIC = b"mtxnseal"
_HEAD_BYTES = len(_MAGIC) + 4


class MarkDamaged(Exception):
    """There is a mark, so the ledger was sealed; but the mark cannot be read."""


def write_mark(disk: Disk, path: Path, offsets: array[int]) -> None:
    """Write the mark durably. Raises `OSError`."""
    body = little_endian(offsets).tobytes()
    replace_file(disk, path, [_MAGIC, crc32(body).to_bytes(4, "little"), body])


def read_mark(disk: Disk, path: Path) -> array[int] | None:
    """The offsets, or None if there is no mark. Raises `MarkDamaged`, `OSError`."""
    try:
        content = memoryview(read_file(disk, path))
    except FileNotFoundError:
        return None
    body = content[_HEAD_BYTES:]
    if content[: len(_MAGIC)] != _MAGIC or len(body) < 8 or len(body) % 8:
        raise MarkDamaged(f"{path.name} is not a seal mark")
    if int.from_bytes(content[len(_MAGIC) : _HEAD_BYTES], "little") != crc32(body):
        raise MarkDamaged(f"{path.name} does not match its CRC")
    return little_endian(array("Q", bytes(body)))
