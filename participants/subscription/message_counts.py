"""Counts the messages of a segment that readers can see before a place, without reading all of them each time.

What readers may see up to the horizon changes only by compaction. So it is counted once, a page at a time, and the sum
is remembered at the end of each page, at a *checkpoint*:

      checkpoint            checkpoint            checkpoint      horizon
    ──────┤ 412 messages ├──────┤ 97 messages  ├──────┤ ………………………┤

The sum at a place between two of them is that of the later one minus what is in between: nothing below the place is
read, because it may have been trimmed. Sums count from where the counting began, so only their differences matter.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from sortedcontainers import SortedDict

from metatxn.wire.position import Position
from participants.messages.payloads import message_count
from participants.segment.reading import Page
from participants.subscription.places import Place

PAGE_BYTES = 1 << 20
MAX_CHECKPOINTS = 4_096
"""The most checkpoints. If there are more, every second one is forgotten, so that the memory is bounded for any
backlog."""

PageReader = Callable[[Position, int], Awaitable[Page]]


@dataclass(slots=True)
class _Block:
    """Visible entries up to and including `end`: the place and the number of messages of each one, and the sum before
    it."""

    end: Position
    sum: int = 0
    """The sum at the end."""
    positions: list[Position] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    sums: list[int] = field(default_factory=list)

    def add(self, page: Page, up_to: Position | None = None) -> None:
        """Add the entries of `page`, up to and including `up_to`."""
        for frame in page.frames:
            if up_to is not None and frame.position > up_to:
                break
            self.positions.append(frame.position)
            self.sizes.append(message_count(frame))
            self.sums.append(self.sum)
            self.sum += self.sizes[-1]
        self.end = page.next if up_to is None else min(page.next, up_to)

    def shift(self, by: int) -> None:
        self.sum += by
        self.sums = [each + by for each in self.sums]

    def reaches(self, place: Place) -> bool:
        """Whether everything before `place` is known, up to the message if the place is inside an entry."""
        return (place.position if place.message else place.last_before) <= self.end

    def before(self, place: Place) -> int:
        at = bisect_left(self.positions, place.position)
        if at == len(self.positions):
            return self.sum
        return self.sums[at] + (min(place.message, self.sizes[at]) if self.positions[at] == place.position else 0)


class MessageCounts:
    """The counts of one segment. `read` returns the visible entries after a position, as `SegmentReader.read_committed`
    does."""

    def __init__(self, read: PageReader) -> None:
        self._read = read
        self._sums: SortedDict[Position, int] = SortedDict()
        """The number of messages up to and including each checkpoint."""
        self._counting = asyncio.Lock()
        self._is_stale = False

    async def before(self, places: Iterable[Place], start: Position) -> dict[Place, int]:
        """The number of messages before each place. No place may be before `start`, after which entries can be read, or
        after the horizon. Raises POSITION_TRIMMED if the start has moved meanwhile."""
        found: dict[Place, int] = {}
        left = deque(sorted(places))
        async with self._counting:
            if self._is_stale:
                self._sums.clear()
                self._is_stale = False
            while self._sums and self._sums.peekitem(0)[0] < start:
                self._sums.popitem(0)
            if left:
                await self._begin_at(left[0].read_after)
            while left:
                block = await self._block_behind(left[0])
                while left and block.reaches(left[0]):
                    place = left.popleft()
                    found[place] = block.before(place)
        return found

    def forget(self) -> None:
        """Messages were left out, so the next count begins anew. One that is under way may belong to before or
        after."""
        self._is_stale = True

    async def _begin_at(self, after: Position) -> None:
        """Begin counting at `after`, if it is before the first checkpoint."""
        if not self._sums:
            self._sums[after] = 0
        first, its_sum = self._sums.peekitem(0)
        counted, sums = _Block(after), {}
        while counted.end < first:
            sums[counted.end] = counted.sum
            counted = _Block(counted.end, counted.sum)
            counted.add(await self._read(counted.end, PAGE_BYTES), first)
        for position, before in sums.items():
            self._remember(position, its_sum - counted.sum + before)

    async def _block_behind(self, place: Place) -> _Block:
        """The block that contains the entries between `place` and the next checkpoint. After the last checkpoint it
        begins there and is one page. It is empty at a checkpoint."""
        after = place.read_after
        if not place.message and after in self._sums:
            return _Block(after, self._sums[after])
        later = self._sums.bisect_right(after)
        if later == len(self._sums):
            block = _Block(*self._sums.peekitem(-1))
            page = await self._read(block.end, PAGE_BYTES)
            block.add(page)
            if not page.end:
                self._remember(block.end, block.sum)
            return block
        checkpoint, its_sum = self._sums.peekitem(later)
        block = _Block(after)
        while block.end < checkpoint:
            block.add(await self._read(block.end, PAGE_BYTES), checkpoint)
        block.shift(its_sum - block.sum)
        return block

    def _remember(self, position: Position, its_sum: int) -> None:
        self._sums[position] = its_sum
        if len(self._sums) > MAX_CHECKPOINTS:
            for each in list(self._sums)[1:-1:2]:
                del self._sums[each]
