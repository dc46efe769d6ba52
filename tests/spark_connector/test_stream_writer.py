"""Goal: every input row exactly once in every topic, whatever dies. Method: real queries on files, a real service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import metatxn
from spark_connector.messages import WrittenPart
from spark_connector.stream_writer import the_transaction
from tests.spark_connector.conftest import TopicFactory
from tests.spark_connector.helpers import (
    KEPT_ALIVE_MS,
    Input,
    column,
    numbers,
    open_transactions,
    run,
    slow_rows,
    to_topic,
    void_entries,
    wait_until,
    wait_until_sent,
)


def test_one_topic(spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, tmp_path: Path) -> None:
    name, source = topic(), Input(spark, tmp_path / "in")
    source.add(numbers(0, 100))
    source.add(numbers(100, 100))
    run(to_topic(source.stream(), url, tmp_path / "checkpoint", topic=name, keyColumn="name"))
    source.add(numbers(200, 50))
    query = run(to_topic(source.stream(), url, tmp_path / "checkpoint", topic=name, keyColumn="name"))
    assert column(client, name) == list(range(250))
    committed = [header for header in client.transactions() if header.transaction_key == str(query.id)]
    assert [header.version for header in committed] == [0, 1, 2], "one transaction per micro-batch"
    assert {header.state for header in committed} == {"COMMITTED"}


def test_a_column_names_the_topics(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, tmp_path: Path
) -> None:
    even, odd, source = topic("even"), topic("odd"), Input(spark, tmp_path / "in")
    source.add(numbers(0, 100))
    routed = source.stream().withColumn("topic", F.when(F.col("id") % 2 == 0, even).otherwise(odd))
    query = run(to_topic(routed, url, tmp_path / "checkpoint"))
    assert column(client, even) == list(range(0, 100, 2))
    assert column(client, odd) == list(range(1, 100, 2))
    assert client.read_table(even, "snapshot").column_names == ["id", "name"], "the topic column is not sent"
    assert [h.state for h in client.transactions() if h.transaction_key == str(query.id)] == ["COMMITTED"]


def test_the_topic_option_wins_over_the_column(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, tmp_path: Path
) -> None:
    name, source = topic(), Input(spark, tmp_path / "in")
    source.add(numbers(0, 10))
    run(to_topic(source.stream().withColumn("topic", F.lit("none")), url, tmp_path / "checkpoint", topic=name))
    assert column(client, name, "topic") == ["none"] * 10


def test_a_committed_batch_that_runs_again_sends_nothing(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, tmp_path: Path
) -> None:
    """The driver died between our commit and Spark's commit log: the log's entry is missing."""
    name, source = topic(), Input(spark, tmp_path / "in")
    source.add(numbers(0, 100))
    source.add(numbers(100, 100))
    run(to_topic(source.stream(), url, tmp_path / "checkpoint", topic=name))
    (tmp_path / "checkpoint" / "commits" / "1").unlink()
    (tmp_path / "checkpoint" / "commits" / ".1.crc").unlink()
    before = client.segment(client.topic(name).segments[0].segment).entries
    source.add(numbers(200, 10))
    run(to_topic(source.stream(), url, tmp_path / "checkpoint", topic=name))
    assert column(client, name) == list(range(210))
    assert (tmp_path / "checkpoint" / "commits" / "1").exists(), "Spark noted the replay"
    assert client.segment(client.topic(name).segments[0].segment).entries <= before + 10


def test_a_task_that_fails_and_is_retried_leaves_no_duplicates(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, tmp_path: Path
) -> None:
    name, source = topic(), Input(spark, tmp_path / "in")
    source.add(numbers(0, 20_000, width=1_000))

    def fail_after_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.attemptNumber() < 2:
            wait_until_sent(url, name)
            raise RuntimeError("on purpose, after rows were sent")

    rows = source.stream().mapInArrow(fail_after_rows, "id long, name string")
    run(to_topic(rows, url, tmp_path / "checkpoint", topic=name))
    assert column(client, name) == list(range(20_000))
    assert void_entries(client, name) > 0


def test_a_query_that_fails_in_the_middle_of_a_batch_goes_on_after_a_restart(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, tmp_path: Path
) -> None:
    name, source, healed = topic(), Input(spark, tmp_path / "in"), tmp_path / "healed"
    source.add(numbers(0, 20_000, width=1_000))
    path = str(healed)

    def fail_until_healed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        if not Path(path).exists():
            wait_until_sent(url, name)
            raise RuntimeError("on purpose")

    rows = source.stream().mapInArrow(fail_until_healed, "id long, name string")
    with pytest.raises(StreamingQueryException, match="on purpose"):
        run(to_topic(rows, url, tmp_path / "checkpoint", topic=name))
    assert column(client, name) == []
    assert not open_transactions(client), "the driver has found what its tasks had begun"
    healed.touch()
    query = run(to_topic(rows, url, tmp_path / "checkpoint", topic=name))
    assert column(client, name) == list(range(20_000))
    assert void_entries(client, name) > 0
    states = [header.state for header in client.transactions() if header.transaction_key == str(query.id)]
    assert sorted(states) == ["ABORTED", "COMMITTED"], "the old run has ended its own"


def test_a_second_run_takes_over_and_the_first_one_stops(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, tmp_path: Path
) -> None:
    """Two runs of one application id. The first one is held in the middle of batch 1 while the second one starts."""
    name, source = topic(), Input(spark, tmp_path / "in")
    gate = tmp_path / "gate"
    path = str(gate)

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if 100 in batch.column(0).to_pylist():
                wait_until(Path(path).exists, "the gate opens")

    app = {"topic": name, "txnAppId": f"app-{name}"}
    source.add(numbers(0, 100))
    held = source.stream().mapInArrow(hold, "id long, name string")
    first = to_topic(held, url, tmp_path / "first", **app).start()
    wait_until(lambda: column(client, name) == list(range(100)), "batch 0 is committed")
    source.add(numbers(100, 100))
    wait_until(lambda: bool(_open_of(client, app["txnAppId"])), "batch 1 is under way")

    run(to_topic(source.stream(), url, tmp_path / "second", **app))
    gate.touch()
    with pytest.raises(StreamingQueryException, match="EXPIRED_TRANSACTION"):
        first.awaitTermination(60)
    assert column(client, name) == list(range(200))
    assert not _open_of(client, app["txnAppId"])

    source.add(numbers(200, 100))
    run(to_topic(source.stream(), url, tmp_path / "second", **app))
    assert column(client, name) == list(range(300))


def _open_of(client: metatxn.Client, key: str) -> list[str]:
    return [str(h.txn_id) for h in client.transactions(state="OPEN") if h.transaction_key == key]


def test_a_run_that_was_taken_over_between_batches_stops_at_its_next_one(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, tmp_path: Path
) -> None:
    name, source = topic(), Input(spark, tmp_path / "in")
    app = {"topic": name, "txnAppId": f"app-{name}"}
    source.add(numbers(0, 10))
    first = to_topic(source.stream(), url, tmp_path / "first", **app).start()
    wait_until(lambda: column(client, name) == list(range(10)), "batch 0 is committed")
    epoch = client.connect_key(app["txnAppId"], epoch=-1, session="another run").epoch
    newer = client.begin(key=app["txnAppId"], epoch=epoch, version=1)
    source.add(numbers(10, 10))
    with pytest.raises(StreamingQueryException, match="EXPIRED_TRANSACTION: another run took over application id"):
        first.awaitTermination(60)
    assert column(client, name) == list(range(10))
    newer.commit()  # the newer run is not disturbed: what the old one aborts is its own


def test_a_long_batch_is_kept_alive(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, tmp_path: Path
) -> None:
    name, source = topic(), Input(spark, tmp_path / "in")
    source.add(numbers(0, 10))
    rows, timeout_ms = slow_rows(source.stream(), url, client), str(KEPT_ALIVE_MS)
    run(to_topic(rows, url, tmp_path / "checkpoint", topic=name, transactionTimeoutMs=timeout_ms))
    assert column(client, name) == list(range(10))


@pytest.mark.parametrize("routed", [False, True])
def test_a_topic_gets_a_column_while_a_query_runs(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, tmp_path: Path, routed: bool
) -> None:
    """Micro-batches go on without it, as any producer that has not heard of it, until the connector looks up the topic
    again. The one that is then refused leaves nothing, and is written after a restart with the column."""
    name, source = topic(), Input(spark, tmp_path / "in")
    options = {} if routed else {"topic": name}

    def rows() -> DataFrame:
        return source.stream().withColumn("topic", F.lit(name)) if routed else source.stream()

    source.add(numbers(0, 10))
    query = to_topic(rows(), url, tmp_path / "checkpoint", **options).start()
    wait_until(lambda: column(client, name) == list(range(10)), "batch 0 is committed")
    wider = spark.range(10, 11).selectExpr("id", "'n' as name", "1 as more")
    wider.write.format("metatxn").mode("append").options(url=url, topic=name).save()
    written = 11

    def goes_on() -> None:
        nonlocal written
        while True:
            source.add(numbers(written, 10))
            query.processAllAvailable()
            written += 10

    with pytest.raises(StreamingQueryException, match=r"SCHEMA_MISMATCH.* more is missing"):
        goes_on()
    assert column(client, name) == list(range(written)), "all micro-batches before the one that is refused"
    assert client.read_table(name, "snapshot")["more"].drop_null().to_pylist() == [1]
    assert not open_transactions(client)
    run(to_topic(rows().withColumn("more", F.lit(2)), url, tmp_path / "checkpoint", **options))
    assert column(client, name) == list(range(written + 10))


def test_a_batch_whose_transaction_ended_half_way_is_not_committed() -> None:
    """A task that came later has begun the batch again, in another one: each holds a part of the rows."""
    one, other = (WrittenPart(txn_id, writer=txn_id[0], rows=1) for txn_id in ("a" * 32, "b" * 32))
    assert the_transaction([one, one], batch_id=7) == one.txn_id
    with pytest.raises(metatxn.ExpiredTransaction, match="micro-batch 7"):
        the_transaction([one, other], batch_id=7)


def test_an_empty_batch_is_committed_too(
    spark: SparkSession, url: str, client: metatxn.Client, topic: TopicFactory, tmp_path: Path
) -> None:
    name, source = topic(), Input(spark, tmp_path / "in")
    source.add(numbers(0, 10))
    query = run(to_topic(source.stream().where("id < 0"), url, tmp_path / "checkpoint", topic=name))
    assert column(client, name) == []
    assert [h.state for h in client.transactions() if h.transaction_key == str(query.id)] == ["COMMITTED"]
    assert not open_transactions(client)


def test_a_wrong_option_fails_the_query_before_its_first_batch(
    spark: SparkSession, url: str, topic: TopicFactory, tmp_path: Path
) -> None:
    """A read tells at once; of a write Spark asks in the query's own thread."""
    source = Input(spark, tmp_path / "in")
    source.add(numbers(0, 1))
    with pytest.raises(StreamingQueryException, match="Unknown option colour; valid write options are url, topic"):
        run(to_topic(source.stream(), url, tmp_path / "checkpoint", topic=topic(), colour="red"))
    with pytest.raises(PySparkException, match="Option maxOffsetsPerTrigger='no' must be a number of rows"):
        spark.readStream.format("metatxn").options(url=url, subscribe="t", maxOffsetsPerTrigger="no").load()


def test_complete_mode_is_refused(spark: SparkSession, url: str, topic: TopicFactory, tmp_path: Path) -> None:
    source = Input(spark, tmp_path / "in")
    source.add(numbers(0, 10))
    counts = source.stream().groupBy("name").count()
    with pytest.raises(StreamingQueryException, match='no output mode "complete"'):
        run(to_topic(counts, url, tmp_path / "checkpoint", topic=topic()).outputMode("complete"))
