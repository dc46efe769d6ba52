"""Goal: several DataFrames in one transaction, once per (application id, batch id). Method: real Spark and service."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import metatxn
from spark_connector import OptionError, batch_transaction
from tests.spark_connector.conftest import TopicFactory
from tests.spark_connector.helpers import (
    KEPT_ALIVE_MS,
    Input,
    column,
    numbers,
    open_transactions,
    wait_until,
    wait_until_kept_alive,
)


@pytest.fixture
def app() -> str:
    return f"app-{uuid.uuid4().hex[:8]}"


def save(rows: DataFrame, url: str, topic: str, txn_id: str) -> None:
    rows.write.format("metatxn").options(url=url, topic=topic, txnId=txn_id).mode("append").save()


def test_two_dataframes_of_different_schemas(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, app: str
) -> None:
    rows, totals = topic("rows"), topic("totals")
    for _ in range(3):
        with batch_transaction(url, app, 0) as txn:
            save(spark.range(100), url, rows, txn.id)
            save(spark.range(100).selectExpr("sum(id) as total"), url, totals, txn.id)
            if not txn.already_committed:
                assert column(client, rows) == []
    assert txn.id == f"committed:{app}:0"
    assert txn.already_committed
    assert column(client, rows) == list(range(100))
    assert column(client, totals, "total") == [4950]
    assert not open_transactions(client)


def test_an_exception_aborts_and_the_batch_can_be_done_again(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, app: str
) -> None:
    name = topic()

    def fail() -> None:
        with batch_transaction(url, app, 0) as txn:
            save(spark.range(10), url, name, txn.id)
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    assert column(client, name) == []
    assert not open_transactions(client)
    with batch_transaction(url, app, 0) as txn:
        save(spark.range(10), url, name, txn.id)
    assert column(client, name) == list(range(10))


def test_a_block_that_begins_while_another_is_open_takes_over(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, app: str
) -> None:
    name = topic()

    def nest() -> None:
        with batch_transaction(url, app, 0) as old:
            save(spark.range(10), url, name, old.id)
            with batch_transaction(url, app, 0) as new:
                save(spark.range(10), url, name, new.id)

    with pytest.raises(metatxn.ExpiredTransaction, match="EXPIRED_TRANSACTION"):
        nest()
    assert column(client, name) == list(range(10))


def test_a_long_block_is_kept_alive(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, app: str
) -> None:
    name, others = topic(), open_transactions(client)
    with batch_transaction(url, app, 0, KEPT_ALIVE_MS) as txn:
        save(spark.range(10), url, name, txn.id)
        wait_until_kept_alive(client, others)
    assert column(client, name) == list(range(10))


def test_another_driver_takes_over(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, app: str
) -> None:
    name = topic()
    with batch_transaction(url, app, 0) as txn:
        save(spark.range(10), url, name, txn.id)
    client.connect_key(app, epoch=-1, session="another driver")
    with pytest.raises(metatxn.ExpiredTransaction, match="EXPIRED_TRANSACTION: another run took over"):
        batch_transaction(url, app, 1).__enter__()


def test_inside_foreach_batch(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, app: str, tmp_path: Path
) -> None:
    """The driver dies twice in a row in batch 1: before the commit, and between the commit and Spark's log."""
    rows, totals, source = topic("rows"), topic("totals"), Input(spark, tmp_path / "in")
    deaths = ["after", "before"]

    def write(batch: DataFrame, batch_id: int) -> None:
        with batch_transaction(url, app, batch_id) as txn:
            save(batch, url, rows, txn.id)
            save(batch.groupBy("name").count(), url, totals, txn.id)
            if batch_id == 1 and deaths and deaths[-1] == "before":
                raise RuntimeError(deaths.pop())
        if batch_id == 1 and deaths:
            raise RuntimeError(deaths.pop())

    def run() -> None:
        query = source.stream().writeStream.foreachBatch(write).trigger(availableNow=True)
        query.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    for start in range(0, 300, 100):
        source.add(numbers(start, 100))
    for death in ("before", "after"):
        with pytest.raises(StreamingQueryException, match=death):
            run()
    run()
    assert column(client, rows) == list(range(300))
    assert column(client, totals, "count") == [1] * 300
    assert not open_transactions(client)


def test_two_queries_of_one_application_id_in_one_process(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, app: str, tmp_path: Path
) -> None:
    name, source = topic(), Input(spark, tmp_path / "in")

    def write(batch: DataFrame, batch_id: int) -> None:
        with batch_transaction(url, app, batch_id) as txn:
            save(batch, url, name, txn.id)

    source.add(numbers(0, 10))
    writer = source.stream().writeStream.foreachBatch(write).trigger(processingTime="100 milliseconds")
    first = writer.option("checkpointLocation", str(tmp_path / "first")).start()
    wait_until(lambda: column(client, name) == list(range(10)), "batch 0 is committed")
    second = writer.option("checkpointLocation", str(tmp_path / "second")).start()
    wait_until(lambda: (tmp_path / "second" / "commits" / "0").exists(), "the second query found it committed")
    source.add(numbers(10, 10))
    with pytest.raises(StreamingQueryException, match="EXPIRED_TRANSACTION"):
        first.awaitTermination(60)
    wait_until(lambda: column(client, name) == list(range(20)), "the second query goes on")
    second.stop()


@pytest.mark.parametrize(
    ("app_id", "batch_id", "timeout_ms", "problem"),
    [
        ("", 0, 1000, "app_id is empty"),
        ("a&b", 0, 1000, "app_id='a&b' must have at most"),
        ("a", -1, 1000, "batch_id=-1 must be a number of at least 0"),
        ("a", True, 1000, "batch_id=True must be a number"),
        ("a", 0, 0, "timeout_ms='0' must be milliseconds"),
    ],
)
def test_wrong_arguments(app_id: str, batch_id: int, timeout_ms: int, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        batch_transaction("http://127.0.0.1:1", app_id, batch_id, timeout_ms).__enter__()
