"""The Spark connector beside Spark's own connector for Kafka, in one session of one version of Spark.

*Writing.* A stream of Spark's own generator, rows of 100 bytes and of 1 KiB: an id and letters. Kafka gets them as key
and value of a message, in four partitions and without transactions, which its sink does not have; ours as columns, in
four segments and one transaction per micro-batch. Ours with Arrow batches as the connector's README advises, and as
they are when nothing is set.

*Reading.* The same rows from the beginning, as a stream into Spark's `noop` sink, with key and value as text.

Rows per second of the time that the micro-batches took, without the first one; and the CPU time of one row, that of
Spark (Java and Python) and that of the system, with the first one. `--small` is a first look.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.peers.measured import Measured, both
from benchmarks.peers.parts import BULK_SEGMENTS, fresh
from benchmarks.peers.servers import KAFKA, OURS, Peer, running_peers
from benchmarks.peers.work import Found, say
from benchmarks.report import Figure, publish
from benchmarks.services import cpu_s
from benchmarks.spark import (
    ARROW_BATCH_BYTES,
    SPARK_ARROW_ROWS,
    WIDTHS,
    Streams,
    payload,
    spark_cpu_s,
)
from examples.flights.processes import ROOT

JARS = ROOT / "build" / "spark-kafka"
BATCHES = 4
COLD_ROUNDS = 1
UNSET = ", nothing set"
BARS = {"100 B, written": 2.0, "1 KiB, written": 1.5, "100 B, read": 1.0, "1 KiB, read": 1.0}


class Connectors(Streams):
    def __init__(self, directory: Path, stack: ExitStack, bytes_per_batch: int) -> None:
        os.environ["PYSPARK_SUBMIT_ARGS"] = f"--driver-class-path {JARS}/* pyspark-shell"
        super().__init__(directory, stack)
        self._bytes = bytes_per_batch
        self._filled: dict[tuple[str, int], str] = {}

    def rows(self, width: int) -> int:
        """Of a micro-batch."""
        return self._bytes // width

    def write(self, peer: Peer, width: int, arrow_rows: int | None) -> float:
        stream = self.generated(width, self.rows(width))
        (topic,) = fresh(peer, segments=BULK_SEGMENTS)
        if peer.name in OURS:
            with self.arrow_batches(arrow_rows):
                took_ms = self.durations_ms(stream, "metatxn", BATCHES, url=peer.address, topic=topic)
        else:
            messages = stream.selectExpr("CAST(id AS STRING) AS key", "payload AS value")
            options = {"kafka.bootstrap.servers": peer.address, "topic": topic}
            took_ms = self.durations_ms(messages, "kafka", BATCHES, **options)
        return 1000 * self.rows(width) / statistics.median(took_ms)

    def read(self, peer: Peer, width: int) -> float:
        each = self.rows(width)
        topic = self._filled.get((peer.name, width)) or self._fill(peer, width)
        options = {"subscribe": topic, "maxOffsetsPerTrigger": str(each)}
        if peer.name in OURS:
            return self.read_stream("metatxn", {"url": peer.address, **options}, each * (BATCHES + 1))
        options |= {"kafka.bootstrap.servers": peer.address, "startingOffsets": "earliest"}
        texts = ("CAST(key AS STRING)", "CAST(value AS STRING)")
        return self.read_stream("kafka", options, each * (BATCHES + 1), *texts)

    def _fill(self, peer: Peer, width: int) -> str:
        (topic,) = fresh(peer, segments=BULK_SEGMENTS)
        table = self.spark.range(self.rows(width) * (BATCHES + 1), numPartitions=2)
        table = table.withColumn("payload", payload(width))
        if peer.name in OURS:
            table.write.format("metatxn").options(url=peer.address, topic=topic).mode("append").save()
        else:
            options = {"kafka.bootstrap.servers": peer.address, "topic": topic}
            messages = table.selectExpr("CAST(id AS STRING) AS key", "payload AS value")
            messages.write.format("kafka").options(**options).mode("append").save()
        self._filled[peer.name, width] = topic
        return topic

    def found(self, peer: Peer, rate: Callable[[], float], width: int) -> Found:
        spark, server = sum(spark_cpu_s().values()), sum(map(cpu_s, peer.pids))
        rows_per_s = rate()
        rows = self.rows(width) * (BATCHES + 1)
        return {
            "rate": rows_per_s,
            "Spark's CPU": (sum(spark_cpu_s().values()) - spark) / rows * 1e6,
            "server CPU": (sum(map(cpu_s, peer.pids)) - server) / rows * 1e6,
        }


def measure(connectors: Connectors, peers: list[Peer], rounds: int) -> Measured:
    measured = Measured()
    for number in range(rounds + COLD_ROUNDS):
        for label, width in WIDTHS.items():
            for peer in peers[number % len(peers) :] + peers[: number % len(peers)]:
                advised = min(SPARK_ARROW_ROWS, ARROW_BATCH_BYTES // width)
                ways = {
                    f"{label}, written": partial(connectors.write, peer, width, advised),
                    f"{label}, read": partial(connectors.read, peer, width),
                }
                if peer.name in OURS:
                    ways[f"{label}, written{UNSET}"] = partial(connectors.write, peer, width, None)
                for what, way in ways.items():
                    found = connectors.found(peer, way, width)
                    say(f"round {number}: {what}, {peer.name}: {found['rate']:,.0f} rows/s")
                    if number >= COLD_ROUNDS:
                        measured.add(what, peer.name, found)
    return measured


def figures(measured: Measured) -> list[Figure]:
    shown: list[Figure] = []
    for label in WIDTHS:
        for how in ("written", f"written{UNSET}", "read"):
            what, theirs = f"{label}, {how}", f"{label}, {how.removesuffix(UNSET)}"
            shown += measured.figures(what, "rate", "1/s", "rows")
            for key in ("Spark's CPU", "server CPU"):
                shown += measured.figures(what, key, "µs")
                shown += measured.against(what, key, their_work=theirs)
            bars = both(KAFKA, BARS[what]) if what in BARS else {}
            shown += measured.against(what, "rate", title="rows", their_work=theirs, at_least=bars)
    return shown


def main() -> None:
    small = "--small" in sys.argv
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        directory = Path(name)
        peers = stack.enter_context(running_peers(directory / "peers"))
        connectors = Connectors(directory, stack, (8 if small else 32) << 20)
        measured = measure(connectors, peers, 2 if small else 5)
    publish("peers-spark", "The Spark connector beside Spark's connector for Kafka", figures(measured))


if __name__ == "__main__":
    main()
