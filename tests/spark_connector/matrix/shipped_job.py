"""A job that has nothing of this checkout, only what was installed or sent along; it says what it has seen, as JSON.

python shipped_job.py http://127.0.0.1:8470 TOPIC DIRECTORY [register]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import metatxn
import spark_connector


def main() -> None:
    url, topic, directory, *register = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    if register:
        spark_connector.register(spark)
    with metatxn.connect(url) as client:
        client.create_topic(topic, segments=2)
    spark.range(10).write.format("metatxn").options(url=url, topic=topic).mode("append").save()
    _stream_in(spark, url, topic, Path(directory))
    read = spark.read.format("metatxn").options(url=url, subscribe=topic).load()
    said = {
        "read": sorted(row.id for row in read.collect()),
        "stream": _stream_out(spark, url, topic, Path(directory)),
        "driver": [metatxn.__file__, spark_connector.__file__],
        "task": spark.sparkContext.parallelize([0], 1).mapPartitions(_modules).collect(),
    }
    sys.stdout.write(json.dumps(said))
    spark.stop()


def _stream_in(spark: SparkSession, url: str, topic: str, directory: Path) -> None:
    """Ids 10 to 19."""
    spark.range(10, 20).write.json(str(directory / "in"))
    _run(spark.readStream.schema("id long").json(str(directory / "in")), directory / "written", url=url, topic=topic)


def _stream_out(spark: SparkSession, url: str, topic: str, directory: Path) -> list[int] | str:
    """To a topic of its own; or why not."""
    copies = f"{topic}-copies"
    with metatxn.connect(url) as client:
        client.create_topic(copies)
        rows = spark.readStream.format("metatxn").options(url=url, subscribe=topic).schema("id long").load()
        try:
            _run(rows, directory / "copied", url=url, topic=copies)
        except StreamingQueryException as error:
            return str(error)
        return sorted(row["id"] for row in client.read_table(copies).to_pylist())


def _run(rows: DataFrame, checkpoint: Path, **options: str) -> None:
    sink = rows.writeStream.format("metatxn").options(**options).option("checkpointLocation", str(checkpoint))
    sink.trigger(availableNow=True).start().awaitTermination()


def _modules(_: Iterable[int]) -> list[str]:
    import metatxn
    import spark_connector

    return [metatxn.__file__, spark_connector.__file__]


if __name__ == "__main__":
    main()
