"""The jobs of the matrix, as a driver process: from topic to topics, everything in one transaction per micro-batch.

    python -m tests.spark_connector.matrix.driver '{"master": "local[2,2]", "conf": {}}'

It takes commands, a JSON a line: `{"start": {…Job}}` and `{"stop": true}`; and says `{"ended": null}` when a query has
ended, or with what it failed. It writes through the real format, with points around everything that the format does.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

import metatxn
from spark_connector import MetatxnDataSource, batch_transaction, table_writes
from spark_connector.messages import WrittenPart
from spark_connector.spark_versions import StreamArrowWriter
from tests.spark_connector.matrix.points import reach

Way = Literal["sink", "foreach_batch"]
ENTRY_BYTES = 128 * 1024
"""Each task of a batch has more than that for each topic, so it sends some before its end."""
GROUPS = 7
OF_GROUPS = ", groups"
"""Ends the points of tasks that write these."""


@dataclass(frozen=True)
class Job:
    """Every row of topic `source`, or of the JSON files in a directory, goes to both `outputs`: as `sink`, by one write
    of all; in `foreach_batch`, by one write of all to the first topic, and another one to the second topic, of some
    groups with all of their rows. What was read of a topic may be acknowledged on `subscription`."""

    way: Way
    url: str
    source: str
    reads_topic: bool
    outputs: tuple[str, ...]
    checkpoint: str
    rows_per_batch: int
    subscription: str | None = None
    app_id: str | None = None

    def start(self, spark: SparkSession) -> StreamingQuery:
        rows = self._stream(spark)
        query = self._to_the_sink(rows) if self.way == "sink" else rows.writeStream.foreachBatch(self._write)
        return query.option("checkpointLocation", self.checkpoint).trigger(availableNow=True).start()

    def _to_the_sink(self, rows: DataFrame) -> DataStreamWriter:
        topics = F.explode(F.array(*map(F.lit, self.outputs)))
        sink = rows.withColumn("topic", topics).writeStream.format(WithPoints.name()).option("url", self.url)
        if self.subscription is not None:
            sink = sink.option("ackSubscription", self.subscription)
        if self.app_id is not None:
            sink = sink.option("txnAppId", self.app_id)
        return sink

    def _write(self, batch: DataFrame, batch_id: int) -> None:
        groups = batch.groupBy(F.col("id") % GROUPS).agg(F.collect_list(F.struct("id", "name")).alias("rows"))
        transaction = batch_transaction(
            self.url,
            self.app_id or Path(self.checkpoint).name,
            batch_id,
            ack_subscription=self.subscription,
            checkpoint=None if self.subscription is None else self.checkpoint,
        )
        with _around_the_decision(batch_id), transaction as txn:
            for frame, topic in zip((batch, groups.select("rows")), self.outputs, strict=True):
                sink = frame.write.format(WithPoints.name()).options(url=self.url, topic=topic, txnId=txn.id)
                sink.mode("append").save()
        reach(f"batch {batch_id} is committed")

    def _stream(self, spark: SparkSession) -> DataFrame:
        if not self.reads_topic:
            return spark.readStream.schema("id long, name string").option("maxFilesPerTrigger", "2").json(self.source)
        options = {"url": self.url, "subscribe": self.source, "maxOffsetsPerTrigger": str(self.rows_per_batch)}
        return spark.readStream.format("metatxn").options(**options).load()


class WithPoints(MetatxnDataSource):
    @classmethod
    def name(cls) -> str:
        return "metatxn-with-points"

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamArrowWriter:  # noqa: N802
        return StreamWriterWithPoints(super().streamWriter(schema, overwrite))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return BatchWriterWithPoints(super().writer(schema, overwrite), OF_GROUPS if "rows" in schema.names else "")


class StreamWriterWithPoints(StreamArrowWriter):
    """The points, in the order in which a batch reaches them."""

    def __init__(self, writer: StreamArrowWriter) -> None:
        self._writer = writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPart:  # type: ignore[override]  # as in its base class
        return _write(self._writer, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        with _around_the_decision(batchId):
            self._writer.commit(messages, batchId)
        reach(f"batch {batchId} is committed")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._writer.abort(messages, batchId)
        reach(f"batch {batchId} is aborted")


class BatchWriterWithPoints(DataSourceArrowWriter):
    def __init__(self, writer: DataSourceWriter, of: str) -> None:
        self._writer = writer
        self._of = of

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenPart:  # type: ignore[override]  # as in its base class
        return _write(self._writer, iterator, self._of)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._writer.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._writer.abort(messages)


def _write(writer: Any, batches: Iterator[pa.RecordBatch], of: str = "") -> WrittenPart:
    task = _this_task() + of
    reach(task.format("begins"))
    with patch.multiple(table_writes, ENTRY_BYTES=ENTRY_BYTES, PIECE_BYTES=ENTRY_BYTES // 2):
        written = writer.write(_then(batches, task.format("has sent some of")))
    assert isinstance(written, WrittenPart)
    reach(task.format("has written"), rows=written.rows)
    return written


def _this_task() -> str:
    context = TaskContext.get()
    assert context is not None
    batch = context.getLocalProperty("streaming.sql.batchId")
    return f"task {context.partitionId()}.{context.attemptNumber()} {{}} batch {batch}"


def _then(batches: Iterator[pa.RecordBatch], point: str) -> Iterator[pa.RecordBatch]:
    """More than an entry's worth of rows is on its way when they all are taken, and the last one is not full yet."""
    yield from batches
    reach(point)


@contextlib.contextmanager
def _around_the_decision(batch_id: int) -> Iterator[None]:
    decide = metatxn.Transaction.commit

    def commit(transaction: metatxn.Transaction, writers: list[str] | None = None) -> Any:
        reach(f"batch {batch_id} is about to be decided")
        header = decide(transaction, writers=writers)
        reach(f"batch {batch_id} is decided")
        return header

    with patch.object(metatxn.Transaction, "commit", commit):
        yield


def _tell_its_end(query: StreamingQuery) -> None:
    with contextlib.suppress(StreamingQueryException):
        query.awaitTermination()
    error = query.exception()
    _say(ended=error and str(error))


def _say(**said: Any) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def main() -> None:
    given = json.loads(sys.argv[1])
    spark = SparkSession.builder.master(given["master"]).config(map=given["conf"]).getOrCreate()
    spark.dataSource.register(WithPoints)
    _say(ready=spark.version)
    query: StreamingQuery | None = None
    for line in sys.stdin:
        command = json.loads(line)
        if "start" in command:
            query = Job(**command["start"]).start(spark)
            threading.Thread(target=_tell_its_end, args=(query,), daemon=True).start()
        elif query is not None:
            query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
