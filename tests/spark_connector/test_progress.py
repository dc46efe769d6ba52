"""Goal: a listener tells of each batch what it was and what is left. Method: a real query from topic to topic."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import metatxn
from spark_connector.progress import Progress, ProgressListener, measured
from tests.spark_connector.conftest import TopicFactory
from tests.spark_connector.helpers import run, to_topic, wait_until


@pytest.fixture
def source(client: metatxn.Client, topic: TopicFactory) -> str:
    """Ten entries of ten rows, 17 bytes each: a long and a name of nine."""
    name = topic("source", segments=1)
    for start in range(0, 100, 10):
        with client.transaction() as txn, client.table_writer(name, txn) as writer:
            writer.write(pa.table({"id": list(range(start, start + 10)), "name": ["x" * 9] * 10}))
    return name


def test_each_batch_is_told_with_its_transaction_and_the_lag(
    spark: SparkSession, url: str, topic: TopicFactory, source: str, tmp_path: Path
) -> None:
    told: list[Progress] = []
    listener = ProgressListener(url, told.append)
    spark.streams.addListener(listener)
    try:
        rows = spark.readStream.format("metatxn").options(url=url, subscribe=source, maxOffsetsPerTrigger="40").load()
        query = run(to_topic(measured(rows), url, tmp_path / "checkpoint", topic=topic()).queryName("copies"))
        wait_until(lambda: sum(each.rows for each in told) == 100, "every batch is told")
    finally:
        spark.streams.removeListener(listener)
    told = [each for each in told if each.rows]
    assert {each.query_id for each in told} == {str(query.id)}
    assert {each.name for each in told} == {"copies"}
    assert [(each.batch_id, each.rows, each.bytes) for each in told] == [(0, 40, 680), (1, 40, 680), (2, 20, 340)]
    assert [sum(rows or 0 for rows in each.lag.values()) for each in told] == [60, 20, 0]
    assert [each.committed for each in told] == [True, True, True]
    assert str(told[0]).startswith("query copies batch 0: 40 rows, 680 bytes in ")


def test_services_that_are_away_are_no_error(
    spark: SparkSession, url: str, topic: TopicFactory, source: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And without a function to report to, it goes to the log."""
    caplog.set_level(logging.INFO, "metatxn.spark")
    listener = ProgressListener("http://127.0.0.1:1")
    spark.streams.addListener(listener)
    try:
        rows = spark.readStream.format("metatxn").options(url=url, subscribe=source).load()
        run(to_topic(rows, url, tmp_path / "checkpoint", topic=topic()))
        wait_until(lambda: "100 rows in" in caplog.text, "the batch is told")
    finally:
        spark.streams.removeListener(listener)
    assert "no transaction known" in caplog.text
