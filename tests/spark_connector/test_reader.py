"""Goal: a topic is a DataFrame, with exactly what is committed. Method: real reads beside real open transactions."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, IsNotNull, Not
from pyspark.sql.types import LongType, StringType, StructField, StructType

import metatxn
from metatxn.wire.arrow_sizes import compression_of
from spark_connector.filtering_reader import FilteringReader
from spark_connector.options import read_options
from spark_connector.reader import BatchReader, dataframe_schema
from spark_connector.stream_reader import StreamReader
from tests.servers import START_TIMEOUT_S
from tests.spark_connector.conftest import Dev, TopicFactory


def read(spark: SparkSession, url: str, topics: str, **options: str) -> DataFrame:
    return spark.read.format("metatxn").options(url=url, subscribe=topics, **options).load()


def write(client: metatxn.Client, topic: str, ids: list[int], txn: metatxn.Transaction | None = None) -> None:
    transaction = txn or client.begin()
    writer = client.table_writer(topic, transaction, key_column="name")
    writer.write(pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{number}" for number in ids]}))
    writer.close()
    if txn is None:
        transaction.commit()


def ids(rows: DataFrame) -> list[int]:
    return sorted(row["id"] for row in rows.select("id").collect())


def test_only_committed_rows(spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory) -> None:
    name = topic(segments=3)
    write(client, name, [1, 2, 3])
    rows = read(spark, url, name)
    assert rows.schema.simpleString() == "struct<id:bigint,name:string>"
    txn = client.begin()
    write(client, name, [4, 5], txn)
    assert ids(rows) == [1, 2, 3]
    assert ids(read(spark, url, name, isolation="read_uncommitted")) == [1, 2, 3, 4, 5]
    txn.abort()
    assert ids(rows) == [1, 2, 3]
    assert rows.count() == 3
    assert rows.where("id > 1").selectExpr("sum(id) s").collect()[0]["s"] == 5


def test_a_snapshot_is_one_cut_through_all_topics(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory
) -> None:
    a, b = topic("a"), topic("b")
    with client.transaction() as txn:
        write(client, a, [1], txn)
        write(client, b, [2], txn)
    revision = client.cluster().revision
    with client.transaction() as txn:
        write(client, a, [3], txn)
        write(client, b, [4], txn)
    both = f"{a},{b}"
    assert ids(read(spark, url, both, isolation="snapshot", revision=str(revision))) == [1, 2]
    assert ids(read(spark, url, both, isolation="snapshot")) == [1, 2, 3, 4]


def test_what_a_kafka_client_has_written(spark: SparkSession, dev: Dev, client: metatxn.Client) -> None:
    """Its committed messages, as they are: Kafka's clients send bytes."""
    client.create_topic("of-kafka", segments=2, format="kafka")
    client.publish("of-kafka", {"id": 0}, "by REST", producer="p", sequence=0)
    producer = Producer({"bootstrap.servers": dev.kafka, "transactional.id": "a job", "compression.type": "zstd"})
    producer.init_transactions(START_TIMEOUT_S)
    for committed in (True, False):
        producer.begin_transaction()
        producer.produce("of-kafka", key="a key", value=json.dumps({"id": 1}), headers={"h": b"x"})
        producer.produce("of-kafka", key=b"\xff", value=b"\x00\xff", partition=1)
        producer.produce("of-kafka", key="gone", value=None)
        producer.flush(START_TIMEOUT_S)
        producer.commit_transaction() if committed else producer.abort_transaction()
    rows = read(spark, dev.url, "of-kafka", includeMetadata="true").collect()
    assert sorted((row["key"], row["value"], tuple(row["properties"].items())) for row in rows if row["value"]) == [
        ("\\xff", b"\x00\xff", ()),
        ("a key", b'{"id": 1}', (("h", "x"),)),
        ("by REST", b'{"id":0}', (("content-type", "application/json"),)),
    ]
    assert [row["key"] for row in rows if row["value"] is None] == ["gone"]
    assert len({row["__txn_id"] for row in rows}) == 2
    pages = [
        httpx.get(f"{dev.url}/console/topics/of-kafka/messages", params={"segment": each.segment, "show": "all"}).text
        for each in client.topic("of-kafka").segments
    ]
    shown = "".join(pages)
    assert shown.count(">a key<") == 2 and shown.count(">gone<") == 2 and shown.count(">by REST<") == 1
    assert shown.count(">aborted<") == 3


def test_metadata_columns(spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory) -> None:
    name = topic(segments=2)
    txn = client.begin()
    write(client, name, [1, 2, 3], txn)
    txn.commit()
    rows = read(spark, url, name, includeMetadata="true").orderBy("id").collect()
    assert [row["__key"] for row in rows] == ["n1", "n2", "n3"]
    assert {row["__txn_id"] for row in rows} == {txn.id}
    assert {row["__topic"] for row in rows} == {f"public/default/{name}"}
    assert all(row["__segment"].startswith("segment://") for row in rows)
    assert all(":" in row["__position"] and row["__publish_ms"] > 0 for row in rows)


def test_filters_on_metadata_are_pushed_where_spark_lets_them(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory
) -> None:
    """Those on a topic or segment spare the whole partition, the others the unpacking of an entry."""
    a, b = topic("a", segments=1), topic("b", segments=1)
    txns = []
    for name, number in ((a, 1), (a, 2), (b, 3)):
        with client.transaction() as txn:
            write(client, name, [number], txn)
        txns.append(txn.id)
    pushing = {"includeMetadata": "true", "pushFilters": "true"}
    options = read_options({"url": url, "subscribe": f"{a},{b}", **pushing}, "batch")
    reader = FilteringReader(options, dataframe_schema(options))
    wanted: list[Filter] = [EqualTo(("__topic",), f"public/default/{a}"), In(("__txn_id",), (txns[1], txns[2]))]
    ours = [*wanted, IsNotNull(("__txn_id",)), GreaterThan(("__publish_ms",), 0)]
    spark_does: list[Filter] = [EqualTo(("__key",), "n2"), EqualTo(("id",), 2), Not(wanted[0])]
    assert list(reader.pushFilters([*ours, *spark_does])) == spark_does
    (partition,) = reader.partitions()
    assert [batch.column("id").to_pylist() for batch in reader.read(partition)] == [[2]]

    condition = f"__topic = 'public/default/{a}' AND __txn_id = '{txns[1]}' AND (id = 2 OR id = 3) AND __key LIKE 'n%'"
    with pytest.raises(PySparkException, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
        read(spark, url, f"{a},{b}", **pushing).where(condition).collect()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        assert ids(read(spark, url, f"{a},{b}", **pushing).where(condition)) == [2]
        assert ids(read(spark, url, f"{a},{b}", includeMetadata="true").where(condition)) == [2]
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_part_of_a_topic(spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory) -> None:
    """Between two places of a segment; and only the columns that a schema names, or none of the topic's own."""
    name = topic(segments=1)
    for number in range(4):
        write(client, name, [number])
    (segment,) = [each.segment for each in client.topic(name).segments]
    frames = client.read_frames(segment).frames
    places = [str(frame.position) for frame in frames]
    times = {"startingTimestamp": str(frames[1].publish_ms), "endingTimestamp": str(frames[3].publish_ms)}
    assert ids(read(spark, url, name, **times)) == [1, 2]
    between = {"startingOffsets": json.dumps({segment: places[0]}), "endingOffsets": json.dumps({segment: places[2]})}
    assert ids(read(spark, url, name, **between)) == [1, 2]
    reader = spark.read.format("metatxn").options(url=url, subscribe=name, includeMetadata="true")
    assert sorted(reader.schema("id long").load().collect()) == [(0,), (1,), (2,), (3,)]
    assert sorted(reader.schema("__key string").load().collect()) == [("n0",), ("n1",), ("n2",), ("n3",)]


@pytest.mark.parametrize(
    ("names", "asked"), [(["id", "name"], None), (["name"], ["name"]), (["__key"], ["id"]), (["__key", "id"], ["id"])]
)
def test_only_the_wanted_columns_are_asked_for(
    url: str,
    client: metatxn.Client,
    topic: TopicFactory,
    monkeypatch: pytest.MonkeyPatch,
    names: list[str],
    asked: list[str] | None,
) -> None:
    """By the tasks of a batch, and of a stream."""
    name = topic(segments=1)
    write(client, name, [1, 2])
    found: list[Any] = []
    read_frames = metatxn.Client.read_frames

    def noted(self: metatxn.Client, segment: str, **options: Any) -> metatxn.FramesPage:
        found.append(options["columns"])
        return read_frames(self, segment, **options)

    monkeypatch.setattr(metatxn.Client, "read_frames", noted)
    columns = StructType([StructField(each, LongType() if each == "id" else StringType()) for each in names])
    given = {"url": url, "subscribe": name, "includeMetadata": "true", "startingOffsets": "earliest"}
    batch = BatchReader(read_options(given, "batch"), columns)
    stream = StreamReader(read_options(given, "streaming"), columns)
    start = stream.initialOffset()
    (partition,) = stream.partitions(start, stream.latestOffset(start, stream.getDefaultReadLimit()))
    for rows in (batch.read(batch.partitions()[0]), stream.read(partition)):
        assert sum(each.num_rows for each in rows) == 2
    assert len(found) >= 2 and all(each == asked for each in found)


def test_json_messages_are_rows_too(spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory) -> None:
    name = topic()
    write(client, name, [1])
    producer = client.producer(name)
    producer.send({"id": 2, "name": "json"}, key="k")
    producer.send({"id": 3})
    producer.close()
    rows = read(spark, url, name, includeMetadata="true").orderBy("id").collect()
    found = [(row["id"], row["name"], row["__key"]) for row in rows]
    assert found == [(1, "n1", "n1"), (2, "json", "k"), (3, None, None)]
    assert rows[1]["__txn_id"] is None


def test_150_messages_of_a_topic_without_a_schema(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory
) -> None:
    """In the columns of Kafka's source: bytes, which Spark parses, or texts."""
    name = topic(segments=1)
    with client.producer(name) as producer:
        producer.send({"id": 1, "name": "ü"}, key="k", properties={"source": "web"})
        producer.send(None, key="gone")
    rows = read(spark, url, name)
    columns = "key:string,value:binary,properties:map<string,string>,timestamp:timestamp"
    assert rows.schema.simpleString() == f"struct<{columns}>"
    value = F.from_json(F.col("value").cast("string"), "id long, name string")
    parsed = rows.select("key", "properties", value.alias("v"))
    assert parsed.where("v is not null").select("key", "properties.source", "v.*").collect() == [("k", "web", 1, "ü")]
    texts = spark.read.format("metatxn").options(url=url, subscribe=name, includeMetadata="true")
    found = texts.schema("value string, timestamp timestamp, __publish_ms long, __key string").load()
    assert found.select("value", "__key").collect() == [('{"id":1,"name":"ü"}', "k"), (None, "gone")]
    assert found.where("unix_millis(timestamp) != __publish_ms").count() == 0


def test_a_pattern_and_an_empty_topic(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory
) -> None:
    a, b = topic("pat-one"), topic("pat-two")
    write(client, a, [1])
    write(client, b, [2])
    reader = spark.read.format("metatxn").option("url", url)
    assert ids(reader.option("subscribePattern", f"{a}|{b}").load()) == [1, 2]
    with pytest.raises(PySparkException, match="no topic matches"):
        reader.option("subscribePattern", "nothing-like-it").load()


def test_sql(spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory) -> None:
    name = topic()
    write(client, name, [1, 2])
    options = f"OPTIONS (url '{url}', subscribe '{name}')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW source USING metatxn {options}")
    assert ids(spark.sql("SELECT * FROM source WHERE id = 2")) == [2]
    spark.sql(f"CREATE TABLE source_table USING metatxn {options}")
    assert ids(spark.sql("SELECT * FROM source_table")) == [1, 2]
    assert ids(spark.sql("SELECT * FROM source_table WITH (isolation='snapshot')")) == [1, 2]


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_what_spark_writes_it_reads(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, compression: str
) -> None:
    name = topic()
    rows = spark.range(10).select(
        "id",
        F.timestamp_seconds(F.col("id")).alias("at"),
        F.struct(F.col("id").cast("decimal(10,2)").alias("d"), F.array(F.lit("x")).alias("l")).alias("s"),
        F.create_map(F.lit("k"), F.current_date()).alias("m"),
        F.lit(None).cast("binary").alias("nothing"),
    )
    rows = spark.createDataFrame(rows.collect(), rows.schema)
    rows.write.format("metatxn").options(url=url, topic=name, compression=compression).mode("append").save()
    back = read(spark, url, name)
    assert sorted(back.collect()) == sorted(rows.collect())
    sent = [frame for each in client.topic(name).segments for frame in client.read_frames(each.segment).frames]
    assert {compression_of(frame.payload)[0] or "none" for frame in sent} == {compression}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"subscribe": "no-such-topic"}, "NOT_FOUND: topic no-such-topic does not exist"),
        ({}, "Missing option subscribe"),
        ({"subscribe": "t", "isolation": "dirty"}, "must be one of read_committed"),
        ({"subscribe": "t", "txnId": "0" * 32}, "txnId is a write option"),
    ],
)
def test_a_wrong_read_says_what_to_do(spark: SparkSession, url: str, options: dict[str, str], problem: str) -> None:
    with pytest.raises(PySparkException, match=problem):
        spark.read.format("metatxn").options(url=url, **options).load()


def test_topics_of_different_columns_are_not_one_dataframe(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory
) -> None:
    a, b, bare = topic("a"), topic("b"), topic("bare")
    write(client, a, [1])
    spark.range(1).write.format("metatxn").options(url=url, topic=b).mode("append").save()
    with pytest.raises(PySparkException, match=r"SCHEMA_MISMATCH: .* have different columns"):
        read(spark, url, f"{a},{b}")
    with pytest.raises(PySparkException, match=r"SCHEMA_MISMATCH: .* have different columns"):
        read(spark, url, f"{a},{bare}")
    with pytest.raises(PySparkException, match="has no schema yet"):
        spark.sql(f"CREATE TEMPORARY VIEW sink USING metatxn OPTIONS (url '{url}', topic '{bare}')")
    with pytest.raises(PySparkException, match="SCHEMA_MISMATCH: column id is read as string, the topic has int64"):
        spark.read.schema("id string").format("metatxn").options(url=url, subscribe=a).load().collect()
