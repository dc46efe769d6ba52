"""Reading one segment of a topic, served here or by another broker, with any isolation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from metastore.types import Revision
from metatxn.wire import errors
from metatxn.wire.broker import Isolation
from metatxn.wire.position import Position
from participants.broker.peers import RemoteSegment
from participants.segment.reading import CutPage, Page
from participants.segment.segment import Segment

T = TypeVar("T")

BROWSE_BYTES = 1 << 20
"""The number of bytes that a browse reads of a segment at once, which is about the size of its answer."""
AnySegment = Segment | RemoteSegment
"""A segment of the topic, served here or by another broker."""


def start_of(segment: AnySegment) -> Position:
    """The position before the first entry that may be read."""
    return segment.start if isinstance(segment, RemoteSegment) else segment.ledgers.start


async def end_of(segment: AnySegment, isolation: Isolation) -> Position:
    """The position of the last entry that may be read now, or a bound."""
    if isinstance(segment, RemoteSegment):
        return await segment.end(isolation)
    return segment.buffer.max_read_position if isolation == "read_committed" else segment.buffer.last_durable


async def position_at(segment: AnySegment, at_ms: int) -> Position:
    """The position of the first entry that was published at `at_ms` or later, or of the next one to come."""
    return await (segment if isinstance(segment, RemoteSegment) else segment.reader).position_at(at_ms)


async def read_cut(segment: AnySegment, after: Position, revision: Revision) -> CutPage:
    """See `SegmentReader.read_cut`."""
    return await (segment if isinstance(segment, RemoteSegment) else segment.reader).read_cut(after, revision)


async def from_chosen(at: Position, read: Callable[[Position], Awaitable[T]]) -> T:
    """What `read` returns for `at`, which this broker has chosen for a reader that names no position. If a trim
    overtakes it, it begins again where the trim has ended: nothing that the reader has named is gone.

    Raises POSITION_TRIMMED only if the whole segment cannot be read at a revision any more.
    """
    while True:
        try:
            return await read(at)
        except errors.PositionTrimmed as error:
            first = error.members.get("first_position")
            if first is None or (start := Position.parse(first).before) <= at:
                raise
            at = start


async def read_page(
    segment: AnySegment, after: Position, max_bytes: int, isolation: Isolation, revision: Revision | None
) -> Page:
    if isinstance(segment, RemoteSegment):
        return await segment.read(after, max_bytes, isolation, revision)
    if after > segment.buffer.last_durable:
        await segment.reader.assert_owned()
        raise errors.InvalidArgument(
            f"after: {after} is after the end of segment {segment.id}, {segment.buffer.last_durable}",
            field="after",
        )
    match isolation:
        case "read_committed":
            return await segment.reader.read_committed(after, max_bytes)
        case "read_uncommitted":
            return await segment.reader.read_uncommitted(after, max_bytes)
        case "snapshot":
            return await segment.reader.read_snapshot(after, max_bytes, revision)


def snapshot_revision(isolation: Isolation, revision: Revision | None, place: Revision | None) -> Revision | None:
    """The revision at which to read: the requested one, or else that of the place from which to continue.

    Raises INVALID_ARGUMENT for a revision without a snapshot, and for a snapshot's place in any other read, which would
    never see what was undecided then.
    """
    if isolation != "snapshot" and revision is not None:
        raise errors.InvalidArgument(f"revision: has no meaning with isolation={isolation}", field="revision")
    if place is not None and (isolation != "snapshot" or revision not in (None, place)):
        raise errors.InvalidArgument(
            f"after: comes from a snapshot at revision {place} and can only continue that snapshot",
            action="Start another read from the beginning, or continue with isolation=snapshot.",
            field="after",
        )
    return revision if revision is not None else place
