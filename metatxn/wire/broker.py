"""Wire models of the broker. Imported by the client library too, so nothing but pydantic is needed here."""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from metatxn.wire.models import example
from metatxn.wire.text import encodable, no_control_characters

FRAMES_MEDIA_TYPE = "application/vnd.metatxn.frames"
ARROW_MEDIA_TYPE = "application/vnd.apache.arrow.stream"
MESSAGES_MEDIA_TYPE = "application/vnd.metatxn.messages+json"
BYTES_MEDIA_TYPE = "application/octet-stream"

NEXT_HEADER = "Metatxn-Next"
"""Where to go on: pass it as `after`."""
REVISION_HEADER = "Metatxn-Revision"
"""Of a snapshot read: the store revision it was taken at."""
END_HEADER = "Metatxn-End"
"""`true` when nothing more was readable behind this page at the time it was read."""

MAX_ENTRY_BYTES = 16 * 1024 * 1024
MAX_ENTRY_MESSAGES = 100_000
"""JSON messages in one entry: each is looked at one by one, and costs a broker half a kilobyte of memory meanwhile."""
MAX_SEGMENTS = 100
"""At creation: a topic and its segments are one apply, and etcd takes 128 operations in one."""
MAX_NAME = 256
"""Characters of a producer's, writer's, consumer's or subscription's name."""
HASH_RANGE_END = 0xFFFF
DEFAULT_MAX_REDELIVERIES = 16

Text = Annotated[str, AfterValidator(encodable)]
Name = Annotated[str, AfterValidator(no_control_characters)]
Isolation = Literal["read_committed", "read_uncommitted", "snapshot"]


_TXN_ID = "0000000000000000000000000000002a"
_SEGMENT = "segment://public/default/orders/0000-ffff-0"
_URL = "http://127.0.0.1:8471"
_TOPIC: dict[str, Any] = {
    "name": "public/default/orders",
    "schema": None,
    "segments": [
        {"segment": _SEGMENT, "range": [0, 65535], "state": "active", "parents": [], "children": [], "owner": _URL}
    ],
}
_FIRST_MESSAGE = "WyJzZWdtZW50Oi8vcHVibGljL2RlZmF1bHQvb3JkZXJzLzAwMDAtZmZmZi0wIiwiNzoxMiIsMF0"


def hash_of_key(key: str) -> int:
    """Where a key falls in the hash range 0…65535 of its topic: the low 16 bits of the CRC-32 of its UTF-8 form."""
    return zlib.crc32(key.encode()) & HASH_RANGE_END


class Request(BaseModel):
    """Request bodies refuse unknown fields, and numbers written as text."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SchemaField(BaseModel):
    """One column; `type` is Arrow's name for it (`int64`, `string`, `double`, `timestamp[us]`, …)."""

    model_config = ConfigDict(extra="forbid")

    name: Text
    type: Text
    nullable: bool = True


class TopicSchema(BaseModel):
    """The columns of a topic. `arrow` is the serialized Arrow schema, base64, and wins over `fields` where both are
    given: it can carry nested types. Answers hold both."""

    model_config = ConfigDict(extra="forbid")

    fields: Annotated[list[SchemaField], Field(min_length=1)] | None = None
    arrow: Text | None = None

    @model_validator(mode="after")
    def _one_of(self) -> TopicSchema:
        if self.fields is None and self.arrow is None:
            raise ValueError("give `fields` or `arrow`")
        return self


class CreateTopicRequest(Request):
    model_config = example(
        name="orders",
        segments=4,
        schema={"fields": [{"name": "id", "type": "int64"}, {"name": "at", "type": "timestamp[us]"}]},
    )

    name: Annotated[Name, Field(min_length=1, max_length=512)]
    segments: Annotated[int, Field(ge=1, le=MAX_SEGMENTS)] = 1
    topic_schema: Annotated[TopicSchema | None, Field(alias="schema")] = None


class SegmentInfo(BaseModel):
    """A segment in its topic. `range` is its inclusive part of the hash range; `owner` the owning broker's URL."""

    segment: str
    range: tuple[int, int]
    state: Literal["active", "sealed"]
    parents: list[str]
    children: list[str]
    owner: str | None = None


class TopicInfo(BaseModel):
    model_config = ConfigDict(populate_by_name=True) | example(**_TOPIC)

    name: str
    topic_schema: Annotated[TopicSchema | None, Field(alias="schema")] = None
    segments: list[SegmentInfo]


class TopicPage(BaseModel):
    model_config = example(items=[_TOPIC], next_page_token=None)

    items: list[TopicInfo]
    next_page_token: str | None = None


class SplitRequest(Request):
    """`at`: the first hash of the upper half; the middle unless given."""

    model_config = example(at=32768)

    at: Annotated[int, Field(ge=0, le=HASH_RANGE_END)] | None = None


class MergeRequest(Request):
    """`with`: a neighbour in the hash range."""

    model_config = example(**{"with": "segment://public/default/orders/8000-ffff-1"})

    other: Annotated[Name, Field(alias="with", min_length=1, max_length=1024)]


class SealRequest(Request):
    """Nothing to say."""

    model_config = example()


class ChildrenAnswer(BaseModel):
    """The segments that take over from a sealed one; none when it was sealed for good."""

    model_config = example(children=["segment://public/default/orders/0000-7fff-1"])

    children: list[str]


class TrimRequest(Request):
    """`before`: a position `ledger:entry`; entries below it are dropped."""

    model_config = example(before="7:12")

    before: Annotated[Text, Field(min_length=1, max_length=64)]


class TrimAnswer(BaseModel):
    """Entries below `first_position` cannot be read any more."""

    model_config = example(first_position="7:12")

    first_position: str


class OpenTransaction(BaseModel):
    """A transaction that is undecided here; entries behind `max_read_position` wait for it."""

    txn_id: str
    max_read_position: str
    since_ms: int


class SegmentDetail(BaseModel):
    """A segment as its owner sees it. Positions are `ledger:entry`; entry -1 stands before the first one.

    `last_visible_position` is that of the last entry that readers are shown: at or below `max_read_position`, and not
    aborted. It is absent when there is none.
    """

    model_config = example(
        segment=_SEGMENT,
        topic="public/default/orders",
        state="active",
        owner=_URL,
        generation=1,
        first_position="7:0",
        last_position="7:12",
        max_read_position="7:11",
        last_visible_position="7:9",
        pinned_by=_TXN_ID,
        open_transactions=[{"txn_id": _TXN_ID, "max_read_position": "7:11", "since_ms": 1767225600000}],
        aborted_count=0,
        entries=13,
        size_bytes=4096,
    )

    segment: str
    topic: str
    state: Literal["active", "sealed"]
    owner: str
    generation: int
    first_position: str
    last_position: str
    max_read_position: str
    last_visible_position: str | None = None
    pinned_by: str | None = None
    open_transactions: list[OpenTransaction]
    aborted_count: int
    entries: int
    size_bytes: int


class HorizonPlace(Request):
    """`after`: as far as was read, all of it is unread unless given. `up_to`: no further, whatever there is. With
    `max_messages` the answer goes as far as that many visible messages, in whole entries and at least one."""

    after: Annotated[Text, Field(max_length=64)] | None = None
    up_to: Annotated[Text, Field(max_length=64)] | None = None
    max_messages: Annotated[int, Field(ge=1, le=2**53 - 1)] | None = None


class HorizonsRequest(Request):
    """`segments` of any topics. With `wait_ms` the answer comes once one of them has more to read, or has ended."""

    model_config = example(segments={_SEGMENT: {"after": "7:11", "max_messages": 1000}}, wait_ms=10_000)

    segments: Annotated[dict[Name, HorizonPlace], Field(min_length=1, max_length=10_000)]
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    wait_ms: Annotated[int, Field(ge=0, le=60_000)] = 0


class SegmentHorizon(BaseModel):
    """Places are `ledger:entry`, exclusive: what lies behind `start` and up to `end` can be read. `messages`, counted
    only with `max_messages`, are visible behind `after`. `trimmed`: entries were dropped, the last of them at
    `trimmed_up_to`; `start` may be further on where nothing ever was. `ended`: the segment is sealed and nothing is
    behind `end`; its `children` go on, as far as they are known here."""

    start: str
    end: str
    messages: int | None = None
    trimmed: bool = False
    trimmed_up_to: str | None = None
    ended: bool = False
    children: list[str] = []


class HorizonsAnswer(BaseModel):
    """Segments that this broker serves; `elsewhere`: the URL of the broker that has them; `gone`: deleted ones."""

    model_config = example(
        segments={
            _SEGMENT: {"start": "7:-1", "end": "7:12", "messages": 1, "trimmed": False, "ended": False, "children": []}
        },
        elsewhere={},
        gone=[],
    )

    segments: dict[str, SegmentHorizon] = {}
    elsewhere: dict[str, str] = {}
    gone: list[str] = []


class AppendedPart(BaseModel):
    """An entry of `count` messages: those that were sent under its sequence and whose keys hash into `ranges`."""

    segment: str
    position: str
    count: int
    ranges: list[tuple[int, int]]


class PublishAnswer(BaseModel):
    """Where the entry stands; `duplicate` when an earlier attempt has put it there. `appended`, when it was put into
    segments that this one took over from: there are its messages, and `position` is the first of those places."""

    model_config = example(position="7:12", duplicate=False)

    position: str
    duplicate: bool = False
    appended: list[AppendedPart] | None = None


class Message(Request):
    """What one `value` or `value_base64` (exactly one of them) carries."""

    key: Text | None = None
    value: Any = None
    value_base64: Text | None = None
    properties: dict[Text, Text] | None = None

    @field_validator("value_base64")
    @classmethod
    def _is_base64(cls, text: str | None) -> str | None:
        if text is not None:
            try:
                base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                raise ValueError("is not base64") from None
        return text

    @model_validator(mode="after")
    def _one_value(self) -> Message:
        if ("value" in self.model_fields_set) == (self.value_base64 is not None):
            raise ValueError("give exactly one of `value` and `value_base64`")
        return self


class PublishMessagesRequest(Request):
    model_config = example(
        messages=[
            {"key": "7", "value": {"id": 7}, "properties": {"source": "web"}},
            {"key": "8", "value_base64": "aGVsbG8="},
        ],
        producer="curl-1",
        sequence=0,
    )

    messages: Annotated[list[Message], Field(min_length=1, max_length=10_000)]
    producer: Annotated[Name, Field(min_length=1, max_length=MAX_NAME)] | None = None
    sequence: Annotated[int, Field(ge=0, le=2**53 - 1)] | None = None


class PublishMessagesAnswer(BaseModel):
    """In the order sent."""

    model_config = example(message_ids=[_FIRST_MESSAGE])

    message_ids: list[str]


class ReadMessage(BaseModel):
    message_id: str
    key: str | None = None
    value: Any = None
    value_base64: str | None = None
    properties: dict[str, str] = {}
    publish_ms: int
    txn_id: str | None = None


class ReadMessagesAnswer(BaseModel):
    """Go on behind these at `next`; `revision` is the one a snapshot was taken at."""

    model_config = example(
        messages=[
            {
                "message_id": _FIRST_MESSAGE,
                "key": "7",
                "value": {"id": 7},
                "value_base64": None,
                "properties": {"source": "web"},
                "publish_ms": 1767225600000,
                "txn_id": _TXN_ID,
            }
        ],
        next="W3sic2VnbWVudDovL3B1YmxpYy9kZWZhdWx0L29yZGVycy8wMDAwLWZmZmYtMCI6WyI3OjEyIiwwXX0sbnVsbF0",
        revision=None,
    )

    messages: list[ReadMessage]
    next: str
    revision: int | None = None


class SubscriptionRequest(Request):
    """`dead_letter_topic` takes messages that were given again `max_redeliveries` times (16 when not given) and
    returned once more."""

    model_config = example(
        initial="earliest", type="shared", dead_letter_topic="orders-dead", max_redeliveries=DEFAULT_MAX_REDELIVERIES
    )

    initial: Literal["earliest", "latest"]
    type: Literal["exclusive", "failover", "shared"]
    dead_letter_topic: Annotated[Name, Field(min_length=1, max_length=512)] | None = None
    max_redeliveries: Annotated[int, Field(ge=0, le=1000)] | None = None


SUBSCRIPTION_SEGMENT = {
    "segment": _SEGMENT,
    "mark_delete": "7:11",
    "backlog": 3,
    "unacked": 1,
    "pending_acks": {_TXN_ID: 1},
}


class SubscriptionSegment(BaseModel):
    """One segment of a subscription, in messages that can be read: `backlog` are those that are not acknowledged;
    `unacked` of these were given to a consumer; `pending_acks`, by transaction, are acknowledged by an open one and not
    among the `unacked`. Everything up to the entry `mark_delete` is acknowledged."""

    model_config = example(**SUBSCRIPTION_SEGMENT)

    segment: str
    mark_delete: str
    backlog: int
    unacked: int
    pending_acks: dict[str, int]


class SubscriptionInfo(BaseModel):
    model_config = example(
        topic="public/default/orders",
        name="billing",
        initial="earliest",
        type="shared",
        dead_letter_topic=None,
        max_redeliveries=None,
        consumers=["billing-1"],
        segments=[SUBSCRIPTION_SEGMENT],
    )

    topic: str
    name: str
    initial: Literal["earliest", "latest"]
    type: Literal["exclusive", "failover", "shared"]
    dead_letter_topic: str | None = None
    max_redeliveries: int | None = None
    consumers: list[str]
    segments: list[SubscriptionSegment]


class SubscriptionSummary(BaseModel):
    """A subscription as it was created."""

    name: str
    initial: Literal["earliest", "latest"]
    type: Literal["exclusive", "failover", "shared"]
    dead_letter_topic: str | None = None
    max_redeliveries: int | None = None
    created_ms: int


class SubscriptionPage(BaseModel):
    model_config = example(
        items=[
            {
                "name": "billing",
                "initial": "earliest",
                "type": "shared",
                "dead_letter_topic": None,
                "max_redeliveries": None,
                "created_ms": 1767225600000,
            }
        ],
        next_page_token=None,
    )

    items: list[SubscriptionSummary]
    next_page_token: str | None = None


class ReceiveRequest(Request):
    """`consumer` is there from its first request until it was silent for 30 s, or has left. `max` 0 says only that it
    is still there."""

    model_config = example(consumer="billing-1", max=100, wait_ms=1000)

    consumer: Annotated[Name, Field(min_length=1, max_length=MAX_NAME)]
    max: Annotated[int, Field(ge=0, le=1000)] = 100
    wait_ms: Annotated[int, Field(ge=0, le=60_000)] = 0


class ReceivedMessage(ReadMessage):
    """`redelivery_count`: how often it was given to a consumer before."""

    redelivery_count: int


class ReceiveAnswer(BaseModel):
    model_config = example(
        messages=[
            {
                "message_id": _FIRST_MESSAGE,
                "key": "7",
                "value": {"id": 7},
                "value_base64": None,
                "properties": {},
                "publish_ms": 1767225600000,
                "txn_id": None,
                "redelivery_count": 0,
            }
        ]
    )

    messages: list[ReceivedMessage]


MessageIds = Annotated[list[Text], Field(min_length=1, max_length=10_000)]


class AckMessagesRequest(Request):
    """`cumulative` takes one id and covers its segment up to it; or, in its place, `positions`: per segment a place
    `ledger:entry` that readers have been shown, and everything up to it is covered. A shared subscription refuses
    both, for they cover what other consumers have; and inside a transaction a message is refused that nobody was given
    since its segment was opened. With `for_all` neither is: for one who reads the topic in the place of all consumers.
    `writer` (only inside a transaction) counts as its other operations do: if the commit lists it, or lists none."""

    model_config = example(kind="individual", message_ids=[_FIRST_MESSAGE], txn_id=_TXN_ID)

    kind: Literal["individual", "cumulative"]
    message_ids: MessageIds | None = None
    positions: Annotated[dict[Name, Text], Field(min_length=1, max_length=10_000)] | None = None
    for_all: bool = False
    txn_id: Text | None = None
    writer: Annotated[Name, Field(min_length=1, max_length=MAX_NAME)] | None = None

    @field_validator("txn_id")
    @classmethod
    def _not_null(cls, txn_id: str | None) -> str:
        """What was to be inside a transaction must not be acknowledged for good because its id was lost."""
        if txn_id is None:
            raise ValueError("is null: leave it out to acknowledge outside of any transaction")
        return txn_id

    @model_validator(mode="after")
    def _fits(self) -> AckMessagesRequest:
        if (self.message_ids is None) == (self.positions is None):
            raise ValueError("give exactly one of `message_ids` and `positions`")
        if self.positions is not None and self.kind != "cumulative":
            raise ValueError("positions: only a cumulative acknowledgement goes up to a place")
        if self.kind == "cumulative" and self.message_ids is not None and len(self.message_ids) != 1:
            raise ValueError("message_ids: a cumulative acknowledgement takes exactly one")
        if self.writer is not None and self.txn_id is None:
            raise ValueError("writer: has a meaning only with txn_id")
        return self


class AckMessagesAnswer(BaseModel):
    """So many messages (or places) were named; all of them are acknowledged, durably."""

    model_config = example(acknowledged=1)

    acknowledged: int


class RedeliverRequest(Request):
    """Without `message_ids`: everything that consumers hold."""

    model_config = example(message_ids=[_FIRST_MESSAGE])

    message_ids: MessageIds | None = None


class RedeliverAnswer(BaseModel):
    """So many messages will be given again."""

    model_config = example(redelivered=1)

    redelivered: int
