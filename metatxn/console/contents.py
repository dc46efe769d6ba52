"""The messages of an entry, whatever is in it, for people who look at them.

A page is made by a process that serves others, too. So an entry is only taken apart if that is little work: a table may
have a billion rows in a few bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from metatxn.frames import decode_with_nulls, keys_of
from metatxn.wire.contents import messages_of
from metatxn.wire.frames import Frame, PayloadKind
from metatxn.wire.rows import plain_values

MOST_BYTES = 2 << 20
"""A larger entry is shown as bytes. Those that the client library sends are smaller, unless one message is not."""
MOST_TABLE_BYTES = 64 << 20
MOST_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Content:
    """A message. Its value is JSON, bytes, or a row: an object whose members may be of more types than JSON has."""

    key: str | None
    value: Any
    properties: Mapping[str, str]


def contents_of(frame: Frame) -> Sequence[Content]:
    """All messages of an entry. One that cannot be taken apart is one message: its bytes."""
    if frame.size <= MOST_BYTES and frame.count <= MOST_ROWS:
        try:
            return _rows(frame) if frame.kind is PayloadKind.ARROW else _messages(frame)
        except (ValueError, RecursionError, pa.ArrowException):
            pass
    return [Content(None, bytes(frame.payload), {})]


def _messages(frame: Frame) -> Sequence[Content]:
    keys, values, properties, _ = messages_of(frame)
    return [Content(*each[:2], each[2] or {}) for each in zip(keys, values, properties, strict=True)]


def _rows(frame: Frame) -> Sequence[Content]:
    with pa.ipc.open_stream(pa.py_buffer(bytes(frame.payload))) as reader:
        table = reader.read_all()
    if table.num_rows > MOST_ROWS or table.nbytes > MOST_TABLE_BYTES:
        raise ValueError("the table is larger than it looks")
    columns = [plain_values(column) for column in table.columns]
    rows = zip(*columns, strict=True) if columns else [()] * table.num_rows
    keys = keys_of(frame)
    return [
        Content(key, dict(zip(table.column_names, row, strict=True)), {}) for key, row in zip(keys, rows, strict=True)
    ]


def table_of(frame: Frame, indexes: Sequence[int], schema: pa.Schema | None) -> pa.Table:
    """Some rows of an entry in the columns of its topic. What does not fit is null."""
    return decode_with_nulls(frame, schema).table.take(pa.array(indexes, pa.int64()))
