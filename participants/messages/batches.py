"""Writing record batches of Kafka's, see `metatxn.wire.record_batches`."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from metatxn.wire.record_batches import CHECKED_FROM, CRC_OFFSET, HEADER, MAGIC, KafkaRecord


def encode_batch(records: Sequence[KafkaRecord]) -> bytes:
    """A batch without compression and without a producer, at offset 0."""
    from crc32c import crc32c  # it is part of the extra `gateways`: only topics with the format `kafka` need it

    assert records
    base = records[0].timestamp_ms
    body = b"".join(_encoded(record, number, base) for number, record in enumerate(records))
    latest = max(record.timestamp_ms for record in records)
    last, number = len(records) - 1, len(records)
    draft = HEADER.pack(0, HEADER.size - 12 + len(body), 0, MAGIC, 0, 0, last, base, latest, -1, -1, -1, number) + body
    return draft[:CRC_OFFSET] + struct.pack(">I", crc32c(draft[CHECKED_FROM:])) + draft[CHECKED_FROM:]


def _encoded(record: KafkaRecord, number: int, base_ms: int) -> bytes:
    headers = b"".join(_encoded_bytes(name.encode()) + _encoded_bytes(value) for name, value in record.headers)
    times = b"\0" + _encoded_varint(record.timestamp_ms - base_ms) + _encoded_varint(number)
    content = _encoded_bytes(record.key) + _encoded_bytes(record.value) + _encoded_varint(len(record.headers)) + headers
    return _encoded_varint(len(times) + len(content)) + times + content


def _encoded_bytes(raw: bytes | None) -> bytes:
    return _encoded_varint(-1) if raw is None else _encoded_varint(len(raw)) + raw


def _encoded_varint(number: int) -> bytes:
    left = (number << 1) ^ (number >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)
