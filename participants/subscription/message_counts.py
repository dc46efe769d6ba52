"""How many messages of a segment readers can see before a place, without reading all of them each time.

What readers may see up to the horizon never changes, so it is counted once, a page at a time, and the sum is remembered
at the end of each page, at a *checkpoint*:

      checkpoint            checkpoint            checkpoint      horizon
    ──────┤ 412 messages ├──────┤ 97 messages  ├──────┤ ………………………┤

The sum at a place between two of them is that of the later one less what lies in between: nothing below the place is
read, for it may be trimmed by then. Sums count from wherever counting began: only their differences mean anything.
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
"""Above it every second one is forgotten, so that memory stays bounded however long the backlog is."""

PageReader = Callable[[Position, int], Awaitable[Page]]


@dataclass(slots=True)
class _Block:
    """Visible entries up to and including `end`: where each one lies, what it holds, and the sum before it."""

    end: Position
    sum: int = 0
    """At the end."""
    positions: list[Position] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    sums: list[int] = field(default_factory=list)

    def add(self, page: Page, up_to: Position | None = None) -> None:
        """What `page` holds, up to and including `up_to`."""
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
        """What lies before `place` is known: to the message, if it stands inside an entry."""
        return (place.position if place.message else place.last_before) <= self.end

    def before(self, place: Place) -> int:
        at = bisect_left(self.positions, place.position)
        if at == len(self.positions):
            return self.sum
        return self.sums[at] + (min(place.message, self.sizes[at]) if self.positions[at] == place.position else 0)


class MessageCounts:
    """Of one segment. `read` answers visible entries behind a position, as `SegmentReader.read_committed` does."""

    def __init__(self, read: PageReader) -> None:
        self._read = read
        self._sums: SortedDict[Position, int] = SortedDict()
        """Messages up to and including each checkpoint."""
        self._counting = asyncio.Lock()

    async def before(self, places: Iterable[Place], start: Position) -> dict[Place, int]:
        """The sum of the messages before each place. None lies before `start`, behind which entries can be read, nor
        behind the horizon. Raises POSITION_TRIMMED when the start has moved meanwhile."""
        found: dict[Place, int] = {}
        left = deque(sorted(places))
        async with self._counting:
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

    async def _begin_at(self, after: Position) -> None:
        """No place lies before the first checkpoint then."""
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
        """Up to the next checkpoint; behind the last one it begins there, and is a page. Empty at a checkpoint."""
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
