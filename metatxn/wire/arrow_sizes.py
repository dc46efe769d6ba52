"""How large the table of an entry becomes when it is decoded, which its own size does not tell.

    compressed buffers    each begins with the size that it is going to have
    nulls                 a billion rows without a byte
    run-end encoding      one value for a billion rows
    dictionaries          one long value for as many rows as there are indices
    views, unions         the same bytes as often as they are referred to

The first two are found in the metadata of the messages of the stream, before anything is decompressed; the others in
what was decoded then. A size counts each value where it stands, as at least a byte, and each row as at least
`ROW_BYTES`. It is never too small, and too large only for nested values in dictionaries, runs, views and unions.

    message             flatbuffer "Message": 1 type of the header, 2 header, 3 length of the body
    dictionary batch    1 the record batch with its values
    record batch        0 rows, 1 nodes (length, nulls), 2 buffers (offset in the body, length), 3 compression
    compression         0 codec
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from metatxn.wire.record_batches import Codec

MAX_TABLE_BYTES = 256 << 20
"""The most bytes of the table of one entry. What is neither compressed nor encoded is never as large, unless it
consists of bits; and the client library fills an entry with a mebibyte."""
ROW_BYTES = 16
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_PREFIX_BYTES = 8
"""The start of a compressed buffer: its size when decompressed, or -1 if it is not compressed after all."""
_VIEW_INTS = 4
"""A view has four numbers of 32 bits. The first is the length."""
_CODECS: tuple[Codec, ...] = ("lz4", "zstd")


class TableTooLarge(ValueError):
    pass


def compression_of(payload: bytes | memoryview) -> tuple[Codec | None, int]:
    """The codec of the compressed buffers of an Arrow stream, None if there are none, and their decompressed size."""
    codec: Codec | None = None
    size = 0
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(payload)):
        data, batch = _batch_of(message)
        if data is None or not (compression_at := _field(data, batch, 3)):
            continue
        compression = _target(data, compression_at)
        codec_at = _field(data, compression, 0)
        codec = _CODECS[data[codec_at] if codec_at else 0]
        size += _body_bytes(message, data, batch)
    return codec, size


def read_within(payload: bytes | memoryview, most_bytes: int) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """The schema of an Arrow stream and its batches, which are valid, and are decoded one by one. Raises
    `TableTooLarge` before more than `most_bytes` come into being, here or with a later batch; and what Arrow raises for
    anything but a stream."""
    content = pa.py_buffer(payload)
    claimed = 0
    for message in pa.ipc.MessageReader.open_stream(content):
        claimed += _claimed_bytes(message)
        _check(claimed, most_bytes)
    reader = pa.ipc.open_stream(content)
    return reader.schema, _batches(reader, most_bytes)


def _batches(reader: pa.RecordBatchStreamReader, most_bytes: int) -> Iterator[pa.RecordBatch]:
    encoded = [at for at, field in enumerate(reader.schema) if not _is_plain(field.type)]
    size = 0
    for batch in reader:
        batch.validate(full=True)  # invalid buffers would crash every reader
        size += sum(_expanded_bytes(batch.column(at)) for at in encoded)
        _check(size, most_bytes)
        yield batch


def _check(size: int, most_bytes: int) -> None:
    if size > most_bytes:
        raise TableTooLarge(f"the table has more than {most_bytes} bytes when it is decoded")


# -- what the metadata say -----------------------------------------------------------------------------------------


def _claimed_bytes(message: pa.ipc.Message) -> int:
    """The bytes of a message's buffers once they are decompressed, and a byte for each value."""
    data, batch = _batch_of(message)
    if data is None:
        return 0
    rows_at = _field(data, batch, 0)
    rows = _number(data, rows_at, "<q") if rows_at and message.type == "record batch" else 0
    values = sum(max(0, length) for length, _ in _pairs(data, _field(data, batch, 1)))
    return max(ROW_BYTES * rows, _body_bytes(message, data, batch) + values)


def _batch_of(message: pa.ipc.Message) -> tuple[memoryview | None, int]:
    """The metadata of a message, and the place of its record batch there, which may be one of a dictionary's values;
    None and 0 if there is none."""
    assert message.metadata is not None
    data = memoryview(message.metadata)  # Arrow has verified that its offsets lead to where they should
    root = _number(data, 0, "<I")
    kind_at, header_at = _field(data, root, 1), _field(data, root, 2)
    kind = data[kind_at] if kind_at else 0
    if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH) or not header_at:
        return None, 0
    batch = _target(data, header_at)
    if kind == _RECORD_BATCH:
        return data, batch
    values_at = _field(data, batch, 1)
    return (data, _target(data, values_at)) if values_at else (None, 0)


def _body_bytes(message: pa.ipc.Message, data: memoryview, batch: int) -> int:
    """The bytes of the buffers of a record batch, decompressed."""
    buffers = _pairs(data, _field(data, batch, 2))
    if not _field(data, batch, 3):
        return sum(length for _, length in buffers)
    body = memoryview(message.body or b"")
    return sum(_decompressed_bytes(body, offset, length) for offset, length in buffers)


def _decompressed_bytes(body: memoryview, offset: int, length: int) -> int:
    if length < _PREFIX_BYTES:
        return 0
    size = int.from_bytes(body[offset : offset + _PREFIX_BYTES], "little", signed=True)
    return size if size >= 0 else length


def _field(data: memoryview, table: int, number: int) -> int:
    """The place of a field in a flatbuffer's table; 0 if it is absent."""
    layout = table - _number(data, table, "<i")
    entry = 4 + 2 * number
    offset = _number(data, layout + entry, "<H") if entry < _number(data, layout, "<H") else 0
    return table + offset if offset else 0


def _target(data: memoryview, at: int) -> int:
    return at + _number(data, at, "<I")


def _pairs(data: memoryview, at: int) -> list[tuple[int, int]]:
    """A vector of structures that are two numbers of 64 bits."""
    if not at:
        return []
    start = _target(data, at)
    count = _number(data, start, "<I")
    return list(struct.iter_unpack("<qq", data[start + 4 : start + 4 + 16 * count]))


def _number(data: memoryview, at: int, form: str) -> int:
    found: int = struct.unpack_from(form, data, at)[0]
    return found


# -- what was decoded ----------------------------------------------------------------------------------------------


def _is_plain(kind: pa.DataType) -> bool:
    """Whether each value has bytes of its own, so that the metadata tell the size."""
    if isinstance(kind, pa.BaseExtensionType):
        return _is_plain(kind.storage_type)
    if pat.is_dictionary(kind) or pat.is_run_end_encoded(kind) or pat.is_union(kind) or _is_view(kind):
        return False
    return all(_is_plain(kind.field(at).type) for at in range(kind.num_fields))


def _is_view(kind: pa.DataType) -> bool:
    return (
        pat.is_string_view(kind) or pat.is_binary_view(kind) or pat.is_list_view(kind) or pat.is_large_list_view(kind)
    )


def _expanded_bytes(values: Any) -> int:
    """The size of these values if each is written where it stands, and at least a byte for each."""
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        return _expanded_bytes(values.storage)
    if pat.is_dictionary(kind):
        used = pc.value_counts(values.indices.drop_null())
        return len(values) + _repeated_bytes(values.dictionary, used.field("values"), used.field("counts"))
    if pat.is_run_end_encoded(kind):
        ends = values.run_ends.to_pylist()
        runs = pa.array([end - start for start, end in zip([0, *ends], ends, strict=False)], pa.int64())
        return len(values) + _repeated_bytes(values.values, pa.array(range(len(ends)), pa.int64()), runs)
    if (pat.is_string_view(kind) or pat.is_binary_view(kind)) and len(values):
        numbers = memoryview(values.buffers()[1]).cast("i")
        start, end = _VIEW_INTS * values.offset, _VIEW_INTS * (values.offset + len(values))
        return len(values) + sum(max(0, length) for length in numbers[start:end:_VIEW_INTS])
    if pat.is_list_view(kind) or pat.is_large_list_view(kind):
        return len(values) + _most_shared(values.offsets, values.sizes) * _expanded_bytes(values.values)
    if pat.is_union(kind):
        parts = sum(_expanded_bytes(values.field(at)) for at in range(kind.num_fields))
        shared = pc.max(pc.value_counts(values.offsets).field("counts")).as_py() if kind.mode == "dense" else 1
        return len(values) + int(shared or 1) * parts
    if pat.is_struct(kind):
        return len(values) + sum(_expanded_bytes(values.field(at)) for at in range(kind.num_fields))
    if pat.is_map(kind):
        return len(values) + _expanded_bytes(values.keys) + _expanded_bytes(values.items)
    if pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind):
        return len(values) + _expanded_bytes(values.values)
    return int(len(values) + values.nbytes)


def _repeated_bytes(values: Any, positions: Any, times: Any) -> int:
    """The size of the values at these positions, each repeated so often. For nested values it is an upper bound."""
    kind = values.type
    if not len(positions):
        return 0
    if pat.is_string(kind) or pat.is_large_string(kind) or pat.is_binary(kind) or pat.is_large_binary(kind):
        lengths = pc.fill_null(pc.binary_length(values).cast(pa.int64()), 0).take(positions)
        return int(pc.sum(pc.multiply(lengths, times)).as_py())
    if pat.is_primitive(kind) or pat.is_decimal(kind) or pat.is_fixed_size_binary(kind):
        return int(pc.sum(times).as_py()) * max(1, int(kind.bit_width) // 8)
    return int(pc.max(times).as_py()) * _expanded_bytes(values)


def _most_shared(offsets: Any, sizes: Any) -> int:
    """The most lists that a value is in: one, if they are in order and none begins before the end of another."""
    ends = pc.add(offsets, sizes)
    return 1 if len(sizes) < 2 or pc.all(pc.greater_equal(offsets[1:], ends[:-1])).as_py() else len(sizes)
