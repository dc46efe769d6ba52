"""The size of reads, and checking the bytes that a device returned: frames, and indexes of hidden entries."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from metatxn.wire.frames import FrameError, NewerFrame, RawFrame, peek
from metatxn.wire.position import Position
from participants.ledger.form import FormDamaged, FormHeader, FormTooNew, first_kept
from participants.ledger.hidden_index import HiddenIndex, IndexDamaged, IndexTooNew
from participants.ledger.storage import FrameSource, LedgerCorrupt, LedgerTooNew

COPIED_BYTES = 256 << 10
"""The size of one step while a form is written."""


def unreadable(what: str, error: FrameError | FormDamaged | IndexDamaged) -> LedgerCorrupt:
    """The error of a storage that cannot make sense of what it has read."""
    if isinstance(error, NewerFrame | FormTooNew | IndexTooNew):
        return LedgerTooNew(f"{what} is of a later release: {error}")
    return LedgerCorrupt(f"{what} is damaged: {error}")


def end_of_read(offsets: array[int], first_entry: int, max_bytes: int, last_entry: int | None) -> int:
    """The entry before which a read from `first_entry` on ends. For `offsets` see `recovery.new_offsets`."""
    at_least_one = min(first_kept(offsets, first_entry) + 1, len(offsets) - 1)
    fitting = max(bisect_right(offsets, offsets[first_entry] + max_bytes) - 1, at_least_one)
    return fitting if last_entry is None else min(fitting, last_entry + 1)


def checked_frames(content: memoryview, ledger: int, first_entry: int, offsets: array[int]) -> list[RawFrame]:
    """The frames from `first_entry` on, which begin at the start of `content` and are at `offsets`. Entries without
    bytes were left out.

    Raises `LedgerCorrupt` if one of them is not the expected frame.
    """
    frames = []
    for number in range(len(offsets) - 1):
        start, stop = offsets[number] - offsets[0], offsets[number + 1] - offsets[0]
        if start == stop:
            continue
        expected = Position(ledger, first_entry + number)
        try:
            frame = peek(content, min(start, len(content)))
        except FrameError as error:
            raise unreadable(f"entry {expected}", error) from error
        if (frame.position, frame.end) != (expected, stop):
            raise LedgerCorrupt(f"at the place of entry {expected} there is {frame.position}")
        frames.append(frame)
    return frames


def checked_hidden(content: bytes, ledger: int, entries: int) -> HiddenIndex:
    """The index of hidden entries of this ledger. Raises `LedgerCorrupt` if the bytes are not it."""
    try:
        return HiddenIndex.decode(content, ledger, entries)
    except IndexDamaged as error:
        raise unreadable(f"the index of hidden entries of ledger {ledger}", error) from error


def checked_form(header: bytes, ledger: int, entries: int | None) -> FormHeader:
    """The header of a form of this ledger. Raises `LedgerCorrupt` if the bytes are not it."""
    try:
        return FormHeader.decode(header, ledger, entries)
    except FormDamaged as error:
        raise unreadable(f"the form of ledger {ledger}", error) from error


async def kept_frames(
    ledger: FrameSource, kept: Sequence[int], pace: Callable[[int], Awaitable[None]]
) -> AsyncIterator[list[RawFrame]]:
    """The frames of these entries, which are in order and are there, a read at a time. Raises as
    `SealedLedger.read`."""
    at = 0
    while at < len(kept):
        frames = await ledger.read(kept[at], COPIED_BYTES, kept[-1])
        found = []
        for frame in frames:
            if at < len(kept) and frame.position.entry == kept[at]:
                found.append(frame)
                at += 1
        if not found:
            raise LedgerCorrupt(f"entry {kept[at]} of ledger {ledger.id} is not there")
        yield found
        await pace(frames[-1].end - frames[0].start)
