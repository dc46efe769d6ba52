"""Goal: JSON values become Arrow columns of which every value is what it was, or an error names the first that is not.

Method: values that mix types in every way; drawn JSON is compared with what comes back.
"""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metatxn.columns import Misfit, messages_table
from metatxn.frames import decode_rows
from metatxn.wire.errors import SchemaMismatch
from metatxn.wire.frames import Frame, PayloadKind
from metatxn.wire.position import Position

SCALARS = st.none() | st.booleans() | st.integers(-(2**65), 2**65) | st.floats(allow_nan=False) | st.text(max_size=3)
JSON = st.recursive(
    SCALARS | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=4,
)


def is_same(sent: Any, found: Any) -> bool:
    """But for members that other objects have: they are null."""
    if isinstance(sent, dict) and isinstance(found, dict):
        return all(is_same(sent.get(name), found.get(name)) for name in {*sent, *found})
    if isinstance(sent, list) and isinstance(found, list):
        return len(sent) == len(found) and all(map(is_same, sent, found))
    numbers = {type(sent), type(found)} == {int, float}
    return bool(sent == found) and (type(sent) is type(found) or numbers)


@settings(max_examples=100, deadline=None)
@given(values=st.lists(JSON, max_size=6))
def test_every_value_is_what_it_was_or_one_that_cannot_be_is_named(values: list[Any]) -> None:
    objects = all(isinstance(value, dict) for value in values)
    rows = values if objects else [{"value": value} for value in values]
    found = refused = None
    try:
        found = messages_table(values, None)
    except Misfit as misfit:
        refused = misfit
    if found is not None:
        assert all(map(is_same, rows, found.to_pylist()))
    if refused is not None:
        cells = [{refused.column: row.get(refused.column)} for row in rows]
        messages_table(cells[: refused.index], None)
        assert refused_at(cells) == (refused.index, refused.column)


def refused_at(values: list[Any], schema: pa.Schema | None = None) -> tuple[int | None, str]:
    with pytest.raises(Misfit) as raised:
        messages_table(values, schema)
    return raised.value.index, raised.value.column


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([{"a": 1}, {"a": "x"}], "column a: 'x' is of another type than the values before it"),
        ([{"a": None}, {"a": 1.5}, {"a": True}], "column a: True is of another type than the values before it"),
        ([1, {"a": 1}], "column value: {'a': 1} is of another type than the values before it"),
        ([{"a": [1.5]}, {"a": [True]}], r"column a: [True] is of another type than the values before it"),
        ([{"a": {"b": 1}}, {"a": {"b": "x"}}], "column a: {'b': 'x'} is of another type than the values before it"),
        ([b"x", "y"], "column value: 'y' is of another type than the values before it"),
        ([{"a": 2**53 + 1}, {"a": 0.5}], "column a: Integer value 9007199254740993 is outside of the range exactly"),
    ],
)
def test_a_mixed_column_names_the_first_that_differs(values: list[Any], problem: str) -> None:
    with pytest.raises(Misfit) as raised:
        messages_table(values, None)
    assert raised.value.index == len(values) - 1
    assert str(raised.value).startswith(problem)


def test_a_number_that_no_column_holds_is_named() -> None:
    assert refused_at([{"a": 1}, {"a": 2**70}, {"a": 3}]) == (1, "a")


FIELDS: list[pa.Field[Any]] = [
    pa.field("at", pa.timestamp("us")),
    pa.field("raw", pa.binary()),
    pa.field("money", pa.decimal128(9, 2)),
    pa.field("name", pa.string()),
]


def test_texts_become_what_the_column_holds() -> None:
    """JSON has no timestamps, decimals or bytes: they are text in a message, and read as the column's type."""
    sent = [{"at": "2026-01-01T00:00:00", "raw": "x", "money": "1.50"}, {"money": 1.25}, {}]
    table = messages_table(sent[:1] + sent[2:], pa.schema(FIELDS))
    assert table.to_pylist()[0] == {
        "at": datetime.datetime(2026, 1, 1),  # noqa: DTZ001
        "raw": b"x",
        "money": decimal.Decimal("1.50"),
        "name": None,
    }
    assert messages_table(sent[1:], pa.schema(FIELDS))["money"].to_pylist() == [decimal.Decimal("1.25"), None]


@pytest.mark.parametrize(
    ("value", "column"),
    [
        ({"at": "yesterday"}, "at"),
        ({"name": 7}, "name"),
        ({"name": [1]}, "name"),
        ({"money": True}, "money"),
        (5, "value"),
    ],
)
def test_what_does_not_fit_the_schema_is_named(value: object, column: str) -> None:
    assert refused_at([{"name": "x"}, value, {column: "neither"}], pa.schema(FIELDS)) == (1, column)


def test_a_value_that_is_no_object_is_in_the_column_value() -> None:
    assert messages_table([1, {"value": 2}], pa.schema([("value", pa.int64())]))["value"].to_pylist() == [1, 2]


# -- tables ------------------------------------------------------------------------------------------------------


def entry_of(table: pa.Table) -> Frame:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return Frame(sink.getvalue().to_pybytes(), PayloadKind.ARROW, table.num_rows, position=Position(1, 7), publish_ms=0)


@pytest.mark.timeout(60)
def test_ten_thousand_columns() -> None:
    """An eighth of a second each; what looks at all names for each of them needs minutes."""
    names = [f"c{number}" for number in range(10_000)]
    later = pa.schema([(name, pa.int32()) for name in [*names, "later"]])
    found = decode_rows(entry_of(pa.table({name: [1] for name in names})), later)
    assert found.table.schema == later and found.table["later"].to_pylist() == [None]
    assert messages_table([dict.fromkeys(names, 1)], later).equals(found.table)
    assert messages_table([dict.fromkeys(names, 1)], None).num_columns == len(names)


@pytest.mark.parametrize(
    ("column", "field", "problem"),
    [
        ([1, 2], pa.field("a", pa.date32()), "Unsupported cast"),
        (["1", "x"], pa.field("a", pa.int64()), "Failed to parse string: 'x'"),
        ([1, None], pa.field("a", pa.int64(), nullable=False), "it is missing, or contains nulls"),
        ([1, 2], pa.field("b", pa.int64(), nullable=False), "it is missing, or contains nulls"),
    ],
)
def test_a_table_that_does_not_fit_is_named(column: list[Any], field: pa.Field[Any], problem: str) -> None:
    with pytest.raises(SchemaMismatch) as raised:
        decode_rows(entry_of(pa.table({"a": column})), pa.schema([field]), segment="segment://t")
    assert str(raised.value).startswith(f"a table at 1:7 of segment://t does not fit: column {field.name}: {problem}")
    assert raised.value.members["position"] == "1:7"
