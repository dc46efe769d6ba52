"""The job of the matrix, as a driver process: from topic to topics, everything in one transaction per micro-batch.

    python -m tests.spark_connector.matrix.driver '{"master": "local[2,4]", "conf": {}}'

It takes commands, a JSON a line: `{"start": {…Job}}` and `{"stop": true}`; and says `{"ended": null}` when a query has
ended, or with what it failed. It writes through the real sink, with points around everything that the sink does.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

import metatxn
from spark_connector import MetatxnDataSource
from spark_connector.messages import Written
from spark_connector.spark_versions import StreamArrowWriter
from tests.spark_connector.matrix.points import reach


@dataclass(frozen=True)
class Job:
    """Every row of topic `source`, or of the JSON files in a directory, goes to all of `outputs`. What was read of a
    topic may be acknowledged on `subscription`."""

    url: str
    source: str
    reads_topic: bool
    outputs: tuple[str, ...]
    checkpoint: str
    rows_per_batch: int
    subscription: str | None = None
    app_id: str | None = None

    def start(self, spark: SparkSession) -> StreamingQuery:
        topics = F.explode(F.array(*map(F.lit, self.outputs)))
        sink = self._stream(spark).withColumn("topic", topics).writeStream.format(WithPoints.name())
        if self.subscription is not None:
            sink = sink.option("ackSubscription", self.subscription)
        if self.app_id is not None:
            sink = sink.option("txnAppId", self.app_id)
        sink = sink.option("url", self.url).option("checkpointLocation", self.checkpoint)
        return sink.trigger(availableNow=True).start()

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
        return WriterWithPoints(super().streamWriter(schema, overwrite))


class WriterWithPoints(StreamArrowWriter):
    """The points, in the order in which a batch reaches them."""

    def __init__(self, writer: StreamArrowWriter) -> None:
        self._writer = writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:  # type: ignore[override]  # as in its base class
        task = _this_task()
        reach(task.format("begins"))
        written = self._writer.write(_then(iterator, task.format("has sent some of")))
        assert isinstance(written, Written)
        reach(task.format("has written"), rows=written.rows)
        return written

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        with _around_the_decision(batchId):
            self._writer.commit(messages, batchId)
        reach(f"batch {batchId} is committed")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self._writer.abort(messages, batchId)
        reach(f"batch {batchId} is aborted")


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
