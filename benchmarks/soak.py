"""Constant load for a long time: is anything still growing?

    25 transactions a second, a third of them aborted ─▶ `events`, two messages each: dropped after a minute
                                                      ─▶ `state`, one message with one of 1,000 keys: compacted
    a consumer acknowledges `events`, each second time inside a transaction; twice a minute a segment is split, or two
    are merged

The services are one process (`metatxn dev`, on SQLite with local files). Every five seconds its size is taken: used
bytes of the store's database, all bytes of the ledgers, the memory that the process has allocated, and the time of the
commits since then. The machine itself is not equally fast for hours. So behind each commit the load times what no
commit can do without, a request that does nothing and a synced write to a database of its own, and the time of commits
is judged in relation to that.

The first third is warm-up. Of the rest a straight line is drawn through each row: what it rises in an hour, in percent
of the mean. The bar of ± 3 % is judged from two hours on; in a short run the layout alone, which changes every 30 s,
moves a line more.

    python -m benchmarks.soak --minutes 120
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, fields
from itertools import count
from pathlib import Path
from random import Random

import httpx

import metatxn
from benchmarks.lifecycle import change
from benchmarks.report import DIRECTORY, Figure, publish
from benchmarks.services import METATXN, anonymous_bytes, spawned

PER_S = 25
AT_ONCE = 64
"""The most transactions that are open together: behind them the load waits, instead of growing without end."""
SAMPLE_S = 5.0
CHANGE_S = 30.0
SAY_S = 60.0
KEYS = 1_000
EVENTS, STATE, SUBSCRIPTION = "lifecycle", "state", "soak"
SEGMENTS = 4
JUDGED_FROM_MINUTES = 120
MOST_PERCENT = 3.0
OPTIONS = ("--gc-retention-ms", "10000", "--gc-interval-ms", "1000")


@dataclass(frozen=True, slots=True)
class Sample:
    """`at` is in minutes."""

    at: float
    store: float = field(metadata={"title": "store", "unit": "KiB"})
    ledgers: float = field(metadata={"title": "ledgers on disk", "unit": "MiB"})
    memory: float = field(metadata={"title": "memory", "unit": "MiB"})
    commit: float = field(metadata={"title": "commit, median", "unit": "ms"})
    bare: float = field(metadata={"title": "bare request and write, median", "unit": "ms"})
    ratio: float = field(metadata={"title": "commit ÷ bare", "unit": ""})


ROWS = {each.name: each.metadata for each in fields(Sample) if each.metadata}
JUDGED = ("store", "ledgers", "memory", "ratio")


class Bare:
    """What no commit can do without: a request, and a write that is synced."""

    def __init__(self, url: str, http: httpx.AsyncClient, directory: Path) -> None:
        self._url, self._http = url, http
        self._database = sqlite3.connect(directory / "bare", isolation_level=None, check_same_thread=False)
        for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "CREATE TABLE bare (id, value)"):
            self._database.execute(statement)
        self._database.execute("INSERT INTO bare VALUES (1, 0)")
        self._lane = ThreadPoolExecutor(1)

    async def once_ms(self) -> float:
        begun = time.perf_counter()
        await self._http.get(self._url)
        await asyncio.get_running_loop().run_in_executor(self._lane, self._write)
        return (time.perf_counter() - begun) * 1000

    def _write(self) -> None:
        self._database.execute("UPDATE bare SET value = value + 1")

    def close(self) -> None:
        self._lane.shutdown()
        self._database.close()


class Soak:
    """The load, and what was measured beside it."""

    def __init__(self, client: metatxn.AsyncClient, bare: Bare, pid: int, directory: Path, transactions: int) -> None:
        self._client = client
        self._bare = bare
        self._pid = pid
        self._directory = directory
        self._left = iter(range(transactions))
        self._random = Random(1)
        self._events, self._state = client.producer(EVENTS), client.producer(STATE)
        self._commits: list[tuple[float, float]] = []
        self.samples: list[Sample] = []

    async def run(self) -> None:
        """Until all transactions have ended."""
        began = time.monotonic()
        beside = [self._consume(), self._every(CHANGE_S, self._change), self._every(SAMPLE_S, self._sample(began))]
        tasks = [asyncio.create_task(each) for each in beside]
        load = asyncio.create_task(self._load())
        try:
            await asyncio.wait([load, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
            await load
        finally:
            for task in (load, *tasks):
                task.cancel()
            await asyncio.gather(load, *tasks, return_exceptions=True)

    async def _load(self) -> None:
        """One transaction after the other at even distances, whether or not the one before has ended."""
        begun, places = time.monotonic(), asyncio.Semaphore(AT_ONCE)
        async with asyncio.TaskGroup() as group:
            for number in self._left:
                await asyncio.sleep(begun + number / PER_S - time.monotonic())
                await places.acquire()
                group.create_task(self._transaction(number)).add_done_callback(lambda _: places.release())

    async def _transaction(self, number: int) -> None:
        txn = await self._client.begin()
        await self._events.send({"number": number}, key=str(number), txn=txn)
        await self._events.send({"number": number, "second": True}, key=str(number), txn=txn)
        await self._state.send({"number": number}, key=f"key-{self._random.randrange(KEYS)}", txn=txn)
        await asyncio.gather(self._events.flush(), self._state.flush())
        if number % 3 == 0:
            await txn.abort()
            return
        begun = time.perf_counter()
        await txn.commit()
        took_ms = (time.perf_counter() - begun) * 1000
        self._commits.append((took_ms, await self._bare.once_ms()))

    async def _consume(self) -> None:
        consumer = await self._client.subscribe(EVENTS, SUBSCRIPTION)
        for turn in count():
            messages = await consumer.receive_many(200, timeout_s=1.0)
            if messages and turn % 2:
                async with self._client.transaction() as txn:
                    await consumer.acknowledge(messages, txn=txn)
            elif messages:
                await consumer.acknowledge(messages)

    async def _change(self) -> None:
        await change(self._client, self._random)

    def _sample(self, began: float) -> Callable[[], Awaitable[None]]:
        async def sample() -> None:
            commits, self._commits = self._commits, []
            if commits:
                at = (time.monotonic() - began) / 60
                sizes = await asyncio.to_thread(_store_kib, self._directory), await asyncio.to_thread(self._ledgers_mib)
                memory = anonymous_bytes(self._pid) / 2**20
                commit, bare = map(statistics.median, zip(*commits, strict=True))
                self.samples.append(Sample(at, *sizes, memory, commit, bare, commit / bare))
                if len(self.samples) % (SAY_S // SAMPLE_S) == 0:
                    say(f"{at:.0f} min: " + ", ".join(f"{row} {getattr(self.samples[-1], row):.1f}" for row in ROWS))

        return sample

    def _ledgers_mib(self) -> float:
        sizes = []
        for file in self._directory.rglob("*"):
            if file.suffix != ".db" and ".db-" not in file.name and file.is_file():
                try:
                    sizes.append(file.stat().st_size)
                except FileNotFoundError:  # dropped meanwhile
                    continue
        return sum(sizes) / 2**20

    @staticmethod
    async def _every(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            await work()


def _store_kib(directory: Path) -> float:
    """What is used of the database; the file itself never shrinks."""
    (database,) = directory.glob("*.db")
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10)
    try:
        (pages,), (free,), (size,) = (
            connection.execute(f"PRAGMA {each}").fetchone() for each in ("page_count", "freelist_count", "page_size")
        )
        return float((pages - free) * size) / 1024
    finally:
        connection.close()


async def soak(url: str, pid: int, directory: Path, aside: Path, transactions: int) -> Sequence[Sample]:
    async with metatxn.connect_async(url) as client, httpx.AsyncClient() as http:
        await client.create_topic(EVENTS, SEGMENTS)
        await client.create_topic(STATE)
        await client.set_topic_policy(EVENTS, retention_ms=60_000, roll_ms=10_000, retention="hard")
        await client.set_topic_policy(STATE, cleanup="compact", roll_ms=10_000)
        with closing(Bare(f"{url}/healthz", http, aside)) as bare:
            running = Soak(client, bare, pid, directory, transactions)
            await running.run()
        return running.samples


# -- what comes of it ------------------------------------------------------------------------------------------


def percent_per_hour(samples: Sequence[Sample], row: str) -> float:
    """What the line through these rises in an hour, in percent of their mean."""
    values = [getattr(sample, row) for sample in samples]
    slope, _ = statistics.linear_regression([sample.at for sample in samples], values)
    return 100 * 60 * slope / statistics.fmean(values)


def figures(samples: Sequence[Sample], *, judged: bool) -> list[Figure]:
    found = []
    for row, about in ROWS.items():
        rises = percent_per_hour(samples, row)
        found.append(Figure(about["title"], [statistics.fmean(getattr(each, row) for each in samples)], about["unit"]))
        bar = MOST_PERCENT if judged and row in JUDGED else None
        found.append(Figure(f"{about['title']}, rises or falls in an hour", [abs(rises)], "%", at_most=bar))
    return found


def draw(samples: Sequence[Sample], warm_up: float, path: Path) -> None:
    """All samples, the warm-up shaded, as SVG."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "metatxn"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(ROWS), 1, sharex=True, figsize=(9, 10))
    for axis, (row, about) in zip(axes, ROWS.items(), strict=True):
        axis.plot([each.at for each in samples], [getattr(each, row) for each in samples], linewidth=1)
        axis.axvspan(0, warm_up, alpha=0.1)
        axis.set_ylim(bottom=0)
        axis.set_title(", ".join(filter(None, (about["title"], about["unit"]))), loc="left", fontsize=9)
    axes[-1].set_xlabel("minutes")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    minutes = parser.parse_args().minutes
    with tempfile.TemporaryDirectory() as place, tempfile.TemporaryDirectory() as aside:
        directory, ports = Path(place), ("--port", "0", "--broker-port", "0")
        with spawned([*METATXN, "dev", "--data-dir", place, *ports, "-o", "json", *OPTIONS]) as (process, line):
            url = json.loads(line)["broker"]
            samples = asyncio.run(soak(url, process.pid, directory, Path(aside), int(minutes * 60 * PER_S)))
    warm_up = minutes / 3
    later = [sample for sample in samples if sample.at >= warm_up]
    publish("soak", f"{minutes:g} minutes of constant load", figures(later, judged=minutes >= JUDGED_FROM_MINUTES))
    draw(samples, warm_up, DIRECTORY / "soak.svg")
    say(f"plot: {(DIRECTORY / 'soak.svg').relative_to(DIRECTORY.parent.parent)}")


if __name__ == "__main__":
    main()
