"""Whether what is published fits the schema of its topic.

A broker knows the schema from a cache. It looks again before it refuses anything; what else another broker has
changed, it learns with its next look at the policies. Rows also fit that have the columns of a former version, as long
as the current one holds them, so a producer that has not heard of a change may go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from metastore.txn.records.topics import TopicRecord
from metatxn.wire import errors
from metatxn.wire.broker import PAYLOAD_MEDIA_TYPES, Message
from metatxn.wire.frames import PayloadKind
from metatxn.wire.ids import TxnId
from participants.broker.broker import Broker
from participants.messages import schemas
from participants.messages.batches import check_batch
from participants.messages.payloads import decode_messages_in_turns, inspect_arrow
from participants.messages.schema_versions import (
    check_batch_fits,
    check_bytes_fit,
    check_messages_fit,
    check_table_fits,
)
from participants.segment.segment import Segment

_KINDS = {media_type: kind for kind, media_type in PAYLOAD_MEDIA_TYPES.items()}


@dataclass(frozen=True, slots=True)
class Inspected:
    """What a payload is: its kind, the number of its messages or rows if that can be counted, and the messages if it is
    a list of them. `misfit` says why it does not fit the topic."""

    kind: PayloadKind
    count: int | None
    messages: list[Message] | None
    misfit: errors.SchemaMismatch | None


async def inspect(
    broker: Broker, segment: Segment, content_type: str | None, payload: bytes, txn_id: TxnId | None
) -> Inspected:
    """Raises INVALID_ARGUMENT if the payload is not of its type, PAYLOAD_TOO_LARGE, and the errors of an append in this
    transaction. A table may set or extend the schema."""
    media_type = (content_type or "").partition(";")[0].strip().lower()
    kind, topic = _KINDS.get(media_type, PayloadKind.BYTES), segment.record.topic
    count, messages, misfit = None, None, None
    table: pa.Schema | None = None
    if kind is PayloadKind.MESSAGES:
        messages = await decode_messages_in_turns(payload)
        count = len(messages)
    elif kind is PayloadKind.BATCH:
        count = check_batch(payload)
    elif kind is PayloadKind.ARROW:
        stream = inspect_arrow(payload)
        table, count = stream.schema, stream.rows
    try:
        if table is not None:
            await _check_table(broker, segment, table, txn_id)
        elif messages is not None:
            await check_messages(broker, topic, messages)
        elif kind is PayloadKind.BATCH and count is not None:
            await _checked(broker, topic, partial(check_batch_fits, payload=payload, count=count))
        else:
            await _checked(broker, topic, check_bytes_fit)
    except errors.SchemaMismatch as found:
        misfit = found
    return Inspected(kind, count, messages, misfit)


async def check_messages(broker: Broker, topic_name: str, messages: Sequence[Message]) -> TopicRecord:
    """Check JSON messages against the topic's columns and return the topic. Raises SCHEMA_MISMATCH."""
    return await _checked(broker, topic_name, lambda topic: check_messages_fit(topic, messages))


async def _check_table(broker: Broker, segment: Segment, schema: pa.Schema, txn_id: TxnId | None) -> None:
    name = segment.record.topic
    try:
        await _checked(broker, name, lambda topic: check_table_fits(topic, schema))
    except errors.SchemaMismatch:
        topic = await broker.topic(name)  # which another producer may have given this schema since it was looked at
        if not schemas.extends(topic, schema):
            check_table_fits(topic, schema)
            return
        if txn_id is not None:
            await segment.assert_open(txn_id)
        topic = await broker.schemas.extend(segment.id, schema, broker.clock())
        broker.forget_topic(name)
        check_table_fits(topic, schema)


async def _checked(broker: Broker, name: str, check: Callable[[TopicRecord], None]) -> TopicRecord:
    topic = await broker.topic(name)
    try:
        check(topic)
    except errors.SchemaMismatch:
        broker.forget_topic(name)
        topic = await broker.topic(name)
        check(topic)
    return topic
