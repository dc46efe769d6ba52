"""Where the offsets of a segment are, for readers that ask by offset (DESIGN §5.20).

The open ledger's are in memory. A sealed ledger's first one is in the record, and an entry within it is found by
bisection: its frames are in the order of their offsets, and those that were left out are skipped.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from metatxn.wire import errors
from metatxn.wire.position import Position
from participants.ledger.offsets import OpenOffsets, first_offset, offset_after
from participants.ledger.storage import ReadableLedger
from participants.segment.owned import OwnedSegment
from participants.segment.reading import LeftOut, SegmentReader

T = TypeVar("T")


class OffsetIndex:
    """The offsets of a segment. Used only from the event loop of its process. Its methods raise STORE_UNAVAILABLE and
    the store's errors."""

    def __init__(self, segment: OwnedSegment, reader: SegmentReader) -> None:
        self._segment = segment
        self._reader = reader

    @property
    def end(self) -> int:
        """The offset after the last durable message."""
        at = self._segment.buffer.last_durable
        return self._open.after(at.entry) if at.ledger == self._open.ledger else self._open.first

    async def stable_end(self) -> int:
        """The offset after `max_read_position`."""
        return await self.after(self._segment.buffer.max_read_position)

    async def start(self) -> int:
        """The offset after everything that was trimmed. What is left out after it keeps its offsets, so the first
        message that is there may have a higher one."""
        return await self._until_found(self._start)

    async def after(self, position: Position) -> int:
        """The offset of the first message after the entry at `position`, or of the next one to come."""
        return await self._until_found(lambda: self._after(position))

    async def first_of(self, position: Position) -> int | None:
        """The offset of the first message of an entry, or None if the entry is not there any more: it was trimmed, or
        left out of its ledger."""
        if position.ledger == self._open.ledger:
            return self._open.after(position.entry - 1)
        try:
            return await self._first_of(position)
        except (errors.PositionTrimmed, LeftOut):
            self._segment.assert_serving()
            return None

    async def place_of(self, offset: int) -> Position:
        """The place before the first entry with a message at `offset` or after it."""
        return await self._until_found(lambda: self._place_of(offset))

    @property
    def _open(self) -> OpenOffsets:
        assert self._segment.open_offsets is not None, "a segment of a topic with the format kafka"
        return self._segment.open_offsets

    async def _until_found(self, find: Callable[[], Awaitable[T]]) -> T:
        while True:
            try:
                return await find()
            except (errors.PositionTrimmed, LeftOut):  # it was trimmed or rewritten meanwhile
                self._segment.assert_serving()

    async def _start(self) -> int:
        start = self._segment.ledgers.start
        if start.ledger == self._open.ledger:
            return self._open.after(start.entry)
        ahead = (each for each in self._segment.ledgers.sealed if Position(each.id, each.entries - 1) > start)
        ledger = next(ahead, None)
        if ledger is None:
            return self._open.first
        if ledger.id == start.ledger:
            # Rewriting keeps what tells it (see `tells_first_offset`), so that it never moves backwards.
            if (
                ledger.first_kept(start.entry + 1) == start.entry + 1
                and ledger.kept_below(start.entry + 1) < start.entry
            ):
                return await self._first_of(start.next)
            if (last := await self._reader.frame_up_to_start()) is not None:
                return offset_after(last)
        return self._first_in(ledger)

    async def _after(self, position: Position) -> int:
        position = max(position, self._segment.ledgers.start)
        if position.ledger == self._open.ledger:
            return self._open.after(position.entry)
        for ledger in self._segment.ledgers.sealed:
            first = position.entry + 1 if ledger.id == position.ledger else 0
            if ledger.id >= position.ledger and first < ledger.entries:
                kept = ledger.first_kept(first)
                if kept < ledger.entries:
                    return await self._first_of(Position(ledger.id, kept))
        return self._open.first

    async def _first_of(self, position: Position) -> int:
        return first_offset(await self._reader.frame_at(position))

    async def _place_of(self, offset: int) -> Position:
        if offset >= self._open.first:
            return Position(self._open.ledger, self._open.entry_with(offset)).before
        ledgers, start = self._segment.ledgers, self._segment.ledgers.start
        for ledger in reversed(ledgers.sealed):
            if ledger.id >= start.ledger and self._first_in(ledger) <= offset:
                entry = start.entry + 1 if ledger.id == start.ledger else 0
                return await self._place_within(ledger, entry, offset)
        return start

    def _first_in(self, ledger: ReadableLedger) -> int:
        """The first offset of a sealed ledger. One that is not recorded as sealed yet follows those that are."""
        firsts = {each.id: each.first_offset for each in self._segment.record.ledgers}
        first = firsts.get(ledger.id)
        first = self._segment.record.next_offset if first is None else first
        assert first is not None, "a segment of a topic with the format kafka"
        return first

    async def _place_within(self, ledger: ReadableLedger, first: int, offset: int) -> Position:
        end = ledger.entries
        while first < end:
            middle = (first + end) // 2
            kept = ledger.first_kept(middle)
            if kept >= end or offset_after(await self._reader.frame_at(Position(ledger.id, kept))) > offset:
                end = middle
            else:
                first = kept + 1
        return Position(ledger.id, first).before
