"""Entries of Pulsar's clients: one message, or a batch of them, as they were sent.

All numbers are big-endian. The checksum is the CRC-32C of everything after it.

    offset  size  field
         0     2  0x0e01
         2     4  crc
         6     4  size of the metadata
        10     n  metadata           protobuf
         .     .  payload            of one message; or of a batch, compressed together

In a batch, each message is the size of its own metadata, that metadata, and its payload, whose size the metadata says.
The metadata of the entry says how many messages there are; without this number it is one message and not a batch.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from metatxn.wire.batches import UNREADABLE
from metatxn.wire.record_batches import CONTENT_TYPE, JSON_TYPE

MAGIC = b"\x0e\x01"
CRC_OFFSET = 2
CHECKED_FROM = 6
"""The first byte that the checksum covers."""
METADATA_FROM = 10
MAX_UNPACKED_BYTES = 64 << 20
"""The most bytes that the payload of an entry may have once it is decompressed."""
_SIZE = struct.Struct(">I")
_CODECS: dict[int, Literal["lz4_raw", "zstd", "snappy"]] = {1: "lz4_raw", 3: "zstd", 4: "snappy"}
_ZLIB = 2

Fields = dict[int, list[int | memoryview]]
"""The fields of a protobuf message, by their numbers: integers, and views of what has a length."""


@dataclass(frozen=True, slots=True)
class PulsarMessage:
    """A message of a Pulsar client. `value` is None if its producer says that it is null. `deliver_at_ms` is the same
    for all of an entry."""

    key: str | None
    value: bytes | None
    properties: tuple[tuple[str, str], ...] = ()
    deliver_at_ms: int | None = None

    def body(self) -> dict[str, Any]:
        """The message in our form: `key`, `value` or `value_base64` as bytes under `raw`, `properties`, and its time if
        it has one.

        A value is JSON if its property says so, and otherwise bytes.
        """
        body: dict[str, Any] = {"key": self.key, "properties": dict(self.properties)}
        if self.deliver_at_ms is not None:
            body["deliver_at_ms"] = self.deliver_at_ms
        if self.value is None:
            return body | {"value": None}
        if body["properties"].get(CONTENT_TYPE) == JSON_TYPE:
            try:
                return body | {"value": json.loads(self.value)}
            except (ValueError, RecursionError):
                pass
        return body | {"raw": self.value}


def decode_pulsar(entry: bytes | memoryview) -> list[PulsarMessage]:
    """The messages of an entry whose checksum was checked before. Raises `ValueError` if they cannot be read."""
    view = memoryview(entry)
    try:
        (size,) = _SIZE.unpack_from(view, CHECKED_FROM)
        metadata = _fields(_piece(view, METADATA_FROM, size))
        if _ENCRYPTION_KEYS in metadata:
            raise ValueError("it is encrypted")
        if (chunks := _number(metadata, _CHUNKS)) > 1:
            raise ValueError(f"it is part {_number(metadata, _CHUNK_ID) + 1} of {chunks} of a message")
        payload = _decompressed(view[METADATA_FROM + size :], metadata)
        if _NUMBER_OF_MESSAGES in metadata:
            messages = list(_batch(payload, _number(metadata, _NUMBER_OF_MESSAGES)))
        else:
            messages = [_message(metadata, _OF_ENTRY, payload)]
        time_ms = _time(metadata)
        return messages if time_ms is None else [replace(each, deliver_at_ms=time_ms) for each in messages]
    except (struct.error, IndexError, UnicodeDecodeError, binascii.Error, OSError, zlib.error) as error:
        raise ValueError(f"it cannot be read: {error}") from error


def delivery_time_of(entry: bytes | memoryview) -> int | None:
    """When shared subscriptions deliver the messages of an entry, if it says so and can be read."""
    view = memoryview(entry)
    try:
        (size,) = _SIZE.unpack_from(view, CHECKED_FROM)
        return _time(_fields(_piece(view, METADATA_FROM, size)))
    except (struct.error, IndexError, ValueError):
        return None


def unpacked_entry_bytes(entry: bytes | memoryview) -> int:
    """The size of an entry with its payload decompressed, as it says itself, or as it is if it cannot be read. An entry
    that names a size other than its own is never read."""
    view = memoryview(entry)
    try:
        (size,) = _SIZE.unpack_from(view, CHECKED_FROM)
        metadata = _fields(_piece(view, METADATA_FROM, size))
        unpacked = _number(metadata, _UNCOMPRESSED_SIZE) if _number(metadata, _COMPRESSION) else 0
    except (struct.error, IndexError, ValueError):
        return len(view)
    return len(view) + (unpacked if unpacked <= MAX_UNPACKED_BYTES else 0)


def pulsar_bodies(entry: bytes | memoryview, count: int) -> list[dict[str, Any]]:
    """See `PulsarMessage.body`. For an entry that cannot be read: `count` messages without a value that say why."""
    try:
        messages = decode_pulsar(entry)
        if len(messages) != count:
            raise ValueError(f"it has {len(messages)} messages, and counts as {count}")
    except ValueError as error:
        return [{"key": None, "value": None, "properties": {UNREADABLE: str(error)}} for _ in range(count)]
    return [message.body() for message in messages]


@dataclass(frozen=True, slots=True)
class _Numbers:
    """The numbers of fields that the metadata of an entry and that of a message in a batch have in common."""

    properties: int
    key: int
    key_is_base64: int
    null_value: int


_OF_ENTRY = _Numbers(4, 6, 17, 25)
_IN_BATCH = _Numbers(1, 2, 6, 9)
_COMPRESSION, _UNCOMPRESSED_SIZE, _NUMBER_OF_MESSAGES, _ENCRYPTION_KEYS, _CHUNKS, _CHUNK_ID = 8, 9, 11, 13, 27, 29
_PAYLOAD_SIZE, _DELIVER_AT = 3, 19
_NEGATIVE = 1 << 63


def _batch(payload: memoryview, number: int) -> Iterator[PulsarMessage]:
    at = 0
    for _ in range(number):
        (size,) = _SIZE.unpack_from(payload, at)
        metadata = _fields(_piece(payload, at + _SIZE.size, size))
        at += _SIZE.size + size
        content = _piece(payload, at, _number(metadata, _PAYLOAD_SIZE))
        at += len(content)
        yield _message(metadata, _IN_BATCH, content)
    if at != len(payload):
        raise ValueError("something follows the last message of a batch")


def _message(metadata: Fields, numbers: _Numbers, content: memoryview) -> PulsarMessage:
    properties = tuple(
        (_text(pair, 1) or "", _text(pair, 2) or "") for pair in map(_fields, metadata.get(numbers.properties, ()))
    )
    key = _text(metadata, numbers.key)
    if key is not None and _number(metadata, numbers.key_is_base64):
        key = base64.b64decode(key).decode(errors="backslashreplace")
    value = None if _number(metadata, numbers.null_value) else bytes(content)
    return PulsarMessage(key, value, properties)


def _fields(message: int | memoryview) -> Fields:
    if isinstance(message, int):
        raise ValueError("an integer is not a message")
    found: Fields = {}
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        value: int | memoryview
        match tag & 7:
            case 0:
                value, at = _varint(message, at)
            case 2:
                size, at = _varint(message, at)
                value = _piece(message, at, size)
                at += size
            case 1 | 5:
                size = 8 if tag & 7 == 1 else 4
                value = _piece(message, at, size)
                at += size
            case _:
                raise ValueError(f"a field has the unknown type {tag & 7}")
        found.setdefault(tag >> 3, []).append(value)
    return found


def _time(metadata: Fields) -> int | None:
    """The delivery time. A negative one has long passed."""
    time_ms = _number(metadata, _DELIVER_AT)
    return time_ms if 0 < time_ms < _NEGATIVE else None


def _number(fields: Fields, number: int) -> int:
    """The integer in a field, or 0 without it."""
    value = fields[number][-1] if number in fields else 0
    if not isinstance(value, int):
        raise ValueError(f"field {number} is not an integer")
    return value


def _text(fields: Fields, number: int) -> str | None:
    if number not in fields:
        return None
    value = fields[number][-1]
    if isinstance(value, int):
        raise ValueError(f"field {number} is not text")
    return str(value, "utf-8")


def _piece(view: memoryview, at: int, size: int) -> memoryview:
    if size > len(view) - at:
        raise ValueError("a field reaches beyond its end")
    return view[at : at + size]


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _decompressed(payload: memoryview, metadata: Fields) -> memoryview:
    compression, size = _number(metadata, _COMPRESSION), _number(metadata, _UNCOMPRESSED_SIZE)
    if compression == 0:
        return payload
    if size > MAX_UNPACKED_BYTES:
        raise ValueError(f"it has more than {MAX_UNPACKED_BYTES} bytes")
    if compression == _ZLIB:
        unpacked = zlib.decompressobj().decompress(payload, size + 1)
    elif compression in _CODECS:
        unpacked = _decoded(_CODECS[compression], payload, size)
    else:
        raise ValueError(f"compression {compression} is unknown")
    if len(unpacked) != size:
        raise ValueError(f"its size is not the {size} bytes that it names")
    return memoryview(unpacked)


def _decoded(codec: Literal["lz4_raw", "zstd", "snappy"], payload: memoryview, size: int) -> bytes:
    """Decompress a payload. pyarrow returns `size` bytes even if there are fewer, and the last ones are then what was
    in memory before. So it must fail with less room."""
    import pyarrow as pa

    if size == 0:
        return b""
    try:
        pa.Codec(codec).decompress(payload, size - 1)
    except (OSError, pa.ArrowInvalid):
        unpacked: bytes = pa.Codec(codec).decompress(payload, size, asbytes=True)
        return unpacked
    raise ValueError(f"it has fewer than the {size} bytes that it names")
