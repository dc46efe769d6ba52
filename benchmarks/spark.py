"""The Spark connector, beside what Spark does without it. Ratios of one run, everything in turns, fsync on; services
are processes of their own, Spark runs in local mode on two cores.

*Writing.* A stream of Spark's own generator, rows of 100 bytes and of 1 KiB, each row into two topics in one
transaction per micro-batch; the same stream into a Python sink that takes the same Arrow batches and drops them; the
same into Spark's sink of Parquet files on the same disk. Rows per second of the time that the micro-batches took,
without the first one.

*Latency.* Micro-batches of 100 rows, into the connector and into the sink that drops them: the medians of the time from
trigger to trigger, and their difference.

*Reading.* A topic from its beginning to its end, as a stream into Spark's `noop` sink; a Python source whose tasks have
the same number of rows in the same batches in memory; and a batch read of Parquet files with the same rows.

*Idling.* A streaming read that has nothing to read, for half a minute: CPU of the driver (Java and Python) and of the
broker, requests to the broker, and requests to etcd beside those of half a minute without the query.

*Segments.* Writing as above, to topics of 1, 4 and 16 segments in 1 and 2 tasks.

Named parts (writing, latency, reading, idling, segments) are measured alone: they write the file anew. `--small` is a
first look: half of the rows, two rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

import metatxn
from benchmarks.report import Figure, publish
from benchmarks.services import METATXN, Service, cpu_s, process_stat, running, spawned
from benchmarks.spark_sources import Dropping, Remembering
from examples.flights.etcd import running_etcd
from examples.flights.session import local_session

BATCHES = 4
WIDTHS = {"100 B": 100, "1 KiB": 1024}
SEGMENTS = 4
SMALL_BATCHES = 40
IDLE_S = 30.0

Figures = Iterator[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Size:
    rounds: int
    bytes_per_batch: int
    bytes_read: int


FULL = Size(rounds=5, bytes_per_batch=64 << 20, bytes_read=256 << 20)
SMALL = Size(rounds=2, bytes_per_batch=32 << 20, bytes_read=128 << 20)


@dataclass(frozen=True, slots=True)
class Stand:
    """Services on one store. `etcd`: where it tells its metrics."""

    store: str
    url: str
    broker: Service
    client: metatxn.Client
    etcd: str | None = None

    def topic(self, segments: int = SEGMENTS) -> str:
        name = f"t-{uuid.uuid4().hex[:8]}"
        self.client.create_topic(name, segments=segments)
        return name


class Bench:
    def __init__(self, directory: Path, size: Size, stack: ExitStack) -> None:
        self._directory = directory
        self._size = size
        self._stack = stack
        self.spark = local_session("spark-benchmark")
        self.spark.sparkContext.setLogLevel("OFF")  # queries are stopped in the middle of a batch
        stack.callback(self.spark.stop)
        for source in (Dropping, Remembering):
            self.spark.dataSource.register(source)
        self.stands = [self._on_sqlite(), self._on_etcd()]

    def _on_sqlite(self) -> Stand:
        options = ["--port", "0", "--broker-port", "0", "--data-dir", str(self._directory / "sqlite"), "-o", "json"]
        process, line = self._stack.enter_context(spawned([*METATXN, "dev", *options]))
        urls = json.loads(line)
        client = self._stack.enter_context(metatxn.connect(urls["coordinator"]))
        return Stand("sqlite", urls["coordinator"], Service(process, urls["broker"]), client)

    def _on_etcd(self, *broker_options: str) -> Stand:
        """An etcd of its own, too."""
        directory = self._directory / f"etcd-{uuid.uuid4().hex[:8]}"
        endpoint = self._stack.enter_context(running_etcd(directory))
        store = ("--store", f"etcd://{endpoint}")
        coordinator = self._stack.enter_context(running("coordinator", *store))
        data = ("--data-dir", str(directory.with_suffix(".data")))
        broker = self._stack.enter_context(running("broker", *store, *data, *broker_options))
        client = self._stack.enter_context(metatxn.connect(coordinator.url))
        return Stand("etcd", coordinator.url, broker, client, endpoint)

    # -- streams ---------------------------------------------------------------------------------------------------

    def generated(self, width: int, rows: int, tasks: int = 2) -> DataFrame:
        """A stream of Spark's own: `rows` of `width` bytes in every micro-batch."""
        source = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
        value = source.option("numPartitions", tasks).load().select(F.col("value").alias("id"))
        return value.withColumn("payload", F.lpad(F.col("id").cast("string"), width - 8, "0"))

    def durations_ms(self, rows: DataFrame, sink: str, batches: int, **options: str) -> list[int]:
        """Of so many micro-batches behind the first one, which warms up."""
        checkpoint = self._directory / f"checkpoint-{uuid.uuid4().hex[:8]}"
        writer = rows.writeStream.format(sink).options(**options).option("checkpointLocation", str(checkpoint))
        query = writer.start()
        try:
            wait_for_batches(query, batches + 1)
        finally:
            query.stop()
            shutil.rmtree(checkpoint)
        return [each.durationMs["triggerExecution"] for each in query.recentProgress[1 : batches + 1]]

    def write_rates(self, width: int, topics: int, segments: int, tasks: int) -> Iterator[tuple[str, float]]:
        """Rows that arrive per second, in turns: here, there, and in each of the stores."""
        rows = self._size.bytes_per_batch // width // topics
        stream = self.generated(width, rows, tasks)
        for sink in ("dropping", "parquet", *(stand.store for stand in self.stands)):
            yield sink, 1000 * rows * topics / statistics.median(self._into(sink, stream, topics, segments))

    def _into(self, sink: str, stream: DataFrame, topics: int, segments: int) -> list[int]:
        stand = next((each for each in self.stands if each.store == sink), None)
        names = [stand.topic(segments) if stand else f"t-{number}" for number in range(topics)]
        routed = stream.withColumn("topic", F.explode(F.array(*map(F.lit, names))))
        if stand is not None:
            try:
                return self.durations_ms(routed, "metatxn", BATCHES, url=stand.url)
            finally:
                for name in names:
                    stand.client.delete_topic(name)
        if sink == "parquet":
            path = self._directory / "parquet"
            try:
                return self.durations_ms(routed, sink, BATCHES, path=str(path))
            finally:
                shutil.rmtree(path)
        return self.durations_ms(routed, sink, BATCHES)

    # -- parts -----------------------------------------------------------------------------------------------------

    def writing(self) -> Figures:
        for _ in range(self._size.rounds):
            for label, width in WIDTHS.items():
                rates = dict(self.write_rates(width, topics=2, segments=SEGMENTS, tasks=2))
                for sink, rate in rates.items():
                    yield f"{label}: rows into {sink}", rate
                for stand in self.stands:
                    yield f"{label}: {stand.store} ÷ dropping", rates[stand.store] / rates["dropping"]
                    yield f"{label}: {stand.store} ÷ parquet", rates[stand.store] / rates["parquet"]

    def latency(self) -> Figures:
        stream = self.generated(100, 100)
        for _ in range(self._size.rounds):
            dropping = statistics.median(self.durations_ms(stream, "dropping", SMALL_BATCHES))
            yield "100 rows: dropping p50", dropping
            for stand in self.stands:
                topic = stand.topic()
                times = self.durations_ms(stream, "metatxn", SMALL_BATCHES, url=stand.url, topic=topic)
                yield f"100 rows: {stand.store} p50", statistics.median(times)
                yield f"100 rows: {stand.store} − dropping p50", statistics.median(times) - dropping

    def reading(self) -> Figures:
        for label, width in WIDTHS.items():
            rows = self._size.bytes_read // width
            stand = self.stands[0]
            topic = stand.topic()
            table = self.spark.range(rows, numPartitions=2)
            table = table.withColumn("payload", F.lpad(F.col("id").cast("string"), width - 8, "0"))
            table.write.format("metatxn").options(url=stand.url, topic=topic).mode("append").save()
            files = str(self._directory / f"read-{width}")
            table.write.parquet(files)
            for run in range(self._size.rounds + 1):
                rates = dict(self._read_rates(stand, topic, files, rows, width))
                if run == 0:
                    continue  # it warms up
                for source, rate in rates.items():
                    yield f"{label}: rows from {source}", rate
                yield f"{label}: reading ÷ memory", rates["topic"] / rates["memory"]
                yield f"{label}: reading ÷ parquet", rates["topic"] / rates["parquet"]
            stand.client.delete_topic(topic)
            shutil.rmtree(files)

    def _read_rates(self, stand: Stand, topic: str, files: str, rows: int, width: int) -> Iterator[tuple[str, float]]:
        memory = {"rows": str(rows), "width": str(width), "partitions": str(SEGMENTS)}
        yield "memory", rows / self._read("remembering", memory)
        yield "topic", rows / self._read("metatxn", {"url": stand.url, "subscribe": topic})
        begun = time.perf_counter()
        self.spark.read.parquet(files).write.format("noop").mode("append").save()
        yield "parquet", rows / (time.perf_counter() - begun)

    def _read(self, source: str, options: dict[str, str]) -> float:
        """Seconds that its one micro-batch took."""
        stream = self.spark.readStream.format(source).options(**options).load()
        checkpoint = self._directory / f"checkpoint-{uuid.uuid4().hex[:8]}"
        query = stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
        try:
            wait_for_batches(query, 1)
        finally:
            query.stop()
            shutil.rmtree(checkpoint)
        return float(query.recentProgress[0].durationMs["triggerExecution"]) / 1000

    def idling(self) -> Figures:
        relay = self._stack.enter_context(CountingRelay())
        stand = self._on_etcd("--advertise-url", f"http://127.0.0.1:{relay.port}")
        relay.server = stand.broker.address
        topic = stand.topic()
        self.spark.range(1000).write.format("metatxn").options(url=stand.url, topic=topic).mode("append").save()
        for run in range(3):
            without = Used.during_idleness(stand, relay)
            stream = self.spark.readStream.format("metatxn").options(url=stand.url, subscribe=topic).load()
            checkpoint = str(self._directory / f"idle-{run}")
            query = stream.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
            wait_for_batches(query, 1)
            used = Used.during_idleness(stand, relay)
            query.stop()
            yield "idle: CPU of the driver", used.driver_cpu_s / IDLE_S
            yield "idle: CPU of the broker", used.broker_cpu_s / IDLE_S
            yield "idle: CPU of the broker without the query", without.broker_cpu_s / IDLE_S
            yield "idle: requests to the broker", used.broker_requests / IDLE_S
            yield "idle: requests to etcd", used.store_requests / IDLE_S
            yield "idle: requests to etcd without the query", without.store_requests / IDLE_S

    def segments(self) -> Figures:
        for _ in range(self._size.rounds):
            for segments in (1, 4, 16):
                for tasks in (1, 2):
                    rates = dict(self.write_rates(100, topics=1, segments=segments, tasks=tasks))
                    for stand in self.stands:
                        yield f"{stand.store}: rows into {segments} segments by {tasks} tasks", rates[stand.store]


# -- what idleness costs -----------------------------------------------------------------------------------------------


class CountingRelay:
    """In front of a broker: counts the requests that reach it."""

    def __init__(self) -> None:
        self.requests = 0
        self.server = ("127.0.0.1", 0)
        self.port = 0
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> Self:
        listening = self._loop.run_until_complete(asyncio.start_server(self._carry, "127.0.0.1", 0))
        self.port = listening.sockets[0].getsockname()[1]
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection(*self.server)
        await asyncio.gather(self._pump(reader, requests, count=True), self._pump(answers, writer, count=False))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, count: bool) -> None:
        with contextlib.suppress(ConnectionError), contextlib.closing(writer):
            while chunk := await reader.read(1 << 16):
                # An idle query's requests are small: each is a chunk of its own.
                self.requests += count and chunk.startswith((b"GET ", b"POST "))
                writer.write(chunk)
                await writer.drain()


@dataclass(frozen=True, slots=True)
class Used:
    driver_cpu_s: float
    broker_cpu_s: float
    broker_requests: float
    store_requests: float

    @classmethod
    def during_idleness(cls, stand: Stand, relay: CountingRelay) -> Used:
        begun = cls._now(stand, relay)
        time.sleep(IDLE_S)
        ended = cls._now(stand, relay)
        return cls(*(getattr(ended, name) - getattr(begun, name) for name in cls.__slots__))

    @classmethod
    def _now(cls, stand: Stand, relay: CountingRelay) -> Used:
        with urllib.request.urlopen(f"http://{stand.etcd}/metrics") as answer:
            counts = re.findall(r"^grpc_server_msg_received_total\{.*\} (\S+)$", answer.read().decode(), re.MULTILINE)
        driver = time.process_time() + sum(map(cpu_s, spark_processes()))
        return cls(driver, stand.broker.cpu_s, relay.requests, sum(map(float, counts)))


def spark_processes() -> set[int]:
    """Java, and the Python processes below it."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            pid = int(directory.name)
            parents[pid] = int(process_stat(pid)[1])
            if parents[pid] == os.getpid() and "java" in (directory / "cmdline").read_text():
                found.add(pid)
    while below := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= below
    return found


# -- all of it ---------------------------------------------------------------------------------------------------------


def wait_for_batches(query: StreamingQuery, batches: int) -> None:
    """With rows. Raises what the query failed with."""
    while sum(each.numInputRows > 0 for each in query.recentProgress) < batches:
        error = query.exception()
        if error is not None:
            raise error
        time.sleep(0.05)


TARGETS = {
    **{f"100 B: {store} ÷ dropping": 0.5 for store in ("sqlite", "etcd")},
    **{f"1 KiB: {store} ÷ dropping": 0.3 for store in ("sqlite", "etcd")},
    **{f"{width}: {store} ÷ parquet": 1.0 for store in ("sqlite", "etcd") for width in WIDTHS},
    **{f"{width}: reading ÷ memory": 0.4 for width in WIDTHS},
}
CEILINGS = {"100 rows: etcd − dropping p50": 25.0, "idle: requests to the broker": 5.0}


def unit(name: str) -> str:
    if "÷" in name:
        return "ratio"
    if name.endswith("p50"):
        return "ms"
    return "cores" if "CPU" in name else "1/s"


def measure(wanted: list[str], size: Size) -> list[Figure]:
    runs: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        bench = Bench(Path(directory), size, stack)
        parts = {
            each.__name__: each for each in (bench.writing, bench.latency, bench.reading, bench.idling, bench.segments)
        }
        for part in wanted or parts:
            for name, value in parts[part]():
                runs.setdefault(name, []).append(value)
                sys.stdout.write(f"{part}: {name} {value:,.3g}\n")
                sys.stdout.flush()
    return [
        Figure(name, values, unit(name), at_least=TARGETS.get(name), at_most=CEILINGS.get(name))
        for name, values in runs.items()
    ]


def main() -> None:
    wanted = [option for option in sys.argv[1:] if option != "--small"]
    publish("spark", "The Spark connector", measure(wanted, SMALL if "--small" in sys.argv else FULL))


if __name__ == "__main__":
    main()
