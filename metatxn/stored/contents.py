"""The messages of an entry, whatever is in it, for people who look at them.

A process that serves others, too, may look at it. So an entry is only taken apart if that is little work: a table may
have a billion rows in a few bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from metatxn.frames import decode_with_nulls, keys_of
from metatxn.wire.arrow_sizes import read_within
from metatxn.wire.contents import messages_of
from metatxn.wire.frames import Frame, PayloadKind
from metatxn.wire.rows import plain_values

MOST_BYTES = 2 << 20
"""A larger entry is shown as bytes. Those that the client library sends are smaller, unless one message is not."""
MOST_TABLE_BYTES = 16 << 20
"""The most bytes of a decoded table, see `arrow_sizes`."""
MOST_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Content:
    """A message. Its value is JSON, bytes, or a row: an object whose members may be of more types than JSON has."""

    key: str | None
    value: Any
    properties: Mapping[str, str]


def contents_of(frame: Frame, schema: pa.Schema | None = None) -> Sequence[Content]:
    """All messages of an entry, in the types of the topic's columns. One that cannot be taken apart is one message: its
    bytes."""
    if frame.size <= MOST_BYTES and frame.count <= MOST_ROWS:
        try:
            return _rows(frame) if frame.kind is PayloadKind.ARROW else _messages(frame, schema)
        except (ValueError, RecursionError, pa.ArrowException):
            pass
    return [Content(None, bytes(frame.payload), {})]


def _messages(frame: Frame, schema: pa.Schema | None) -> Sequence[Content]:
    keys, values, properties, _ = messages_of(frame)
    values = values if schema is None else _typed(frame, values, schema)
    return [Content(*each[:2], each[2] or {}) for each in zip(keys, values, properties, strict=True)]


def _typed(frame: Frame, values: Sequence[Any], schema: pa.Schema) -> Sequence[Any]:
    """The values in the types of their columns. JSON has texts for decimals, dates and times, which are compared as
    what they are. What does not fit its column, and what is not a column, stays as it was written."""
    rows = _rows_of(decode_with_nulls(frame, schema).table)
    typed = ({name: each for name, each in row.items() if each is not None} for row in rows)
    return [{**value, **row} if isinstance(value, dict) else value for value, row in zip(values, typed, strict=True)]


def _rows(frame: Frame) -> Sequence[Content]:
    schema, batches = read_within(frame.payload, MOST_TABLE_BYTES)
    table = pa.Table.from_batches(batches, schema)
    if table.num_rows > MOST_ROWS:
        raise ValueError("the table has more rows than it says")
    return [Content(key, row, {}) for key, row in zip(keys_of(frame), _rows_of(table), strict=True)]


def _rows_of(table: pa.Table) -> list[dict[str, Any]]:
    columns = [plain_values(column) for column in table.columns]
    rows = zip(*columns, strict=True) if columns else [()] * table.num_rows
    return [dict(zip(table.column_names, row, strict=True)) for row in rows]


def table_of(frame: Frame, indexes: Sequence[int], schema: pa.Schema | None) -> pa.Table:
    """Some rows of an entry in the columns of its topic. What does not fit is null."""
    return decode_with_nulls(frame, schema).table.take(pa.array(indexes, pa.int64()))
