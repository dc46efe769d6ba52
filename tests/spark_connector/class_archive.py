"""Loads and verifies Spark's Java classes once for all tests: `python -m tests.spark_connector.class_archive FILE`.

The tests start Java for Spark some eighty times, and each time it spends most of seven seconds of CPU on that; with the
archive (JEP 350) it needs four. Java looks itself whether an archive is of this Java and of these jars, and does
without one that is not, or that is not there.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from tests.spark_connector.helpers import PLAIN_JAVA_OPTIONS, wait_until


def main() -> None:
    target = Path(sys.argv[1]).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    java = f"{PLAIN_JAVA_OPTIONS} -Xlog:disable -XX:ArchiveClassesAtExit={target}"
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", java)
        .config("spark.log.level", "OFF")  # the query is stopped in the middle of a batch
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as checkpoint:
        stream = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        query = stream.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
        wait_until(lambda: len(query.recentProgress) > 1, "Spark has run a micro-batch")
        query.stop()
    gateway: Any = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    if not target.exists():
        sys.stdout.write(f"{target.name} was not made; the tests only take longer\n")


if __name__ == "__main__":
    main()
