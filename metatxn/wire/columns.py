"""JSON values as Arrow columns: a column has one type, and no value is converted to fit another type.

What a broker accepts for a topic with a schema is what a reader can put into its columns, so both use this.
"""

from __future__ import annotations

import decimal
import reprlib
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from metatxn.wire.shapes import Shape, arrow_type, extended

VALUE_COLUMN = "value"
"""The only column of a topic without a schema whose messages are not JSON objects."""
_Rows = Sequence[dict[str, Any]]
_REFUSALS = (pa.ArrowException, TypeError, ValueError, OverflowError, ArithmeticError)


class Misfit(Exception):
    """A value does not fit its column. `index` is that of its message or, in a table, of its row."""

    def __init__(self, column: str, reason: object, index: int) -> None:
        super().__init__(f"column {column}: {reason}")
        self.column = column
        self.index = index


def messages_table(values: Sequence[Any], schema: pa.Schema | None) -> pa.Table:
    """A row for each value. The members of JSON objects are columns, in the order in which they first appear, or as
    `schema` defines them; null is a row of nulls. A value that is not an object is in the column `value`: without a
    schema all of them are if the first one is.

    Raises `Misfit` for the first value that does not fit the schema or the values before it.
    """
    table, misfits = table_with_nulls(values, schema)
    if misfits:
        raise misfits[0]
    return table


def table_with_nulls(
    values: Sequence[Any], schema: pa.Schema | None, *, skip: bool = False
) -> tuple[pa.Table, list[Misfit]]:
    """Like `messages_table`, but what does not fit is null, and given in the order of the messages. With `skip` the
    caller leaves out the whole message, so without a schema it says nothing about the types of the others."""
    if schema is None:
        return _free_table(values, skip=skip)
    misfits: list[Misfit] = []
    rows = [_row(value, index, schema, misfits) for index, value in enumerate(values)]
    columns = [_column(field, rows, misfits) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema), sorted(misfits, key=lambda each: each.index)


def first_misfit(values: Sequence[Any], schema: pa.Schema) -> Misfit | None:
    """Why these may not be written to a topic with this schema, or None. A member of an object that is not a column is
    a misfit here; readers ignore it, because the column may have been removed since."""
    names = set(schema.names)
    for index, value in enumerate(values):
        if isinstance(value, dict) and not value.keys() <= names:
            unknown = next(name for name in value if name not in names)
            return Misfit(unknown, f"the topic does not have it; its columns are {', '.join(schema.names)}", index)
    misfits: list[Misfit] = []
    rows = [_row(value, index, schema, misfits) for index, value in enumerate(values)]
    found = (_first_refused(field, [row.get(field.name) for row in rows]) for field in schema)
    return next(chain(misfits, filter(None, found)), None)


# -- with a schema ---------------------------------------------------------------------------------------------


def _row(value: Any, index: int, schema: pa.Schema, misfits: list[Misfit]) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    if value is None:
        return {}
    if VALUE_COLUMN in schema.names:
        return {VALUE_COLUMN: value}
    reason = f"the topic does not have it, and {reprlib.repr(value)} is not an object"
    misfits.append(Misfit(VALUE_COLUMN, reason, index))
    return {}


def _column(field: pa.Field[Any], rows: _Rows, misfits: list[Misfit]) -> pa.Array[Any]:
    cells = [row.get(field.name) for row in rows]
    try:
        return typed(field.type, cells)
    except _REFUSALS:
        pass
    for index, cell in enumerate(cells):
        if (refusal := _refusal([cell], field.type)) is not None:
            misfits.append(Misfit(field.name, refusal, index))
            cells[index] = None
    return typed(field.type, cells)


def _first_refused(field: pa.Field[Any], cells: list[Any]) -> Misfit | None:
    """The first misfit, found by halving: an entry may have many messages, and a broker does nothing else meanwhile."""
    if (refusal := _refusal(cells, field.type)) is None:
        return None
    first = 0
    while len(cells) > 1:
        half = len(cells) // 2
        if (found := _refusal(cells[:half], field.type)) is not None:
            cells, refusal = cells[:half], found
        else:
            first, cells = first + half, cells[half:]
            refusal = _refusal(cells, field.type) or refusal
    return Misfit(field.name, refusal, first)


def _refusal(cells: list[Any], kind: pa.DataType) -> Exception | None:
    try:
        typed(kind, cells)
    except _REFUSALS as error:
        return error
    return None


def typed(kind: pa.DataType, cells: list[Any]) -> pa.Array[Any]:
    """A column of this type. JSON has no dates, decimals or bytes: there they are texts or numbers. Raises one of
    several errors if a value would become another one."""
    _assert_json_of(kind, cells)
    if pat.is_decimal(kind):
        return pa.array([_exact(cell) for cell in cells], kind)
    if pat.is_temporal(kind) and str in _kinds(cells):
        texts: pa.Array[Any] = pa.array([cell if isinstance(cell, str) else None for cell in cells], pa.string())
        numbers = pa.array([None if isinstance(cell, str) else cell for cell in cells], kind)
        return pc.coalesce(texts.cast(kind), numbers)
    return pa.array(cells, kind)


def _exact(cell: Any) -> Any:
    """A decimal number as its digits say it. Raises `ArithmeticError`."""
    return decimal.Decimal(repr(cell) if isinstance(cell, float) else cell) if isinstance(cell, float | str) else cell


def _assert_json_of(kind: pa.DataType, cells: Sequence[Any]) -> None:
    """Raises `ValueError` for a value that Arrow would take for one of this type, although it is not: 1.5 for 1, `true`
    for 1.0, bytes for a text, and an object without some of its members."""
    wanted, found = _json_types(kind), _kinds(cells)
    if wanted is None:
        return
    if not found <= wanted:
        other = next(cell for cell in cells if cell is not None and type(cell) not in wanted)
        raise ValueError(f"{reprlib.repr(other)} is not of type {kind}")
    if float in found and not (pat.is_floating(kind) or pat.is_decimal(kind)):
        broken = next((cell for cell in cells if isinstance(cell, float) and not cell.is_integer()), None)
        if broken is not None:
            raise ValueError(f"{broken!r} is not of type {kind}")
    _assert_json_inside(kind, [cell for cell in cells if cell is not None])


def _assert_json_inside(kind: Any, cells: Sequence[Any]) -> None:
    if _is_list(kind):
        _assert_json_of(kind.value_type, list(chain.from_iterable(cells)))
    elif pat.is_map(kind):
        _assert_json_of(kind.item_type, [item for cell in cells for item in cell.values()])
    elif pat.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        unknown = set().union(*cells) - {field.name for field in fields}
        if unknown:
            raise ValueError(f"{min(unknown)} is not a member of {kind}")
        for field in fields:
            _assert_json_of(field.type, [cell.get(field.name) for cell in cells])
    elif pat.is_dictionary(kind):
        _assert_json_of(kind.value_type, cells)


def _json_types(kind: pa.DataType) -> set[type] | None:
    """The types of Python in which JSON gives such a value, or None for whatever Arrow accepts."""
    tests: tuple[tuple[Callable[[pa.DataType], bool], set[type]], ...] = (
        (pat.is_null, set()),
        (pat.is_boolean, {bool}),
        (pat.is_integer, {int, float}),
        (pat.is_floating, {int, float}),
        (pat.is_decimal, {int, float, str}),
        (pat.is_temporal, {int, float, str}),
        (_is_text, {str}),
        (_is_bytes, {str, bytes}),
        (_is_list, {list}),
        (pat.is_map, {dict}),
        (pat.is_struct, {dict}),
    )
    return next((types for is_one, types in tests if is_one(kind)), None)


def _is_text(kind: pa.DataType) -> bool:
    return pat.is_string(kind) or pat.is_large_string(kind) or pat.is_string_view(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return (
        pat.is_binary(kind) or pat.is_large_binary(kind) or pat.is_binary_view(kind) or pat.is_fixed_size_binary(kind)
    )


def _is_list(kind: pa.DataType) -> bool:
    return pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind)


# -- tables ----------------------------------------------------------------------------------------------------


def fitted(table: pa.Table, schema: pa.Schema) -> tuple[pa.Table, list[Misfit]]:
    """The rows of a table in the columns of a schema, with nulls for what does not fit, and what does not. Columns that
    the topic got later are null, and those that it has lost are left out."""
    written = dict(zip(table.column_names, table.columns, strict=True))
    misfits: list[Misfit] = []
    columns = [_cast_column(written.get(field.name), field, table.num_rows, misfits) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema), sorted(misfits, key=lambda each: each.index)


def _cast_column(
    column: pa.ChunkedArray[Any] | None, field: pa.Field[Any], rows: int, misfits: list[Misfit]
) -> pa.ChunkedArray[Any]:
    if column is None:
        column = pa.chunked_array([pa.nulls(rows)])
    if not field.nullable:
        misfits += [Misfit(field.name, "it is missing, or null", index) for index in _indexes(column.is_null())]
    cast, refused = _cast(column, field.type, 0)
    misfits += [Misfit(field.name, error, index) for index, error in refused]
    return cast


def _cast(
    column: pa.ChunkedArray[Any], kind: Any, before: int
) -> tuple[pa.ChunkedArray[Any], list[tuple[int, Exception]]]:
    """The column with nulls for what cannot be cast, and the indexes of that. One half after the other, because few
    values are refused as a rule; `before` is the number of values before this part."""
    try:
        return column.cast(kind), []
    except pa.ArrowNotImplementedError as error:
        nulls = pa.chunked_array([pa.nulls(len(column), kind)])
        return nulls, [(before + index, error) for index in _indexes(column.is_valid())]
    except pa.ArrowException as error:
        if len(column) == 1:
            return pa.chunked_array([pa.nulls(1, kind)]), [(before, error)]
    half = len(column) // 2
    first, second = _cast(column[:half], kind, before), _cast(column[half:], kind, before + half)
    return pa.chunked_array([*first[0].chunks, *second[0].chunks], kind), [*first[1], *second[1]]


def _indexes(mask: pa.ChunkedArray[Any]) -> list[int]:
    return [index for index, chosen in enumerate(mask.to_pylist()) if chosen]


# -- without a schema ------------------------------------------------------------------------------------------


def _free_table(values: Sequence[Any], *, skip: bool) -> tuple[pa.Table, list[Misfit]]:
    kinds = _kinds(values)
    if kinds == {dict}:
        rows: _Rows = [value or {} for value in values]
    elif dict not in kinds:
        rows = [{VALUE_COLUMN: value} for value in values]
    else:
        return _mixed_table(values, skip=skip)
    names = dict.fromkeys(name for row in rows for name in row)
    try:
        columns = {name: _free_column([row.get(name) for row in rows]) for name in names}
    except _REFUSALS:
        return _mixed_table(values, skip=skip)
    return _table(columns, len(rows)), []


def _table(columns: dict[str, pa.Array[Any]], rows: int) -> pa.Table:
    return pa.table(columns) if columns else pa.table({"": pa.nulls(rows)}).select([])


def _free_column(cells: list[Any]) -> pa.Array[Any]:
    if not _is_one_type(cells):
        raise ValueError("these are of several types")
    column: pa.Array[Any] = pa.array(cells)
    return column


def _mixed_table(values: Sequence[Any], *, skip: bool) -> tuple[pa.Table, list[Misfit]]:
    """The table, built message by message, because a message that is left out must not decide the type of a column."""
    shapes: dict[str, Shape] = {}
    objects: bool | None = None
    misfits: list[Misfit] = []
    kept: list[dict[str, Any]] = []
    for index, value in enumerate(values):
        row, found, fitting = _fitting(value, objects, shapes, index)
        misfits += found
        if found and skip:
            kept.append({})
            continue
        if value is not None and objects is None:
            objects = isinstance(value, dict)
        shapes |= fitting
        kept.append({name: row[name] for name in fitting})
    if objects is None:  # only nulls are left, which are in one column, as in `_free_table`
        shapes[VALUE_COLUMN] = extended(None, None)
    columns = {name: typed(arrow_type(shape), [row.get(name) for row in kept]) for name, shape in shapes.items()}
    return _table(columns, len(kept)), misfits


def _fitting(
    value: Any, objects: bool | None, shapes: dict[str, Shape], index: int
) -> tuple[dict[str, Any], list[Misfit], dict[str, Shape]]:
    """The row, what in it does not fit the earlier messages, and the shapes of the columns with the rest of it."""
    row = value if isinstance(value, dict) and objects is not False else {VALUE_COLUMN: value}
    if value is None and objects is not False:
        return {}, [], {}
    if objects and not isinstance(value, dict):
        reason = f"{reprlib.repr(value)} is not an object, as the messages before it are"
        return {}, [Misfit(VALUE_COLUMN, reason, index)], {}
    misfits: list[Misfit] = []
    fitting: dict[str, Shape] = {}
    for name, cell in row.items():
        try:
            fitting[name] = extended(shapes.get(name), cell)
        except ValueError as misfit:
            misfits.append(Misfit(name, misfit, index))
    return row, misfits, fitting


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


def _kinds(cells: Sequence[Any]) -> set[type]:
    return set(map(type, cells)) - {type(None)}
