"""Goal: the schema that the first write gives a topic equals that of every later write. Method: Spark's own schemas."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

import metatxn
from spark_connector import arrow_schema
from spark_connector.options import read_options
from spark_connector.segment_rows import wanted_columns
from spark_connector.topics import Topic


def dataframe(nullable: bool) -> StructType:
    element = StructType([StructField("x", StringType(), nullable)])
    types: list[tuple[str, DataType]] = [
        ("long", LongType()),
        ("text", StringType()),
        ("at", TimestampType()),
        ("local", TimestampNTZType()),
        ("list", ArrayType(element, nullable)),
        ("map", MapType(StringType(), ArrayType(IntegerType(), nullable), nullable)),
        ("bytes", BinaryType()),
        ("money", DecimalType(20, 4)),
        ("day", DateType()),
        ("span", DayTimeIntervalType()),
    ]
    return StructType([StructField(name, kind, nullable, {"comment": "x"}) for name, kind in types])


ROW: dict[str, Any] = {
    "long": 1,
    "text": "a",
    "at": dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC),
    "local": dt.datetime(2026, 1, 2, 3, 4, 5, 6),  # noqa: DTZ001  # a local time has no zone
    "list": [{"x": "b"}],
    "map": [("k", [1, 2])],
    "bytes": b"\x00",
    "money": Decimal("1.5000"),
    "day": dt.date(2026, 1, 2),
    "span": dt.timedelta(seconds=1),
}


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize("zone", ["Etc/UTC", "Europe/Berlin"])
@pytest.mark.parametrize("large", [True, False])
def test_one_schema_whatever_spark_hands_over(nullable: bool, zone: str, large: bool) -> None:
    handed = to_arrow_schema(dataframe(nullable), timezone=zone, prefers_large_types=large)
    canonical = arrow_schema.of_dataframe(dataframe(True))
    assert arrow_schema.canonical(handed).equals(canonical, check_metadata=True)

    batch = pa.RecordBatch.from_pylist([ROW], schema=handed)
    conformed = arrow_schema.conform(batch, canonical)
    assert conformed.schema.equals(canonical, check_metadata=True)
    assert conformed.to_pylist() == [ROW]
    conformed.validate(full=True)


def test_canonical_twice_changes_nothing() -> None:
    once = arrow_schema.of_dataframe(dataframe(True))
    assert arrow_schema.canonical(once).equals(once, check_metadata=True)


def test_the_way_back_to_spark() -> None:
    spark = arrow_schema.to_spark(arrow_schema.of_dataframe(dataframe(True)))
    assert spark.simpleString() == dataframe(True).simpleString()


def test_a_variant_keeps_the_mark_that_spark_knows_it_by() -> None:
    schema = StructType([StructField("v", VariantType())])
    assert arrow_schema.to_spark(arrow_schema.of_dataframe(schema)) == schema


def test_dictionaries_are_unpacked() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["a", "b", "a"]).dictionary_encode()], names=["x"])
    canonical = arrow_schema.canonical(batch.schema)
    assert canonical == pa.schema([("x", pa.string())])
    assert arrow_schema.conform(batch, canonical).column(0).to_pylist() == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("found", "wider"),
    [
        (pa.uint32(), "bigint"),
        (pa.uint64(), "decimal(20,0)"),
        (pa.timestamp("ns", tz="UTC"), "timestamp"),
        (pa.timestamp("ms"), "timestamp_ntz"),
        (pa.float16(), "float"),
        (pa.list_(pa.uint8()), "array<smallint>"),
        (pa.struct([("a", pa.date64())]), "struct<a:date>"),
        (pa.map_(pa.string(), pa.uint16()), "map<string,int>"),
    ],
)
def test_types_that_spark_lacks_are_widened(found: pa.DataType, wider: str) -> None:
    schema = of(pa.field("c", found))
    spark = arrow_schema.to_spark(schema)
    assert spark["c"].dataType.simpleString() == wider
    empty = pa.RecordBatch.from_pylist([{"c": None}], schema=schema)
    arrow_schema.conform(empty, arrow_schema.expected_by_spark(spark))


def of(*fields: pa.Field[Any]) -> pa.Schema:
    return pa.schema(fields)


def test_columns_are_matched_by_name_not_by_place() -> None:
    topic = of(pa.field("a", pa.int64()), pa.field("b", pa.large_string()))
    given = of(pa.field("b", pa.string(), nullable=False), pa.field("a", pa.int64()))
    arrow_schema.check_dataframe_fits(given, "t", topic)
    batch = pa.RecordBatch.from_pylist([{"b": "x", "a": 1}], schema=given)
    assert arrow_schema.conform(batch, topic).to_pylist() == [{"a": 1, "b": "x"}]


def test_a_schema_that_does_not_fit_names_every_column() -> None:
    topic = of(pa.field("a", pa.int64()), pa.field("b", pa.string()))
    given = of(pa.field("a", pa.float64()), pa.field("c", pa.string()))
    with pytest.raises(metatxn.SchemaMismatch) as raised:
        arrow_schema.check_dataframe_fits(given, "orders", topic)
    assert str(raised.value) == (
        "the DataFrame does not fit topic orders: column b is missing; column a is double, the topic has int64"
    )


def test_further_columns_come_behind_those_of_the_topic() -> None:
    topic = of(pa.field("a", pa.int64()), pa.field("b", pa.string()))
    given = of(pa.field("new", pa.large_string(), nullable=False), *reversed(list(topic)))
    arrow_schema.check_dataframe_fits(given, "orders", topic)
    assert arrow_schema.with_added(topic, given) == of(*topic, pa.field("new", pa.string()))


# -- nothing is changed or dropped in silence ----------------------------------------------------------------------

UNITS = st.sampled_from(["s", "ms", "us", "ns"])
LEAVES = st.one_of(
    st.sampled_from([pa.int8(), pa.uint16(), pa.uint64(), pa.float16(), pa.bool_(), pa.string(), pa.large_binary()]),
    st.sampled_from([pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("us"), pa.string_view(), pa.binary(2)]),
    st.builds(pa.timestamp, UNITS, st.sampled_from([None, "UTC", "Europe/Berlin"])),
    st.builds(pa.duration, UNITS),
    st.builds(pa.decimal128, st.integers(1, 38), st.just(1)),
    st.sampled_from([pa.decimal256(50, 2), pa.month_day_nano_interval(), pa.dictionary(pa.int8(), pa.string())]),
)
TYPES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.builds(pa.list_, inner),
        st.builds(pa.large_list, inner),
        st.builds(lambda kind: pa.struct([("x", kind)]), inner),
        st.builds(lambda kind: pa.map_(pa.string(), kind), inner),
    ),
    max_leaves=2,
)
NUMBERS = st.one_of(st.integers(-3, 3), st.sampled_from([86_400_000, 1_001_000, 2**53, -(2**40)]))


def cell(kind: pa.DataType, number: int) -> Any:
    """A value of this type, as Python has it: its smallest unit counts."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [cell(kind.value_type, number)]
    if pa.types.is_struct(kind):
        return {"x": cell(kind.field(0).type, number)}
    if pa.types.is_map(kind):
        return [("k", cell(kind.item_type, number))]
    try:
        return pa.scalar(number, pa.int64()).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


@settings(max_examples=150, deadline=None)
@given(kind=TYPES, number=NUMBERS)
def test_spark_is_given_what_is_in_a_topic_or_an_error_that_names_the_column(kind: pa.DataType, number: int) -> None:
    schema = of(pa.field("c", kind))
    batch = pa.RecordBatch.from_arrays([pa.array([cell(kind, number), None], kind)], schema=schema)
    found = refused = None
    try:
        found = arrow_schema.conform(batch, arrow_schema.expected_by_spark(arrow_schema.to_spark(schema)))
    except metatxn.SchemaMismatch as error:
        refused = error
    if found is not None:
        assert found.column("c").cast(kind).equals(batch.column("c"))
    if refused is not None:
        assert refused.members["columns"] == ["c"] and "column c" in refused.detail


@pytest.mark.parametrize("kind", [pa.timestamp("ns"), pa.timestamp("ns", "UTC"), pa.duration("ns")])
def test_nanoseconds_are_read_as_numbers(kind: pa.DataType) -> None:
    schema = of(pa.field("at", kind))
    batch = pa.RecordBatch.from_arrays([pa.array([1_000_000_001, None], kind)], schema=schema)
    with pytest.raises(metatxn.SchemaMismatch, match=r"column at of type .*\[ns.* has a value that .*\[us") as raised:
        arrow_schema.conform(batch, arrow_schema.expected_by_spark(arrow_schema.to_spark(schema)))
    assert "Read it as a number" in raised.value.action
    wanted = StructType([StructField("at", LongType())])
    topic = Topic("t", schema, ())
    options = read_options({"url": "http://127.0.0.1:1", "subscribe": "t"}, None)
    assert wanted_columns(wanted, topic, options) == schema
    assert arrow_schema.conform(batch, arrow_schema.expected_by_spark(wanted))["at"].to_pylist() == [
        1_000_000_001,
        None,
    ]
    with pytest.raises(metatxn.SchemaMismatch, match="column at is read as string, the topic has"):
        wanted_columns(StructType([StructField("at", StringType())]), topic, options)


def test_a_column_that_spark_cannot_read_is_no_obstacle_to_the_others() -> None:
    topic = Topic("t", of(pa.field("a", pa.month_day_nano_interval()), pa.field("b", pa.decimal256(50, 2))), ())
    topic = Topic("t", topic.declared.append(pa.field("c", pa.int64())), ())
    options = read_options({"url": "http://127.0.0.1:1", "subscribe": "t"}, None)
    with pytest.raises(
        metatxn.SchemaMismatch, match="column a of type month_day_nano_interval cannot be read by Spark"
    ):
        arrow_schema.to_spark(topic.declared)
    with pytest.raises(metatxn.SchemaMismatch, match="column b of type decimal256"):
        wanted_columns(StructType([StructField("b", StringType())]), topic, options)
    assert wanted_columns(StructType([StructField("c", LongType())]), topic, options).names == ["c"]


@pytest.mark.parametrize(
    "kind",
    [
        StringType("UNICODE_CI"),
        ArrayType(StringType("UNICODE_CI")),
        MapType(StringType("UNICODE_CI"), LongType()),
        MapType(LongType(), StringType("UNICODE_CI")),
        StructType([StructField("x", StringType("UNICODE_CI"))]),
    ],
)
def test_a_collation_is_not_dropped_in_silence(kind: DataType) -> None:
    """Who reads may give one: it says how Spark compares, and nothing of what is in the topic."""
    schema = StructType([StructField("id", LongType()), StructField("name", kind)])
    with pytest.raises(
        metatxn.SchemaMismatch, match="column name has the collation UNICODE_CI, and a topic cannot store it"
    ):
        arrow_schema.to_send(schema)
    topic = Topic("t", arrow_schema.of_dataframe(schema), ())
    options = read_options({"url": "http://127.0.0.1:1", "subscribe": "t"}, None)
    assert wanted_columns(schema, topic, options) == topic.declared


@pytest.mark.timeout(60)
def test_twenty_thousand_columns_are_compared_at_once() -> None:
    """A fifth of a second; comparing each name with all of the others takes minutes."""
    topic = of(*[pa.field(f"c{number}", pa.int64()) for number in range(20_000)])
    given = of(pa.field("new", pa.int64()), *topic)
    arrow_schema.check_dataframe_fits(given, "orders", topic)
    assert len(arrow_schema.with_added(topic, given)) == 20_001


def test_double_and_long_stay_apart() -> None:
    assert arrow_schema.of_dataframe(StructType([StructField("d", DoubleType())])) != arrow_schema.of_dataframe(
        StructType([StructField("d", LongType())])
    )
