"""The Spark connector, beside what Spark does without it. Ratios of one run, everything in turns, fsync on; services
are processes of their own, Spark runs in local mode on two cores.

*Writing.* A stream of Spark's own generator, rows of 100 bytes and of 1 KiB, in turn into one of two topics, in one
transaction per micro-batch; the same stream into a Python sink that takes the same Arrow batches and drops them; the
same into Spark's sink of Parquet files on the same disk (which it does not sync), partitioned by topic, so that there,
too, each topic has its own rows; and into files that hold the rows of both topics. Rows per second of the time that the
micro-batches took, without the first one. The rows are of random letters: Spark would compress zeros to nothing.
Python gets them in Arrow batches of 1 or 2 MiB, by the number of their rows, as the connector's README advises; and for
comparison as Spark makes them when nothing is set.

*Latency.* Micro-batches of 100 rows, into the connector and into the sink that drops them: the medians of the time from
trigger to trigger, and their difference, in many short turns: the machine's speed drifts by more than that within one.

*Reading.* A topic from its beginning to its end, as a stream into Spark's `noop` sink, in micro-batches as large as
those of writing, without the first one; a Python source whose tasks have as many rows in the same batches in memory;
and a batch read of Parquet files with the same rows.

*Idling.* A streaming read that has nothing to read, for a minute: CPU of the driver (Java and Python) and of the
broker, requests to the broker, and requests to etcd beside those of a minute without the query.

*Segments.* Writing as above, to topics of 1, 4 and 16 segments in 1 and 2 tasks.

Every round takes all that is compared, in an order of its own; the first one, of writing the first three, warms up
(Java compiles itself) and does not count. Named parts (writing, latency, reading, idling, segments) are measured alone:
they write the file anew. `--small` is a first look: half of the rows, two rounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import shutil
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery

import metatxn
from benchmarks.report import Figure, publish
from benchmarks.services import METATXN, Service, cpu_s, process_stat, running, spawned
from benchmarks.spark_sources import ID_BYTES, Dropping, Remembering, texts
from examples.flights.etcd import running_etcd
from examples.flights.processes import free_port
from examples.flights.session import local_session

BATCHES = 4
WRITTEN_BATCHES = 8
SPARK_ARROW_ROWS = 10_000
"""Of a batch, unless it is set."""
ARROW_BATCH_BYTES = 2 << 20
UNCOUNTED = (1 << 31) - 1
"""Bytes of an Arrow batch: any other bound has Spark add up the batch's size behind every row."""
COLD_ROUNDS = 3
WIDTHS = {"100 B": 100, "1 KiB": 1024}
UNDIVIDED = "parquet, topics together"
UNSET = ", nothing set"
SEGMENTS = 4
SMALL_BATCHES = 12
SHORT_TURNS = 4
LONG_TURNS = 2
IDLE_S = 60.0
"""Coordinator and broker have something to do every few seconds: in half a minute once more or once less."""

Figures = Iterator[tuple[str, float]]


@dataclass(frozen=True, slots=True)
class Size:
    rounds: int
    bytes_per_batch: int


FULL = Size(rounds=5, bytes_per_batch=64 << 20)
SMALL = Size(rounds=2, bytes_per_batch=32 << 20)


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


class Streams:
    """A Spark session, and queries of it."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self.spark = local_session("spark-benchmark")
        self.spark.sparkContext.setLogLevel("OFF")  # queries are stopped in the middle of a batch
        stack.callback(self.spark.stop)

    def generated(self, width: int, rows: int, tasks: int = 2) -> DataFrame:
        """A stream of Spark's own: `rows` of `width` bytes in every micro-batch."""
        source = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
        value = source.option("numPartitions", tasks).load().select(F.col("value").alias("id"))
        return value.withColumn("payload", payload(width))

    def durations_ms(
        self, rows: DataFrame, sink: str, batches: int, partition_by: Sequence[str] = (), **options: str
    ) -> list[int]:
        """Of this many micro-batches behind the first one, which warms up."""
        checkpoint = self._directory / f"checkpoint-{uuid.uuid4().hex[:8]}"
        writer = rows.writeStream.format(sink).options(**options).option("checkpointLocation", str(checkpoint))
        query = writer.partitionBy(*partition_by).start() if partition_by else writer.start()
        try:
            wait_for_batches(query, batches + 1)
        finally:
            query.stop()
            shutil.rmtree(checkpoint)
        return [each.durationMs["triggerExecution"] for each in query.recentProgress[1 : batches + 1]]

    def read_stream(self, source: str, options: dict[str, str], rows: int, *columns: str) -> float:
        """Rows per second. Without the first micro-batch, which warms up."""
        stream = self.spark.readStream.format(source).options(**options).load().selectExpr(*(columns or "*"))
        checkpoint = self._directory / f"checkpoint-{uuid.uuid4().hex[:8]}"
        query = stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
        try:
            wait_until(query, lambda: sum(each.numInputRows for each in query.recentProgress) >= rows)
        finally:
            query.stop()
            shutil.rmtree(checkpoint)
        batches = [each for each in query.recentProgress if each.numInputRows][1:]
        took_ms = sum(each.durationMs["triggerExecution"] for each in batches)
        return 1000 * sum(each.numInputRows for each in batches) / took_ms

    @contextmanager
    def arrow_batches(self, rows: int | None) -> Iterator[None]:
        """Of this many rows, or of Spark's defaults, in queries that start inside the block."""
        settings = {} if rows is None else {"maxRecordsPerBatch": rows, "maxBytesPerBatch": UNCOUNTED}
        for name, value in settings.items():
            self.spark.conf.set(f"spark.sql.execution.arrow.{name}", value)
        try:
            yield
        finally:
            for name in settings:
                self.spark.conf.unset(f"spark.sql.execution.arrow.{name}")


class Bench(Streams):
    def __init__(self, directory: Path, size: Size, stack: ExitStack) -> None:
        super().__init__(directory, stack)
        self._size = size
        self._stack = stack
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

    # -- rates -----------------------------------------------------------------------------------------------------

    def write_rate(self, sink: str, width: int, topics: int, segments: int, tasks: int) -> float:
        """Rows per second into "dropping", "parquet" by topic, `UNDIVIDED`, or topics of the stand on a store, there
        with Arrow batches as Spark makes them unless told otherwise, where it is `UNSET`."""
        rows = self._size.bytes_per_batch // width
        with self.arrow_batches(None if sink.endswith(UNSET) else min(SPARK_ARROW_ROWS, ARROW_BATCH_BYTES // width)):
            took_ms = self._into(sink.removesuffix(UNSET), self.generated(width, rows, tasks), topics, segments)
        return 1000 * rows / statistics.median(took_ms)

    def _into(self, sink: str, stream: DataFrame, topics: int, segments: int) -> list[int]:
        stand = next((each for each in self.stands if each.store == sink), None)
        names = [stand.topic(segments) if stand else f"t-{number}" for number in range(topics)]
        routed = stream.withColumn("topic", one_of(names))
        if stand is not None:
            try:
                return self.durations_ms(routed, "metatxn", WRITTEN_BATCHES, url=stand.url)
            finally:
                for name in names:
                    stand.client.delete_topic(name)
        if sink in ("parquet", UNDIVIDED):
            path = self._directory / "parquet"
            by = ("topic",) if sink == "parquet" else ()
            try:
                return self.durations_ms(routed, "parquet", WRITTEN_BATCHES, by, path=str(path))
            finally:
                shutil.rmtree(path, ignore_errors=True)  # the batch that was stopped may still write
        return self.durations_ms(routed, sink, WRITTEN_BATCHES)

    def _rounds(
        self, measure: Callable[[str], float], sinks: Sequence[str], turns: int = 1, cold: int = 1
    ) -> Iterator[dict[str, float]]:
        """What each of `sinks` has in each round that counts."""
        for number in range(turns * self._size.rounds + cold):
            found = {sink: measure(sink) for sink in random.sample(sinks, len(sinks))}
            if number >= cold:
                yield {sink: found[sink] for sink in sinks}

    # -- parts -----------------------------------------------------------------------------------------------------

    def writing(self) -> Figures:
        for label, width in WIDTHS.items():
            stores = [stand.store for stand in self.stands]
            unset = [store + UNSET for store in stores]

            def rate(sink: str, width: int = width) -> float:
                return self.write_rate(sink, width, topics=2, segments=SEGMENTS, tasks=2)

            sinks = ["dropping", "parquet", UNDIVIDED, *stores, *unset]
            for rates in self._rounds(rate, sinks, LONG_TURNS, COLD_ROUNDS):
                for sink, each in rates.items():
                    yield f"{label}: rows into {sink}", each
                for store in stores:
                    yield f"{label}: {store} ÷ dropping", rates[store] / rates["dropping"]
                for store in stores + unset:
                    yield f"{label}: {store} ÷ parquet", rates[store] / rates["parquet"]

    def latency(self) -> Figures:
        stream = self.generated(100, 100)
        urls = {stand.store: stand.url for stand in self.stands}
        topics = {stand.store: stand.topic() for stand in self.stands}

        def p50_ms(sink: str) -> float:
            if sink == "dropping":
                return statistics.median(self.durations_ms(stream, sink, SMALL_BATCHES))
            times = self.durations_ms(stream, "metatxn", SMALL_BATCHES, url=urls[sink], topic=topics[sink])
            return statistics.median(times)

        for times in self._rounds(p50_ms, ["dropping", *urls], SHORT_TURNS):
            for sink, each in times.items():
                yield f"100 rows: {sink} p50", each
            for store in urls:
                yield f"100 rows: {store} − dropping p50", times[store] - times["dropping"]

    def reading(self) -> Figures:
        for label, width in WIDTHS.items():
            rows = (BATCHES + 1) * (self._size.bytes_per_batch // width)
            table = self.spark.range(rows, numPartitions=2).withColumn("payload", payload(width))
            topics = {stand.store: stand.topic() for stand in self.stands}
            for stand in self.stands:
                options = {"url": stand.url, "topic": topics[stand.store]}
                table.write.format("metatxn").options(**options).mode("append").save()
            files = str(self._directory / f"read-{width}")
            table.write.parquet(files)
            ways = self._ways_of_reading(topics, files, rows, width)
            for rates in self._rounds(lambda source, ways=ways: ways[source](), list(ways)):  # type: ignore[misc]
                for source, each in rates.items():
                    yield f"{label}: rows from {source}", each
                for store in topics:
                    yield f"{label}: reading {store} ÷ memory", rates[store] / rates["memory"]
                    yield f"{label}: reading {store} ÷ parquet", rates[store] / rates["parquet"]
            for stand in self.stands:
                stand.client.delete_topic(topics[stand.store])
            shutil.rmtree(files)

    def _ways_of_reading(
        self, topics: dict[str, str], files: str, rows: int, width: int
    ) -> dict[str, Callable[[], float]]:
        """Each reads this many rows, and answers how many it has read per second."""
        each = str(rows // (BATCHES + 1))
        memory = {"rows": each, "width": str(width), "partitions": str(SEGMENTS)}
        ways = {
            "memory": lambda: self.read_stream("remembering", memory, rows),
            "parquet": lambda: self._read_files(files, rows),
        }
        for stand in self.stands:
            ours = {"url": stand.url, "subscribe": topics[stand.store], "maxOffsetsPerTrigger": each}
            ways[stand.store] = partial(self.read_stream, "metatxn", ours, rows)
        return ways

    def _read_files(self, files: str, rows: int) -> float:
        begun = time.perf_counter()
        self.spark.read.parquet(files).write.format("noop").mode("append").save()
        return rows / (time.perf_counter() - begun)

    def idling(self) -> Figures:
        relay = self._stack.enter_context(CountingRelay())
        relay.server = ("127.0.0.1", free_port())
        stand = self._on_etcd("--port", str(relay.server[1]), "--advertise-url", f"http://127.0.0.1:{relay.port}")
        topic = stand.topic()
        self.spark.range(1000).write.format("metatxn").options(url=stand.url, topic=topic).mode("append").save()
        for run in range(self._size.rounds):
            without = Used.during_idleness(stand, relay)
            stream = self.spark.readStream.format("metatxn").options(url=stand.url, subscribe=topic).load()
            checkpoint = str(self._directory / f"idle-{run}")
            query = stream.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
            wait_for_batches(query, 1)
            used = Used.during_idleness(stand, relay)
            query.stop()
            yield "idle: CPU of the driver", sum(used.driver_cpu_s.values()) / IDLE_S
            yield "idle: CPU of the broker", used.broker_cpu_s / IDLE_S
            yield "idle: CPU of the broker without the query", without.broker_cpu_s / IDLE_S
            yield "idle: requests to the broker", used.broker_requests / IDLE_S
            yield "idle: requests to etcd", used.store_requests / IDLE_S
            yield "idle: requests to etcd without the query", without.store_requests / IDLE_S

    def segments(self) -> Figures:
        shapes = {
            f"{segments} segments by {tasks} tasks": (segments, tasks) for segments in (1, 4, 16) for tasks in (1, 2)
        }
        stores = {
            f"{stand.store}: rows into {shape}": (stand.store, shape) for stand in self.stands for shape in shapes
        }

        def rate(name: str) -> float:
            store, shape = stores[name]
            segments, tasks = shapes[shape]
            return self.write_rate(store, 100, topics=1, segments=segments, tasks=tasks)

        for rates in self._rounds(rate, list(stores)):
            yield from rates.items()


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
    """`driver_cpu_s` by process."""

    driver_cpu_s: dict[int, float]
    broker_cpu_s: float
    broker_requests: float
    store_requests: float

    @classmethod
    def during_idleness(cls, stand: Stand, relay: CountingRelay) -> Used:
        begun = cls._now(stand, relay)
        time.sleep(IDLE_S)
        ended = cls._now(stand, relay)
        return cls(
            # A worker that Spark ended meanwhile, because it was idle, takes with it what is known of it.
            {pid: cpu - begun.driver_cpu_s.get(pid, 0.0) for pid, cpu in ended.driver_cpu_s.items()},
            ended.broker_cpu_s - begun.broker_cpu_s,
            ended.broker_requests - begun.broker_requests,
            ended.store_requests - begun.store_requests,
        )

    @classmethod
    def _now(cls, stand: Stand, relay: CountingRelay) -> Used:
        with urllib.request.urlopen(f"http://{stand.etcd}/metrics") as answer:
            counts = re.findall(r"^grpc_server_msg_received_total\{.*\} (\S+)$", answer.read().decode(), re.MULTILINE)
        driver = {os.getpid(): time.process_time()} | spark_cpu_s()
        return cls(driver, stand.broker.cpu_s, relay.requests, sum(map(float, counts)))


def spark_cpu_s() -> dict[int, float]:
    found = {}
    for pid in spark_processes():
        with contextlib.suppress(OSError):  # it has ended
            found[pid] = cpu_s(pid)
    return found


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


def payload(width: int) -> Column:
    """Of rows of `width` bytes, by their `id`. As cheap as Spark can make them: what is measured is the sink."""
    pieces = texts(width)
    text = F.element_at(F.array(*map(F.lit, pieces)), (F.col("id") % len(pieces) + 1).cast("int"))
    return F.concat(F.lpad(F.hex("id"), ID_BYTES, "0"), text)


def one_of(names: Sequence[str]) -> Column:
    """In turn, by `id`."""
    return F.element_at(F.array(*map(F.lit, names)), (F.col("id") % len(names) + 1).cast("int"))


def wait_for_batches(query: StreamingQuery, batches: int) -> None:
    """With rows. Raises what the query failed with."""
    wait_until(query, lambda: sum(each.numInputRows > 0 for each in query.recentProgress) >= batches)


def wait_until(query: StreamingQuery, done: Callable[[], bool]) -> None:
    while not done():
        error = query.exception()
        if error is not None:
            raise error
        time.sleep(0.05)


TARGETS = {
    **{f"100 B: {store} ÷ dropping": 0.5 for store in ("sqlite", "etcd")},
    **{f"1 KiB: {store} ÷ dropping": 0.3 for store in ("sqlite", "etcd")},
    **{f"{width}: {store} ÷ parquet": 1.0 for store in ("sqlite", "etcd") for width in WIDTHS},
    **{f"{width}: reading {store} ÷ memory": 0.4 for store in ("sqlite", "etcd") for width in WIDTHS},
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
