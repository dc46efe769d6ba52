"""Wire models of the broker. The client library imports this module too, so it needs nothing but pydantic."""

from __future__ import annotations

import base64
import binascii
import zlib
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from metatxn.wire.frames import Entry, PayloadKind
from metatxn.wire.ids import TxnId
from metatxn.wire.models import RequestBody, example
from metatxn.wire.names import TopicFormat
from metatxn.wire.text import encodable, no_control_characters

FRAMES_MEDIA_TYPE = "application/vnd.metatxn.frames"
ARROW_MEDIA_TYPE = "application/vnd.apache.arrow.stream"
MESSAGES_MEDIA_TYPE = "application/vnd.metatxn.messages+json"
BATCH_MEDIA_TYPE = "application/vnd.metatxn.batch"
BYTES_MEDIA_TYPE = "application/octet-stream"
PAYLOAD_MEDIA_TYPES = {
    PayloadKind.BYTES: BYTES_MEDIA_TYPE,
    PayloadKind.ARROW: ARROW_MEDIA_TYPE,
    PayloadKind.MESSAGES: MESSAGES_MEDIA_TYPE,
    PayloadKind.BATCH: BATCH_MEDIA_TYPE,
}

NEXT_HEADER = "Metatxn-Next"
"""The header with the place at which the next read continues: pass it as `after`."""
MAX_REVISION = 2**53 - 1
"""The largest integer that every JSON reader reads exactly."""
REVISION_HEADER = "Metatxn-Revision"
"""The header with the store revision of a snapshot read."""
END_HEADER = "Metatxn-End"
"""The header that is `true` if nothing after this page was readable when it was read."""

PEER_HEADER = b"metatxn-peer"
"""The header by which a broker shows other brokers that it is one, so that what it asks on behalf of a caller counts
once."""

MAX_ENTRY_MESSAGES = 100_000
"""The most messages in one entry, if it is not a table. A broker that parses JSON needs half a kilobyte of memory for
each meanwhile."""
MAX_SEGMENTS = 100
"""The most segments that a new topic may have: a topic and its segments are created in one apply, and etcd accepts 128
operations in one."""
MAX_ANNOUNCED_TRANSACTIONS = 100
MAX_ANNOUNCED_SEGMENTS = 16
"""The most transactions, and segments of each, whose writes one request announces ahead."""
MAX_NAME = 256
"""The most characters of the name of a producer, writer, consumer or subscription."""
HASH_RANGE_END = 0xFFFF
HashRange = tuple[int, int]
"""The first and the last hash that belong to a segment."""
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
_EXCLUSIVE_PRODUCER: dict[str, Any] = {
    "epoch": 1,
    "producer": "ledger-writer",
    "claimed_ms": 1795660800000,
    "until_ms": 1795660830000,
}
_READ_HOLD: dict[str, Any] = {
    "hold_id": "nightly-export",
    "revision": 1234,
    "created_ms": 1795660800000,
    "until_ms": 1795660860000,
    "principal": "exports",
}
SubscriptionType = Literal["exclusive", "failover", "shared", "key_shared"]
MAX_SESSION_TIMEOUT_MS = 3_600_000
MAX_HOLD_MS = 86_400_000
"""The longest time until a read hold ends unless it is prolonged: a day."""
MAX_REDELIVERY_MS = 86_400_000
"""The longest time until a message is redelivered: a day."""
MAX_TIME_MS = 253_402_300_799_999
"""The end of the year 9999."""
MAX_DELAY_MS = 31_536_000_000
"""The longest time until a message is delivered: a year."""
_FIRST_MESSAGE = "WyJzZWdtZW50Oi8vcHVibGljL2RlZmF1bHQvb3JkZXJzLzAwMDAtZmZmZi0wIiwiNzoxMiIsMF0"


def publish_params(entry: Entry) -> dict[str, Any]:
    """The query of the request that appends `entry`; the body is its payload."""
    return {
        "txn_id": entry.txn_id,
        "writer": entry.writer,
        "producer": entry.producer,
        "sequence": entry.sequence,
        "previous_sequence": None if entry.behind is None else entry.behind.own,
        "inherited_sequence": None if entry.behind is None else entry.behind.inherited,
        "producer_epoch": entry.epoch,
        "before_commit": "true" if entry.before_commit else None,
        "count": entry.count,
    }


def hash_of_key(key: str) -> int:
    """The position of a key in the hash range 0…65535 of its topic: the low 16 bits of the CRC-32 of the key in
    UTF-8."""
    return hash_of_key_bytes(key.encode())


def hash_of_key_bytes(key: bytes) -> int:
    """The same for a key that may not be UTF-8, as those of Kafka clients."""
    return zlib.crc32(key) & HASH_RANGE_END


class SchemaField(BaseModel):
    """One column. `type` is Arrow's name for its type (`int64`, `string`, `double`, `timestamp[us]`, …)."""

    model_config = ConfigDict(extra="forbid")

    name: Text
    type: Text
    nullable: bool = True


class TopicSchema(BaseModel):
    """The columns of a topic. `arrow` is the serialized Arrow schema in base64. It can hold nested types, and it takes
    precedence over `fields` if both are given. Answers contain both."""

    model_config = ConfigDict(extra="forbid")

    fields: Annotated[list[SchemaField], Field(min_length=1)] | None = None
    arrow: Text | None = None

    @model_validator(mode="after")
    def _one_of(self) -> TopicSchema:
        if self.fields is None and self.arrow is None:
            raise ValueError("give `fields` or `arrow`")
        return self


class CreateTopicRequest(RequestBody):
    model_config = example(
        name="orders",
        segments=4,
        schema={"fields": [{"name": "id", "type": "int64"}, {"name": "at", "type": "timestamp[us]"}]},
    )

    name: Annotated[Name, Field(min_length=1, max_length=512)]
    segments: Annotated[int, Field(ge=1, le=MAX_SEGMENTS)] = 1
    topic_schema: Annotated[TopicSchema | None, Field(alias="schema")] = None
    format: Annotated[
        TopicFormat | None,
        Field(
            description="`kafka`: the i-th segment is a partition of Kafka's, with an offset for each message. "
            "`pulsar`: Pulsar's clients may write to it."
        ),
    ] = None

    @model_validator(mode="after")
    def _one_form(self) -> CreateTopicRequest:
        if self.format is not None and self.topic_schema is not None:
            raise ValueError("`format` and `schema` exclude each other")
        return self


class SegmentInfo(BaseModel):
    """A segment of its topic. `range` is its part of the hash range, both ends included; `owner` is the URL of the
    owning broker. `created_ms` and `sealed_ms` are missing if a release before this one did that."""

    segment: str
    range: tuple[int, int]
    state: Literal["active", "sealed"]
    parents: list[str]
    children: list[str]
    owner: str | None = None
    created_ms: int | None = None
    sealed_ms: int | None = None


class ExclusiveProducerInfo(BaseModel):
    """The producer that alone may publish to a topic. The hold lasts until it is released, or until another one needs
    the topic after `until_ms`."""

    model_config = example(**_EXCLUSIVE_PRODUCER)

    epoch: int
    producer: str | None = None
    claimed_ms: int
    until_ms: int


class TopicInfo(BaseModel):
    model_config = ConfigDict(populate_by_name=True) | example(**_TOPIC)

    name: str
    topic_schema: Annotated[TopicSchema | None, Field(alias="schema")] = None
    schema_version: int | None = None
    segments: list[SegmentInfo]
    format: TopicFormat | None = None
    exclusive_producer: ExclusiveProducerInfo | None = None


class ReadHoldInfo(BaseModel):
    """A reader's hold of a topic at `revision`. It lasts until it is released, or until something needs what it
    holds after `until_ms`."""

    model_config = example(**_READ_HOLD)

    hold_id: str
    revision: int
    created_ms: int
    until_ms: int
    principal: str | None = None


class ReadHoldPage(BaseModel):
    model_config = example(items=[_READ_HOLD])

    items: list[ReadHoldInfo]


class TopicCount(BaseModel):
    """How many topics there are. With `more`, counting stopped there, and there are more records of topics after
    them."""

    model_config = example(topics=1, more=False)

    topics: int
    more: bool


class TopicPage(BaseModel):
    """A page of topics. `count` is present if it was asked for: it is that of the whole list, whichever page this
    is."""

    model_config = example(items=[_TOPIC], next_page_token=None, count=None)

    items: list[TopicInfo]
    next_page_token: str | None = None
    count: TopicCount | None = None


class SplitRequest(RequestBody):
    """A split of a segment. `at` is the first hash of the upper half. Without it the segment is split in the middle."""

    model_config = example(at=32768)

    at: Annotated[int, Field(ge=0, le=HASH_RANGE_END)] | None = None


class MergeRequest(RequestBody):
    """A merge of two segments. `with` is a segment that is a neighbour in the hash range."""

    model_config = example(**{"with": "segment://public/default/orders/8000-ffff-1"})

    other: Annotated[Name, Field(alias="with", min_length=1, max_length=1024)]


class SealRequest(RequestBody):
    """The request has no fields."""

    model_config = example()


class ChildrenAnswer(BaseModel):
    """The children that take over from a sealed segment. There are none if it was sealed without a successor."""

    model_config = example(children=["segment://public/default/orders/0000-7fff-1"])

    children: list[str]


class TrimRequest(RequestBody):
    """A trim of a segment. `before` is a position `ledger:entry`; entries below it are dropped."""

    model_config = example(before="7:12")

    before: Annotated[Text, Field(min_length=1, max_length=64)]


class TrimAnswer(BaseModel):
    """The outcome of a trim: entries below `first_position` can no longer be read."""

    model_config = example(first_position="7:12")

    first_position: str


class OpenTransaction(BaseModel):
    """A transaction that is undecided on this segment. Entries after `max_read_position` wait for it."""

    txn_id: str
    max_read_position: str
    since_ms: int


class PositionAnswer(BaseModel):
    """A position in a segment: that of the first entry that was published at a time or later, or of the next one to
    come; or that of the first of the last entries before a position. A read with `after` begins with it."""

    model_config = example(position="7:12", after="7:11")

    position: str
    after: str


class CutAnswer(BaseModel):
    """What a snapshot at a revision shows of a segment. `runs` are entries that follow each other, from the first
    position of each up to the second one, with whether their transactions were decided at or before the revision; null
    means that they are outside transactions. The next answer begins after `next`; `end` means that nothing after it was
    decided by then."""

    model_config = example(runs=[["7:0", "7:11", True], ["7:12", "7:12", None]], next="7:12", end=True)

    runs: list[tuple[str, str, bool | None]]
    next: str
    end: bool


class TrafficRates(BaseModel):
    """The throughput per second, over the last minute or since the owner began to serve the segment: messages, and the
    bytes of their payloads."""

    messages_in: float
    bytes_in: float
    messages_out: float
    bytes_out: float


class SegmentDetail(BaseModel):
    """A segment as its owner sees it. Positions are `ledger:entry`; entry -1 is the position before the first entry.

    `last_visible_position` is the position of the last entry that readers can see: at or below `max_read_position`, and
    not of an aborted transaction. It is absent if there is no such entry. `waiting_entries` and `waiting_bytes` are
    after `max_read_position`. `open_count` counts the open transactions, also those that were not asked for. `rates`
    are absent in the first seconds.
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
        open_count=1,
        waiting_entries=1,
        waiting_bytes=212,
        aborted_count=0,
        entries=13,
        size_bytes=4096,
        rates={"messages_in": 12.5, "bytes_in": 2650.0, "messages_out": 0.0, "bytes_out": 0.0},
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
    open_count: int = 0
    waiting_entries: int = 0
    waiting_bytes: int = 0
    aborted_count: int
    entries: int
    size_bytes: int
    rates: TrafficRates | None = None


class WorkOnSegment(BaseModel):
    """What a transaction has done on one segment: the entries that it wrote, their messages and the bytes of these, and
    by subscription the number of its acknowledgements. Its decision took effect for readers at `effective_ms`, and for
    each subscription at `acks_effective_ms`."""

    segment: str
    entries: int
    messages: int
    size_bytes: int
    first_ms: int | None = None
    last_ms: int | None = None
    effective_ms: int | None = None
    acks: dict[str, int] = {}
    acks_effective_ms: dict[str, int] = {}


class TransactionWork(BaseModel):
    """What one broker remembers: it forgets when it is restarted, and after many other transactions."""

    model_config = example(
        segments=[
            {
                "segment": _SEGMENT,
                "entries": 2,
                "messages": 100,
                "size_bytes": 4096,
                "first_ms": 1767225600000,
                "last_ms": 1767225600020,
                "effective_ms": 1767225600100,
                "acks": {"billing": 7},
                "acks_effective_ms": {"billing": 1767225600110},
            }
        ]
    )

    segments: list[WorkOnSegment]


class HorizonPlace(RequestBody):
    """A segment and how far it was read: `after` is the position; without it, all of the segment is unread. `up_to`
    limits the answer, whatever follows. With `max_messages` the answer reaches as far as that many visible messages, in
    whole entries, and includes at least one entry."""

    after: Annotated[Text, Field(max_length=64)] | None = None
    up_to: Annotated[Text, Field(max_length=64)] | None = None
    max_messages: Annotated[int, Field(ge=1, le=2**53 - 1)] | None = None


class HorizonsRequest(RequestBody):
    """A question how far segments can be read. They may belong to any topics. With `wait_ms` the answer is held back
    until one of them has more to read, or has ended."""

    model_config = example(segments={_SEGMENT: {"after": "7:11", "max_messages": 1000}}, wait_ms=10_000)

    segments: Annotated[dict[Name, HorizonPlace], Field(min_length=1, max_length=10_000)]
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    wait_ms: Annotated[int, Field(ge=0, le=60_000)] = 0


class SegmentHorizon(BaseModel):
    """How far a segment can be read. Positions are `ledger:entry`. Entries after `start` and up to `end` can be read.
    `messages` is the number of visible messages after `after`; it is counted only with `max_messages`. `trimmed` is
    true if entries were dropped, the last of them at `trimmed_up_to`; `start` may be further on where no entries ever
    were. `ended` is true if the segment is sealed and nothing follows `end`; reading continues in its `children`, as
    far as this broker knows them."""

    start: str
    end: str
    messages: int | None = None
    trimmed: bool = False
    trimmed_up_to: str | None = None
    ended: bool = False
    children: list[str] = []


class HorizonsAnswer(BaseModel):
    """How far segments can be read. `segments` are those that this broker serves; `elsewhere` has the URL of the broker
    that serves the segment; `gone` are deleted segments."""

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
    """An entry of `count` messages: those that were sent with its sequence and whose keys hash into `ranges`."""

    segment: str
    position: str
    count: int
    ranges: list[tuple[int, int]]


class PublishAnswer(BaseModel):
    """The outcome of a publish. `position` is that of the entry; `duplicate` is true if an earlier attempt appended it.
    `appended` is present if that attempt appended it to segments that this one took over from: it says where the
    messages are, and `position` is then the first of these positions."""

    model_config = example(position="7:12", duplicate=False)

    position: str
    duplicate: bool = False
    appended: list[AppendedPart] | None = None


class AnnounceRequest(RequestBody):
    """Transactions, and the segments to which each of them is expected to write."""

    model_config = example(txn_ids=[_TXN_ID], segments=[_SEGMENT])

    txn_ids: Annotated[list[TxnId], Field(min_length=1, max_length=MAX_ANNOUNCED_TRANSACTIONS)]
    segments: Annotated[list[Name], Field(min_length=1, max_length=MAX_ANNOUNCED_SEGMENTS)]


class AnnounceAnswer(BaseModel):
    """The number of intents that were stored."""

    model_config = example(stored=1)

    stored: int


class Message(RequestBody):
    """A message, which carries exactly one of `value` and `value_base64`. Shared subscriptions deliver it at
    `deliver_at_ms` or later."""

    key: Text | None = None
    value: Any = None
    value_base64: Text | None = None
    properties: dict[Text, Text] | None = None
    deliver_at_ms: Annotated[int, Field(ge=0, le=MAX_TIME_MS)] | None = None

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


class NewMessage(Message):
    """A new message. With `deliver_after_ms`, which excludes `deliver_at_ms`, the time begins when the broker gets the
    message."""

    deliver_after_ms: Annotated[int, Field(ge=0, le=MAX_DELAY_MS)] | None = None

    @model_validator(mode="after")
    def _one_time(self) -> NewMessage:
        if self.deliver_at_ms is not None and self.deliver_after_ms is not None:
            raise ValueError("give one of `deliver_at_ms` and `deliver_after_ms`")
        return self

    def at(self, now_ms: int) -> Message:
        """The message, with the time of its delivery."""
        if "deliver_after_ms" not in self.model_fields_set:
            return self
        fields = {name: getattr(self, name) for name in self.model_fields_set if name in Message.model_fields}
        if self.deliver_after_ms is not None:
            fields["deliver_at_ms"] = now_ms + self.deliver_after_ms
        return Message.model_construct(**fields)


class PublishMessagesRequest(RequestBody):
    model_config = example(
        messages=[
            {"key": "7", "value": {"id": 7}, "properties": {"source": "web"}},
            {"key": "8", "value_base64": "aGVsbG8="},
        ],
        producer="curl-1",
        sequence=0,
    )

    messages: Annotated[list[NewMessage], Field(min_length=1, max_length=10_000)]
    producer: Annotated[Name, Field(min_length=1, max_length=MAX_NAME)] | None = None
    sequence: Annotated[int, Field(ge=0, le=2**53 - 1)] | None = None
    producer_epoch: Annotated[int, Field(ge=1, le=2**53 - 1)] | None = None


class ClaimTopicRequest(RequestBody):
    """A claim of a topic. `session` names the claimer, which may repeat its claim. `producer` is a name for people.
    With `fence` the topic is taken from another producer that has it."""

    model_config = example(session="5f0c1a", producer="ledger-writer", fence=False)

    session: Annotated[Name, Field(min_length=1, max_length=MAX_NAME)]
    producer: Annotated[Name, Field(min_length=1, max_length=MAX_NAME)] | None = None
    fence: bool = False
    ttl_ms: Annotated[int, Field(ge=1_000, le=MAX_SESSION_TIMEOUT_MS)] = 30_000


class KeepTopicRequest(RequestBody):
    """The hold of this `epoch` ends `ttl_ms` from now, unless it is prolonged again."""

    model_config = example(epoch=1, ttl_ms=30_000)

    epoch: Annotated[int, Field(ge=1, le=2**53 - 1)]
    ttl_ms: Annotated[int, Field(ge=1_000, le=MAX_SESSION_TIMEOUT_MS)] = 30_000


class TakeReadHoldRequest(RequestBody):
    """A request for a read hold. `hold_id` names the hold: a request with it may be repeated. Without `revision` the
    current one is held."""

    model_config = example(hold_id="nightly-export", hold_ms=60_000)

    hold_id: Annotated[Name, Field(min_length=1, max_length=MAX_NAME)]
    hold_ms: Annotated[int, Field(ge=1_000, le=MAX_HOLD_MS)] = 60_000
    revision: Annotated[int, Field(ge=1, le=MAX_REVISION)] | None = None


class KeepReadHoldRequest(RequestBody):
    """The hold ends `hold_ms` from now, unless it is prolonged again."""

    model_config = example(hold_ms=60_000)

    hold_ms: Annotated[int, Field(ge=1_000, le=MAX_HOLD_MS)] = 60_000


class PublishMessagesAnswer(BaseModel):
    """The ids of published messages, in the order in which they were sent."""

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
    deliver_at_ms: int | None = None


class ReadMessagesAnswer(BaseModel):
    """A page of messages. The next read continues at `next`; `revision` is that of the snapshot."""

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


class SubscriptionRequest(RequestBody):
    """The settings of a subscription. `dead_letter_topic` takes messages that were redelivered `max_redeliveries` times
    (16 by default) and returned once more. A message that is not acknowledged `ack_timeout_ms` after it was delivered
    returns. A message that returns by that, or by a negative acknowledgement, is redelivered after
    `redelivery_delay_ms`; with `max_redelivery_delay_ms` this delay doubles with each further return, up to that. With
    `isolation` `read_uncommitted` consumers also get messages of transactions that are open or aborted."""

    model_config = example(
        initial="earliest",
        type="shared",
        dead_letter_topic="orders-dead",
        max_redeliveries=DEFAULT_MAX_REDELIVERIES,
        ack_timeout_ms=60_000,
        redelivery_delay_ms=1_000,
        max_redelivery_delay_ms=60_000,
    )

    initial: Literal["earliest", "latest"]
    type: SubscriptionType
    dead_letter_topic: Annotated[Name, Field(min_length=1, max_length=512)] | None = None
    max_redeliveries: Annotated[int, Field(ge=0, le=1000)] | None = None
    ack_timeout_ms: Annotated[int, Field(ge=1, le=MAX_REDELIVERY_MS)] | None = None
    redelivery_delay_ms: Annotated[int, Field(ge=1, le=MAX_REDELIVERY_MS)] | None = None
    max_redelivery_delay_ms: Annotated[int, Field(ge=1, le=MAX_REDELIVERY_MS)] | None = None
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"


SUBSCRIPTION_SEGMENT = {
    "segment": _SEGMENT,
    "mark_delete": "7:11",
    "backlog": 3,
    "unacked": 1,
    "pending_acks": {_TXN_ID: 1},
    "blocking": None,
    "held": {"billing-1": 2},
    "redelivered": 1,
    "backlog_bytes": 912,
    "oldest_ms": 1767225600000,
    "attached": {},
}


class BlockingMessage(BaseModel):
    """A message that keeps later ones of a `key_shared` subscription from being delivered: the index of the message in
    the entry at `position`. `consumer` has it, or is due for it and has not asked for it; `txn_id` is the open
    transaction that has acknowledged it. Without both it is on its way to the dead-letter topic."""

    position: str
    index: int
    consumer: str | None = None
    txn_id: str | None = None


class SubscriptionSegment(BaseModel):
    """One segment of a subscription. The numbers count messages that can be read: `backlog` are those that are not
    acknowledged, and `unacked` are those of them that were delivered to a consumer. `pending_acks` are, by transaction,
    those that an open transaction has acknowledged; they are not among the `unacked`. `held` are, by consumer, those
    that it was given and that are not acknowledged, or only in an open transaction. Everything up to the entry
    `mark_delete` is acknowledged; `backlog_bytes` is the size of what readers can see after it, and `oldest_ms` is
    when the first of that was published. `blocking` is the first message that others wait for, if any do. `delayed`
    are those of the `backlog` whose delivery time has not come, as far as they were read, and `redelivered` those that
    were delivered more than once, as far as the owner of the segment knows. `attached` are, by name, the
    consumers that are connected to the owner of the segment itself, with what each of them holds."""

    model_config = example(**SUBSCRIPTION_SEGMENT)

    segment: str
    mark_delete: str
    backlog: int
    unacked: int
    pending_acks: dict[str, int]
    blocking: BlockingMessage | None = None
    held: dict[str, int] = {}
    delayed: int = 0
    redelivered: int = 0
    backlog_bytes: int = 0
    oldest_ms: int | None = None
    attached: dict[str, int] = {}


class SubscriptionInfo(BaseModel):
    """A subscription. `blocked` are the consumers that get no more messages, because they hold
    `max_unacked_per_consumer`."""

    model_config = example(
        topic="public/default/orders",
        name="billing",
        initial="earliest",
        type="shared",
        dead_letter_topic=None,
        max_redeliveries=None,
        consumers=["billing-1"],
        blocked=[],
        segments=[SUBSCRIPTION_SEGMENT],
    )

    topic: str
    name: str
    initial: Literal["earliest", "latest"]
    type: SubscriptionType
    dead_letter_topic: str | None = None
    max_redeliveries: int | None = None
    ack_timeout_ms: int | None = None
    redelivery_delay_ms: int | None = None
    max_redelivery_delay_ms: int | None = None
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    consumers: list[str]
    blocked: list[str] = []
    segments: list[SubscriptionSegment]


class SeekAnswer(SubscriptionInfo):
    """The subscription at its new position. `aborted` are the transactions that `force` has aborted."""

    aborted: list[str] = []


class SubscriptionSummary(BaseModel):
    """A subscription with the settings it was created with."""

    topic: str = ""
    """A broker of release 0.2.0 does not say it."""
    name: str
    initial: Literal["earliest", "latest"]
    type: SubscriptionType
    dead_letter_topic: str | None = None
    max_redeliveries: int | None = None
    ack_timeout_ms: int | None = None
    redelivery_delay_ms: int | None = None
    max_redelivery_delay_ms: int | None = None
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    created_ms: int


class SubscriptionPage(BaseModel):
    model_config = example(
        items=[
            {
                "topic": "public/default/orders",
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


class ReceiveRequest(RequestBody):
    """A request for messages. `consumer` is present from its first request until it has left, or has been silent for
    `session_timeout_ms` of its last request (30 s when absent). With `max` 0 it receives no messages and only shows
    that it is still present."""

    model_config = example(consumer="billing-1", max=100, wait_ms=1000)

    consumer: Annotated[Name, Field(min_length=1, max_length=MAX_NAME)]
    max: Annotated[int, Field(ge=0, le=1000)] = 100
    wait_ms: Annotated[int, Field(ge=0, le=60_000)] = 0
    session_timeout_ms: Annotated[int, Field(ge=1_000, le=MAX_SESSION_TIMEOUT_MS)] | None = None


class ReceivedMessage(ReadMessage):
    """A message that was received. `redelivery_count` says how many times it was delivered to a consumer before."""

    redelivery_count: int


class ReceiveAnswer(BaseModel):
    """Messages for a consumer. If there are none, `others_hold` says whether any are left that other consumers or open
    transactions have, or that are due for other consumers; otherwise nothing is left now. It is null in an answer with
    messages, and with `max` 0. `ack_timeout_ms` is the subscription's: what is not acknowledged in that time is
    redelivered."""

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
        ],
        others_hold=None,
        ack_timeout_ms=None,
    )

    messages: list[ReceivedMessage]
    others_hold: bool | None = None
    ack_timeout_ms: int | None = None


MessageIds = Annotated[list[Text], Field(min_length=1, max_length=10_000)]


class AckMessagesRequest(RequestBody):
    """An acknowledgement. `cumulative` takes one id and covers its segment up to that message. Instead of the id it
    takes `positions`: for each segment a position `ledger:entry` that readers could see, and everything up to it is
    covered. A shared subscription refuses both, because they cover messages that other consumers hold; and inside a
    transaction a message is refused if it has not been delivered to any consumer since its segment was opened. Neither
    rule applies with `for_all`, which is for a program that reads the topic in place of all consumers. `writer` (only
    inside a transaction) has the same effect as for other operations: the acknowledgement counts if the commit lists
    the writer or lists none."""

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
        """An acknowledgement that was meant for a transaction must not take effect at once because the id was lost."""
        if txn_id is None:
            raise ValueError("is null: leave it out to acknowledge outside transactions")
        return txn_id

    @model_validator(mode="after")
    def _fits(self) -> AckMessagesRequest:
        if (self.message_ids is None) == (self.positions is None):
            raise ValueError("give exactly one of `message_ids` and `positions`")
        if self.positions is not None and self.kind != "cumulative":
            raise ValueError("positions: only a cumulative acknowledgement takes positions")
        if self.kind == "cumulative" and self.message_ids is not None and len(self.message_ids) != 1:
            raise ValueError("message_ids: a cumulative acknowledgement takes exactly one")
        if self.writer is not None and self.txn_id is None:
            raise ValueError("writer: is allowed only with txn_id")
        return self


class AckMessagesAnswer(BaseModel):
    """The number of messages (or positions) that were named. All of them are durably acknowledged."""

    model_config = example(acknowledged=1)

    acknowledged: int


class SeekPlace(RequestBody):
    """The place to which a subscription is moved: exactly one of `to`, `at_ms` (milliseconds since 1970), `positions`
    (by segment, the first entry to be delivered; for every segment of the topic) and `revision` (of the store: what a
    snapshot there shows has passed)."""

    model_config = example(at_ms=1_700_000_000_000)

    to: Literal["earliest", "latest"] | None = None
    at_ms: Annotated[int, Field(ge=0, le=MAX_TIME_MS)] | None = None
    positions: Annotated[dict[Text, Text], Field(min_length=1, max_length=10_000)] | None = None
    revision: Annotated[int, Field(ge=0, le=MAX_REVISION)] | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if [self.to, self.at_ms, self.positions, self.revision].count(None) != 3:
            raise ValueError("give exactly one of `to`, `at_ms`, `positions` and `revision`")
        return self


class SeekPreviewRequest(SeekPlace):
    """Like `SeekPlace`. With `for_ms` a move to a `revision` is counted for about that long; the next request goes
    on."""

    model_config = example(at_ms=1_700_000_000_000)

    for_ms: Annotated[int, Field(ge=0, le=60_000)] | None = None


class SeekRequest(SeekPlace):
    """Like `SeekPlace`. `force` aborts open transactions that have acknowledged messages."""

    model_config = example(at_ms=1_700_000_000_000, force=False)

    force: bool = False


SEEK_PREVIEW_SEGMENT = {"segment": _SEGMENT, "position": "7:0", "messages": 12, "again": 9, "skipped": 0}


class SeekPreviewSegment(BaseModel):
    """What a seek would do on one segment. `position` is where the subscription would begin. Of the messages that can
    be read now, `messages` are from there on and would be delivered (without those of transactions that a snapshot at
    the `revision` shows); `again` are those of them that are acknowledged; `skipped` are all others that are not
    acknowledged, and would never be delivered."""

    model_config = example(**SEEK_PREVIEW_SEGMENT)

    segment: str
    position: str
    messages: int
    again: int
    skipped: int


class SeekPreview(BaseModel):
    """What a seek would do now. `holders` are up to 100 open transactions that have acknowledged messages: it would be
    refused because of them, or with `force` abort them. If it is not `complete`, not everything has been counted yet:
    each number is a lower bound, and no `position` is known."""

    model_config = example(
        topic="public/default/orders",
        name="billing",
        segments=[SEEK_PREVIEW_SEGMENT],
        holders=[_TXN_ID],
        complete=True,
    )

    topic: str
    name: str
    segments: list[SeekPreviewSegment]
    holders: list[str]
    complete: bool = True


class RedeliverRequest(RequestBody):
    """A request to redeliver messages. Without `message_ids`, everything that consumers hold is redelivered."""

    model_config = example(message_ids=[_FIRST_MESSAGE])

    message_ids: MessageIds | None = None


class RedeliverAnswer(BaseModel):
    """The number of messages that will be redelivered. `withdrawn` are those of them that were not asked for: on a
    `key_shared` subscription the later messages of the same keys, which consumers get again, too. At most 10,000 are
    named."""

    model_config = example(redelivered=1, withdrawn=[])

    redelivered: int
    withdrawn: list[str] = []
