"""Goal: whatever a DataFrame holds arrives as it was, columns can be added, and what does not fit is refused in whole.

Method: real DataFrames through a real service, and back.
"""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import LongType, StringType, StructField, StructType

import metatxn
from spark_connector.datasource import MetatxnDataSource
from spark_connector.options import read_options
from spark_connector.reader import BatchReader, dataframe_schema
from spark_connector.stream_reader import StreamReader
from tests.spark_connector.conftest import TopicFactory
from tests.spark_connector.helpers import column, open_transactions
from tests.spark_connector.test_stream_reader import ids_between, next_batch


def save(rows: DataFrame, url: str, topic: str, **options: str) -> None:
    rows.write.format("metatxn").mode("append").options(url=url, topic=topic, **options).save()


def load(spark: SparkSession, url: str, topic: str) -> DataFrame:
    return spark.read.format("metatxn").options(url=url, subscribe=topic).load()


def test_a_write_with_further_columns_adds_them(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory
) -> None:
    """Rows from before have nulls there. A stream that began before goes on with the columns it began with."""
    name = topic(segments=1)
    save(spark.range(2), url, name)
    options = {"url": url, "subscribe": name}
    stream = StreamReader(read_options(options, "streaming"), dataframe_schema(read_options(options, None)))
    start = next_batch(stream, stream.initialOffset())
    nested = F.struct(F.lit("x").alias("s"), F.array(F.lit(1)).alias("l"))
    wider = spark.range(2, 4).withColumn("note", F.lit("new")).withColumn("nested", nested)
    save(wider.select("nested", "id", "note"), url, name)
    assert client.topic_schema(name) is not None
    rows = load(spark, url, name).orderBy("id")
    assert [field.name for field in rows.schema] == ["id", "nested", "note"]
    assert [(row["id"], row["note"], row["nested"] and row["nested"]["l"]) for row in rows.collect()] == [
        (0, None, None),
        (1, None, None),
        (2, "new", [1]),
        (3, "new", [1]),
    ]
    assert client.read_table(name, "snapshot").column("note").to_pylist().count(None) == 2
    assert ids_between(stream, start, next_batch(stream, start)) == [2, 3]
    stream.stop()
    producer = client.producer(name)
    producer.send({"id": 4, "note": "as JSON"})
    producer.close()
    with pytest.raises(PySparkException, match=r"SCHEMA_MISMATCH: .*column nested is missing; column note is missing"):
        save(spark.range(1), url, name)
    with pytest.raises(PySparkException, match=r"SCHEMA_MISMATCH: .*column note is int64, the topic has string"):
        save(wider.withColumn("note", F.lit(7).cast("long")), url, name)
    assert load(spark, url, name).where("note = 'as JSON'").count() == 1
    assert not open_transactions(client)


def test_rows_without_a_key_and_partitions_without_rows(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory
) -> None:
    name = topic(segments=4)
    rows = spark.range(100).repartition(4, F.lit(1)).withColumn("name", F.when(F.col("id") % 2 == 0, F.lit("even")))
    save(rows, url, name, keyColumn="name")
    save(rows.where("id < 0"), url, name, keyColumn="name")
    assert column(client, name) == list(range(100))
    assert client.read_table(name, "snapshot").column("name").null_count == 50


def test_a_thousand_columns(spark: SparkSession, url: str, topic: TopicFactory) -> None:
    name = topic()
    wide = spark.range(3).selectExpr("id", *[f"id + {number} AS c{number}" for number in range(1000)])
    save(wide, url, name)
    back = load(spark, url, name)
    assert back.schema.names == wide.schema.names
    assert back.where("c999 = 1001").select("id", "c0", "c500").collect() == [(2, 2, 502)]


def test_rows_of_ten_megabytes_and_one_that_is_too_large(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory
) -> None:
    name = topic()

    def rows(count: int, megabytes: int) -> DataFrame:
        return spark.range(count).coalesce(1).withColumn("text", F.repeat(F.lit("x"), megabytes << 20))

    save(rows(2, 10), url, name)
    back = load(spark, url, name).select("id", F.length("text").alias("length")).orderBy("id")
    assert back.collect() == [(0, 10 << 20), (1, 10 << 20)]
    with pytest.raises(PySparkException, match="PAYLOAD_TOO_LARGE"):
        save(rows(1, 17), url, name)
    assert column(client, name) == [0, 1]
    assert not open_transactions(client)


# -- without a Spark ---------------------------------------------------------------------------------------------------


def test_an_entry_that_spark_cannot_hold_is_named(url: str, client: metatxn.Client, topic: TopicFactory) -> None:
    """Nanoseconds are not rounded in silence: the entry is named, and all of it can be read as numbers."""
    name = topic(segments=1)
    for at in (1_000, 2_000, 2_001, 3_000):
        with client.transaction() as txn, client.table_writer(name, txn) as writer:
            writer.write(pa.table({"at": pa.array([at], pa.timestamp("ns"))}))
    (segment,) = client.topic(name).segments
    wrong = client.read_frames(segment.segment).frames[2].position
    options = read_options({"url": url, "subscribe": name}, "batch")

    def read(schema: StructType) -> list[object]:
        reader = BatchReader(options, schema)
        (partition,) = reader.partitions()
        return [value for batch in reader.read(partition) for value in batch.column("at").to_pylist()]

    with pytest.raises(
        metatxn.SchemaMismatch, match=rf"SCHEMA_MISMATCH: at {wrong} of {segment.segment}: column at of"
    ):
        read(dataframe_schema(options))
    assert read(StructType([StructField("at", LongType())])) == [1_000, 2_000, 2_001, 3_000]


def rows_of(url: str, name: str, schema: StructType | None = None, **options: str) -> list[dict[str, object]]:
    given = read_options({"url": url, "subscribe": name, **options}, "batch")
    reader = BatchReader(given, schema or dataframe_schema(given))
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def test_150_every_kind_of_message_has_its_bytes(url: str, client: metatxn.Client, topic: TopicFactory) -> None:
    """JSON, bytes, what Kafka's clients see, and no table: the topic would have a schema."""
    name, text = topic(segments=1), StructType([StructField("value", StringType()), StructField("key", StringType())])
    sent: tuple[object, ...] = ({"a": [1, None]}, "text", 1.5, b"bytes", None)
    with client.producer(name) as producer:
        for value in sent:
            producer.send(value, key="k")
    values = [b'{"a":[1,null]}', b'"text"', b"1.5", b"bytes", None]
    assert [row["value"] for row in rows_of(url, name)] == values
    assert rows_of(url, name, text)[0] == {"value": '{"a":[1,null]}', "key": "k"}

    client.create_topic(f"{name}-kafka", format="kafka")
    client.publish(f"{name}-kafka", {"b": 1}, "k", {"p": "q"}, producer="p", sequence=0)
    (row,) = rows_of(url, f"{name}-kafka", includeMetadata="true")
    assert (row["value"], row["key"], row["__key"]) == (b'{"b":1}', "k", "k")
    assert dict(row["properties"])["p"] == "q"  # type: ignore[call-overload]

    with client.producer(name) as producer:
        producer.send(b"\xff")
    (segment,) = client.topic(name).segments
    last = client.segment(segment.segment).last_position
    with pytest.raises(
        metatxn.SchemaMismatch, match=rf"at {last} of .*UTF8.* Read it as bytes: .schema\('value binary"
    ):
        rows_of(url, name, text)
    with pytest.raises(metatxn.SchemaMismatch, match="column id is not in topic"):
        rows_of(url, name, StructType([StructField("id", LongType())]))


def test_150_a_topic_that_gets_a_schema_under_a_read_of_messages(
    url: str, client: metatxn.Client, topic: TopicFactory
) -> None:
    """The read says so, and a new one has its columns."""
    name = topic(segments=1)
    client.publish(name, {"id": 1}, producer="p", sequence=0)
    given = {"url": url, "subscribe": name, "startingOffsets": "earliest"}
    reader = StreamReader(read_options(given, "streaming"), dataframe_schema(read_options(given, None)))
    start = reader.initialOffset()
    with client.transaction() as txn, client.table_writer(name, txn) as writer:
        writer.write(pa.table({"id": [2]}))
    (part,) = reader.partitions(start, next_batch(reader, start))
    with pytest.raises(metatxn.SchemaMismatch, match=r"is a table: the topic has got a schema\. Start again"):
        list(reader.read(part))
    reader.stop()
    assert [row["id"] for row in rows_of(url, name)] == [1, 2]


@pytest.mark.parametrize("streams", [True, False])
def test_a_collation_is_refused_before_anything_begins(
    url: str, client: metatxn.Client, topic: TopicFactory, streams: bool
) -> None:
    source = MetatxnDataSource({"url": url, "topic": topic()})
    schema = StructType([StructField("name", StringType("UNICODE_CI"))])
    with pytest.raises(metatxn.SchemaMismatch, match="SCHEMA_MISMATCH: column name has the collation UNICODE_CI"):
        (source.streamWriter if streams else source.writer)(schema, False)
    assert not open_transactions(client)
