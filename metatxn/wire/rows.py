"""The rows of a table in an entry, as messages: values that JSON can express, with their keys."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa

KEY_COLUMN = b"metatxn.key"
"""The key in the metadata of an entry's Arrow schema that names the column with the key of each row."""
_NO_PYTHON_VALUE = (pa.ArrowException, ValueError, OverflowError)


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


def plain_values(column: pa.ChunkedArray[Any] | pa.Array[Any]) -> list[Any]:
    """The values of a column, nulls as None. One for which Python has no type (nanoseconds, years beyond 9999) becomes
    text or a number, also inside a list, a struct or a map; all others are what they are anyway. Only what Arrow can
    not write as text either is named by its type."""
    try:
        return column.to_pylist()
    except _NO_PYTHON_VALUE:
        return list(map(_plain_value, column, _texts(column)))


def _texts(column: pa.ChunkedArray[Any] | pa.Array[Any]) -> Iterable[str | int | None]:
    """The values as text or numbers, of the whole column at once, which is fast; None for those that are nested."""
    for kind in (pa.string(), pa.int64(), pa.int32()):
        try:
            return column.cast(kind).to_pylist()
        except _NO_PYTHON_VALUE:
            continue
    return repeat(None, len(column))


def _plain_value(value: pa.Scalar[Any], text: str | int | None) -> Any:
    try:
        return value.as_py()
    except _NO_PYTHON_VALUE:
        pass
    if text is not None:
        return text
    if isinstance(value, pa.MapScalar):
        return [tuple(map(_plain_member, entry.values())) for entry in value.values or ()]
    if isinstance(value, pa.ListScalar) and value.values is not None:
        return plain_values(value.values)
    if isinstance(value, pa.StructScalar) and len(set(value)) == len(value):
        return {name: _plain_member(member) for name, member in value.items()}
    return str(value.type)


def _plain_member(value: pa.Scalar[Any]) -> Any:
    """A member of a struct, or a key or an item of a map. Only one that is not nested is text itself."""
    (text,) = (None,) if pa.types.is_nested(value.type) else _texts(pa.array([value], value.type))
    return _plain_value(value, text)


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
