"""JSON values as Arrow columns: a column has one type, and no value is converted to fit another type."""

from __future__ import annotations

import bisect
import reprlib
from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

VALUE_COLUMN = "value"
"""The only column of a topic without a schema whose messages are not JSON objects."""
Conversion = Callable[[list[Any]], "pa.Array[Any]"]
_REFUSALS = (pa.ArrowException, TypeError, ValueError, OverflowError)


class Misfit(Exception):
    """A value does not fit its column. `index` is that of its message, or None for a table."""

    def __init__(self, column: str, reason: object, index: int | None = None) -> None:
        super().__init__(f"column {column}: {reason}")
        self.column = column
        self.index = index


def messages_table(values: list[Any], schema: pa.Schema | None) -> pa.Table:
    """A row for each value. The members of JSON objects are columns, in the order in which they first appear, or as
    `schema` defines them; a value that is not an object is in the column `value`.

    Raises `Misfit` for the first value of a column that does not fit the schema or the values before it.
    """
    objects = all(isinstance(value, dict) for value in values)
    if schema is not None:
        rows = values if objects else [_row(value, index, schema) for index, value in enumerate(values)]
        columns = [_column(field.name, rows, partial(_typed, field.type)) for field in schema]
        return pa.Table.from_arrays(columns, schema=schema)
    rows = values if objects else [{VALUE_COLUMN: value} for value in values]
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _column(name, rows, _inferred) for name in names})


def _row(value: Any, index: int, schema: pa.Schema) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    if VALUE_COLUMN not in schema.names:
        raise Misfit(VALUE_COLUMN, f"the topic does not have it, and {reprlib.repr(value)} is not an object", index)
    return {VALUE_COLUMN: value}


def _column(name: str, rows: list[dict[str, Any]], convert: Conversion) -> pa.Array[Any]:
    cells = [row.get(name) for row in rows]
    try:
        return convert(cells)
    except _REFUSALS:
        first = bisect.bisect_left(range(len(cells)), True, key=lambda last: _refused(cells[: last + 1], convert))
    raise Misfit(name, _refusal(cells[: first + 1], convert), first)


def _refused(cells: list[Any], convert: Conversion) -> bool:
    return _refusal(cells, convert) is not None


def _refusal(cells: list[Any], convert: Conversion) -> Exception | None:
    try:
        convert(cells)
    except _REFUSALS as error:
        return error
    return None


def _typed(kind: pa.DataType, cells: list[Any]) -> pa.Array[Any]:
    """JSON has no dates, decimals or bytes: there they are texts, which Arrow can parse, or numbers."""
    try:
        return pa.array(cells, kind)
    except _REFUSALS:
        kinds = _kinds(cells)
        if kinds == {str} or (pat.is_decimal(kind) and kinds <= {int, float}):
            read: pa.Array[Any] = pa.array(cells).cast(kind)
            return read
        raise


def _inferred(cells: list[Any]) -> pa.Array[Any]:
    if not _is_one_type(cells):
        raise ValueError(f"{reprlib.repr(cells[-1])} is of another type than the values before it")
    column: pa.Array[Any] = pa.array(cells)
    return column


def _is_one_type(cells: list[Any]) -> bool:
    """Whether these are of one type in JSON, where 1 and 1.5 are both numbers. Arrow alone would accept `true` as 1.0
    among numbers, and a text as bytes."""
    kinds = _kinds(cells)
    if kinds == {list}:
        return _is_one_type(list(chain.from_iterable(filter(None, cells))))
    if kinds == {dict}:
        objects = list(filter(None, cells))
        return all(_is_one_type([each.get(name) for each in objects]) for name in set().union(*objects))
    return len(kinds) <= 1 or kinds == {int, float}


def _kinds(cells: list[Any]) -> set[type]:
    return set(map(type, cells)) - {type(None)}
