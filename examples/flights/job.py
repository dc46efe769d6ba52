"""The job: flights in, two topics out, one transaction per micro-batch.

    python -m examples.flights.job --url http://127.0.0.1:8470 --input DIR --checkpoint DIR

Kill it at any moment and start it again on the same checkpoint: the topics agree to the row.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

import metatxn
import spark_connector
from examples.flights import data
from examples.flights.session import local_session

APPLICATION = "flights-demo"


def main() -> None:
    options = _options()
    if not Path(options.input).exists():
        data.cut(data.flights(), Path(options.input))
    spark = local_session(APPLICATION)
    with metatxn.connect(options.url) as client:
        client.create_topic("departures", segments=4, schema=data.SCHEMA, exist_ok=True)
        client.create_topic("carrier_delays", segments=1, schema=data.DELAYS_SCHEMA, exist_ok=True)

    source = (
        spark.readStream.schema(spark.read.parquet(options.input).schema)
        .option("maxFilesPerTrigger", 1)
        .parquet(options.input)
    )
    query = (
        source.writeStream.foreachBatch(lambda batch, batch_id: write(batch, batch_id, options))
        .option("checkpointLocation", options.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


def write(batch: DataFrame, batch_id: int, options: argparse.Namespace) -> None:
    """Both topics in one transaction. On a replay of a committed batch the writes are no-ops by themselves."""
    batch = batch.persist()
    delays = (
        batch.groupBy("carrier")
        .agg(
            F.count("*").alias("flights"),
            F.sum(F.col("dep_time").isNull().cast("long")).alias("cancelled"),
            F.coalesce(F.sum("dep_delay"), F.lit(0.0)).alias("total_delay"),
        )
        .select(F.lit(batch_id).cast("long").alias("batch_id"), "carrier", "flights", "cancelled", "total_delay")
    )
    with spark_connector.batch_transaction(options.url, APPLICATION, batch_id) as txn:
        for frame, topic in ((batch, "departures"), (delays, "carrier_delays")):
            sink = frame.write.format("metatxn").option("url", options.url).option("topic", topic)
            sink.option("txnId", txn.id).option("keyColumn", "carrier").mode("append").save()
        pause(options, "before-commit", batch_id)
        begun = time.perf_counter()
    commit_ms = (time.perf_counter() - begun) * 1000
    report(options, batch_id=batch_id, replayed=txn.already_committed, commit_ms=commit_ms, txn_id=txn.id)
    pause(options, "after-commit", batch_id)
    batch.unpersist()


def report(options: argparse.Namespace, **line: object) -> None:
    if options.report:
        with Path(options.report).open("a") as file:
            file.write(json.dumps(line) + "\n")


def pause(options: argparse.Namespace, place: str, batch_id: int) -> None:
    """For the demo, which kills the driver exactly here: say so and wait for it."""
    if options.pause_at == f"{place}:{batch_id}":
        sys.stdout.write(f"paused at {options.pause_at}\n")
        sys.stdout.flush()
        threading.Event().wait()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8470", help="any coordinator or broker")
    parser.add_argument("--input", required=True, help="directory of Parquet files; made when missing")
    parser.add_argument("--checkpoint", required=True, help="Spark's checkpoint directory")
    parser.add_argument("--report", help="append one JSON line per micro-batch to this file")
    parser.add_argument("--pause-at", help="before-commit:N or after-commit:N: wait there to be killed")
    return parser.parse_args()


if __name__ == "__main__":
    main()
