"""Entries as Pulsar's clients send and receive them, see `metatxn.wire.pulsar_entries`."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from typing import Any

from crc32c import crc32c
from google.protobuf.message import DecodeError

from metatxn.wire.broker import ReadMessage
from metatxn.wire.frames import PayloadKind, RawFrame
from metatxn.wire.pulsar_entries import CHECKED_FROM, CRC_OFFSET, MAGIC, METADATA_FROM
from metatxn.wire.record_batches import CONTENT_TYPE, JSON_TYPE
from metatxn_gateways.listener import MalformedRequest
from metatxn_gateways.pulsar.commands import MessageMetadata, SingleMessageMetadata
from participants.messages.payloads import message_count, read_messages

_SIZE = struct.Struct(">I")
PRODUCER = "metatxn"
"""The producer of messages that came another way, as Pulsar's clients are told."""


class ChecksumMismatch(Exception):
    """The entry is not as its producer sent it."""


def metadata_of(entry: memoryview) -> Any:
    """The metadata of an entry that was just received. Raises `ChecksumMismatch`, and `MalformedRequest`."""
    if len(entry) < METADATA_FROM or bytes(entry[:CRC_OFFSET]) != MAGIC:
        raise MalformedRequest("a message without a checksum")
    if crc32c(entry[CHECKED_FROM:]) != _SIZE.unpack_from(entry, CRC_OFFSET)[0]:
        raise ChecksumMismatch
    (size,) = _SIZE.unpack_from(entry, CHECKED_FROM)
    if METADATA_FROM + size > len(entry):
        raise MalformedRequest("metadata that reach beyond their message")
    try:
        metadata = MessageMetadata.FromString(entry[METADATA_FROM : METADATA_FROM + size])
    except DecodeError:
        raise MalformedRequest("metadata of a message that cannot be read") from None
    if not metadata.num_messages_in_batch > 0:
        raise MalformedRequest(f"a batch of {metadata.num_messages_in_batch} messages")
    return metadata


def served(segment_id: str, frame: RawFrame) -> bytes | memoryview:
    """The entry as a client gets it: as it was sent, or made from what came another way."""
    if frame.kind is PayloadKind.PULSAR:
        return frame.payload
    messages = read_messages(segment_id, frame)
    if message_count(frame) == 1:
        return _single(messages[0], frame)
    return _batch(messages, frame)


def _single(message: ReadMessage, frame: RawFrame) -> bytes:
    value, properties = _content(message)
    metadata = _metadata(frame, properties=properties, null_value=True if value is None else None)
    if message.key is not None:
        metadata.partition_key = message.key
    return _checked(metadata, value or b"")


def _batch(messages: Sequence[ReadMessage], frame: RawFrame) -> bytes:
    parts = []
    for message in messages:
        value, properties = _content(message)
        content = value or b""
        single = SingleMessageMetadata(payload_size=len(content), properties=properties, partition_key=message.key)
        if value is None:
            single.null_value = True
        encoded = single.SerializeToString()
        parts += [_SIZE.pack(len(encoded)), encoded, content]
    payload = b"".join(parts)
    return _checked(_metadata(frame, num_messages_in_batch=len(messages), uncompressed_size=len(payload)), payload)


def _metadata(frame: RawFrame, **fields: Any) -> Any:
    return MessageMetadata(
        producer_name=frame.producer or PRODUCER,
        sequence_id=frame.sequence or 0,
        publish_time=frame.publish_ms,
        **fields,
    )


def _content(message: ReadMessage) -> tuple[bytes | None, list[dict[str, str]]]:
    """The value and the properties. A JSON value becomes its text, and a property says so."""
    properties = dict(message.properties or {})
    value: bytes | None = None
    if message.value_base64 is not None:
        value = base64.b64decode(message.value_base64)
    elif message.value is not None:
        value = json.dumps(message.value, ensure_ascii=False, separators=(",", ":")).encode()
        properties[CONTENT_TYPE] = JSON_TYPE
    return value, [{"key": key, "value": text} for key, text in properties.items()]


def _checked(metadata: Any, payload: bytes) -> bytes:
    encoded: bytes = metadata.SerializeToString()
    behind = _SIZE.pack(len(encoded)) + encoded + payload
    return MAGIC + _SIZE.pack(crc32c(behind)) + behind
