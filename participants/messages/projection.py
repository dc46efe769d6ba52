"""Tables with fewer columns, for readers that name those they need.

The bytes of a column lie together in an Arrow stream, so the others are left out without being read. That takes 80 µs
for an entry of one mebibyte with twenty columns, and hardly less for one of a few kilobytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

import pyarrow as pa

from metatxn.wire.arrow_sizes import compression_of
from metatxn.wire.frames import PayloadKind, RawFrame, encode_frame, peek
from metatxn.wire.rows import KEY_COLUMN
from participants.messages.pieces import in_turns

LEAST_BYTES = 4 << 10
"""Smaller payloads are not worth it: an answer may have thousands of them, and rewriting takes as long for each."""
MOST_BYTES = 32 << 20
"""The most bytes that compressed columns of an entry may have when they are decompressed. Larger ones stay as they
are."""


async def with_columns(frames: Iterable[RawFrame], names: Collection[str]) -> list[RawFrame]:
    """The frames, each as `project` returns it. Other tasks run after each of them."""
    wanted = frozenset(names)
    return [frame async for frame in in_turns(project(frame, wanted) for frame in frames)]


def project(frame: RawFrame, names: Collection[str]) -> RawFrame:
    """The frame with those columns of its table that have these names, the column with the keys of the rows, and at
    least one column, so that rows can be counted. A frame without a table, or with one that cannot be divided, is
    returned as it is: a reader takes what it needs."""
    if frame.kind is not PayloadKind.ARROW or len(frame.payload) < LEAST_BYTES:
        return frame
    try:
        payload = _with_columns(frame.payload, names)
    except (pa.ArrowException, OSError):
        return frame
    return frame if payload is None else peek(encode_frame(replace(frame, payload=memoryview(payload))))


def _with_columns(payload: bytes | memoryview, names: Collection[str]) -> pa.Buffer | None:
    """The stream with fewer columns; None if all of them stay, or if too much would be decompressed. Raises what Arrow
    raises."""
    content = pa.py_buffer(payload)
    schema = pa.ipc.read_schema(content)
    key = (schema.metadata or {}).get(KEY_COLUMN, b"").decode(errors="replace")
    kept = [at for at, name in enumerate(schema.names) if name in names or name == key] or [0]
    codec, decompressed = compression_of(payload)
    if len(kept) >= len(schema) or decompressed > MOST_BYTES:
        return None
    reader = pa.ipc.open_stream(content, options=pa.ipc.IpcReadOptions(included_fields=kept))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, reader.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as stream:
        for batch in reader:
            stream.write_batch(batch)
    return sink.getvalue()
