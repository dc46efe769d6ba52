"""What a move of a subscription to a revision would do, counted a bounded part at a time.

No record says where the entries of a transaction are, so everything kept of the topic is looked through: page after
page of one segment after the other. What is counted of a page stays counted, so the work of a request does not depend
on how much is kept. Only entries outside transactions have to wait: they have passed once something after them has
(see `cut`).

    entries    p  d  p  u  p │ u  p  p │ p  d  u  p │        d was decided at or before the revision
    settled    ─────▶        │         │ ─────▶
    waiting          ────────┼─────────┤       ──── │        is counted twice: as delivered, and as passed

Of what waits, the second count is the right one once a page has a `d`, and the first one at the end of the segment.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from metastore.types import Revision
from metatxn.wire.broker import SeekPreviewSegment
from participants.segment.reading import CutPage
from participants.subscription.places import START, Place, Span, Start
from participants.topic.cut import Cutting, PassedEntries
from participants.topic.reading import AnySegment

MOST_KEPT = 20
"""The unfinished counts that a broker remembers. A caller that comes back to an earlier one begins anew."""
MOST_KEPT_RANGES = 20_000
"""The most segments of all unfinished counts except the latest; about 6 MB."""

WindowCount = Callable[[str, Start, Span], Awaitable[SeekPreviewSegment]]
"""Count between two places of a segment what a move there would do."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of a `SeekPreviewSegment`."""

    messages: int = 0
    again: int = 0
    skipped: int = 0

    def __add__(self, other: Numbers) -> Numbers:
        return Numbers(self.messages + other.messages, self.again + other.again, self.skipped + other.skipped)


NONE = Numbers()


class SegmentCount:
    """What was counted of one segment so far."""

    def __init__(self, segment: AnySegment, revision: Revision) -> None:
        self._segment = segment.id
        self._cutting = Cutting(segment, revision)
        self._page: CutPage | None = None
        """The page that was read and is not counted yet."""
        self._at = START
        self._position = str(START.position)
        self._settled, self._delivered, self._passed = NONE, NONE, NONE
        """The numbers of what waits, if it is delivered and if it has passed."""
        self.ended = False

    @property
    def ranges(self) -> int:
        return self._cutting.cut.ranges

    async def go_on(self, segment: AnySegment, count: WindowCount) -> None:
        """Look at one more page. Raises as `cut_at` and `count`: then the next call looks at the same one."""
        self._cutting.segment = segment
        if self._page is None:
            self._page = await self._cutting.read()
        page, window = self._page, Span(self._at, Place.behind(self._page.next))
        cut = PassedEntries(self._at)
        for run in page.runs:
            cut.add(run)
        delivered, passed = cut.start(), cut.start_if_passed(window.end)
        as_delivered = await self._count(count, delivered, window)
        as_passed = as_delivered if passed == delivered else await self._count(count, passed, window)
        if page.end:
            whole = await count(self._segment, self._cutting.cut.start(), Span(window.end, window.end))
            self._position = whole.position
        # From here on nothing is awaited.
        if any(run.decided for run in page.runs):
            self._settled += self._passed
            self._delivered, self._passed = NONE, NONE
        self._delivered += as_delivered
        self._passed += as_passed
        self._at, self._page, self.ended = window.end, None, page.end

    async def _count(self, count: WindowCount, start: Start, window: Span) -> Numbers:
        if window.start >= window.end:
            return NONE
        found = await count(self._segment, start, window)
        return Numbers(found.messages, found.again, found.skipped)

    def told(self) -> SeekPreviewSegment:
        """What was counted, which is a lower bound before the end."""
        waiting = self._delivered
        if not self.ended:
            fewest = (min(getattr(waiting, name), getattr(self._passed, name)) for name in Numbers.__slots__)
            waiting = Numbers(*fewest)
        found = self._settled + waiting
        return SeekPreviewSegment(
            segment=self._segment,
            position=self._position,
            messages=found.messages,
            again=found.again,
            skipped=found.skipped,
        )


@dataclass(slots=True)
class MoveCount:
    """What was counted so far, by segment."""

    revision: Revision
    segments: dict[str, SegmentCount] = field(default_factory=dict)
    going_on: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def ranges(self) -> int:
        return sum(each.ranges for each in self.segments.values())

    async def go_on(self, segments: Mapping[str, AnySegment], count: WindowCount, for_s: float) -> bool:
        """Look at pages of these segments for this long, and at least at one. Returns whether everything is counted.
        Raises as `SegmentCount.go_on`."""
        clock = asyncio.get_running_loop().time
        async with self.going_on:
            until_s = clock() + for_s
            self.segments = {
                name: self.segments.get(name) or SegmentCount(each, self.revision) for name, each in segments.items()
            }
            for name, each in self.segments.items():
                while not each.ended:
                    await each.go_on(segments[name], count)
                    if clock() >= until_s:
                        return all(other.ended for other in self.segments.values())
            return True

    def told(self) -> list[SeekPreviewSegment]:
        return [each.told() for each in self.segments.values()]


_Key = tuple[str, str, int, Revision]
"""The topic, the subscription and its incarnation, and the revision."""


class MoveCounts:
    """The unfinished counts of a broker. One that is lost begins anew."""

    def __init__(self) -> None:
        self._kept: OrderedDict[_Key, MoveCount] = OrderedDict()

    def of(self, key: _Key) -> MoveCount:
        found = self._kept.setdefault(key, MoveCount(key[-1]))
        self._kept.move_to_end(key)
        while len(self._kept) > 1 and self._is_too_much():
            self._kept.popitem(last=False)
        return found

    def _is_too_much(self) -> bool:
        others = list(self._kept.values())[:-1]
        return len(self._kept) > MOST_KEPT or sum(each.ranges for each in others) > MOST_KEPT_RANGES

    def forget(self, key: _Key) -> None:
        self._kept.pop(key, None)
