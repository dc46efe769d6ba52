"""What a client of Spark Connect does with the format; it says what it has seen, as JSON.

python -m tests.spark_connector.matrix.connect_client sc://127.0.0.1:15002 http://127.0.0.1:8470 DIRECTORY
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import metatxn
from spark_connector import batch_transaction
from spark_connector.progress import Progress, ProgressListener, measured
from tests.spark_connector.helpers import STREAMS_TOPICS, run, wait_until

SUBSCRIPTION = "copier"


class Client:
    """Every method makes one topic or two of its own out of the topic `source`, which `write` fills."""

    def __init__(self, spark: SparkSession, url: str, directory: Path) -> None:
        self._spark = spark
        self._url = url
        self._directory = directory

    def write(self) -> None:
        """Ids 0 to 9 by a DataFrame, 10 to 19 by SQL."""
        self._save(self._spark.range(10), topic="source")
        self._spark.sql(f"CREATE TEMPORARY VIEW sink USING metatxn OPTIONS (url '{self._url}', topic 'source')")
        self._spark.sql("INSERT INTO sink SELECT id FROM range(10, 20)")

    def read(self) -> list[int]:
        rows = self._spark.read.format("metatxn").options(url=self._url, subscribe="source").load()
        return sorted(row.id for row in rows.collect())

    def write_in_a_transaction(self) -> None:
        """With the end of the block in the client's hands."""
        with batch_transaction(self._url, "client", 0) as txn:
            for topic in ("first", "second"):
                self._save(self._spark.range(20), topic=topic, txnId=txn.id)

    def copy(self) -> list[list[Any]]:
        """From topic to topic, with the input acknowledged: what the listener tells of it."""
        told: list[Progress] = []
        listener = ProgressListener(self._url, told.append)
        self._spark.streams.addListener(listener)
        sink = measured(self._stream()).writeStream.format("metatxn").option("url", self._url)
        self._run(sink.option("topic", "copies").option("ackSubscription", SUBSCRIPTION), "copies")
        wait_until(lambda: sum(each.rows for each in told) == 20, "the listener is told of all rows")
        self._spark.streams.removeListener(listener)
        return [[each.batch_id, each.rows, each.bytes, each.committed] for each in told if each.rows]

    def copy_for_each_batch(self) -> None:
        """In the server's hands: the function runs there."""
        url = self._url

        def write(batch: DataFrame, batch_id: int) -> None:
            with batch_transaction(url, "server", batch_id) as txn:
                for topic in ("third", "fourth"):
                    sink = batch.write.format("metatxn").options(url=url, topic=topic, txnId=txn.id)
                    sink.mode("append").save()

        self._run(self._stream().writeStream.foreachBatch(write), "for each batch")

    def _save(self, rows: DataFrame, **options: str) -> None:
        rows.write.format("metatxn").options(url=self._url, **options).mode("append").save()

    def _stream(self) -> DataFrame:
        return self._spark.readStream.format("metatxn").options(url=self._url, subscribe="source").load()

    def _run(self, query: DataStreamWriter, name: str) -> None:
        run(query.option("checkpointLocation", str(self._directory / name)))


def main() -> None:
    remote, url, directory = sys.argv[1:]
    with metatxn.connect(url) as services:
        for topic in ("source", "first", "second", "third", "fourth", "copies"):
            services.create_topic(topic, segments=2)
        services.subscribe("source", SUBSCRIPTION, initial="earliest").close()
    spark = SparkSession.builder.remote(remote).getOrCreate()
    client = Client(spark, url, Path(directory))
    client.write()
    client.write_in_a_transaction()
    said: dict[str, Any] = {"read": client.read()}
    if STREAMS_TOPICS:
        said["told"] = client.copy()
        client.copy_for_each_batch()
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main()
