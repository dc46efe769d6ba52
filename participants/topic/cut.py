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
from participants.segment.reading import Run
from participants.subscription.places import START, Place, Span, Start
from participants.subscription.ranges import RangeSet
from participants.topic.reading import AnySegment, read_cut, start_of

MAX_CUT_RANGES = 1_000
"""Of one segment. They are in the record of the subscription: 112 bytes each at most, and mostly 25."""


class PassedEntries:
    """Takes the runs of a segment in their order."""

    def __init__(self) -> None:
        self._passed = RangeSet()
        self._from = START
        """Behind the last entry that was undecided, or was passed."""
        self._outside: list[Span] = []
        """Entries outside of transactions, before undecided ones, that are passed once something behind them is."""
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
        spans = list(self._passed)
        if spans and spans[0].start == START:
            return Start(spans[0].end, tuple(spans[1:]))
        return Start(START, tuple(spans))


async def cut_at(segment: AnySegment, revision: Revision) -> Start:
    """Where a subscription begins on this segment. The answer does not change any more once it was found, unless the
    segment is trimmed or compacted.

    Raises INVALID_ARGUMENT for a revision that is in the future, too old, or one at which too many transactions were
    open; POSITION_TRIMMED for one before the last compaction; and STORE_UNAVAILABLE.
    """
    cut, after, end = PassedEntries(), start_of(segment), False
    while not end:
        try:
            page = await read_cut(segment, after, revision)
        except errors.PositionTrimmed as error:
            trimmed = Position.parse(error.members["first_position"]).before
            if trimmed <= after:  # it was compacted
                raise
            after = trimmed  # what was trimmed is not delivered, wherever the subscription begins
            continue
        for run in page.runs:
            cut.add(run)
        if cut.ranges > MAX_CUT_RANGES:
            raise errors.InvalidArgument(
                f"revision: what was committed by {revision} on segment {segment.id} lies in more than "
                f"{MAX_CUT_RANGES} parts, between entries of transactions that were open then",
                action="Use a revision at which fewer transactions were open, or move the subscription to a time.",
                field="revision",
            )
        after, end = page.next, page.end
    return cut.start()
