"""Reading the messages of a topic in order, without a subscription."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import repeat
from typing import Any, NamedTuple

from metatxn.answers import parsed
from metatxn.connection import Connection
from metatxn.http import Call, path_of
from metatxn.paging import Paged
from metatxn.transport.api import Answer
from metatxn.wire.broker import Isolation, ReadMessage, ReadMessagesAnswer
from metatxn.wire.contents import messages_of
from metatxn.wire.errors import InvalidArgument, MetatxnError, ServiceUnreachable
from metatxn.wire.names import BrowseToken, ReadTime, message_ids
from metatxn.wire.pages import PAGE_MEDIA_TYPE, PageEntry, decode_page

PAGE_MESSAGES = 1000
FULL_PAGE_BYTES = 512 * 1024
"""The answer to a page of fewer messages has this size if the page ended for its size."""
FOLLOW_WAIT_MS = 1000
COMPACTION_WAIT_S = 120.0
"""How long the broker may take to read a whole topic."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message. `value` is what was sent: anything that JSON can hold, or bytes. `message_id` is opaque.
    `redelivery_count` is the number of times that a subscription delivered it before, and `deliver_at_ms` the delivery
    time that its producer has set for shared subscriptions."""

    topic: str
    message_id: str
    value: Any
    key: str | None = None
    properties: dict[str, str] = field(default_factory=dict)
    publish_ms: int = 0
    txn_id: str | None = None
    redelivery_count: int = 0
    deliver_at_ms: int | None = None


_set = [vars(Message)[name].__set__ for name in Message.__slots__]
_set_topic, _set_id, _set_value, _set_key, _set_properties, _set_publish_ms, _set_txn_id, _set_count, _set_due = _set


def _new_message(
    topic: str,
    message_id: str,
    value: Any,
    key: str | None,
    properties: dict[str, str] | None,
    publish_ms: int,
    txn_id: str | None,
    deliver_at_ms: int | None,
) -> Message:
    """A message, in half the time of the class's own `__init__`: a frozen class is slow, and there may be a million."""
    message = object.__new__(Message)
    _set_topic(message, topic)
    _set_id(message, message_id)
    _set_value(message, value)
    _set_key(message, key)
    _set_properties(message, properties or {})
    _set_publish_ms(message, publish_ms)
    _set_txn_id(message, txn_id)
    _set_count(message, 0)
    _set_due(message, deliver_at_ms)
    return message


class PageMessages:
    """The messages of entries, without those that were taken before. Each is made when its turn comes: Python's
    garbage collector visits all objects that wait, and a page has thousands of messages. All is decoded at once."""

    def __init__(self, topic: str, entries: Iterable[PageEntry]) -> None:
        self._topic = topic
        self._entries = [(entry, messages_of(entry.frame)) for entry in entries]

    def __bool__(self) -> bool:
        return any(len(columns.values) > entry.skip for entry, columns in self._entries)

    def __iter__(self) -> Iterator[Message]:
        for entry, (keys, values, properties, times_ms) in self._entries:
            frame, skip = entry.frame, entry.skip
            ids = message_ids(entry.segment, frame.position, range(skip, len(values)))
            txn_id = str(frame.txn_id) if frame.txn_id is not None else None
            columns = (values[skip:], keys[skip:], properties[skip:])
            fixed = (repeat(frame.publish_ms), repeat(txn_id))
            yield from map(_new_message, repeat(self._topic), ids, *columns, *fixed, times_ms[skip:])


def message_of(topic: str, read: ReadMessage, redelivery_count: int = 0) -> Message:
    value = base64.b64decode(read.value_base64) if read.value_base64 is not None else read.value
    properties = dict(read.properties)
    return Message(
        topic,
        read.message_id,
        value,
        read.key,
        properties,
        read.publish_ms,
        read.txn_id,
        redelivery_count,
        read.deliver_at_ms,
    )


def milliseconds(field: str, time: datetime) -> int:
    """The time since 1970, or 0 before it. Raises `InvalidArgument` for a time without a time zone, which is
    ambiguous."""
    if time.tzinfo is None:
        raise InvalidArgument(
            f"{field}: {time} has no time zone", action="Use one like datetime.now(UTC).", field=field
        )
    return max(0, int(time.timestamp() * 1000))


class MessagePage(NamedTuple):
    """A page of messages. With `more`, there are messages after these."""

    messages: Iterable[Message]
    next: str
    revision: int | None
    more: bool


class AsyncReader(Paged[Message]):
    """A reader, made by `AsyncClient.reader`, for one task. Without `follow` the iteration ends where nothing more is
    readable, and may be resumed later; with `follow` it waits for more.

    `token` is the position of the reader: after the last message returned once a page is finished. So a new reader
    started there misses nothing, and may repeat the last page.

    A `compacted` reader begins with the latest value of each key, without keys that a null or empty value has deleted,
    and without messages that have no key; then it continues with new messages. The broker reads the whole topic before
    it answers the first page.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        start: str | datetime,
        isolation: Isolation,
        follow: bool,
        revision: int | None,
        compacted: bool,
    ) -> None:
        if compacted and start != "earliest":
            raise InvalidArgument(
                f"start: {start!r} does not apply to the compacted view, which has only one beginning",
                field="start",
            )
        self.topic = topic
        if isinstance(start, datetime):
            start = str(ReadTime(milliseconds("start", start)))
        self.token: str | None = None if start in ("earliest", "latest") else start
        self._connection = connection
        self._isolation: Isolation = isolation
        self._follow = follow
        self._revision = revision
        self._compacted = compacted
        self._next: str | None = None
        self._ahead: tuple[str, asyncio.Future[MessagePage | None]] | None = None
        """The page after this token, requested while the one before it is handed out; None if that failed."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic!r})"

    async def open(self, *, at_end: bool) -> None:
        """Take the revision of a snapshot, and find the end if requested, as they are now."""
        if self._isolation == "snapshot" and self._revision is None:
            self._revision = (await self._connection.directory.read()).revision
        if at_end:
            self.token = (await self._read(None, 0, start="latest")).next

    async def page(self) -> Iterable[Message] | None:
        while True:
            page = await self._read_ahead() or await self._read(self.token, FOLLOW_WAIT_MS if self._follow else 0)
            self._next = page.next
            if page.more:
                self._request_ahead(page.next)
            if page.messages:
                return page.messages
            self.passed()
            if not self._follow:
                return None

    def passed(self) -> None:
        self.token = self._next

    async def _read_ahead(self) -> MessagePage | None:
        """The page that was requested ahead, if it is the next one and has messages; otherwise there may be some
        now."""
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead[0] != self.token:
            return None
        page = await asyncio.shield(ahead[1])
        return page if page is not None and page.messages else None

    def _request_ahead(self, after: str) -> None:
        answer: asyncio.Future[MessagePage | None] = asyncio.get_running_loop().create_future()
        self._ahead = after, answer

        async def request() -> None:
            page = None
            try:
                page = await self._read(after, 0)
            except MetatxnError:
                pass  # the iteration requests the page again, and raises what that raises
            finally:
                answer.set_result(page)

        self._connection.spawn(request())

    async def _read(self, after: str | None, wait_ms: int, *, start: str | None = None) -> MessagePage:
        """Read a page. Only the JSON form has pages of the compacted view, in which each entry has only some messages;
        and it is the only form that services of release 0.2.0 have."""
        in_view = self._compacted and (after is None or BrowseToken.parse(after).ends is not None)
        in_json = in_view or not await self._connection.directory.knows_batches()
        params = {
            "after": after,
            "start": start,
            "max": PAGE_MESSAGES if in_json else None,
            "isolation": self._isolation,
            "revision": self._revision,
            "wait_ms": wait_ms or None,
            "compacted": "true" if in_view and after is None else None,
        }
        path = path_of("topics", self.topic, "messages" if in_json else "batches")
        call = Call("GET", path, params, wait_s=COMPACTION_WAIT_S if in_view else wait_ms / 1000)
        answer = await self._connection.broker(call)
        return self._page_in_json(answer) if in_json else self._page(answer)

    def _page_in_json(self, answer: Answer) -> MessagePage:
        read = parsed(ReadMessagesAnswer, answer)
        more = len(read.messages) >= PAGE_MESSAGES or len(answer.body) >= FULL_PAGE_BYTES
        return MessagePage([message_of(self.topic, each) for each in read.messages], read.next, read.revision, more)

    def _page(self, answer: Answer) -> MessagePage:
        try:
            head, entries = decode_page(answer.body)
        except ValueError as error:
            raise ServiceUnreachable(f"{answer.url} does not answer with {PAGE_MEDIA_TYPE}: {error}") from error
        return MessagePage(PageMessages(self.topic, entries), head.next, head.revision, head.more)
