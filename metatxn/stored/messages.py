"""The messages that are stored in a segment, page by page."""

from __future__ import annotations

from typing import Protocol

from metatxn.paging import Paged
from metatxn.stored.looking import PageStart, StoredFrames, StoredMessage, WantedMessages, look_through
from metatxn.stored.where import parsed_where
from metatxn.topics import arrow_schema
from metatxn.wire.broker import SegmentDetail, TopicInfo
from metatxn.wire.errors import InvalidArgument
from metatxn.wire.names import topic_of_segment
from metatxn.wire.position import Position


class StoredSegments(StoredFrames, Protocol):
    """What is asked: the part of `AsyncClient` that it needs."""

    async def segment(self, segment_id: str, max_open: int | None = None) -> SegmentDetail: ...

    async def topic(self, topic: str) -> TopicInfo: ...


class StoredMessages(Paged[StoredMessage]):
    """See `AsyncClient.stored_messages`. A page may be empty although there are more."""

    def __init__(
        self,
        client: StoredSegments,
        segment: str,
        after: str | None,
        everything: bool,
        key: str | None,
        where: str | None,
    ) -> None:
        self._client = client
        self._segment = segment
        self._place = None if after is None else PageStart(_position(after))
        self._everything = everything
        self._key = key
        self._where = parsed_where(where) if where is not None else None
        self._wanted: WantedMessages | None = None
        self._next: PageStart | None = None
        self._over = False

    async def page(self) -> list[StoredMessage] | None:
        if self._over:
            return None
        detail = await self._client.segment(self._segment, max_open=0)
        if self._wanted is None:
            topic = await self._client.topic(topic_of_segment(self._segment))
            schema = arrow_schema(topic.topic_schema)
            self._wanted = WantedMessages(self._everything, self._key, self._where, schema)
        place = self._place or PageStart(Position.parse(detail.first_position).before)
        horizon = Position.parse(detail.max_read_position)
        found = await look_through(self._client, self._segment, place, horizon, self._wanted)
        self._next = found.next
        return list(found.messages)

    def passed(self) -> None:
        self._place, self._over = self._next, self._next is None


def _position(text: str) -> Position:
    try:
        return Position.parse(text)
    except ValueError as error:
        raise InvalidArgument(f"after: {error}", field="after") from None
