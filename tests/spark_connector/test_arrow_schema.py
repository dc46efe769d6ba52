"""Goal: the schema that the first write gives a topic equals that of every later write. Method: Spark's own schemas."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
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
    arrow_schema.check_fits(given, "t", topic)
    batch = pa.RecordBatch.from_pylist([{"b": "x", "a": 1}], schema=given)
    assert arrow_schema.conform(batch, topic).to_pylist() == [{"a": 1, "b": "x"}]


def test_a_schema_that_does_not_fit_names_every_column() -> None:
    topic = of(pa.field("a", pa.int64()), pa.field("b", pa.string()))
    given = of(pa.field("a", pa.float64()), pa.field("c", pa.string()))
    with pytest.raises(metatxn.SchemaMismatch) as raised:
        arrow_schema.check_fits(given, "orders", topic)
    assert str(raised.value) == (
        "the DataFrame does not fit topic orders: column b is missing; column a is double, the topic has int64"
    )


def test_further_columns_come_behind_those_of_the_topic() -> None:
    topic = of(pa.field("a", pa.int64()), pa.field("b", pa.string()))
    given = of(pa.field("new", pa.large_string(), nullable=False), *reversed(list(topic)))
    arrow_schema.check_fits(given, "orders", topic)
    assert arrow_schema.with_added(topic, given) == of(*topic, pa.field("new", pa.string()))


def test_double_and_long_stay_apart() -> None:
    assert arrow_schema.of_dataframe(StructType([StructField("d", DoubleType())])) != arrow_schema.of_dataframe(
        StructType([StructField("d", LongType())])
    )
