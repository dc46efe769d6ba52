"""What the consumers of one subscription see of a segment, by its isolation."""

from __future__ import annotations

from metatxn.wire.position import Position
from participants.segment.reading import Page
from participants.segment.segment import Segment


class IsolatedView:
    """A view of committed entries up to the horizon; or, `uncommitted`, of every durable entry, whatever happens to its
    transaction."""

    def __init__(self, segment: Segment, *, uncommitted: bool) -> None:
        self._segment = segment
        self._uncommitted = uncommitted

    async def page(self, after: Position, max_bytes: int) -> Page:
        """Read a page. Raises as `SegmentReader.read_committed` does."""
        reader = self._segment.reader
        read = reader.read_uncommitted if self._uncommitted else reader.read_committed
        return await read(after, max_bytes)

    @property
    def end(self) -> Position:
        """The last entry that can be seen now."""
        buffer = self._segment.buffer
        return buffer.last_durable if self._uncommitted else buffer.max_read_position
