"""Reading the messages of a topic in order, without a subscription."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

from metatxn.answers import parsed
from metatxn.connection import Connection
from metatxn.http import Call, path_of
from metatxn.paging import Paged
from metatxn.wire.broker import Isolation, ReadMessage, ReadMessagesAnswer
from metatxn.wire.errors import InvalidArgument

PAGE_MESSAGES = 1000
FOLLOW_WAIT_MS = 1000
COMPACTION_WAIT_S = 120.0
"""How long the broker may take to read a whole topic."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message. `value` is what was sent: anything that JSON can hold, or bytes. `message_id` is opaque.
    `redelivery_count` is the number of times a subscription delivered it before."""

    topic: str
    message_id: str
    value: Any
    key: str | None = None
    properties: dict[str, str] = field(default_factory=dict)
    publish_ms: int = 0
    txn_id: str | None = None
    redelivery_count: int = 0


def message_of(topic: str, read: ReadMessage, redelivery_count: int = 0) -> Message:
    value = base64.b64decode(read.value_base64) if read.value_base64 is not None else read.value
    properties = dict(read.properties)
    return Message(topic, read.message_id, value, read.key, properties, read.publish_ms, read.txn_id, redelivery_count)


class AsyncReader(Paged[Message]):
    """A reader, made by `AsyncClient.reader`, for one task. Without `follow` the iteration ends where nothing more is
    readable, and may be resumed later; with `follow` it waits for more.

    `token` is the place of the reader: after the last message returned once a page is finished. So a new reader started
    there misses nothing, and may repeat the last page.

    A `compacted` reader begins with the latest value of each key, without keys that a null or empty value has deleted,
    and without messages that have no key; then it continues with new messages. The broker reads the whole topic before
    it answers the first page.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        start: str,
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
        self.token: str | None = None if start in ("earliest", "latest") else start
        self._connection = connection
        self._isolation: Isolation = isolation
        self._follow = follow
        self._revision = revision
        self._compacted = compacted
        self._next: str | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic!r})"

    async def open(self, *, at_end: bool) -> None:
        """Take the revision of a snapshot, and find the end if requested, as they are now."""
        if self._isolation == "snapshot" and self._revision is None:
            self._revision = (await self._connection.directory.read()).revision
        if at_end:
            self.token = (await self._read(None, 0, start="latest")).next

    async def page(self) -> list[Message] | None:
        while True:
            read = await self._read(self.token, FOLLOW_WAIT_MS if self._follow else 0)
            self._next = read.next
            if read.messages:
                return [message_of(self.topic, message) for message in read.messages]
            self.passed()
            if not self._follow:
                return None

    def passed(self) -> None:
        self.token = self._next

    async def _read(self, after: str | None, wait_ms: int, start: str | None = None) -> ReadMessagesAnswer:
        params = {
            "after": after,
            "start": start,
            "max": PAGE_MESSAGES,
            "isolation": self._isolation,
            "revision": self._revision,
            "wait_ms": wait_ms or None,
            "compacted": "true" if self._compacted and after is None else None,
        }
        wait_s = COMPACTION_WAIT_S if self._compacted else wait_ms / 1000
        call = Call("GET", path_of("topics", self.topic, "messages"), params, wait_s=wait_s)
        connection = self._connection
        return parsed(ReadMessagesAnswer, await connection.http.request(connection.brokers, call))
