"""One canonical Arrow schema per topic, whatever schema Spark passes.

Spark's Arrow schema of the same DataFrame differs between sessions and between micro-batches: the time zone of
timestamps is the session's, the optimizer determines which columns are nullable, field metadata is included, and
strings may be large by configuration. The canonical form has UTC timestamps, plain strings and binaries, no dictionary,
no metadata, and every column and every list element and map value nullable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.types as pat
from pyspark.errors import PySparkException
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

import metatxn
from spark_connector.spark_versions import from_arrow, to_arrow


def canonical(schema: pa.Schema) -> pa.Schema:
    return pa.schema([_nullable(field.name, field.type) for field in schema])


def of_dataframe(schema: StructType) -> pa.Schema:
    """The canonical schema of a DataFrame. Raises `SchemaMismatch` for a column that Arrow cannot represent, or whose
    type is not known yet (void)."""
    return pa.schema([_of_column(column) for column in schema])


def to_send(schema: StructType) -> pa.Schema:
    """Like `of_dataframe`, for rows that are written. Raises `SchemaMismatch` for a collation too: topics do not store
    one, so the column would compare differently when it is read back."""
    for column in schema:
        if (collation := next(_collations(column.dataType), None)) is not None:
            raise metatxn.SchemaMismatch(
                f"column {column.name} has the collation {collation}, and a topic cannot store it",
                action="Cast it to string, and give the collation in .schema() when reading.",
                columns=[column.name],
            )
    return of_dataframe(schema)


def _collations(kind: DataType) -> Iterator[str]:
    match kind:
        case StringType() if kind.collation != StringType().collation:
            yield kind.collation
        case ArrayType():
            yield from _collations(kind.elementType)
        case MapType():
            yield from _collations(kind.keyType)
            yield from _collations(kind.valueType)
        case StructType():
            for field in kind:
                yield from _collations(field.dataType)


def _of_column(column: StructField) -> pa.Field[Any]:
    try:
        field = to_arrow(StructType([column])).field(0)
        return _nullable(field.name, field.type)
    except (ValueError, PySparkException) as error:
        raise metatxn.SchemaMismatch(
            f"column {column.name} of type {column.dataType.simpleString()} cannot be sent: {error}",
            action="Cast it to another type.",
        ) from error


def to_spark(schema: pa.Schema) -> StructType:
    """The DataFrame schema of a topic. Types that Spark lacks are widened.

    Raises `SchemaMismatch` for a column whose type has no equivalent in Spark.
    """
    return StructType([_to_spark(field) for field in schema])


def _to_spark(field: pa.Field[Any]) -> StructField:
    try:
        (column,) = from_arrow(pa.schema([_nullable(field.name, _for_spark(field.type))]))
        to_arrow(StructType([column]))  # only here does Spark notice that a decimal has too many digits
    except (ValueError, PySparkException) as error:
        raise metatxn.SchemaMismatch(
            f"column {field.name} of type {field.type} cannot be read by Spark: {error}",
            action="Name the columns to read in .schema(), and leave this one out.",
            columns=[field.name],
        ) from error
    return column


def expected_by_spark(schema: StructType) -> pa.Schema:
    """The schema that `read()` must yield: Spark compares the first batch with exactly this one."""
    return to_arrow(schema)


def check_dataframe_fits(dataframe: pa.Schema, topic_name: str, topic: pa.Schema) -> None:
    """Raises `SchemaMismatch`, which names the columns, unless the DataFrame has all columns of the topic with their
    types. The order does not matter, and there may be further columns: see `with_added`."""
    given = {field.name: field.type for field in canonical(dataframe)}
    wanted = {field.name: field.type for field in canonical(topic)}
    problems = [f"column {name} is missing" for name in wanted if name not in given]
    problems += [
        f"column {name} is {kind}, the topic has {wanted[name]}"
        for name, kind in given.items()
        if name in wanted and kind != wanted[name]
    ]
    if problems:
        raise metatxn.SchemaMismatch(f"the DataFrame does not fit topic {topic_name}: {'; '.join(problems)}")


def with_added(topic: pa.Schema, dataframe: pa.Schema) -> pa.Schema:
    """The topic's columns, followed by those that only the DataFrame has: writing them adds them to the topic, and they
    are null in all rows that were written before."""
    known = set(topic.names)
    return pa.schema([*topic, *(field for field in canonical(dataframe) if field.name not in known)])


def conform(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The same rows with exactly `schema`; columns are matched by name.

    Raises `SchemaMismatch` for a value that its type in `schema` cannot hold, such as nanoseconds: nothing is rounded.
    """
    if batch.schema.equals(schema, check_metadata=True):
        return batch
    columns = [_cast(batch.column(field.name), field) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array[Any], field: pa.Field[Any]) -> pa.Array[Any]:
    if column.type.equals(field.type, check_metadata=True):
        return column
    try:
        cast: pa.Array[Any] = column.cast(field.type)
    except pa.ArrowException as error:
        raise metatxn.SchemaMismatch(
            f"column {field.name} of type {column.type} has a value that {field.type} cannot hold: {error}",
            action=_instead(field.name, column.type),
            columns=[field.name],
        ) from error
    return cast


def _instead(name: str, kind: pa.DataType) -> str:
    if counts_nanoseconds(kind):
        return f"Read it as a number: .schema('{name} long, …')."
    if pat.is_binary(kind):
        return f"Read it as bytes: .schema('{name} binary, …')."
    return "Name the columns to read in .schema(), and leave this one out."


def counts_nanoseconds(data_type: pa.DataType) -> bool:
    """Whether a type has nanoseconds. Spark has only microseconds, so such a column may also be read as long."""
    return (pat.is_timestamp(data_type) or pat.is_duration(data_type)) and data_type.unit == "ns"


def _nullable(name: str, data_type: pa.DataType) -> pa.Field[Any]:
    return pa.field(name, _plain(data_type), nullable=True)


def _plain(data_type: pa.DataType) -> pa.DataType:
    if pat.is_null(data_type):
        raise ValueError("only nulls fit a void column, so its topic would never accept a value")
    if pat.is_dictionary(data_type):
        return _plain(data_type.value_type)
    if pat.is_large_string(data_type) or pat.is_string_view(data_type):
        return pa.string()
    if pat.is_large_binary(data_type) or pat.is_binary_view(data_type):
        return pa.binary()
    if pat.is_timestamp(data_type) and data_type.tz is not None:
        return pa.timestamp(data_type.unit, tz="UTC")
    if pat.is_list(data_type) or pat.is_large_list(data_type):
        return pa.list_(_nullable("element", data_type.value_type))
    if pat.is_map(data_type):
        # The key of a map is never null, in Arrow as in Spark.
        value = _nullable("value", data_type.item_type)
        return pa.map_(_plain(data_type.key_type), value)  # type: ignore[no-any-return, call-overload]  # stubs lack it
    if pat.is_struct(data_type):
        fields = [data_type.field(index) for index in range(data_type.num_fields)]
        if any(field.metadata and field.metadata.keys() & _TYPE_TAGS for field in fields):
            # Spark recognizes variants and geometries only by the metadata of these structs.
            return data_type
        return pa.struct([_nullable(field.name, field.type) for field in fields])
    return data_type


_TYPE_TAGS = {b"variant", b"geometry", b"geography"}


def _for_spark(data_type: pa.DataType) -> pa.DataType:
    wider = _WIDER.get(data_type)
    if wider is not None:
        return wider
    if pat.is_timestamp(data_type) and data_type.unit != "us":
        return pa.timestamp("us", tz=data_type.tz)
    if pat.is_list(data_type):
        return pa.list_(pa.field("element", _for_spark(data_type.value_type)))
    if pat.is_map(data_type):
        return pa.map_(_for_spark(data_type.key_type), _for_spark(data_type.item_type))
    if pat.is_struct(data_type):
        fields = [data_type.field(index) for index in range(data_type.num_fields)]
        return pa.struct([field.with_type(_for_spark(field.type)) for field in fields])
    return data_type


_WIDER: dict[pa.DataType, pa.DataType] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.date64(): pa.date32(),
    pa.time32("s"): pa.time64("ns"),
    pa.time32("ms"): pa.time64("ns"),
    pa.time64("us"): pa.time64("ns"),
    pa.duration("s"): pa.duration("us"),
    pa.duration("ms"): pa.duration("us"),
    pa.duration("ns"): pa.duration("us"),
}
