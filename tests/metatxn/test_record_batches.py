"""Goal: record batches of Kafka's are read whatever their compression, and damage is told, not raised.

Method: batches that were written by librdkafka are read in `tests/gateways`; here ours, compressed by other libraries,
and broken.
"""

from __future__ import annotations

import contextlib
import gzip
import struct
import tracemalloc

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metatxn.wire import batches, record_batches
from metatxn.wire.batches import pack_batch, packed_message, unpack_batch
from metatxn.wire.record_batches import CONTROL, HEADER, KafkaRecord, bodies_of, decode_records
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
    packed = compressed(batch, compression) if compression else batch
    assert decode_records(packed) == RECORDS
    assert record_batches.unpacked_batch_bytes(packed) == len(batch)
    assert record_batches.unpacked_batch_bytes(packed[:70]) <= 70, "what cannot be read is not larger than it is"


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


@pytest.mark.parametrize("compression", [1, 2, 3, 4])
def test_a_batch_that_becomes_too_large_is_not_decompressed_to_its_end(
    compression: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros that would be 64 MiB; the bound is one, and memory for hardly more than that is asked for."""
    monkeypatch.setattr(record_batches, "MAX_RECORDS_BYTES", 1 << 20)
    bomb = compressed(encode_batch([KafkaRecord(None, bytes(64 << 20))]), compression)
    tracemalloc.start()
    (found,) = bodies_of(bomb, 1)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found["properties"]["metatxn.unreadable"].startswith("the records of a batch have more than 1048576 bytes")
    assert most_bytes < 8 << 20


def test_no_record_is_made_of_a_batch_that_has_more_than_its_entry_counts() -> None:
    fields = list(HEADER.unpack_from(encode_batch(RECORDS)))
    fields[12] = (1 << 31) - 1
    (found, _) = bodies_of(HEADER.pack(*fields), 2)
    assert found["properties"] == {"metatxn.unreadable": "the batch has 2147483647 records, and counts as 2"}
    (named, _) = unpack_batch(HEADER.pack(*fields), 2).properties
    assert named == found["properties"]
    fields[5] = CONTROL
    assert bodies_of(HEADER.pack(*fields), 2)[0] == found


def test_the_headers_of_a_batch_have_a_bound_together(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = encode_batch([KafkaRecord(None, b"v", (("h", None),) * 5)] * 3)
    monkeypatch.setattr(record_batches, "MAX_HEADERS", 15)
    assert len(decode_records(batch)) == 3
    monkeypatch.setattr(record_batches, "MAX_HEADERS", 14)
    with pytest.raises(ValueError, match="more than 14 headers"):
        decode_records(batch)


def test_json_that_is_too_long_is_left_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    json = (("content-type", b"application/json"),)
    batch = encode_batch([KafkaRecord(None, b"[[],[]]", json), KafkaRecord(None, b"[]", json)])
    packed, _ = pack_batch([packed_message([[], []], None, None), packed_message([], None, None)])
    for most, kafka, ours in (
        (9, [{"value": [[], []]}, {"value": []}], [[[], []], []]),
        (8, [{"raw": b"[[],[]]"}, {"raw": b"[]"}], [b"[[],[]]", b"[]"]),
    ):
        monkeypatch.setattr(record_batches, "MAX_JSON_BYTES", most)
        monkeypatch.setattr(batches, "MAX_JSON_BYTES", most)
        assert [
            {name: body[name] for name in body if name in ("value", "raw")} for body in bodies_of(batch, 2)
        ] == kafka
        assert unpack_batch(packed, 2).values == ours


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 7), st.binary(max_size=200), st.integers(-5, 5))
def test_no_bytes_raise_anything_else(compression: int, body: bytes, number: int) -> None:
    batch = HEADER.pack(0, 0, 0, 2, 0, compression, 0, 0, 0, -1, -1, -1, number) + body
    with contextlib.suppress(ValueError):
        decode_records(batch)
