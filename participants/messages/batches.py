"""Record batches that are received, or written for Kafka's clients: see `metatxn.wire.record_batches`."""

from __future__ import annotations

from collections.abc import Sequence

from metatxn.wire import errors
from metatxn.wire.batches import JSON, has_delivery_times
from metatxn.wire.broker import MAX_ENTRY_MESSAGES
from metatxn.wire.record_batches import (
    CODECS,
    COMPRESSION,
    CONTENT_TYPE,
    CONTROL,
    HEADER,
    JSON_TYPE,
    LENGTH_OFFSET,
    MAGIC,
    KafkaRecord,
    checksum_fits,
    decode_columns,
    encoded_varint,
    finished_batch,
)


def check_batch(payload: bytes) -> int:
    """The number of messages in a batch that was received. Its records are not examined.

    Raises INVALID_ARGUMENT unless its header and its checksum fit, and PAYLOAD_TOO_LARGE for more than
    `MAX_ENTRY_MESSAGES`.
    """
    try:
        count = _checked(payload)
    except ValueError as error:
        raise errors.InvalidArgument(f"body: not a batch of messages: {error}", field="body") from None
    if count > MAX_ENTRY_MESSAGES:
        raise errors.PayloadTooLarge(f"body: more than {MAX_ENTRY_MESSAGES} messages in one entry", field="body")
    return count


def _checked(payload: bytes) -> int:
    if len(payload) < HEADER.size:
        raise ValueError(f"it has {len(payload)} bytes, and its header {HEADER.size}")
    _, length, _, magic, _, attributes, last, *_, count = HEADER.unpack_from(payload)
    if magic != MAGIC or length != len(payload) - LENGTH_OFFSET - 4:
        raise ValueError("its header tells another length or version")
    if count < 1 or last != count - 1 or attributes & CONTROL or attributes & COMPRESSION not in CODECS:
        raise ValueError("its header does not fit together")
    if not checksum_fits(payload):
        raise ValueError("it does not match its checksum")
    return int(count)


def for_kafka(payload: bytes, now_ms: int) -> bytes:
    """A batch of messages as Kafka's clients read it: a header says which values are JSON. Raises INVALID_ARGUMENT."""
    if has_delivery_times(payload):
        raise no_delivery_times()
    try:
        flags, _, keys, values, headers = decode_columns(payload)
    except ValueError as error:
        raise errors.InvalidArgument(f"body: {error}", field="body") from None
    is_json = (CONTENT_TYPE, JSON_TYPE.encode())
    return encode_batch(
        [
            KafkaRecord(key, value, (*named, is_json) if flag & JSON and value is not None else named, now_ms)
            for flag, key, value, named in zip(flags, keys, values, headers, strict=True)
        ]
    )


def no_delivery_times() -> errors.MetatxnError:
    """The error for a message with a delivery time in a topic of Kafka's."""
    return errors.InvalidArgument(
        "deliver_at_ms: topics with the format kafka have no delayed messages",
        action="Publish to a topic without this format.",
        field="deliver_at_ms",
    )


def encode_batch(records: Sequence[KafkaRecord]) -> bytes:
    """A batch without compression and without a producer, at offset 0."""
    assert records
    base = records[0].timestamp_ms
    body = b"".join(_encoded(record, number, base) for number, record in enumerate(records))
    return finished_batch(body, len(records), base, max(record.timestamp_ms for record in records))


def _encoded(record: KafkaRecord, number: int, base_ms: int) -> bytes:
    headers = b"".join(_encoded_bytes(name.encode()) + _encoded_bytes(value) for name, value in record.headers)
    times = b"\0" + encoded_varint(record.timestamp_ms - base_ms) + encoded_varint(number)
    content = _encoded_bytes(record.key) + _encoded_bytes(record.value) + encoded_varint(len(record.headers)) + headers
    return encoded_varint(len(times) + len(content)) + times + content


def _encoded_bytes(raw: bytes | None) -> bytes:
    return encoded_varint(-1) if raw is None else encoded_varint(len(raw)) + raw
