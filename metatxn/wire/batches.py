"""MessageColumns in a binary batch, as the client library sends and reads them: the payload kind `BATCH`.

The bytes are a Kafka record batch (see `record_batches`), one record for each message:

    attributes  0 the value is bytes, 1 it is JSON
    key         UTF-8, or null
    value       the bytes, or the JSON in UTF-8; null stands for the JSON value null
    headers     the properties, in UTF-8
    timestamp   when shared subscriptions deliver the message, or -1

The time of publishing is that of the entry, and the offsets say nothing. Encoding and decoding take well below
a microsecond for each message, in Python, and a broker looks at the header and the checksum only.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from types import NoneType
from typing import Any, NamedTuple

from pydantic import ConfigDict, TypeAdapter
from pydantic_core import PydanticSerializationError, SchemaSerializer, core_schema

from metatxn.wire.record_batches import (
    HEADER,
    MAX_JSON_BYTES,
    Codec,
    decode_columns,
    decoded_varint,
    encoded_varint,
    finished_batch,
    text_of,
)

BYTES, JSON = 0, 1
"""The attributes of a record."""
MAX_DEPTH = 198
"""The deepest nesting of lists and objects. The brokers' JSON parser stops at 200 levels, two of which enclose a
value."""
UNREADABLE = "metatxn.unreadable"
"""The property of a message that cannot be read; its value says why."""
_LATEST = 8
"""The field of the header with the highest timestamp."""
_NULL, _NO_HEADERS = encoded_varint(-1), encoded_varint(0)
_PREFIXES = (b"\0\0", b"\1\0")
"""The beginning of a record without a delivery time: its attributes, and the delta of its timestamp."""
NO_TIME = -1
_json_of_text = TypeAdapter(str).serializer.to_json
_LISTS = TypeAdapter(list[Any], config=ConfigDict(cache_strings="keys"))
_json_of_flat = SchemaSerializer(core_schema.any_schema()).to_json
_TEXT, _FLAT = frozenset((str,)), frozenset((str, int, bool, NoneType))
_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode


PackedMessage = tuple[bytes, bytes]
"""A message, encoded except for its place in a batch, which belongs between the two parts."""


def packed_message(
    value: Any, key: str | None, properties: dict[str, str] | None, deliver_at_ms: int | None = None
) -> PackedMessage:
    """Encode a message. Raises `TypeError` or `ValueError` for a value that is not JSON, or a key or properties that
    are not text."""
    if type(value) is str:
        raw, prefix = _json_of_text(value), _PREFIXES[JSON]
    elif isinstance(value, bytes | bytearray | memoryview):
        raw, prefix = bytes(value), _PREFIXES[BYTES]
    else:
        raw, prefix = _json_of(value), _PREFIXES[JSON]
    encoded_key = _NULL if key is None else _sized(str.encode(key))
    encoded_size = _NULL if value is None else encoded_varint(len(raw))
    headers = _NO_HEADERS if not properties else _headers_of(properties)
    content = b"".join((encoded_key, encoded_size, raw, headers))
    if deliver_at_ms is None:
        return prefix, content
    return prefix[:1] + encoded_varint(deliver_at_ms - NO_TIME), content


def _json_of(value: Any) -> bytes:
    if value is None:
        return b""
    if type(value) is dict and _TEXT.issuperset(map(type, value)) and _FLAT.issuperset(map(type, value.values())):
        try:
            return _json_of_flat(value)
        except PydanticSerializationError:
            pass  # the other encoder says what Python's users know
    text = _encode(value)
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise ValueError(f"the value has more than {MAX_DEPTH} lists or objects within each other")
    return text.encode()


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list | tuple) else 0


def _sized(raw: bytes) -> bytes:
    return encoded_varint(len(raw)) + raw


def _headers_of(properties: dict[str, str]) -> bytes:
    parts = [encoded_varint(len(properties))]
    for name, text in properties.items():
        parts += (_sized(str.encode(name)), _sized(str.encode(text)))
    return b"".join(parts)


def pack_batch(records: Iterable[PackedMessage], codec: Codec | None = None) -> tuple[bytes, int]:
    """The batch of at least one record, and their number. With `codec` the records are compressed together."""
    parts: list[bytes] = []
    number, latest_ms = 0, NO_TIME
    for prefix, content in records:
        offset = encoded_varint(number)
        parts += (encoded_varint(len(prefix) + len(offset) + len(content)), prefix, offset, content)
        number += 1
        if prefix[1]:
            latest_ms = max(latest_ms, NO_TIME + decoded_varint(prefix, 1)[0])
    return finished_batch(b"".join(parts), number, NO_TIME, latest_ms, codec), number


def unpacked_messages(payload: bytes) -> list[tuple[str | None, PackedMessage]]:
    """The messages of a batch of this process that have neither properties nor a delivery time, each with its key."""
    flags, _, keys, values, _ = decode_columns(payload)
    found = []
    for flag, raw_key, value in zip(flags, keys, values, strict=True):
        encoded_key = _NULL if raw_key is None else _sized(bytes(raw_key))
        encoded_value = _NULL if value is None else _sized(bytes(value))
        key = None if raw_key is None else raw_key.decode()
        found.append((key, (_PREFIXES[flag], encoded_key + encoded_value + _NO_HEADERS)))
    return found


class MessageColumns(NamedTuple):
    """Columns of the same length. A value that is `bytes` was published as bytes; every other one as JSON."""

    keys: Sequence[str | None]
    values: Sequence[Any]
    properties: Sequence[dict[str, str] | None]
    deliver_at_ms: Sequence[int | None]


def has_delivery_times(payload: bytes | memoryview) -> bool:
    """Whether a message of the batch has a delivery time. Only the header is read."""
    return bool(HEADER.unpack_from(payload)[_LATEST] != NO_TIME)


def unpack_batch(payload: bytes | memoryview, count: int) -> MessageColumns:
    """The messages of an entry that counts as `count` messages. If it cannot be read, each has a property that says
    why."""
    try:
        flags, times, raw_keys, values, headers = decode_columns(payload, count)
    except ValueError as error:
        unreadable = {UNREADABLE: str(error)}
        nothing = [None] * count
        return MessageColumns(nothing, nothing, [dict(unreadable) for _ in range(count)], nothing)
    keys = [None if key is None else text_of(key) for key in raw_keys]
    properties = [None if not each else {name: text_of(text or b"") for name, text in each} for each in headers]
    delivery = [None if each < 0 else each for each in times] if has_delivery_times(payload) else [None] * count
    return MessageColumns(keys, _values(flags, values), properties, delivery)


def _values(flags: Sequence[int], values: Sequence[bytes | None]) -> list[Any]:
    found: list[Any] = list(values)
    places = [place for place, flag in enumerate(flags) if flag & JSON and values[place] is not None]
    for place, value in zip(places, _parsed([values[place] or b"" for place in places]), strict=True):
        found[place] = value
    return found


def _parsed(texts: list[bytes]) -> list[Any]:
    """The values of JSON texts, which are parsed as one list. A text that is not JSON is left as bytes, and so are all
    if they have more than `MAX_JSON_BYTES`."""
    if sum(map(len, texts)) > MAX_JSON_BYTES:
        return list(texts)
    try:
        parsed = _LISTS.validate_json(b"[%b]" % b",".join(texts))
        if len(parsed) == len(texts):
            return parsed
    except (ValueError, RecursionError):
        pass
    return [_parsed_alone(text) for text in texts]


def _parsed_alone(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
