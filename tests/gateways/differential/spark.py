"""A program of Spark with its own source and sink for Kafka, and a journal of what it is told, as `confluent` has one.

What it reads is told as rows, with their offsets unless there are transactions in the topic (see `confluent`). What it
writes is read by confluent-kafka. An error is told as the names of its causes, with their error conditions.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import NewPartitions
from pyspark.sql import Row
from pyspark.sql.functions import expr

from tests.gateways.differential import spark_program
from tests.gateways.differential.program import PATIENCE_S
from tests.gateways.differential.spark_program import (
    COMMITTED,
    IMPATIENT,
    NO_ACCESS,
    SHOWN,
    Access,
    SparkProgram,
    flat,
    in_order,
)

TO_KAFKA = (
    "key",
    "value",
    "partition",
    "transform(headers, h -> named_struct('key', h.key, 'value', CAST(h.value AS BINARY))) AS headers",
)
FILE = "key STRING, value STRING, partition INT, headers ARRAY<STRUCT<key: STRING, value: STRING>>"
LARGE = 20_000
"""Rows of 1 KB, which are many answers to Fetch."""
IN_TRANSACTION = 2_000
PARTS = {
    "writes": ("streaming_sink", "batch_write"),
    "reads": ("batch_read", "times", "stream", "old_offsets"),
    "reads transactions": ("transactions", "transactions_meanwhile"),
    "reads much": ("large", "large_transactions"),
    "fails": ("trimmed", "created_again", "grown", "refused"),
}
"""Each of these is a run of the program."""


async def journal_of(servers: str, access: Access = NO_ACCESS, parts: Iterable[str] = ()) -> list[str]:
    """Of some parts, or all."""
    return await spark_program.journal_of(__name__, servers, access, parts)


class Program(SparkProgram):
    @property
    def all_parts(self) -> Sequence[Callable[[], None]]:
        return [getattr(self, f"_{name}") for names in PARTS.values() for name in names]

    # -- writing -----------------------------------------------------------------------------------------------

    def _add_file(self, directory: Path, number: int) -> None:
        rows: list[dict[str, Any]] = [
            {"key": f"k{number}", "value": f"{number} by its key", "headers": [{"key": "h", "value": "x"}]},
            {"key": "k", "value": f"{number} to partition 1", "partition": 1, "headers": []},
            {"key": None, "value": f"{number} without a key", "partition": 0},
            {"key": "k", "value": None, "partition": 0, "headers": [{"key": "a"}, {"key": "a", "value": "\u00fc"}]},
            {"key": "", "value": "", "partition": 1, "headers": [{"key": "", "value": ""}]},
        ]
        path = directory / f"{number}.json"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        os.utime(path, (number, number))

    def _streaming_sink(self) -> None:
        """Of a file for each micro-batch. What was written is written again if that is not in the checkpoint."""
        self.create("spark-sink", partitions=2)
        files = self.directory / "files"
        files.mkdir()
        frame = self.spark.readStream.schema(FILE).option("maxFilesPerTrigger", 1).json(str(files))
        writer = frame.selectExpr(*TO_KAFKA).writeStream.format("kafka")
        writer = writer.options(**self.sink, topic="spark-sink", **{"kafka.compression.type": "lz4"})
        for number in (1, 2, 3):
            self._add_file(files, number)
        self._run(writer, "sink")
        self.tell_stored("spark-sink")
        self._add_file(files, 4)
        self._add_file(files, 5)
        self._run(writer, "sink")
        self.tell("micro-batches", len(list((self.directory / "sink" / "commits").glob("[0-9]*"))))
        self.tell_rows("read", self.rows("spark-sink"))
        for path in (self.directory / "sink" / "commits").glob("*4*"):
            path.unlink()
        self._run(writer, "sink")
        self.tell_values("the last one twice", self.rows("spark-sink"))

    def _batch_write(self) -> None:
        """To the topics that the rows name. One partition of Spark, so that the offsets are the same each time."""
        self.create("spark-written-1", "spark-written-2", partitions=2)
        frame = self.spark.range(12, numPartitions=1).selectExpr(
            "concat('spark-written-', 1 + id % 2) AS topic",
            "concat('k', id) AS key",
            "CAST(concat('v', id) AS BINARY) AS value",
            "IF(id < 6, CAST(id % 3 = 0 AS INT), NULL) AS partition",
        )
        for compression in ("none", "gzip", "snappy", "lz4", "zstd"):
            self.write(frame, {"kafka.compression.type": compression})
        for topic in ("spark-written-1", "spark-written-2"):
            self.tell_stored(topic)

    # -- reading -----------------------------------------------------------------------------------------------

    def _batch_read(self) -> None:
        topic = "spark-read"
        self.create(topic, "spark-read-too", partitions=2)
        self.send_each(topic, "abcdefgh")
        self.send_each(topic, "ABCD", partition=1)
        self.send_each("spark-read-too", "xy")
        self.tell_rows("all", self.rows(topic))
        for start, end in (
            ({"0": 2, "1": 1}, {"0": 6, "1": 3}),
            ({"0": -2, "1": -2}, {"0": -1, "1": -1}),
            ({"0": 3, "1": 4}, {"0": 3, "1": 4}),
            ({"0": 7, "1": -2}, {"0": -1, "1": 1}),
        ):
            places = {"startingOffsets": json.dumps({topic: start}), "endingOffsets": json.dumps({topic: end})}
            self.tell_values(f"{start} to {end}", self.rows(topic, places))
        pattern = {"subscribe": "", "subscribePattern": "spark-read.*"}
        self.tell("by a pattern", sorted([row.topic, row.value] for row in self.rows(topic, pattern)))
        one = {"subscribe": "", "assign": json.dumps({topic: [1], "spark-read-too": [0]})}
        self.tell("some partitions", sorted([row.topic, row.value] for row in self.rows(topic, one)))
        for option in ({"minPartitions": "6"}, {"maxRecordsPerPartition": "3"}, {"minPartitions": "1"}):
            frame = self.table(topic, option).selectExpr("spark_partition_id() AS task", *SHOWN)
            tasks: dict[int, list[Any]] = defaultdict(list)
            for row in frame.collect():
                tasks[row.task].append([row.partition, row.offset])
            self.tell(f"tasks with {option}", sorted(tasks.values()))

    def _times(self) -> None:
        topic = "spark-times"
        self.create(topic, partitions=2)
        producer = self.producer(**{"linger.ms": 500})
        for at_ms in (1_000, 3_000, 2_000, 3_000):  # one batch
            producer.produce(topic, str(at_ms), partition=0, timestamp=at_ms)
        assert producer.flush(PATIENCE_S) == 0
        for at_ms, place in ((1_500, 0), (2_500, 0), (2_000, 1)):
            self.send(producer, topic, str(at_ms), timestamp=at_ms, partition=place)
        self.tell_rows("all", self.rows(topic), times=True)
        latest = {"startingOffsetsByTimestampStrategy": "latest"}
        for at_ms in (0, 1_001, 2_000, 2_001, 3_000, 3_001):
            for strategy in ({}, latest):
                asked = {"startingTimestamp": str(at_ms), **strategy}
                self.attempt(f"from {asked}", lambda asked=asked: self._values(topic, asked))  # type: ignore[misc]
            self.attempt(f"to {at_ms}", partial(self._values, topic, {"endingTimestamp": str(at_ms)}))
        by_partition = {
            "startingOffsetsByTimestamp": json.dumps({topic: {"0": 2_500, "1": 0}}),
            "endingOffsetsByTimestamp": json.dumps({topic: {"0": 9_000, "1": 2_001}}),
        }
        self.tell("by partition", self._values(topic, by_partition))
        found = self.batches(topic, {"startingOffsets": "", "startingTimestamp": "2000"})
        self.tell("a stream", [[row.partition, row.offset] for batch in found for row in batch])

    def _values(self, topic: str, options: Mapping[str, str]) -> list[list[Any]]:
        return [
            [row.partition, row.offset, row.value]
            for row in self.rows(topic, {"startingOffsets": ""}, IMPATIENT, options)
        ]

    def _stream(self) -> None:
        """Micro-batches with a limit, restarted from the checkpoint, also from one that had not got to its end."""
        topic = "spark-stream"
        self.create(topic, partitions=2)
        self.send_each(topic, "abcdefgh")
        self.send_each(topic, "ABCD", partition=1)
        limits = {"maxOffsetsPerTrigger": "5", "minPartitions": "4"}
        for number, batch in enumerate(self.batches(topic, limits)):
            self.tell_rows(f"micro-batch {number}", batch)
        self.tell("nothing new", flat(self.batches(topic, limits)))
        self.send_each(topic, "ijk")
        for batch in self.batches(topic, limits):
            self.tell_rows("after a restart", batch)
        (last,) = (self.directory / topic / "commits").glob("3")
        last.unlink()
        (self.directory / topic / "commits" / ".3.crc").unlink()
        for batch in self.batches(topic, limits):
            self.tell_rows("not committed, so again", batch)
        latest = {"startingOffsets": "latest"}
        self.tell("from the end", flat(self.batches(topic, latest, checkpoint="latest")))
        self.send_each(topic, "lm")
        for batch in self.batches(topic, latest, checkpoint="latest"):
            self.tell_rows("since then", batch)

    # -- transactions ------------------------------------------------------------------------------------------

    def _transactions(self) -> None:
        """Gaps where transactions were aborted, and one that is open in front of others."""
        topic = "spark-decided"
        self.create(topic, partitions=2)
        producer = self.transactional("spark")
        for number, commit in enumerate((True, False, True, False, False, True)):
            self._transaction(producer, topic, f"{number}", commit)
        late = self.transactional("spark late")
        late.begin_transaction()
        for number in range(3):
            self.send(late, topic, f"late {number}")
        self._transaction(producer, topic, "after", True)
        self.until_readable(topic, 0, 9)
        self.until_readable(topic, 1, 12)
        limits = {"maxOffsetsPerTrigger": "7"}
        self.tell_values("a table", self.rows(topic, COMMITTED))
        self.tell_values("a table in small parts", self.rows(topic, COMMITTED, {"minPartitions": "9"}))
        self.tell_values("with what is not committed", self.rows(topic))
        self._tell_stream("a stream", topic, limits)
        self._tell_stream("nothing new", topic, limits)
        late.commit_transaction(PATIENCE_S)
        self._transaction(producer, topic, "dropped", False)
        self._transaction(producer, topic, "last", True)
        self._transaction(producer, topic, "dropped too", False)
        self.until_readable(topic, 0, 18)
        self.until_readable(topic, 1, 15)
        self._tell_stream("after a restart", topic, limits)
        self._tell_stream("nothing new", topic, limits)
        late.begin_transaction()
        self.send(late, topic, "late again")
        late.abort_transaction(PATIENCE_S)
        self._tell_stream("nothing but what was aborted", topic, limits)
        self.tell_values("all at once", in_order(flat(self.batches(topic, COMMITTED, checkpoint="all at once"))))

    def _transactions_meanwhile(self) -> None:
        """Two producers whose transactions overlap, while a query reads what is committed."""
        topic = "spark-meanwhile"
        self.create(topic, partitions=2)
        producers = [self.transactional(f"spark {name}") for name in "ab"]
        found: list[Row] = []
        query = self.running(found, topic, COMMITTED, {"maxOffsetsPerTrigger": "11"})
        for number in range(20):
            for producer in producers:
                producer.begin_transaction()
            for half in range(2):
                for name, producer in zip("ab", producers, strict=True):
                    for place in range(2):
                        self.send(producer, topic, f"{name}{number} {half}", partition=place)
            first, second = producers if number % 2 else reversed(producers)
            first.commit_transaction(PATIENCE_S)
            (second.abort_transaction if number % 4 < 3 else second.commit_transaction)(PATIENCE_S)
        for place in range(2):
            self.until_readable(topic, place, 50)
        query.processAllAvailable()
        query.stop()
        self.tell_values("delivered", in_order(found))
        self.tell("nothing is left", flat(self.batches(topic, COMMITTED)))
        self.tell_values("a table", self.rows(topic, COMMITTED))

    def _transaction(self, producer: Producer, topic: str, name: str, commit: bool) -> None:
        producer.begin_transaction()
        for number in range(3):
            for place in range(2):
                self.send(producer, topic, f"{name} {number}", partition=place)
        (producer.commit_transaction if commit else producer.abort_transaction)(PATIENCE_S)

    def _tell_stream(self, what: str, topic: str, limits: Mapping[str, str]) -> None:
        """Kafka counts the ends of transactions as offsets, so its micro-batches end elsewhere."""
        found = self.batches(topic, COMMITTED, limits)
        self.tell("within the limit", all(len(batch) <= int(limits["maxOffsetsPerTrigger"]) + 1 for batch in found))
        self.tell_values(what, flat(found))

    # -- much --------------------------------------------------------------------------------------------------

    def _large(self) -> None:
        topic = "spark-large"
        self.create(topic, partitions=4)
        frame = self.spark.range(LARGE, numPartitions=4)
        self.write(
            frame.selectExpr("CAST(id AS STRING) AS key", "rpad(CAST(id AS STRING), 1000, 'x') AS value"),
            {"topic": topic, "kafka.compression.type": "zstd", "kafka.linger.ms": "20"},
        )
        found = self.table(topic, {"minPartitions": "9"}).groupBy("partition")
        counts = "count(*)", "count(DISTINCT key)", "min(offset)", "max(offset)", "sum(length(value))"
        for row in found.agg(*map(expr, counts)).orderBy("partition").collect():
            self.tell("rows", *row)
        batches = self.batches(topic, {"maxOffsetsPerTrigger": str(LARGE // 3)})
        self.tell("micro-batches", [len(batch) for batch in batches], len({row.key for row in flat(batches)}))

    def _large_transactions(self) -> None:
        """Gaps that are larger than what a Fetch asks for."""
        topic = "spark-large-decided"
        self.create(topic)
        producer = self.transactional("spark large", **{"linger.ms": 20})
        expected: list[str] = []
        for name, commit in (("a", True), ("b", False), ("c", True), ("d", False), ("e", False), ("f", True)):
            values = [f"{name} {number}".ljust(1_000) for number in range(IN_TRANSACTION)]
            producer.begin_transaction()
            for value in values:
                producer.produce(topic, value, partition=0)
                producer.poll(0)
            assert producer.flush(PATIENCE_S) == 0
            (producer.commit_transaction if commit else producer.abort_transaction)(PATIENCE_S)
            expected += values if commit else []
        self.until_readable(topic, 0, len(expected))
        for what, rows in (
            ("a table", self.rows(topic, COMMITTED)),
            ("in small parts", self.rows(topic, COMMITTED, {"minPartitions": "13"})),
            ("a stream", flat(self.batches(topic, COMMITTED, {"maxOffsetsPerTrigger": "777"}))),
        ):
            self.tell(what, len(rows), [row.value for row in rows] == expected)

    # -- loss --------------------------------------------------------------------------------------------------

    def _trimmed(self) -> None:
        topic = "spark-trimmed"
        self.create(topic)
        self.send_each(topic, "abc")
        self.tell_values("a stream", flat(self.batches(topic)))
        self.send_each(topic, "defgh")
        self.delete_before(topic, 5)
        self.attempt("lost", lambda: self.run_into_nothing(topic, IMPATIENT))
        self.tell_values("goes on", flat(self.batches(topic, IMPATIENT, {"failOnDataLoss": "false"})))
        self.tell_values("from the start", self.rows(topic))
        early = {"startingOffsets": json.dumps({topic: {"0": 1}})}
        self.attempt("a table", lambda: self.rows(topic, IMPATIENT, early))
        self.tell_values("what is left", self.rows(topic, IMPATIENT, early, {"failOnDataLoss": "false"}))
        self.delete_before(topic, 8)
        self.attempt("nothing is left", lambda: self.rows(topic))
        gone = {"startingOffsets": json.dumps({topic: {"0": 5}}), "endingOffsets": json.dumps({topic: {"0": 7}})}
        self.attempt("none of a table", lambda: self.rows(topic, IMPATIENT, gone))
        self.tell("none", self.rows(topic, IMPATIENT, gone, {"failOnDataLoss": "false"}))

    def _created_again(self) -> None:
        topic = "spark-again"
        self.create(topic)
        self.send_each(topic, "abcde")
        self.tell_values("a stream", flat(self.batches(topic)))
        self.admin.delete_topics([topic])[topic].result(PATIENCE_S)
        self.attempt("without its topic", lambda: self.run_into_nothing(topic, IMPATIENT))
        self.create(topic)
        self.send_each(topic, "AB")
        self.attempt("with another topic", lambda: self.run_into_nothing(topic, IMPATIENT))

    def _grown(self) -> None:
        """Partitions that come while a query does not run."""
        topic = "spark-grown"
        self.create(topic)
        self.send_each(topic, "ab")
        self.tell_values("a stream", flat(self.batches(topic)))
        self.admin.create_partitions([NewPartitions(topic, 3)])[topic].result(PATIENCE_S)
        self.send_each(topic, "cd", partition=2)
        self.send_each(topic, "e")
        self.tell_values("all partitions", flat(self.batches(topic)))

    def _old_offsets(self) -> None:
        """Offsets as Spark found them before 3.4: by a consumer that is a member of a group."""
        self.spark.conf.set("spark.sql.streaming.kafka.useDeprecatedOffsetFetching", "true")
        topic = "spark-old"
        self.create(topic, partitions=2)
        self.send_each(topic, "abc")
        self.send_each(topic, "AB", partition=1)
        self.tell_values("a table", self.rows(topic))
        self.tell_values("a stream", flat(self.batches(topic)))
        self.send_each(topic, "d")
        self.tell_values("after a restart", flat(self.batches(topic)))
        self.spark.conf.unset("spark.sql.streaming.kafka.useDeprecatedOffsetFetching")

    # -- errors ------------------------------------------------------------------------------------------------

    def _refused(self) -> None:
        topic = "spark-refused"
        self.create(topic, partitions=2)
        self.send_each(topic, "abc")

        def read(what: str, **options: Any) -> None:
            self.attempt(what, lambda: [row.value for row in self.rows(topic, IMPATIENT, options)])

        def write(what: str, options: Mapping[str, str], *columns: str) -> None:
            frame = self.spark.range(1, numPartitions=1).selectExpr("'v' AS value", *columns)
            self.attempt(what, lambda: self.write(frame, IMPATIENT, options))

        read("no such topic", subscribe="spark-nowhere")
        read("one of two", subscribe=f"{topic},spark-nowhere")
        read("no such partition", subscribe="", assign=json.dumps({topic: [0, 7]}))
        read("not all partitions", startingOffsets=json.dumps({topic: {"0": 1}}))
        read("from the end", startingOffsets=json.dumps({topic: {"0": -1, "1": -1}}))
        read("beyond the end", startingOffsets=json.dumps({topic: {"0": 9, "1": 0}}))
        ends = json.dumps({topic: {"0": 1, "1": 0}})
        read("backwards", startingOffsets=json.dumps({topic: {"0": 2, "1": 0}}), endingOffsets=ends)
        far = {"endingOffsets": json.dumps({topic: {"0": 9, "1": 0}}), "kafkaConsumer.pollTimeoutMs": "10000"}
        read("up to beyond the end", **far)
        read("up to beyond the end, if need be", **far, failOnDataLoss="false")
        write("no such topic", {"topic": "spark-nowhere"})
        write("no such partition", {"topic": topic}, "7 AS partition")
        write("no topic", {}, "CAST(NULL AS STRING) AS topic")
        write("a wrong name", {"topic": "a/b c"})
        write("all replicas", {"topic": topic, "kafka.acks": "all"}, "0 AS partition")
        write("no answer", {"topic": topic, "kafka.acks": "0"}, "0 AS partition")
        self.tell("where", self.read(topic, "read_committed")[1])


if __name__ == "__main__":
    spark_program.run(Program, *sys.argv[1:])
