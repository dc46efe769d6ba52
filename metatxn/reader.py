"""Reading a topic's messages one after another, without a subscription."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from metatxn.connection import Connection, parsed
from metatxn.errors import InvalidArgument
from metatxn.http import Call, json_of, path_of
from participants.api.models import Isolation, ReadMessage, ReadMessagesAnswer

PAGE_MESSAGES = 1000
FOLLOW_WAIT_MS = 1000
COMPACTION_WAIT_S = 120.0
"""How long the broker may take to read a topic through."""


@dataclass(frozen=True, slots=True)
class Message:
    """`value` is what was sent: anything JSON can hold, or bytes. `message_id` is opaque. `redelivery_count` tells how
    often a subscription gave it to somebody before."""

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


class Reader:
    """Iterate it from one thread. Without `follow` it ends where nothing more is readable, and may be iterated
    again later to go on; with it, it waits for more.

    `token` is where it stands: behind the last message handed out once a page is finished, so a new reader started
    there misses nothing and may repeat the last page.

    A `compacted` one begins with the latest value of each key, without those that a null or empty value has deleted and
    without messages that have no key; then it goes on with what comes. The broker reads the topic through before it
    answers the first page.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        start: str = "earliest",
        isolation: Isolation = "read_committed",
        follow: bool = False,
        revision: int | None = None,
        compacted: bool = False,
    ) -> None:
        if compacted and start != "earliest":
            raise InvalidArgument(
                f"start: {start!r} and compacted: the compacted view has one beginning", field="start"
            )
        self.topic = topic
        self.token: str | None = None if start == "earliest" else start
        self._connection = connection
        self._isolation: Isolation = isolation
        self._follow = follow
        self._revision = revision
        self._compacted = compacted
        if self._isolation == "snapshot" and revision is None:
            self._revision = connection.directory.read().revision
        if start == "latest":
            self.token = self._page(None, 0).next
            while (page := self._page(self.token, 0)).messages:
                self.token = page.next

    def __iter__(self) -> Iterator[Message]:
        while True:
            page = self._page(self.token, FOLLOW_WAIT_MS if self._follow else 0)
            for message in page.messages:
                yield message_of(self.topic, message)
            self.token = page.next
            if not page.messages and not self._follow:
                return

    def _page(self, after: str | None, wait_ms: int) -> ReadMessagesAnswer:
        params = {
            "after": after,
            "max": PAGE_MESSAGES,
            "isolation": self._isolation,
            "revision": self._revision,
            "wait_ms": wait_ms or None,
            "compacted": "true" if self._compacted and after is None else None,
        }
        wait_s = COMPACTION_WAIT_S if self._compacted else wait_ms / 1000
        call = Call("GET", path_of("topics", self.topic, "messages"), params, wait_s=wait_s)
        connection = self._connection
        return parsed(ReadMessagesAnswer, json_of(connection.http.request(connection.brokers, call)))
