"""What a program of Spark with its own source and sink for Kafka is made of, and how it is started.

Spark's connector is for one version of Spark, which is not the one of these tests. So the program is a process of its
own, with that Spark and the connector from `build` (see the Makefile).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer, TopicPartition
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from examples.flights.processes import ROOT
from tests.gateways.differential.program import PATIENCE_S, KafkaProgram

BUILD = ROOT / "build"
JARS = BUILD / "spark-kafka"
SHOWN = (
    "topic",
    "partition",
    "offset",
    "CAST(key AS STRING) AS key",
    "CAST(value AS STRING) AS value",
    "headers",
    "unix_millis(timestamp) AS at",
    "timestampType AS kind",
)
IMPATIENT = {"fetchOffset.numRetries": "1", "fetchOffset.retryIntervalMs": "10", "kafka.max.block.ms": "3000"}
"""An error that stays is not waited for."""
COMMITTED = {"kafka.isolation.level": "read_committed"}


@dataclass(frozen=True, slots=True)
class Access:
    """How a program gets in: what its own clients are set to, Spark's source, and Spark's sink."""

    client: Mapping[str, str] = field(default_factory=dict)
    source: Mapping[str, str] = field(default_factory=dict)
    sink: Mapping[str, str] = field(default_factory=dict)


NO_ACCESS = Access()


def with_kafka() -> dict[str, str]:
    """An environment that has a Spark with its connector for Kafka."""
    connectors = list(JARS.glob("spark-sql-kafka-*.jar"))
    assert connectors, f"Spark's connector is not in {JARS}: use `make kafka-test`"
    version = connectors[0].stem.rpartition("-")[2]
    return {
        "PYTHONPATH": os.pathsep.join([str(BUILD / f"pyspark-{version}"), str(ROOT)]),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f"--driver-class-path {JARS}/* pyspark-shell",
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


async def printed_with_kafka(directory: str | Path, *arguments: str) -> str:
    """What Python prints with these arguments in that environment."""
    pipe, command = asyncio.subprocess.PIPE, [sys.executable, *arguments]
    program = await asyncio.create_subprocess_exec(
        *command, stdout=pipe, stderr=pipe, env={**os.environ, **with_kafka()}, cwd=directory
    )
    told, complaints = await program.communicate()
    assert program.returncode == 0, told.decode() + complaints.decode()
    return told.decode()


async def journal_of(module: str, servers: str, access: Access, parts: Iterable[str]) -> list[str]:
    with tempfile.TemporaryDirectory() as directory:
        arguments = ("-m", module, servers, directory, json.dumps(asdict(access)), *parts)
        return (await printed_with_kafka(directory, *arguments)).splitlines()


def run(program: type[SparkProgram], servers: str, directory: str, access: str, *parts: str) -> None:
    """The process that `journal_of` starts. Of the journal it prints what there is."""
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.warehouse.dir", f"{directory}/warehouse")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "OFF")
        .getOrCreate()
    )
    running = program(servers, session, Path(directory), Access(**json.loads(access)), parts)
    try:
        running.run()
    finally:
        sys.stdout.write("".join(f"{line}\n" for line in running.journal))
        session.stop()


class SparkProgram(KafkaProgram):
    def __init__(
        self, servers: str, spark: SparkSession, directory: Path, access: Access, only: Sequence[str] = ()
    ) -> None:
        super().__init__(servers, **access.client)
        self.spark = spark
        self.directory = directory
        self.only = only
        self.source = {"kafka.bootstrap.servers": servers, **access.source}
        self.sink = {"kafka.bootstrap.servers": servers, **access.sink}

    @property
    def all_parts(self) -> Sequence[Callable[[], None]]:
        raise NotImplementedError

    @property
    def parts(self) -> Sequence[Callable[[], None]]:
        return [each for each in self.all_parts if each.__name__.strip("_") in self.only or not self.only]

    # -- Spark -------------------------------------------------------------------------------------------------

    def attempt(self, what: str, action: Callable[[], Any]) -> None:
        try:
            super().attempt(what, action)
        except Exception as error:
            thrown = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
            if thrown is None:
                raise
            self.tell(what, causes(thrown))

    def reading(self, topic: str, *options: Mapping[str, str]) -> dict[str, str]:
        found = {**self.source, "subscribe": topic, "startingOffsets": "earliest", "includeHeaders": "true"}
        found["kafkaConsumer.pollTimeoutMs"] = str(1000 * PATIENCE_S)
        for each in options:
            found |= each
        return {name: value for name, value in found.items() if value}

    def table(self, topic: str, *options: Mapping[str, str]) -> DataFrame:
        return self.spark.read.format("kafka").options(**self.reading(topic, *options)).load()

    def rows(self, topic: str, *options: Mapping[str, str]) -> list[Row]:
        return in_order(self.table(topic, *options).selectExpr(*SHOWN).collect())

    def write(self, frame: DataFrame, *options: Mapping[str, str]) -> None:
        found = dict(self.sink)
        for each in options:
            found |= each
        frame.write.format("kafka").options(**found).mode("append").save()

    def batches(self, topic: str, *options: Mapping[str, str], checkpoint: str | None = None) -> list[list[Row]]:
        """The rows of each micro-batch, from where the checkpoint is to the end."""
        found: list[list[Row]] = []
        writer = self.stream(topic, *options).writeStream.foreachBatch(_deliver_to(found.append))
        self._run(writer, checkpoint or topic)
        return found

    def running(self, found: list[Row], topic: str, *options: Mapping[str, str]) -> StreamingQuery:
        """A query that has started, and goes on until it is stopped."""
        writer = self.stream(topic, *options).writeStream.foreachBatch(_deliver_to(found.extend))
        return writer.option("checkpointLocation", str(self.directory / topic)).start()

    def run_into_nothing(self, topic: str, *options: Mapping[str, str]) -> None:
        """For its error, of which a function of Python's would hide the causes."""
        self._run(self.stream(topic, *options).writeStream.format("noop"), topic)

    def stream(self, topic: str, *options: Mapping[str, str]) -> DataFrame:
        return self.spark.readStream.format("kafka").options(**self.reading(topic, *options)).load()

    def _run(self, writer: DataStreamWriter, checkpoint: str) -> None:
        writer = writer.option("checkpointLocation", str(self.directory / checkpoint))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(10 * PATIENCE_S), "the query does not end"
        finally:
            query.stop()

    # -- what is told ------------------------------------------------------------------------------------------

    def tell_rows(self, what: str, rows: Iterable[Row], *, times: bool = False) -> None:
        for row in rows:
            told = [row.topic, row.partition, row.offset, row.key, row.value, headers_of(row.headers)]
            self.tell(what, *told, *([row.at, row.kind] if times else []))

    def tell_stored(self, topic: str, partitions: int = 2) -> None:
        """What another client reads."""
        for partition in range(partitions):
            for each in self.read(topic, "read_committed", 0, partition)[0]:
                headers = [[name, as_text(value)] for name, value in each.headers() or []]
                self.tell("stored", partition, each.offset(), as_text(each.key()), as_text(each.value()), headers)

    def tell_values(self, what: str, rows: Iterable[Row]) -> None:
        """The values of each partition, and whether their offsets rise."""
        values, offsets = defaultdict(list), defaultdict(list)
        for row in rows:
            values[row.partition].append(row.value)
            offsets[row.partition].append(row.offset)
        for partition in sorted(values):
            found = offsets[partition]
            self.tell(what, partition, values[partition], found == sorted(set(found)))

    # -- other clients -----------------------------------------------------------------------------------------

    def send_each(self, topic: str, values: Iterable[str], partition: int = 0) -> None:
        """A batch for each of them, so that what is deleted before an offset begins exactly there."""
        producer = self.producer()
        for value in values:
            self.send(producer, topic, value, partition=partition, key=f"key {value}")

    def transactional(self, name: str, **options: Any) -> Producer:
        producer = self.producer(**{"transactional.id": name, **options})
        producer.init_transactions(PATIENCE_S)
        return producer

    def until_readable(self, topic: str, partition: int, number: int) -> None:
        """Kafka answers an EndTxn before its records can be read."""
        consumer = self.consumer("none", **{"isolation.level": "read_committed"})
        consumer.assign([TopicPartition(topic, partition, 0)])
        while number > 0:
            number -= sum(1 for each in consumer.consume(number, PATIENCE_S) if not each.error())
        consumer.close()

    def delete_before(self, topic: str, offset: int) -> None:
        place = TopicPartition(topic, 0, offset)
        self.tell("begins at", self.admin.delete_records([place])[place].result(PATIENCE_S).low_watermark)


def _deliver_to(take: Callable[[list[Row]], None]) -> Callable[[DataFrame, int], None]:
    return lambda batch, number: take(in_order(batch.selectExpr(*SHOWN).collect()))


def in_order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row.topic, row.partition, row.offset))


def flat(batches: Iterable[Iterable[Row]]) -> list[Row]:
    return [row for batch in batches for row in batch]


def as_text(value: bytes | None) -> str | None:
    return None if value is None else bytes(value).decode()


def headers_of(found: Iterable[Row] | None) -> list[list[str | None]] | None:
    return None if found is None else [[each["key"], as_text(each["value"])] for each in found]


def causes(error: Any) -> list[str]:
    """The classes of an exception of Java's and of its causes, each with its error condition if it has one."""
    found = []
    while error is not None:
        condition = error.getCondition() if "getCondition" in dir(error) else None
        found.append(error.getClass().getSimpleName() + (f" {condition}" if condition else ""))
        error = error.getCause()
    return found
