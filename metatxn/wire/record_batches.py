"""Kafka record batches (magic 2): the payload of entries in topics with the format `kafka`, and of those in which
the client library sends its messages (see `batches`).

All numbers are signed and big-endian. The checksum is the CRC-32C of everything after it, so an offset can be stamped
into a finished batch.

    offset  size  field
         0     8  base offset        the offset of the first record
         8     4  batch length       number of bytes after this field
        12     4  leader epoch
        16     1  magic              2
        17     4  crc
        21     2  attributes         bits 0-2 compression, 4 transactional, 5 control
        23     4  last offset delta  number of records - 1
        27     8  base timestamp
        35     8  max timestamp
        43     8  producer id        -1 without one
        51     2  producer epoch
        53     4  base sequence
        57     4  number of records
        61     .  records            compressed together

A record is its length, attributes, and the deltas of its timestamp and its offset; then key, value and headers. The
numbers in it are variable-length, in zigzag; a length of -1 stands for null.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from crc32c import crc32c

from metatxn.wire.frames import MAX_PAYLOAD_BYTES

HEADER = struct.Struct(">qiibIhiqqqhii")
LENGTH_OFFSET = 8
CRC_OFFSET = 17
CHECKED_FROM = 21
"""The first byte that the checksum covers."""
MAGIC = 2
COMPRESSION, TRANSACTIONAL, CONTROL = 0x07, 0x10, 0x20
CODECS = range(5)
"""The values of the bits of compression: none, gzip, snappy, lz4, zstd."""
Codec = Literal["lz4", "zstd"]
"""How the client library compresses."""
_NUMBERS: Mapping[Codec, int] = {"lz4": 3, "zstd": 4}
MAX_RECORDS_BYTES = 64 << 20
"""The most bytes that the records of a batch may have once they are decompressed."""
MAX_HEADERS = 1_000_000
"""The most headers of all records of a batch. One of two bytes takes 150 in memory."""
MAX_JSON_BYTES = MAX_PAYLOAD_BYTES
"""If the JSON values of a batch are longer than this together, they are left as bytes. Each byte of a list of lists
takes 25 in memory, so compression must not make more of it than fits into an entry."""
CONTENT_TYPE, JSON_TYPE = "content-type", "application/json"
"""The header of a record whose value is JSON: what was published as a JSON value, and not as bytes."""
_XERIAL = b"\x82SNAPPY\x00"
_DAMAGE = (struct.error, IndexError, UnicodeDecodeError, OSError, zlib.error)


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = 0

    def body(self, *, parsed: bool = True) -> dict[str, Any]:
        """The record as a message of ours: `key`, `value` or `value_base64` as bytes under `raw`, and `properties`.

        A value is JSON if its header says so and it is to be `parsed`, and otherwise bytes. A key or a header that is
        not UTF-8 is shown with escapes.
        """
        properties = self.properties
        body: dict[str, Any] = {"key": self.key_text, "properties": properties}
        if parsed and self.value is not None and properties.get(CONTENT_TYPE) == JSON_TYPE:
            try:
                return body | {"value": json.loads(self.value)}
            except (ValueError, RecursionError):
                pass
        return body | ({"value": None} if self.value is None else {"raw": self.value})

    @property
    def key_text(self) -> str | None:
        return None if self.key is None else text_of(self.key)

    @property
    def compared_key(self) -> str | None:
        """The key as a text that no other key has: bytes that are not UTF-8 become halves of surrogate pairs."""
        return None if self.key is None else self.key.decode(errors="surrogateescape")

    @property
    def properties(self) -> dict[str, str]:
        return {name: text_of(value or b"") for name, value in self.headers}


RecordHeaders = tuple[tuple[str, bytes | None], ...]


class Columns(NamedTuple):
    """The records of a batch, field by field."""

    attributes: list[int]
    times_ms: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[RecordHeaders]


def decode_columns(batch: bytes | memoryview, count: int | None = None) -> Columns:
    """The records of a batch whose checksum was checked before. Raises `ValueError` if they cannot be read, or are not
    as many as the entry counts, which has a bound."""
    view = memoryview(batch)
    try:
        _check_count(view, count)
        fields = HEADER.unpack_from(view)
        data = bytes(_decompressed(view[HEADER.size :], fields[5] & COMPRESSION))
        return _columns(data, fields[12], fields[7])
    except _DAMAGE as error:
        raise ValueError(f"the records of a batch cannot be read: {error}") from error


def decode_records(batch: bytes | memoryview, count: int | None = None) -> list[KafkaRecord]:
    """Like `decode_columns`, record by record. Those of a control batch have no content."""
    if len(batch) >= HEADER.size and HEADER.unpack_from(batch)[5] & CONTROL:
        _check_count(batch, count)
        return [KafkaRecord(None, None)] * HEADER.unpack_from(batch)[12]
    _, times_ms, keys, values, headers = decode_columns(batch, count)
    return list(map(KafkaRecord, keys, values, headers, times_ms))


def bodies_of(batch: bytes | memoryview, count: int) -> list[dict[str, Any]]:
    """See `KafkaRecord.body` and `records_of`."""
    records = records_of(batch, count)
    parsed = sum(len(record.value or b"") for record in records) <= MAX_JSON_BYTES
    return [record.body(parsed=parsed) for record in records]


def records_of(batch: bytes | memoryview, count: int) -> list[KafkaRecord]:
    """The records of a batch. If it cannot be read, `count` records without a value, which have a header that says
    why."""
    try:
        return decode_records(batch, count)
    except ValueError as error:
        return [KafkaRecord(None, None, (("metatxn.unreadable", str(error).encode()),))] * count


def unpacked_batch_bytes(batch: bytes | memoryview) -> int:
    """The size of a batch with its records decompressed, or as it is if they cannot be."""
    if len(batch) < HEADER.size or not (compression := HEADER.unpack_from(batch)[5] & COMPRESSION):
        return len(batch)
    try:
        return HEADER.size + len(_decompressed(memoryview(batch)[HEADER.size :], compression))
    except (ValueError, *_DAMAGE):
        return len(batch)


def _check_count(batch: bytes | memoryview, count: int | None) -> None:
    records = HEADER.unpack_from(batch)[12]
    if count not in (None, records):
        raise ValueError(f"the batch has {records} records, and counts as {count}")


def text_of(raw: bytes) -> str:
    """The text of these bytes; what is not UTF-8 is shown with escapes."""
    return raw.decode(errors="backslashreplace")


def _columns(data: bytes, number: int, base_ms: int) -> Columns:
    """The records, field by field. A call costs more than all else that is done for a record, so numbers of one byte
    are read in place, and two lengths that often have two. A number is in zigzag: an odd one is negative."""
    attributes: list[int] = []
    times_ms: list[int] = []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    headers: list[RecordHeaders] = []
    most_headers = MAX_HEADERS
    at = 0
    for _ in range(number):
        size = data[at]
        at += 1
        if size >= 0x80:
            size = size & 0x7F | data[at] << 7
            at += 1
            if size >= 0x4000:
                size, at = _long(data, at - 2)
        end = at + (size >> 1)
        if size & 1 or end > len(data):
            raise ValueError("a record reaches beyond its batch")
        attributes.append(data[at])
        delta = data[at + 1]
        at += 2
        if delta >= 0x80:
            delta, at = _long(data, at - 1)
        times_ms.append(base_ms + ((delta >> 1) ^ -(delta & 1)))
        while data[at] >= 0x80:  # the offset says nothing
            at += 1
        size = data[at + 1]
        at += 2
        if size & 1 and size < 0x80:
            keys.append(None)
        else:
            if size >= 0x80:
                size, at = _long(data, at - 1)
            keys.append(None if size & 1 else data[at : at + (size >> 1)])
            at += 0 if size & 1 else size >> 1
        size = data[at]
        at += 1
        if size >= 0x80:
            size = size & 0x7F | data[at] << 7
            at += 1
            if size >= 0x4000:
                size, at = _long(data, at - 2)
        if size & 1:
            values.append(None)
        else:
            values.append(data[at : at + (size >> 1)])
            at += size >> 1
        if data[at]:
            some, at = _headers(data, at, most_headers)
            most_headers -= len(some)
            headers.append(some)
        else:
            headers.append(())
            at += 1
        if at != end:
            raise ValueError("the length of a record is not what it says")
    return Columns(attributes, times_ms, keys, values, headers)


def _headers(data: bytes, at: int, most: int) -> tuple[RecordHeaders, int]:
    number, at = decoded_varint(data, at)
    if number > most:
        raise ValueError(f"the records of a batch have more than {MAX_HEADERS} headers")
    found = []
    for _ in range(number):
        name, at = _bytes(data, at)
        content, at = _bytes(data, at)
        found.append(((name or b"").decode(), content))
    return tuple(found), at


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = decoded_varint(data, at)
    if size < 0:
        return None, at
    if at + size > len(data):
        raise ValueError("a field reaches beyond its batch")
    return data[at : at + size], at + size


def decoded_varint(data: bytes, at: int) -> tuple[int, int]:
    value, at = _long(data, at)
    return (value >> 1) ^ -(value & 1), at


def _long(data: bytes, at: int) -> tuple[int, int]:
    """A number in its written form, in zigzag."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


@lru_cache(maxsize=1 << 14)
def encoded_varint(number: int) -> bytes:
    """The bytes of a number. They are cached, because the lengths of messages are alike, and their places begin at 0 in
    every batch."""
    left = (number << 1) ^ (number >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def finished_batch(body: bytes, number: int, base_ms: int, latest_ms: int, codec: Codec | None = None) -> bytes:
    """A batch of encoded records without a producer, at offset 0. They are compressed if that makes them smaller."""
    attributes = 0
    if codec is not None and len(compressed := _compressed(body, codec)) < len(body):
        body, attributes = compressed, _NUMBERS[codec]
    length = HEADER.size - LENGTH_OFFSET - 4 + len(body)
    draft = HEADER.pack(0, length, 0, MAGIC, 0, attributes, number - 1, base_ms, latest_ms, -1, -1, -1, number)
    crc = crc32c(body, crc32c(draft[CHECKED_FROM:]))
    return b"".join((draft[:CRC_OFFSET], crc.to_bytes(4, "big"), draft[CHECKED_FROM:], body))


def checksum_fits(batch: bytes | memoryview) -> bool:
    view = memoryview(batch)
    return bool(crc32c(view[CHECKED_FROM:]) == int.from_bytes(view[CRC_OFFSET:CHECKED_FROM], "big"))


def _compressed(body: bytes, codec: Codec) -> bytes:
    import pyarrow as pa  # producers that do not compress need not wait for it

    return pa.Codec(codec).compress(body, asbytes=True)


def _decompressed(data: memoryview, compression: int) -> memoryview:
    if compression == 0:
        return data
    if compression == 1:
        unpacked = zlib.decompressobj(wbits=31).decompress(data, MAX_RECORDS_BYTES + 1)
    elif compression == 2:
        unpacked = _unsnapped(data)
    elif compression in (3, 4):
        import pyarrow as pa

        stream = pa.CompressedInputStream(pa.BufferReader(data), "lz4" if compression == 3 else "zstd")
        unpacked = stream.read(MAX_RECORDS_BYTES + 1)
    else:
        raise ValueError(f"compression {compression} is unknown")
    if len(unpacked) > MAX_RECORDS_BYTES:
        raise ValueError(f"the records of a batch have more than {MAX_RECORDS_BYTES} bytes")
    return memoryview(unpacked)


def _unsnapped(data: memoryview) -> bytes:
    """One block, or many blocks in the frame that Java's clients write: each behind its length, after 16 bytes."""
    if bytes(data[:8]) != _XERIAL:
        return _snappy_block(data, MAX_RECORDS_BYTES)
    at, parts, left = 16, [], MAX_RECORDS_BYTES
    while at < len(data):
        (size,) = struct.unpack_from(">i", data, at)
        if size <= 0:
            raise ValueError("a block of compressed records has an impossible size")
        parts.append(_snappy_block(data[at + 4 : at + 4 + size], left))
        left -= len(parts[-1])
        at += 4 + size
    return b"".join(parts)


def _snappy_block(block: memoryview, most_bytes: int) -> bytes:
    import pyarrow as pa

    size = shift = at = 0
    while True:
        size |= (block[at] & 0x7F) << shift
        if block[at] < 0x80:
            break
        at, shift = at + 1, shift + 7
    if size > most_bytes:
        raise ValueError(f"the records of a batch have more than {MAX_RECORDS_BYTES} bytes")
    unpacked: bytes = pa.Codec("snappy").decompress(block, size, asbytes=True)
    return unpacked
