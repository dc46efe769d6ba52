"""Small things that several of the connector's tests need."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import metatxn
from examples.flights.processes import ROOT
from tests.servers import SHORT_LIVED_JAVA

PATIENCE_S = 240.0
"""On a machine that is busy with other tests, Spark alone may need a minute to start."""
PLAIN_JAVA_OPTIONS = " ".join(SHORT_LIVED_JAVA)
CLASS_ARCHIVE = ROOT / "build" / "spark-classes.jsa"
"""See `class_archive.py`. Made for the newest Spark; Java would say on its output that it is not for another one."""
JAVA_OPTIONS = (
    f"{PLAIN_JAVA_OPTIONS} -XX:SharedArchiveFile={CLASS_ARCHIVE} -Xlog:disable"
    if CLASS_ARCHIVE.exists() and " " not in str(CLASS_ARCHIVE)
    else PLAIN_JAVA_OPTIONS
)
FULL = bool(os.environ.get("SPARK_MATRIX"))
"""`make spark-matrix`, which takes its time."""
KEPT_ALIVE_MS = 12_000
"""The timeout of a transaction that a test keeps open for longer: Spark may stand still for most of it."""
STREAMS_TOPICS = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)
"""Whether this Spark can read a topic as a stream."""


class Input:
    """A directory that a streaming query reads, one file per micro-batch."""

    def __init__(self, spark: SparkSession, directory: Path, schema: str = "id long, name string") -> None:
        self._spark = spark
        self._directory = directory
        self._schema = schema
        self._files = 0
        directory.mkdir(parents=True, exist_ok=True)

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        staged = self._directory / f".{self._files:05d}.json"
        staged.write_text("\n".join(json.dumps(row) for row in rows))
        staged.rename(self._directory / f"{self._files:05d}.json")
        self._files += 1

    def stream(self) -> DataFrame:
        reader = self._spark.readStream.schema(self._schema).option("maxFilesPerTrigger", "1")
        return reader.json(str(self._directory))


def numbers(start: int, count: int, width: int = 1) -> list[dict[str, Any]]:
    """Names of at least `width` characters: rows of 1,000 fill several entries, so that some are sent early."""
    return [{"id": number, "name": f"n{number}".rjust(width)} for number in range(start, start + count)]


def to_topic(rows: DataFrame, url: str, checkpoint: Path, **options: str) -> DataStreamWriter:
    writer = rows.writeStream.format("metatxn").option("url", url).options(**options)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(processingTime="100 milliseconds")


def run(writer: DataStreamWriter) -> StreamingQuery:
    """Until all input that is there is written; raises what the query failed with."""
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(int(PATIENCE_S)), "the query does not end"
    return query


def wait_until(condition: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up, f"waited in vain until {what}"
        time.sleep(0.05)


def wait_until_kept_alive(client: metatxn.Client, others: Iterable[str] = ()) -> None:
    """Until the deadline of the open transaction that is not one of `others` has been moved twice."""

    def moved() -> bool:
        headers = [header for header in client.transactions(state="OPEN") if str(header.txn_id) not in others]
        lives = [
            header.deadline_ms - header.created_ms for header in headers if header.deadline_ms and header.created_ms
        ]
        return any(life > 1.5 * KEPT_ALIVE_MS for life in lives)

    wait_until(moved, "the deadline of a transaction has been moved twice")


def slow_rows(rows: DataFrame, url: str, client: metatxn.Client) -> DataFrame:
    """The same rows, from a task that lasts until the transaction they are written in has been kept alive."""
    others = open_transactions(client)

    def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        with metatxn.connect(url) as client:
            wait_until_kept_alive(client, others)

    return rows.mapInArrow(slow, rows.schema)


def column(client: metatxn.Client, topic: str, name: str = "id") -> list[Any]:
    """The sorted values of a column, of everything that is committed by now. (Other reads may show a commit some
    milliseconds later.)"""
    table = client.read_table(topic, "snapshot")
    return sorted(table.column(name).to_pylist()) if table.num_rows else []


def void_entries(client: metatxn.Client, topic: str) -> int:
    """How many entries lie in the topic that no reader sees: proof that a loser had really sent something."""
    void = 0
    for segment in client.topic(topic).segments:
        void += client.segment(segment.segment).entries
        after, end = None, False
        while not end:
            page = client.read_frames(segment.segment, after=after)
            void -= len(page.frames)
            after, end = page.next, page.end
    return void


def wait_until_sent(url: str, topic: str) -> None:
    """In a task: until some of the rows handed over lie in the topic, which nobody sees yet."""
    with metatxn.connect(url) as client:
        wait_until(lambda: void_entries(client, topic) > 0, "rows are sent")


def open_transactions(client: metatxn.Client) -> list[str]:
    return [str(header.txn_id) for header in client.transactions(state="OPEN")]
