"""The compacted view of a topic: the latest visible value of each key, in the order in which the values were written.

    scan ─▶ per segment: where the kept messages are, and the end up to which they are the latest ─▶ pages ─▶ tail

A later message replaces an earlier one of the same key; one without a value (null, or no bytes) deletes the key. What
is aborted, void or not readable yet replaces nothing. A message without a key is left out, because it is unknown what
it would replace. After the last page the reader continues with every message after those ends.

The view is a function of the ends and the isolation: what is visible up to there does not change, whatever is decided,
split, merged or restarted later. So the token of a page contains the ends, and a broker that no longer has the view
builds the same one again. Only a trim removes entries: then the read fails, and must be started again.

Cost: to begin a view, every readable entry is read once, and all pages together read it at most once more. The memory
is every key once while the view is built, and then a place per key as long as the view is among the last used ones.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from metastore.types import Revision
from metatxn.wire.broker import Isolation, ReadMessage
from metatxn.wire.names import BrowseToken
from metatxn.wire.position import Position
from participants.messages.payloads import keyed, message_count, read_bytes, read_messages
from participants.messages.pieces import in_turns
from participants.segment.segment import Segment
from participants.topic.reading import BROWSE_BYTES, AnySegment, read_page, start_of

REMEMBERED_KEYS = 1_000_000
"""The most keys of all views that are kept. The last used view is kept in any case."""
_SCANS_AT_ONCE = 2

Ends = dict[str, Position]
Kept = dict[str, list[tuple[Position, int]]]
"""The entry of each kept message and the message's index in it, for each segment in order."""


@dataclass(frozen=True, slots=True)
class CompactedView:
    ends: Ends
    kept: Kept

    @property
    def size(self) -> int:
        return sum(map(len, self.kept.values()))


class CompactedViews:
    """The compacted views of one broker. `segments` are always all segments of the topic, parents before their
    children."""

    def __init__(self) -> None:
        self._views: OrderedDict[_Name, CompactedView] = OrderedDict()
        self._scanning = asyncio.Semaphore(_SCANS_AT_ONCE)

    async def begin(
        self, segments: Sequence[AnySegment], isolation: Isolation, revision: Revision | None
    ) -> BrowseToken:
        """Begin a view of what is readable now. Returns the token of its first page."""
        async with self._scanning:
            view = await _scan(segments, isolation, revision, None)
        self._remember(view, isolation, revision)
        starts = {segment.id: (start_of(segment), 0) for segment in segments if segment.id in view.ends}
        return BrowseToken(starts, revision, view.ends)

    async def page(
        self, segments: Sequence[AnySegment], token: BrowseToken, limit: int, isolation: Isolation
    ) -> tuple[list[ReadMessage], BrowseToken]:
        """Up to `limit` messages after `token`, and the token to continue with. Raises POSITION_TRIMMED."""
        assert token.ends is not None
        view = await self._view(segments, token, token.ends, isolation)
        places = dict(token.places)
        found: list[ReadMessage] = []
        size = 0
        for segment in segments:
            wanted = view.kept.get(segment.id, [])
            at, taken = places.get(segment.id, (start_of(segment), 0))
            if not wanted or at >= token.ends[segment.id]:
                continue
            number = bisect_left(wanted, (at.next, taken))
            while number < len(wanted):
                entry = wanted[number][0]
                page = await read_page(segment, entry.before, BROWSE_BYTES, isolation, token.revision)
                for frame in page.frames:
                    position = frame.position
                    number = bisect_left(wanted, (position, 0), number)  # the rest was compacted
                    last = bisect_left(wanted, (position.next, 0), number)
                    indexes = [index for _, index in wanted[number:last]][: limit - len(found)]
                    if not indexes:
                        continue
                    found += read_messages(segment.id, frame, indexes)
                    given_bytes = len(frame.data) * len(indexes) // message_count(frame)
                    size += read_bytes(frame) * len(indexes) // message_count(frame)
                    if isinstance(segment, Segment):  # another broker counts what it sends
                        segment.traffic.went_out(len(indexes), given_bytes)
                    number += len(indexes)
                    places[segment.id] = (position.before, indexes[-1] + 1)
                    if len(found) >= limit or size >= BROWSE_BYTES:
                        return found, BrowseToken(places, token.revision, token.ends)
                number = bisect_left(wanted, (page.next.next, 0), number)
        return found, BrowseToken({segment: (end, 0) for segment, end in token.ends.items()}, token.revision)

    async def _view(
        self, segments: Sequence[AnySegment], token: BrowseToken, ends: Ends, isolation: Isolation
    ) -> CompactedView:
        view = self._views.get(_name(ends, isolation, token.revision))
        if view is None:
            for segment in segments:
                at, _ = token.places.get(segment.id, (start_of(segment), 0))
                if segment.id in ends and at < ends[segment.id]:
                    await read_page(segment, at, 1, isolation, token.revision)  # or it was trimmed
            async with self._scanning:
                view = await _scan(segments, isolation, token.revision, ends)
        self._remember(view, isolation, token.revision)
        return view

    def _remember(self, view: CompactedView, isolation: Isolation, revision: Revision | None) -> None:
        name = _name(view.ends, isolation, revision)
        self._views[name] = view
        self._views.move_to_end(name)
        while len(self._views) > 1 and sum(each.size for each in self._views.values()) > REMEMBERED_KEYS:
            self._views.popitem(last=False)


_Name = tuple[Isolation, Revision | None, tuple[tuple[str, Position], ...]]


def _name(ends: Ends, isolation: Isolation, revision: Revision | None) -> _Name:
    return isolation, revision, tuple(sorted(ends.items()))


async def _scan(
    segments: Sequence[AnySegment], isolation: Isolation, revision: Revision | None, ends: Ends | None
) -> CompactedView:
    """Build the view up to `ends`. None means up to what is readable now, and nothing of a segment whose parents are
    not read to their end, as in any other browse."""
    latest: dict[str, tuple[str, Position, int]] = {}
    reached: Ends = {}
    unread: set[str] = set()
    for segment in segments:
        if segment.id not in ends if ends is not None else not unread.isdisjoint(segment.record.parents):
            unread.add(segment.id)
            continue
        end = ends[segment.id] if ends is not None else None
        at, more = start_of(segment), True
        while more and (end is None or at < end):
            page = await read_page(segment, at, BROWSE_BYTES, isolation, revision)
            for frame in page.frames:
                position = frame.position
                if end is not None and position > end:
                    break
                async for piece in in_turns(keyed(frame)):
                    for index, key, deleted in piece:
                        if deleted:
                            latest.pop(key, None)
                        else:
                            latest[key] = (segment.id, position, index)
            at, more = max(at, page.next), not page.end
        reached[segment.id] = at if end is None else end
        if not segment.ended_at(at):
            unread.add(segment.id)
    kept: Kept = {}
    for segment_id, position, index in latest.values():
        kept.setdefault(segment_id, []).append((position, index))
    for places in kept.values():
        places.sort()
    return CompactedView(reached, kept)
