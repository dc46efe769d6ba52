"""The rows of a table in an entry, as messages: values that JSON can express, with their keys."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

KEY_COLUMN = b"metatxn.key"
"""The key in the metadata of an entry's Arrow schema that names the column with the key of each row."""


def rows_of(payload: bytes | memoryview, indexes: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """The `key` and the `value` of the rows with these indexes, or of all."""
    with pa.ipc.open_stream(pa.py_buffer(payload)) as reader:
        table = reader.read_all()
    if indexes is not None and len(indexes) < table.num_rows:
        table = table.take(pa.array(list(indexes), pa.int64()))
    key_column = (table.schema.metadata or {}).get(KEY_COLUMN, b"").decode(errors="replace")
    columns = [plain_values(column) for column in table.columns]
    rows = [dict(zip(table.column_names, row, strict=True)) for row in zip(*columns, strict=True)]
    rows = rows if columns else [{} for _ in range(table.num_rows)]
    return [
        {"value": _plain(row), "key": None if row.get(key_column) is None else str(row[key_column])} for row in rows
    ]


def plain_values(column: pa.ChunkedArray[Any]) -> list[Any]:
    """The values of a column. Those for which Python has no type (nanoseconds, years beyond 9999) become text or
    numbers."""
    try:
        return column.to_pylist()
    except (pa.ArrowException, ValueError, OverflowError):
        pass
    for kind in (pa.string(), pa.int64(), pa.int32()):
        try:
            return column.cast(kind).to_pylist()
        except (pa.ArrowException, ValueError, OverflowError):
            continue
    return [str(column.type)] * len(column)


def _plain(value: Any) -> Any:
    """A value that JSON can express; other Arrow values become text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
