"""Reading a whole ledger file, and sealing one that was not closed properly.

What a crash can leave behind the last durable frame is any part of one group, the one whose sync was not done: some
of its frames whole, some in part, zero bytes, a shorter file. The whole frames up to the first bad one are kept
(their publishers may or may not have an answer), the rest is cut. What a crash cannot leave is damage before
that place: then acknowledged frames may be gone, and only an operator may decide about that. Each frame says how many
entries were `durable` when it was written, and that tells the two apart.

    durable 0         durable 2
    0       1       | 2       3       4
    ------------------------------------------------------------------------------------------------------
    frame   frame   | frame   fra                     torn tail: cut to frame 2
    frame   frame   | frame   0000000 frame           torn group, 4 was written before 3: cut to frame 2
    frame   ####### | frame   frame   frame           corrupt: 2 was written when 1 was durable
    frame   ####### | ####### 0000000 frame           corrupt: 4 was written when 1 was durable
    frame   frame   | ####### frame   frame           damage, if this group was synced; looks like a torn group: cut

Let `e` be the entry of the first bad or missing frame.

* Cutting loses nothing to a crash. An entry is acknowledged after the sync of its group, so after the sync of `e` or
  of a later group, which begins only then. What was synced, no crash takes away; `e` is bad, so it was not.
* A valid frame with `durable` above `e` means that `e` had been synced, wherever in the file that frame is found and
  whatever else became of its group. So a crash did not do this: `LedgerCorrupt`. No crash leaves such a frame behind a
  bad `e`, so no crash makes a segment unavailable (but see below).
* A frame with a lower `durable`, be it whole and of an entry above `e`, says nothing about `e`.
* Three more things that no crash leaves: more bytes behind `e` than a group can have, so the search is bounded; a whole
  frame, but of another position, in the place of `e`; and a whole frame of a form that only a later release knows.

What remains undetectable: damage to the last group that was written. Nothing behind it says that it had been synced,
so it is cut like a torn one, although it may have been acknowledged. The same is true for a file that lost its end, of
whatever length. Both require a device that loses what it synced, and end with the seal, which fixes the length.

What remains a false alarm: payloads may contain frames, and a torn one is searched like everything else, because a
damaged length says nothing about where a payload ends. A frame that was read from this ledger does no harm: it is
older than `e`, and so is what it says. A forged one does, and one from the ledger of the same number of another
segment that fits in its numbers; the ledger then stays unavailable, and nothing is lost.

A process that lives through a failed sync knows its durable end, and passes it: no search is needed then.

A sync that failed once makes the page cache lie: the kernel marks the pages clean although they never reached the
device, reads return them, and the next sync succeeds without writing them. So recovery first writes the tail again,
byte for byte, over itself, and syncs then. The lie cannot reach further back than the one group whose sync failed,
because a ledger stops there; `REWRITE_BYTES` covers the largest group. In the same way the end of the file may be one
that was cut in vain, so it is cut again in any case.
"""

from __future__ import annotations

import contextlib
import re
import struct
from array import array
from dataclasses import dataclass, field

from metatxn.wire.frames import (
    FORMAT_VERSION,
    HIGHEST_KIND,
    MAX_FRAME_BYTES,
    MIN_FRAME_BYTES,
    POSITION_OFFSET,
    CorruptFrame,
    FrameError,
    IncompleteFrame,
    NewerFrame,
    RawFrame,
    peek,
    peek_place,
)
from metatxn.wire.position import Position
from participants.ledger.disk import Disk, read_all, write_all
from participants.ledger.storage import LedgerCorrupt, LedgerTooNew

GROUP_BYTES = 16 << 20
"""A group accepts appends until it has this many bytes, so it is smaller than this plus one frame.

Never lower it: recovery would take a torn group of an earlier version for damage.
"""

REWRITE_BYTES = GROUP_BYTES + MAX_FRAME_BYTES

_CHUNK_BYTES = 1 << 20
_VERSION_OFFSET = 8
_ENTRY_AND_DURABLE = struct.Struct("<QQ")


def new_offsets() -> array[int]:
    """The offsets of an empty ledger. Entry `n` is from `offsets[n]` to `offsets[n + 1]`."""
    return array("Q", [0])


@dataclass(slots=True)
class Scan:
    """The frames from the start of a file up to its end, or to the first place that is not the next frame."""

    offsets: array[int] = field(default_factory=new_offsets)
    durable: int = 0  # how many entries were durable, says the last frame
    damage: str | None = None  # the damage at offsets[-1], or None if the file ends there
    foreign: str | None = None  # why a whole frame that is there is not the one that belongs there
    newer: bool = False  # a later release has written the frame there

    @property
    def entries(self) -> int:
        return len(self.offsets) - 1

    @property
    def end(self) -> int:
        return self.offsets[-1]

    def error(self, ledger: int, why: str) -> LedgerCorrupt:
        """What to say of the place at which the scan has ended."""
        where = f"at byte {self.end} (entry {self.entries})"
        if self.newer:
            return LedgerTooNew(f"ledger {ledger} is of a later release {where}: {why}")
        return LedgerCorrupt(f"ledger {ledger} is damaged {where}: {why}")


def scan(disk: Disk, fd: int, ledger: int, known: Scan | None = None) -> Scan:
    """Read a ledger file from its start, or from where the frames of an earlier scan end. Raises `OSError`."""
    found = Scan(known.offsets[:], known.durable) if known is not None else Scan()
    wanted = _CHUNK_BYTES
    while True:
        base = found.end
        chunk = memoryview(read_all(disk, fd, wanted, base))
        if not chunk:
            return found
        at, entry = 0, found.entries
        try:
            while at < len(chunk):
                frame = peek_place(chunk, at)
                if frame.ledger != ledger or frame.entry != entry:
                    there, expected = Position(frame.ledger, frame.entry), Position(ledger, entry)
                    found.damage = f"frame {there} is in the place of {expected}"
                    found.foreign = "no crash puts a frame there"
                    return found
                at, entry = frame.end, entry + 1
                found.offsets.append(base + at)
                found.durable = frame.durable
            wanted = _CHUNK_BYTES
        except IncompleteFrame as error:
            if len(chunk) < wanted:
                found.damage = str(error)
                return found
            # The chunk ended within a frame. Continue at its start, with a chunk that contains it.
            wanted = max(_CHUNK_BYTES, error.needed)
        except NewerFrame as error:
            found.damage, found.foreign = str(error), "a later release has written this frame, whole"
            found.newer = True
            return found
        except CorruptFrame as error:
            found.damage = str(error)
            return found


def whole_frames(disk: Disk, fd: int, ledger: int) -> tuple[array[int], int]:
    """The offsets of the whole frames of a file that may grow meanwhile, and how many of them were durable, as they say
    themselves. Raises `LedgerCorrupt` and `OSError`."""
    found = scan(disk, fd, ledger)
    while found.damage is not None:
        # A frame that is being written looks torn, and may be whole, and durable, a moment later. So does one that was
        # read wrongly. What is torn for good is so twice.
        again = scan(disk, fd, ledger, found)
        if again.end == found.end:
            try:
                _refuse_damage_to_durable(disk, fd, ledger, again)
                break
            except LedgerCorrupt:
                again = scan(disk, fd, ledger, again)
                if again.end == found.end:
                    raise
        found = again
    return found.offsets, found.durable


def find_proof(tail: memoryview, ledger: int, entry: int) -> RawFrame | None:
    """The first valid frame of this ledger in `tail` that says that `entry`, with which `tail` begins, was durable.

    Looks at every byte, because a damaged length says nothing about where the next frame begins.
    """
    # A regular expression that begins with a rare byte keeps long runs of zeros cheap.
    pattern = re.compile(
        re.escape(bytes([FORMAT_VERSION]))
        + rb"[\x00-\x%02x][\x00-\x0f].{%d}" % (HIGHEST_KIND, POSITION_OFFSET - _VERSION_OFFSET - 3)
        + re.escape(struct.pack("<Q", ledger)),
        re.DOTALL,
    )
    match = pattern.search(tail, _VERSION_OFFSET)
    while match is not None and match.end() + _ENTRY_AND_DURABLE.size <= len(tail):
        offset = match.start() - _VERSION_OFFSET
        there, durable = _ENTRY_AND_DURABLE.unpack_from(tail, match.end())
        # All entries from `entry` up to that frame must have fitted before it. This avoids most CRCs of other bytes.
        if entry < durable <= there <= entry + offset // MIN_FRAME_BYTES:
            with contextlib.suppress(FrameError):
                return peek(tail, offset)
        match = pattern.search(tail, match.start() + 1)
    return None


def recover_file(disk: Disk, fd: int, ledger: int, *, durable_bytes: int | None = None) -> array[int]:
    """Cut the unfinished tail of a ledger file and make the rest durable. Returns its offsets.

    `durable_bytes` is how much is known to be durable, or None if this process does not know. May be repeated after any
    failure. Raises `LedgerCorrupt` (the file is left as it is) and `OSError`.
    """
    found = scan(disk, fd, ledger)
    if durable_bytes is not None and found.end < durable_bytes:
        raise found.error(ledger, found.damage or "it ends there")
    if found.damage is not None and durable_bytes is None:
        _refuse_damage_to_durable(disk, fd, ledger, found)
    disk.truncate(fd, found.end + 1)  # truncating a file to its own size might do nothing
    disk.truncate(fd, found.end)
    _rewrite(disk, fd, max(0, found.end - REWRITE_BYTES), found.end)
    disk.fsync(fd)
    return found.offsets


def _refuse_damage_to_durable(disk: Disk, fd: int, ledger: int, found: Scan) -> None:
    """Raises `LedgerCorrupt` if what follows the intact frames cannot be the result of a crash."""
    behind = disk.size(fd) - found.end
    if found.foreign is not None:
        reason = found.foreign
    elif behind > REWRITE_BYTES:
        reason = f"{behind} bytes begin there, more than were ever written before a sync"
    else:
        proof = find_proof(memoryview(read_all(disk, fd, behind, found.end)), ledger, found.entries)
        if proof is None:
            return
        reason = f"at byte {found.end + proof.start}, frame {proof.position} says that {proof.durable} were durable"
    raise found.error(ledger, f"{found.damage}; {reason}, so this is not a torn tail")


def _rewrite(disk: Disk, fd: int, start: int, end: int) -> None:
    """Write bytes over themselves, so that the next sync really writes them (see above)."""
    while start < end:
        chunk = read_all(disk, fd, min(_CHUNK_BYTES, end - start), start)
        assert chunk, (start, end)
        write_all(disk, fd, [chunk], start)
        start += len(chunk)
