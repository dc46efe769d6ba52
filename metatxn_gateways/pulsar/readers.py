"""Reading one segment without a subscription: what Pulsar calls a non-durable one. Checkpoint consumers read so.

Committed entries are sent in their order, as many as the client has permitted: `FLOW` permits messages, and the last
entry may exceed that. Nothing of it is remembered.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from metatxn.wire import errors
from metatxn.wire.frames import RawFrame
from metatxn.wire.position import Position
from metatxn_gateways.listener import Reply
from metatxn_gateways.pulsar.commands import command
from metatxn_gateways.pulsar.entries import served
from metatxn_gateways.pulsar.names import message_id
from metatxn_gateways.pulsar.session import MAX_KEPT_BYTES, PulsarSession
from participants.messages.payloads import message_count
from participants.segment.segment import Segment

READ_BYTES = 1 << 20
EARLIEST, LATEST = (1 << 64) - 1, (1 << 63) - 1
"""The ledger numbers by which a reader asks to begin at an end of the segment."""


class PulsarReader:
    """A reader. `run` sends until the segment or the connection is lost."""

    def __init__(self, id: int, segment: Segment, start: Position, session: PulsarSession) -> None:
        self.id = id
        self.segment = segment
        self._at = start
        self._session = session
        self._link = session.link
        self._left: deque[RawFrame] = deque()
        """The entries that were read and not sent yet."""
        self._page_bytes = 0
        """The bytes of the page that was read last."""
        self._kept_bytes = 0
        """What of it counts as kept: all of it, as long as any entry is left."""
        self._permits = 0
        self._permitted = asyncio.Event()
        self._ended = False

    def flow(self, permits: int) -> None:
        self._permits += permits
        if self._permits > 0:
            self._permitted.set()

    async def run(self) -> None:
        """Send entries. Raises STORE_UNAVAILABLE once the segment is no longer served here, AUTHORIZATION once the
        right to consume is lost, and the store's errors."""
        try:
            await self._run()
        finally:
            self._session.kept_bytes -= self._kept_bytes

    async def _run(self) -> None:
        while True:
            await self._permitted.wait()
            charge = await self._session.may_read()
            async with self._session.delivering:
                await self._link.until_writable()
                changed = self.segment.changed.next()
                self.segment.assert_serving()
                more = bool(self._left) or await self._read_on()
                self._session.require("consume", self.segment.record.topic)
                size = self._send()
            if charge is not None:
                charge.answer(size)
            left = self._leaves_some()
            if not more and not left:
                self._tell_end()
                await asyncio.shield(changed)

    async def _read_on(self) -> bool:
        """Read on. Returns whether there may be more to read."""
        at = max(self._at, self.segment.ledgers.start)  # what was trimmed is passed over
        try:
            page = await self.segment.reader.read_committed(at, READ_BYTES)
        except errors.PositionTrimmed:
            return True
        self._left.extend(page.frames)
        self._page_bytes = sum(len(frame.data) for frame in page.frames)
        self._at = page.next
        return not page.end

    def _leaves_some(self) -> bool:
        """Whether something was read that is not permitted yet. It is kept, or read again if the readers of the
        connection keep much already."""
        some = bool(self._left)
        others, kept = self._session.kept_bytes - self._kept_bytes, self._page_bytes if some else 0
        if some and others + kept > MAX_KEPT_BYTES:
            self._at = self._left[0].position.before
            self._left.clear()
            kept = 0
        self._session.kept_bytes, self._kept_bytes = others + kept, kept
        return some

    def _send(self) -> int:
        """Send what is permitted. Returns the bytes."""
        frames: list[Reply] = []
        size = 0
        while self._left and self._permits > 0:
            frame = self._left.popleft()
            self._permits -= message_count(frame)
            frames.append(message(self.id, self.segment.id, frame))
            self.segment.traffic.went_out(message_count(frame), len(frame.data))
            size += len(frame.data)
        if self._permits <= 0:
            self._permitted.clear()
        if frames:
            self._link.send(*frames)
        return size

    def _tell_end(self) -> None:
        if not self._ended and self.segment.ended_at(self._at):
            self._ended = True
            self._link.send([command("reached_end_of_topic", consumer_id=self.id)])


def message(consumer_id: int, segment_id: str, frame: RawFrame, **more: Any) -> Reply:
    """The frame that brings an entry to a consumer."""
    head = command("message", consumer_id=consumer_id, message_id=message_id(frame.position), **more)
    return [head, served(segment_id, frame)]


def reader_start(segment: Segment, wanted: Any) -> Position:
    """The position after which a reader that has asked for the id of a message reads: it wants those after it.

    Of a batch it may want the messages after one of them: it then gets the whole batch, and passes over the others.
    """
    if wanted is None or wanted.ledger_id == LATEST:
        return segment.buffer.max_read_position
    if wanted.ledger_id == EARLIEST:
        return segment.ledgers.start
    at = Position(wanted.ledger_id, wanted.entry_id)
    return min(at.before if wanted.batch_index >= 0 else at, segment.buffer.max_read_position)
