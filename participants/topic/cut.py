"""What a subscription has passed on one segment that is moved to a revision (DESIGN §5.10).

    entries    p   d   p   u   p   d   u   p         p outside of transactions, d decided at or before the revision,
    passed     ─────────── · ─────── · ·             u undecided then
               START ───▶ place      acked

An entry of a transaction is passed exactly if the transaction was decided at or before the revision. An entry outside
of transactions has no revision: it is passed if it lies before an entry that is.
"""

from __future__ import annotations

from metastore.types import Revision
from metatxn.wire import errors
from metatxn.wire.position import Position
from participants.segment.reading import CutPage, Run
from participants.subscription.places import START, Place, Span, Start
from participants.subscription.ranges import RangeSet
from participants.topic.reading import AnySegment, read_cut, start_of

MAX_CUT_RANGES = 1_000
"""The most ranges of one segment. They are in the record of the subscription: 112 bytes each at most, and mostly 25."""


class PassedEntries:
    """Takes the runs of a segment in their order, or those from `start` on, the beginning of an entry."""

    def __init__(self, start: Place = START) -> None:
        self._start = start
        self._passed = RangeSet()
        self._from = start
        """The place after the last entry that was undecided, or was passed."""
        self._outside: list[Span] = []
        """The entries outside transactions, before undecided ones, that are passed once something after them is."""
        self._outside_since = False
        """Whether there are such entries at or after `_from`."""

    def add(self, run: Run) -> None:
        if run.decided is None:
            self._outside_since = True
            return
        end = Place.behind(run.last)
        if run.decided:
            for span in (*self._outside, Span(self._from, end)):
                self._passed.add(span)
            self._outside.clear()
        elif self._outside_since:
            self._outside.append(Span(self._from, Place.at(run.first)))
        self._from, self._outside_since = end, False

    @property
    def ranges(self) -> int:
        return len(self._passed) + len(self._outside)

    def start(self) -> Start:
        return self._behind(self._passed)

    def start_if_passed(self, end: Place) -> Start:
        """Like `start`, if something at `end` or after it has passed."""
        outside = [*self._outside, Span(self._from, end)] if self._outside_since else self._outside
        return self._behind(RangeSet([*self._passed, *outside]))

    def _behind(self, passed: RangeSet) -> Start:
        spans = list(passed)
        if spans and spans[0].start == self._start:
            return Start(spans[0].end, tuple(spans[1:]))
        return Start(self._start, tuple(spans))


class Cutting:
    """A segment that is read a page at a time, to find where a subscription begins on it."""

    def __init__(self, segment: AnySegment, revision: Revision) -> None:
        self.segment = segment
        self.cut = PassedEntries()
        self._revision = revision
        self._after = start_of(segment)

    async def read(self) -> CutPage:
        """Take up the next page. Raises as `cut_at`; then the next call reads the same page."""
        page = await self._page()
        for run in page.runs:
            self.cut.add(run)
        if self.cut.ranges > MAX_CUT_RANGES:
            raise errors.InvalidArgument(
                f"revision: what was committed by {self._revision} on segment {self.segment.id} lies in more than "
                f"{MAX_CUT_RANGES} parts, between entries of transactions that were open then",
                action="Use a revision at which fewer transactions were open, or move the subscription to a time.",
                field="revision",
            )
        self._after = page.next
        return page

    async def _page(self) -> CutPage:
        while True:
            try:
                return await read_cut(self.segment, self._after, self._revision)
            except errors.PositionTrimmed as error:
                trimmed = Position.parse(error.members["first_position"]).before
                if trimmed <= self._after:  # it was compacted
                    raise
                self._after = trimmed  # what was trimmed is not delivered, wherever the subscription begins


async def cut_at(segment: AnySegment, revision: Revision) -> Start:
    """Where a subscription begins on this segment. The answer no longer changes once it was found, unless the
    segment is trimmed or compacted.

    Raises INVALID_ARGUMENT for a revision that is in the future, too old, or one at which too many transactions were
    open; POSITION_TRIMMED for one before the last compaction; and STORE_UNAVAILABLE.
    """
    cutting, end = Cutting(segment, revision), False
    while not end:
        end = (await cutting.read()).end
    return cutting.cut.start()
