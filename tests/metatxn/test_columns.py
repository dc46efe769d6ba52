"""Goal: JSON values become Arrow columns of which every value is what it was, or an error names the first that is not.

Method: values that mix types in every way; drawn JSON is compared with what comes back.
"""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from metatxn.frames import decode_rows, decode_with_nulls
from metatxn.wire.columns import Misfit, first_misfit, messages_table, table_with_nulls
from metatxn.wire.errors import SchemaMismatch
from metatxn.wire.frames import Frame, PayloadKind
from metatxn.wire.position import Position
from metatxn.wire.rows import plain_values

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
    table, misfits = table_with_nulls(values, None)
    assert table.num_rows == len(values)
    objects = isinstance(next((value for value in values if value is not None), None), dict)
    for index, (value, found) in enumerate(zip(values, table.to_pylist(), strict=True)):
        unfit = {misfit.column for misfit in misfits if misfit.index == index}
        row = (value or {}) if objects else {"value": value}
        expected = {} if unfit and not isinstance(row, dict) else {**row, **dict.fromkeys(unfit)}
        assert is_same(expected, found)
    if misfits:
        assert refused_at(values) == (misfits[0].index, misfits[0].column)
        messages_table(values[: misfits[0].index], None)


@settings(max_examples=100, deadline=None)
@given(values=st.lists(JSON, max_size=6))
@example(values=[None, [False, 0]])
def test_a_message_that_is_left_out_says_nothing_about_the_others(values: list[Any]) -> None:
    table, misfits = table_with_nulls(values, None, skip=True)
    unfit = {misfit.index for misfit in misfits}
    left = [value for index, value in enumerate(values) if index not in unfit]
    rows = [row for index, row in enumerate(table.to_pylist()) if index not in unfit]
    assert messages_table(left, None).to_pylist() == rows


def refused_at(values: list[Any], schema: pa.Schema | None = None) -> tuple[int, str]:
    with pytest.raises(Misfit) as raised:
        messages_table(values, schema)
    return raised.value.index, raised.value.column


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ([{"a": 1}, {"a": "x"}], "column a: 'x' is of another type than the values before it"),
        ([{"a": None}, {"a": 1.5}, {"a": True}], "column a: True is of another type than the values before it"),
        ([1, {"a": 1}], "column value: {'a': 1} is of another type than the values before it"),
        ([{"a": [1.5]}, {"a": [True]}], "column a: True is of another type than the values before it"),
        ([{"a": {"b": 1}}, {"a": {"b": "x"}}], "column a: 'x' is of another type than the values before it"),
        ([b"x", "y"], "column value: 'y' is of another type than the values before it"),
        ([{"a": 2**53 + 1}, {"a": 0.5}], "column a: 0.5: integers above 2^53 and other numbers do not fit"),
        ([{"a": 1}, None, 5], "column value: 5 is not an object, as the messages before it are"),
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
        ({"money": 1.255}, "money"),
        (5, "value"),
    ],
)
def test_what_does_not_fit_the_schema_is_named(value: object, column: str) -> None:
    assert refused_at([{"name": "x"}, value, {column: [5]}], pa.schema(FIELDS)) == (1, column)


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        (1.5, pa.int64()),
        (True, pa.int8()),
        (300, pa.int8()),
        (True, pa.float64()),
        (2**53 + 1, pa.float64()),
        ("1", pa.int64()),
        (b"x", pa.string()),
        (1.5, pa.timestamp("us")),
        ([1.5], pa.list_(pa.int64())),
        ({"b": 1}, pa.struct([("a", pa.int64())])),
        ({"a": 1.5}, pa.struct([("a", pa.int64())])),
        ({"a": 1.5}, pa.map_(pa.string(), pa.int64())),
        (1, pa.null()),
    ],
)
def test_no_value_becomes_another_one(cell: object, kind: pa.DataType) -> None:
    """Arrow alone would take most of these: 1.5 for 1, true for 1.0, and an object without some of its members."""
    table, (misfit,) = table_with_nulls([{}, {"c": cell}, {}], pa.schema([pa.field("c", kind)]))
    assert (misfit.index, misfit.column) == (1, "c")
    assert table.to_pylist() == [{"c": None}] * 3


@pytest.mark.parametrize(
    ("cell", "kind", "found"),
    [
        (1.0, pa.int64(), 1),
        (1, pa.float64(), 1.0),
        ([1, None], pa.list_(pa.int64()), [1, None]),
        ({}, pa.struct([("a", pa.int64())]), {"a": None}),
        ({"a": 1}, pa.map_(pa.string(), pa.int64()), [("a", 1)]),
        ("x", pa.dictionary(pa.int32(), pa.string()), "x"),
        (86_400, pa.duration("s"), datetime.timedelta(days=1)),
    ],
)
def test_the_same_value_in_another_form(cell: object, kind: pa.DataType, found: object) -> None:
    table = messages_table([{"c": cell}, {}], pa.schema([pa.field("c", kind)]))
    assert table["c"].to_pylist() == [found, None]


SECONDS, FAR, TOLD = pa.timestamp("s"), 1 << 60, "<value out of range: 1152921504606846976>"
EPOCH = pa.scalar(0, SECONDS).as_py()


@pytest.mark.parametrize(
    ("kind", "values", "shown"),
    [
        (SECONDS, [FAR, 0], [TOLD, EPOCH]),
        (pa.duration("s"), [1 << 62, 1], ["4611686018427387904", datetime.timedelta(seconds=1)]),
        (pa.list_(SECONDS), [[FAR, None, 0], [0]], [[TOLD, None, EPOCH], [EPOCH]]),
        (pa.list_(SECONDS, 2), [[FAR, None], [0, 0]], [[TOLD, None], [EPOCH, EPOCH]]),
        (pa.list_(pa.list_(SECONDS)), [[[FAR], None], []], [[[TOLD], None], []]),
        (pa.map_(pa.string(), SECONDS), [[("a", FAR), ("b", None)], []], [[("a", TOLD), ("b", None)], []]),
        (
            pa.struct([("a", SECONDS), ("b", pa.list_(SECONDS)), ("c", pa.int8())]),
            [{"a": FAR, "b": [FAR], "c": None}, {"a": 0, "b": None, "c": 3}],
            [{"a": TOLD, "b": [TOLD], "c": None}, {"a": EPOCH, "b": None, "c": 3}],
        ),
    ],
    ids=str,
)
@pytest.mark.parametrize("chunks", [1, 2])
def test_only_the_value_that_python_has_no_value_for_is_shown_otherwise(
    kind: pa.DataType, values: list[object], shown: list[object], chunks: int
) -> None:
    """A reader of the others is told the same as without it, and null stays null."""
    column = pa.chunked_array([pa.array([None, *values], kind)] * chunks)
    assert plain_values(column) == [None, *shown] * chunks


def test_a_value_that_arrow_cannot_write_either_is_named_by_its_type() -> None:
    """An object with two members of one name has no place for the second one."""
    twice = pa.StructArray.from_arrays([pa.array([1, 2]), pa.array([3, 4])], ["a", "a"], mask=pa.array([False, True]))
    assert plain_values(twice) == ["struct<a: int64, a: int64>", None]


def test_null_is_a_row_of_nulls() -> None:
    """A message without a value deletes its key; it must not turn the columns of all others into one."""
    assert messages_table([{"a": 1}, None], None).to_pylist() == [{"a": 1}, {"a": None}]
    assert messages_table([None], pa.schema(FIELDS)).to_pylist() == [dict.fromkeys(("at", "raw", "money", "name"))]


def test_an_unknown_member_is_ignored_when_it_is_read_and_named_when_it_is_written() -> None:
    values = [{"name": "x"}, {"name": "y", "more": 1}]
    assert messages_table(values, pa.schema(FIELDS))["name"].to_pylist() == ["x", "y"]
    unknown = first_misfit(values, pa.schema(FIELDS))
    assert unknown is not None and (unknown.index, unknown.column) == (1, "more")
    assert first_misfit(values[:1], pa.schema(FIELDS)) is None


@settings(max_examples=100, deadline=None)
@given(cells=st.lists(st.none() | st.integers(-2, 2) | st.text(max_size=1), max_size=9))
def test_what_may_not_be_written_is_named_as_when_it_is_read(cells: list[Any]) -> None:
    values, schema = [{"c": cell} for cell in cells], pa.schema([("c", pa.int8())])
    written, (_, read) = first_misfit(values, schema), table_with_nulls(values, schema)
    assert [str(written), written.index] == [str(read[0]), read[0].index] if written else not read


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
    ("column", "field", "index", "problem"),
    [
        ([1, 2], pa.field("a", pa.date32()), 0, "Unsupported cast"),
        (["1", "x"], pa.field("a", pa.int64()), 1, "Failed to parse string: 'x'"),
        ([1, None], pa.field("a", pa.int64(), nullable=False), 1, "it is missing, or null"),
        ([1, 2], pa.field("b", pa.int64(), nullable=False), 0, "it is missing, or null"),
    ],
)
def test_a_table_that_does_not_fit_is_named(column: list[Any], field: pa.Field[Any], index: int, problem: str) -> None:
    with pytest.raises(SchemaMismatch) as raised:
        decode_rows(entry_of(pa.table({"a": column})), pa.schema([field]), segment="segment://t")
    what = f"message {index} at 1:7 of segment://t does not fit: column {field.name}: {problem}"
    assert str(raised.value).startswith(what)
    assert raised.value.members["position"] == "1:7"


def test_values_of_a_table_that_do_not_fit_are_null() -> None:
    """All that do not, and no other one, however they are distributed."""
    texts = [str(number) if number % 7 else "x" for number in range(100)]
    found = decode_with_nulls(entry_of(pa.table({"a": texts, "b": range(100)})), pa.schema([("a", pa.int64())]))
    assert found.table["a"].to_pylist() == [number if number % 7 else None for number in range(100)]
    assert [misfit.index for misfit in found.misfits] == list(range(0, 100, 7))
    nested = entry_of(pa.table({"a": [[1], None]}))
    assert [each.index for each in decode_with_nulls(nested, pa.schema([("a", pa.int64())])).misfits] == [0]
