"""Rows per second of a Spark job that writes two topics in one transaction per micro-batch, beside Spark's own sinks.

The same input (the flights, `COPIES` times, cut into `FILES` files), the same session, the same aggregation, run after
each other in turns: into `metatxn` (fsync on, SQLite store), into Spark's `noop` sink, and into `parquet` files.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import metatxn
import spark_connector
from benchmarks.report import Figure, publish
from examples.flights import data
from examples.flights.demo import running_dev
from examples.flights.session import local_session

RUNS = 3
COPIES = 3
FILES = 12
Sink = Callable[[DataFrame, DataFrame, int], None]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        table = pa.concat_tables([data.flights()] * COPIES)
        data.cut(table, directory / "input", FILES)
        with running_dev(directory, None) as url, metatxn.connect(url) as client:
            client.create_topic("departures", segments=4, schema=data.SCHEMA)
            client.create_topic("carrier_delays", segments=1, schema=data.DELAYS_SCHEMA)
            publish(
                "spark-job", "Rows per second of one Spark job into three sinks", measure(directory, url, len(table))
            )


def measure(directory: Path, url: str, rows: int) -> list[Figure]:
    spark = local_session("spark-job-benchmark")
    sinks: dict[str, Callable[[int], Sink]] = {
        "metatxn": lambda run: into_metatxn(url, f"bench-{run}"),
        "noop": lambda run: into_noop(),
        "parquet": lambda run: into_parquet(directory / f"out-{run}"),
    }
    runs: dict[str, list[float]] = {name: [] for name in sinks}
    for run in range(RUNS + 1):
        for name, sink in sinks.items():
            seconds = job(spark, directory, sink(run), f"{name}-{run}")
            if run:  # the first round warms up
                runs[name].append(rows / seconds)
            sys.stdout.write(f"run {run} of {RUNS}: {name} {rows / seconds:,.0f} rows/s\n")
    spark.stop()
    figures = [Figure(f"rows into {name}", values, "1/s") for name, values in runs.items()]
    for other in ("noop", "parquet"):
        ratios = [ours / theirs for ours, theirs in zip(runs["metatxn"], runs[other], strict=True)]
        figures.append(Figure(f"metatxn ÷ {other}", ratios, "ratio"))
    return figures


def job(spark: SparkSession, directory: Path, sink: Sink, name: str) -> float:
    """Seconds from the start of the query to its end."""
    source = str(directory / "input")
    checkpoint = directory / f"checkpoint-{name}"
    stream = spark.readStream.schema(spark.read.parquet(source).schema).option("maxFilesPerTrigger", 1).parquet(source)

    def write(batch: DataFrame, batch_id: int) -> None:
        batch = batch.persist()
        delays = batch.groupBy("carrier").agg(
            F.lit(batch_id).cast("long").alias("batch_id"),
            F.count("*").alias("flights"),
            F.sum(F.col("dep_time").isNull().cast("long")).alias("cancelled"),
            F.coalesce(F.sum("dep_delay"), F.lit(0.0)).alias("total_delay"),
        )
        sink(batch, delays.select(*data.DELAYS_SCHEMA.names), batch_id)
        batch.unpersist()

    begun = time.perf_counter()
    query = (
        stream.writeStream.foreachBatch(write)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    seconds = time.perf_counter() - begun
    shutil.rmtree(checkpoint)
    return seconds


def into_metatxn(url: str, application: str) -> Sink:
    def write(batch: DataFrame, delays: DataFrame, batch_id: int) -> None:
        with spark_connector.batch_transaction(url, application, batch_id) as txn:
            for frame, topic in ((batch, "departures"), (delays, "carrier_delays")):
                sink = frame.write.format("metatxn").option("url", url).option("topic", topic)
                sink.option("txnId", txn.id).option("keyColumn", "carrier").mode("append").save()

    return write


def into_noop() -> Sink:
    def write(batch: DataFrame, delays: DataFrame, batch_id: int) -> None:
        for frame in (batch, delays):
            frame.write.format("noop").mode("append").save()

    return write


def into_parquet(directory: Path) -> Sink:
    def write(batch: DataFrame, delays: DataFrame, batch_id: int) -> None:
        batch.write.mode("append").parquet(str(directory / "departures"))
        delays.write.mode("append").parquet(str(directory / "carrier_delays"))

    return write


if __name__ == "__main__":
    main()
