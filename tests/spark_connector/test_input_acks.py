"""Goal: what a batch has read is acknowledged if and only if what it made of it is visible.

Method: real queries from topic to topic. `test_example.py` kills the driver of such a job.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import metatxn
from spark_connector import OptionError, batch_transaction
from spark_connector.input_acks import read_in_batch
from tests.spark_connector.conftest import TopicFactory
from tests.spark_connector.helpers import (
    Input,
    column,
    numbers,
    open_transactions,
    run,
    to_topic,
    wait_until,
)

SUBSCRIPTION = "job"


def write(client: metatxn.Client, topic: str, ids: list[int]) -> None:
    with client.transaction() as txn, client.table_writer(topic, txn, key_column="name") as writer:
        writer.write(pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{number}" for number in ids]}))


def backlog(client: metatxn.Client, topic: str) -> int:
    return sum(segment.backlog for segment in client.subscription(topic, SUBSCRIPTION).segments)


@pytest.fixture
def source(client: metatxn.Client, topic: TopicFactory) -> str:
    name = topic("source")
    client.subscribe(name, SUBSCRIPTION, "shared", initial="earliest").close()
    return name


def stream(spark: SparkSession, url: str, topic: str) -> DataFrame:
    return spark.readStream.format("metatxn").options(url=url, subscribe=topic).load()


def test_a_streaming_write_acknowledges_what_it_has_read(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, source: str, tmp_path: Path
) -> None:
    """A batch that fails acknowledges nothing; the next run, over a split, all of it."""
    name, healed = topic(), str(tmp_path / "healed")
    checkpoint = tmp_path / "checkpoint"
    write(client, source, list(range(10)))
    acked = {"topic": name, "ackSubscription": SUBSCRIPTION}
    run(to_topic(stream(spark, url, source), url, checkpoint, **acked))
    assert column(client, name) == list(range(10))
    wait_until(lambda: backlog(client, source) == 0, "the first batch is acknowledged")

    write(client, source, list(range(10, 20)))
    client.split_segment(client.topic(source).segments[0].segment)
    write(client, source, list(range(20, 30)))

    def fail_until_healed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if not Path(healed).exists():
            raise RuntimeError("on purpose")
        yield from batches

    failing = stream(spark, url, source).mapInArrow(fail_until_healed, "id long, name string")
    with pytest.raises(StreamingQueryException, match="on purpose"):
        run(to_topic(failing, url, checkpoint, **acked))
    assert backlog(client, source) == 20
    Path(healed).touch()
    run(to_topic(failing, url, checkpoint, **acked))
    assert column(client, name) == list(range(30))
    wait_until(lambda: backlog(client, source) == 0, "all of it is acknowledged")
    assert not open_transactions(client)


def test_inside_foreach_batch_an_exception_acknowledges_nothing(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, source: str, tmp_path: Path
) -> None:
    name, checkpoint = topic(), str(tmp_path / "checkpoint")
    write(client, source, list(range(10)))
    deaths = ["after the commit", "before the commit"]

    def copy(batch: DataFrame, batch_id: int) -> None:
        with batch_transaction(url, name, batch_id, ack_subscription=SUBSCRIPTION, checkpoint=checkpoint) as txn:
            batch.write.format("metatxn").options(url=url, topic=name, txnId=txn.id).mode("append").save()
            if deaths and deaths[-1] == "before the commit":
                raise RuntimeError(deaths.pop())
        if deaths:
            raise RuntimeError(deaths.pop())

    def once() -> None:
        query = stream(spark, url, source).writeStream.foreachBatch(copy).trigger(availableNow=True)
        query.option("checkpointLocation", checkpoint).start().awaitTermination(60)

    with pytest.raises(StreamingQueryException, match="before the commit"):
        once()
    assert (column(client, name), backlog(client, source)) == ([], 10)
    with pytest.raises(StreamingQueryException, match="after the commit"):
        once()
    wait_until(lambda: backlog(client, source) == 0, "it is acknowledged")
    write(client, source, [10])
    once()
    assert column(client, name) == list(range(11))
    wait_until(lambda: backlog(client, source) == 0, "the next one is acknowledged too")


def test_what_cannot_be_acknowledged_says_why_and_writes_nothing(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, source: str, tmp_path: Path
) -> None:
    name = topic()
    write(client, source, [1])
    missing = {"topic": name, "ackSubscription": "nobody"}
    with pytest.raises(StreamingQueryException, match=r"NOT_FOUND: .*Create subscription nobody on topic public/def"):
        run(to_topic(stream(spark, url, source), url, tmp_path / "missing", **missing))
    files = Input(spark, tmp_path / "in")
    files.add(numbers(0, 10))
    with pytest.raises(
        StreamingQueryException, match=r"Option ackSubscription: .* contains no offsets of format metatxn"
    ):
        run(to_topic(files.stream(), url, tmp_path / "files", topic=name, ackSubscription=SUBSCRIPTION))
    assert column(client, name) == []
    assert not open_transactions(client)


def test_where_the_batch_is_looked_up(tmp_path: Path) -> None:
    """One line for each source: two topics here, of which one segment did not move."""
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    a, b, c = (f"segment://public/default/{name}/0000-ffff-0" for name in "abc")
    (offsets / "7").write_text(
        f'v1\n{{"batchWatermarkMs":0,"conf":{{}}}}\n{{"logOffset":3}}\n'
        f'{{"read_up_to": {{"{a}": "1:5", "{b}": "1:2"}}, "since": {{"{a}": "1:3", "{b}": "1:2"}}}}\n'
        f'{{"read_up_to": {{"{c}": "2:0"}}, "since": {{}}}}'
    )
    expected = {"public/default/a": {a: "1:5"}, "public/default/c": {c: "2:0"}}
    assert read_in_batch(str(tmp_path), 7) == read_in_batch(tmp_path.as_uri(), 7) == expected
    with pytest.raises(OptionError, match="cannot be looked up"):
        read_in_batch(str(tmp_path), 8)
    with pytest.raises(OptionError, match="ack_subscription and checkpoint need each other"):
        batch_transaction("http://127.0.0.1:1", "app", 0, ack_subscription="s").__enter__()
