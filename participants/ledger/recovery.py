"""Reading a ledger file through, and sealing one that was not closed in order.

What a crash can leave behind the last durable frame: part of a frame, zero bytes, or frames that were written but
whose sync nobody waited for. The whole frames are kept (their publishers were told nothing, or may have been), the
rest is cut. What a crash cannot explain is damage with a valid frame behind it: then acknowledged frames may be
gone, and only an operator may decide about that.

    frame 0 | frame 1 | fra                         torn tail: cut to frame 1
    frame 0 | frame 1 | 0000000000000               torn tail: cut to frame 1
    frame 0 | frame 1 | ####### | frame 3 | …       corrupt, left as it is

The rule errs on the safe side twice. When power is lost during a group of several frames, the device may have
written the later ones only; that looks like damage, and the ledger stays unavailable although nothing acknowledged
is lost. And a torn frame whose payload happens to contain a frame of this very ledger with a higher entry looks like
damage too. A process that lives through a failed sync knows its durable end, and passes it: no guess is needed then.

A sync that failed once makes the page cache lie: the kernel marks the pages clean although they never reached the
device, reads return them, and the next sync succeeds without writing them. So recovery first writes the tail again,
byte for byte, over itself, and syncs then. The lie cannot reach further back than the one group whose sync failed,
because a ledger stops there; `REWRITE_BYTES` covers the largest group.
"""

from __future__ import annotations

import re
import struct
from array import array
from dataclasses import dataclass, field

from participants.ledger.disk import Disk, read_all, write_all
from participants.ledger.frames import (
    FORMAT_VERSION,
    MAX_FRAME_BYTES,
    MIN_FRAME_BYTES,
    POSITION_OFFSET,
    CorruptFrame,
    FrameError,
    IncompleteFrame,
    peek,
)
from participants.ledger.position import Position
from participants.ledger.storage import LedgerCorrupt

GROUP_BYTES = 16 << 20
"""A group takes appends until it has this many bytes, so it is smaller than this plus one frame."""

REWRITE_BYTES = GROUP_BYTES + MAX_FRAME_BYTES

_CHUNK_BYTES = 1 << 20
_VERSION_OFFSET = 8


def new_offsets() -> array[int]:
    """Offsets of an empty ledger. Entry `n` lies from `offsets[n]` to `offsets[n + 1]`."""
    return array("Q", [0])


@dataclass(slots=True)
class Scan:
    """The frames from the start of a file up to its end, or to the first place that is not the next frame."""

    offsets: array[int] = field(default_factory=new_offsets)
    damage: str | None = None  # what is wrong at offsets[-1]; None: the file ends there
    foreign: bool = False  # a whole frame is there, but not the one that belongs there

    @property
    def entries(self) -> int:
        return len(self.offsets) - 1

    @property
    def end(self) -> int:
        return self.offsets[-1]


def scan(disk: Disk, fd: int, ledger: int) -> Scan:
    """Read a ledger file from its start. Raises `OSError`."""
    found = Scan()
    wanted = _CHUNK_BYTES
    while True:
        base = found.end
        chunk = memoryview(read_all(disk, fd, wanted, base))
        if not chunk:
            return found
        try:
            while found.end - base < len(chunk):
                header = peek(chunk, found.end - base)
                expected = Position(ledger, found.entries)
                if header.position != expected:
                    found.damage, found.foreign = f"frame {header.position} is in the place of {expected}", True
                    return found
                found.offsets.append(base + header.end)
            wanted = _CHUNK_BYTES
        except IncompleteFrame as error:
            if len(chunk) < wanted:
                found.damage = str(error)
                return found
            # The chunk ended within a frame. Go on at its start, with a chunk that holds it.
            wanted = max(_CHUNK_BYTES, error.needed)
        except CorruptFrame as error:
            found.damage = str(error)
            return found


def find_frame(disk: Disk, fd: int, ledger: int, entry: int, start: int) -> int | None:
    """The offset, at or behind `start`, of the first valid frame of this ledger with at least this entry.

    Looks at every byte, because a damaged length says nothing about where the next frame begins.
    """
    # A regular expression that begins with a rare byte keeps long runs of zeros cheap.
    pattern = re.compile(
        re.escape(bytes([FORMAT_VERSION]))
        + rb"[\x00-\x02][\x00-\x0f].{%d}" % (POSITION_OFFSET - _VERSION_OFFSET - 3)
        + re.escape(struct.pack("<Q", ledger)),
        re.DOTALL,
    )
    size = disk.size(fd)
    base = start
    while base < size:
        window = memoryview(read_all(disk, fd, 2 * MAX_FRAME_BYTES, base))
        highest = entry + (size - base) // MIN_FRAME_BYTES
        # Frames that begin in the second half of the window are seen whole in the next one.
        match = pattern.search(window, _VERSION_OFFSET)
        while match is not None and match.start() - _VERSION_OFFSET < MAX_FRAME_BYTES:
            offset = match.start() - _VERSION_OFFSET
            (there,) = struct.unpack_from("<Q", window, match.end()) if match.end() + 8 <= len(window) else (-1,)
            if entry <= there <= highest and _is_frame(window, offset):
                return base + offset
            match = pattern.search(window, match.start() + 1)
        base += MAX_FRAME_BYTES
    return None


def _is_frame(window: memoryview, offset: int) -> bool:
    try:
        peek(window, offset)
    except FrameError:
        return False
    return True


def recover(disk: Disk, fd: int, ledger: int, *, durable_bytes: int | None = None) -> array[int]:
    """Cut the unfinished tail of a ledger file and make the rest durable. Returns its offsets.

    `durable_bytes`: how much is known to be durable; None when this process does not know. May be repeated after
    any failure. Raises `LedgerCorrupt` (the file is left as it is) and `OSError`.
    """
    found = scan(disk, fd, ledger)
    if durable_bytes is not None and found.end < durable_bytes:
        raise LedgerCorrupt(f"ledger {ledger} is damaged at byte {found.end}: {found.damage or 'it ends there'}")
    if found.damage is not None:
        if durable_bytes is None:
            _refuse_damage_in_the_middle(disk, fd, ledger, found)
        disk.truncate(fd, found.end)
    _rewrite(disk, fd, max(0, found.end - REWRITE_BYTES), found.end)
    disk.fsync(fd)
    return found.offsets


def _refuse_damage_in_the_middle(disk: Disk, fd: int, ledger: int, found: Scan) -> None:
    behind = found.end if found.foreign else find_frame(disk, fd, ledger, found.entries, found.end)
    if behind is not None:
        raise LedgerCorrupt(
            f"ledger {ledger} is damaged at byte {found.end} (entry {found.entries}): {found.damage}; "
            f"there is a valid frame at byte {behind}, so this is not a torn tail"
        )


def _rewrite(disk: Disk, fd: int, start: int, end: int) -> None:
    """Write bytes over themselves, so that the next sync really writes them (see above)."""
    while start < end:
        chunk = read_all(disk, fd, min(_CHUNK_BYTES, end - start), start)
        assert chunk, (start, end)
        write_all(disk, fd, [chunk], start)
        start += len(chunk)
