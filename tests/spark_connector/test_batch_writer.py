"""Goal: a batch write is one transaction or a part of one. Method: real DataFrames and SQL, a real service."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import metatxn
from tests.servers import free_port
from tests.spark_connector.conftest import TopicFactory
from tests.spark_connector.helpers import (
    KEPT_ALIVE_MS,
    column,
    open_transactions,
    slow_rows,
    void_entries,
    wait_until_sent,
)


def to_topic(rows: DataFrame, url: str, **options: str) -> DataFrameWriter:
    return rows.write.format("metatxn").mode("append").option("url", url).options(**options)


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(count).withColumn("name", F.concat(F.lit("n"), F.col("id")))


def wide(spark: SparkSession, count: int) -> DataFrame:
    """Rows of 1,000 bytes fill several entries, so that some are sent before the task ends."""
    return spark.range(count).withColumn("name", F.lpad(F.col("id").cast("string"), 1000, "n"))


def test_a_write_is_one_transaction(spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory) -> None:
    name = topic()
    to_topic(numbers(spark, 1000), url, topic=name, keyColumn="name").save()
    to_topic(numbers(spark, 0), url, topic=name).save()
    assert column(client, name) == list(range(1000))
    assert not open_transactions(client)


def test_large_batches_divided_among_topics_keep_the_order_of_their_rows(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory
) -> None:
    """Some rows are larger than what is divided at once, and a topic has one segment, so rows have an order."""
    names = [topic(segments=1), topic(segments=1), topic(segments=1)]
    rows = spark.range(1000, numPartitions=1).withColumn(
        "text", F.repeat(F.lit("x"), F.when(F.col("id") % 250 == 3, 2_000_000).otherwise(5_000).cast("int"))
    )
    routed = rows.withColumn("topic", F.element_at(F.lit(names), (F.col("id") % 3 + 1).cast("int")))
    to_topic(routed, url).save()
    for number, name in enumerate(names):
        assert client.read_table(name, "snapshot").column("id").to_pylist() == list(range(number, 1000, 3))


def test_a_task_that_fails_and_is_retried_leaves_no_duplicates(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory
) -> None:
    name = topic()

    def fail_after_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.attemptNumber() == 0:
            wait_until_sent(url, name)
            raise RuntimeError("on purpose, after rows were sent")

    to_topic(wide(spark, 20_000).mapInArrow(fail_after_rows, "id long, name string"), url, topic=name).save()
    assert column(client, name) == list(range(20_000))
    assert void_entries(client, name) > 0


def test_a_long_write_is_kept_alive(spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory) -> None:
    name = topic()
    rows = slow_rows(numbers(spark, 10).repartition(1), url, client)
    to_topic(rows, url, topic=name, transactionTimeoutMs=str(KEPT_ALIVE_MS)).save()
    assert column(client, name) == list(range(10))


def test_a_job_that_fails_leaves_nothing_behind(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory
) -> None:
    name = topic()
    with pytest.raises(PySparkException, match="on purpose"):
        to_topic(
            numbers(spark, 100).withColumn("x", F.raise_error(F.lit("on purpose")).cast("string")), url, topic=name
        ).save()
    assert column(client, name) == []
    assert not open_transactions(client)


def test_several_writes_in_a_transaction_someone_else_ends(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory
) -> None:
    orders, totals = topic("orders"), topic("totals")
    with client.transaction(timeout_ms=60_000) as txn:
        to_topic(numbers(spark, 100), url, topic=orders, txnId=txn.id).save()
        to_topic(spark.range(1).selectExpr("count(*) as n"), url, topic=totals, txnId=txn.id).save()
        assert column(client, orders) == [] == column(client, totals, "n")
    assert column(client, orders) == list(range(100))
    assert column(client, totals, "n") == [1]


def test_what_a_failed_job_sent_into_a_transaction_never_counts(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory
) -> None:
    """The owner of the transaction shrugs the failure off and commits."""
    name = topic()

    def fail_after_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        wait_until_sent(url, name)
        raise RuntimeError("on purpose")

    failing = wide(spark, 20_000).mapInArrow(fail_after_rows, "id long, name string")
    with client.transaction(timeout_ms=60_000) as txn:
        with pytest.raises(PySparkException, match="on purpose"):
            to_topic(failing, url, topic=name, txnId=txn.id).save()
        client.producer(name).send({"id": 7, "name": "plain"}, txn=txn)
    assert column(client, name) == [7]
    assert void_entries(client, name) > 0


def test_a_transaction_that_is_over_is_refused(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory
) -> None:
    name = topic()
    txn = client.begin()
    txn.commit()
    with pytest.raises(PySparkException, match=r"TXN_CONFLICT|INVALID_TXN_STATE"):
        to_topic(numbers(spark, 10), url, topic=name, txnId=txn.id).save()
    assert column(client, name) == []


def test_insert_into_a_view(spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory) -> None:
    name = topic()
    to_topic(numbers(spark, 1), url, topic=name).save()
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW sink USING metatxn OPTIONS (url '{url}', topic '{name}')")
    spark.sql("INSERT INTO sink VALUES (1, 'one'), (2, 'two')")
    assert column(client, name) == [0, 1, 2]


def test_insert_into_a_table(spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory) -> None:
    name = topic()
    to_topic(numbers(spark, 1), url, topic=name).save()
    spark.sql(f"CREATE TABLE sink_table USING metatxn OPTIONS (url '{url}', topic '{name}')")
    spark.sql("INSERT INTO sink_table VALUES (1, 'one'), (2, NULL)")
    spark.sql("INSERT INTO sink_table SELECT id + 3, 'x' FROM range(2)")
    spark.sql("INSERT INTO sink_table (name, id) SELECT 'y', 5")
    assert column(client, name) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(PySparkException, match="This table is for inserting only"):
        spark.sql("SELECT * FROM sink_table").collect()
    with pytest.raises(PySparkException, match="cannot overwrite"):
        spark.sql("INSERT OVERWRITE sink_table VALUES (1, 'one')")


def test_a_copy_between_tables_never_writes_to_where_it_reads(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory
) -> None:
    """Spark shows the writer the columns of the table that is read, so the writer cannot know the target."""
    source, target = topic("source"), topic("target")
    for name in (source, target):
        to_topic(numbers(spark, 3), url, topic=name).save()
    spark.sql(f"CREATE TABLE copied_from USING metatxn OPTIONS (url '{url}', subscribe '{source}')")
    spark.sql(f"CREATE TABLE copied_to USING metatxn OPTIONS (url '{url}', topic '{target}')")
    assert spark.sql("SELECT count(*) AS n FROM copied_from").collect()[0]["n"] == 3
    with pytest.raises(PySparkException, match="INSERT INTO … WITH"):
        spark.sql("INSERT INTO copied_to SELECT * FROM copied_from")
    spark.sql(f"INSERT INTO copied_to WITH (url='{url}', topic='{target}') SELECT * FROM copied_from")
    assert column(client, source) == [0, 1, 2]
    assert column(client, target) == [0, 0, 1, 1, 2, 2]


def test_the_first_write_sets_the_schema_and_others_must_fit(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory
) -> None:
    name = topic()
    at = dt.datetime(2026, 1, 2, 3, 4, 5)  # noqa: DTZ001  # Spark takes it as a time of its session's zone
    nested = spark.createDataFrame([(1, at, [{"a": "x"}])], "id int, at timestamp, list array<map<string,string>>")
    to_topic(nested, url, topic=name).save()
    to_topic(nested.select("list", "id", "at"), url, topic=name).save()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    try:
        to_topic(nested.where("id is not null"), url, topic=name).save()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    assert column(client, name) == [1, 1, 1]
    with pytest.raises(PySparkException, match=r"SCHEMA_MISMATCH: .*column at is missing; column id is int64, the"):
        to_topic(spark.range(3).withColumn("list", F.array(F.lit("x"))), url, topic=name).save()
    with pytest.raises(PySparkException, match="SCHEMA_MISMATCH: column nothing of type array<void> cannot be sent"):
        to_topic(spark.range(3).withColumn("nothing", F.array()), url, topic=name).save()
    assert column(client, name) == [1, 1, 1]
    assert not open_transactions(client)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "Missing option topic: give it, or give the DataFrame a string column named topic"),
        ({"topic": "no-such-topic"}, "NOT_FOUND: topic no-such-topic does not exist.*metatxn topic create no-such"),
        ({"topic": "t", "colour": "red"}, "Unknown option colour; valid write options are url, topic"),
        ({"topic": "t", "keyColumn": "nope"}, "keyColumn='nope' is not a column of the DataFrame; its columns are id"),
        ({"topic": "t", "txnId": "0" * 31 + "7"}, "NOT_FOUND"),
    ],
)
def test_a_wrong_write_says_what_to_do(spark: SparkSession, url: str, options: dict[str, str], problem: str) -> None:
    with pytest.raises(PySparkException, match=problem):
        to_topic(spark.range(3), url, **options).save()


@pytest.mark.parametrize("mode", ["overwrite", "ignore", "error"])
def test_only_append(spark: SparkSession, url: str, topic: TopicFactory, mode: str) -> None:
    with pytest.raises(PySparkException, match=r"cannot overwrite|cannot be written in the"):
        to_topic(spark.range(3), url, topic=topic()).mode(mode).save()


def test_a_wrong_port_is_known_in_seconds(spark: SparkSession) -> None:
    port = free_port()
    with pytest.raises(PySparkException, match=f"nothing answers at http://127.0.0.1:{port}"):
        to_topic(spark.range(3), f"http://127.0.0.1:{port}", topic="t").save()
