"""Goal: record batches of Kafka's are read whatever their compression, and damage is told, not raised.

Method: batches that were written by librdkafka are read in `tests/gateways`; here ours, compressed by other libraries,
and broken.
"""

from __future__ import annotations

import contextlib
import gzip
import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metatxn.wire.record_batches import HEADER, KafkaRecord, bodies_of, decode_records
from participants.messages.batches import encode_batch

RECORDS = [
    KafkaRecord(b"k", b"v" * 300, (("h", None), ("ü", b"\xff")), 1_700_000_000_000),
    KafkaRecord(None, None, (), 1_699_999_999_000),
    KafkaRecord(b"", b"", (), 1_700_000_000_001),
]


def _xerial(body: bytes) -> bytes:
    block = pa.Codec("snappy").compress(body, asbytes=True)
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + 2 * (struct.pack(">i", len(block)) + block)


def _packed(body: bytes, compression: int) -> bytes:
    if compression == 1:
        return gzip.compress(body)
    if compression == 2:
        return bytes(pa.Codec("snappy").compress(body, asbytes=True))
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4" if compression == 3 else "zstd") as stream:
        stream.write(body)
    return sink.getvalue().to_pybytes()


def compressed(batch: bytes, compression: int) -> bytes:
    fields = list(HEADER.unpack_from(batch))
    fields[5] |= compression
    return HEADER.pack(*fields) + _packed(batch[HEADER.size :], compression)


@pytest.mark.parametrize("compression", [0, 1, 2, 3, 4])
def test_records_are_read_as_they_were_written(compression: int) -> None:
    batch = encode_batch(RECORDS)
    assert decode_records(compressed(batch, compression) if compression else batch) == RECORDS


def test_blocks_as_java_compresses_them_are_read() -> None:
    batch = encode_batch([RECORDS[0]])
    fields = list(HEADER.unpack_from(batch))
    fields[5], fields[12] = 2, 2
    assert decode_records(HEADER.pack(*fields) + _xerial(batch[HEADER.size :])) == [RECORDS[0]] * 2


def test_a_batch_that_cannot_be_read_has_as_many_messages_as_it_counts() -> None:
    batch = encode_batch(RECORDS)
    for broken, count in ((batch[:-1], 3), (batch, 4), (batch[:70], 2)):
        found = bodies_of(broken, count)
        assert len(found) == count
        assert all(each["value"] is None and "metatxn.unreadable" in each["properties"] for each in found)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 7), st.binary(max_size=200), st.integers(-5, 5))
def test_no_bytes_raise_anything_else(compression: int, body: bytes, number: int) -> None:
    batch = HEADER.pack(0, 0, 0, 2, 0, compression, 0, 0, 0, -1, -1, -1, number) + body
    with contextlib.suppress(ValueError):
        decode_records(batch)
