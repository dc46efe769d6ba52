"""A Spark query that copies what is committed in the topic `in` to the topic `out`, until it is told to end.

It is a process of its own. It says when it has started, and copies what is there before it ends.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from tests.gateways.differential.spark_program import COMMITTED, with_kafka


@asynccontextmanager
async def copying(servers: str, checkpoint: Path) -> AsyncIterator[None]:
    """The query, as long as the block lasts, and until it has copied what there is."""
    pipe, complaints = asyncio.subprocess.PIPE, checkpoint.with_suffix(".log")
    command = (sys.executable, "-m", __name__, servers, str(checkpoint))
    with complaints.open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=log, env={**os.environ, **with_kafka()}
        )
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"started\n", complaints.read_text()
        yield
        await process.communicate(b"")  # it ends when its input does, and Java with it, which has the same output
        assert process.returncode == 0, complaints.read_text()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


def main(servers: str, checkpoint: str) -> None:
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    address = {"kafka.bootstrap.servers": servers}
    source = session.readStream.format("kafka").options(**address, **COMMITTED, subscribe="in")
    source = source.options(startingOffsets="earliest", maxOffsetsPerTrigger=100)
    copies = source.load().select("partition", "value").writeStream.format("kafka")
    query = copies.options(**address, topic="out", checkpointLocation=checkpoint).start()
    sys.stdout.write("started\n")
    sys.stdout.flush()
    sys.stdin.read()
    query.processAllAvailable()
    query.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
