"""What is left of a long life: transactions of which half are aborted, under splits and merges, and a policy that drops
what is old.

    fill; a copy in the middle ─▶ wait until all is collected, in both ─▶ kill, count the records, restart

The services are one process (`metatxn dev`, on SQLite with local files), without subscriptions. The copy in the middle
is made while the process stands still, so it is what SIGKILL would have left at that moment. It is restarted as it is;
another copy of it is served until all is collected, and counted like the whole.

A restart is that of a copy of the files of a killed process. It ends when every segment of the topic serves. In turns
with it the services are restarted with an empty history of as many segments. Records are counted in the store itself.

    python -m benchmarks.lifecycle --transactions 1000000 --changes 200      the whole; it takes hours
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import NamedTuple

import metatxn
from benchmarks.commits import at_once
from benchmarks.report import Figure, publish
from benchmarks.services import METATXN, spawned
from metastore.txn import paths
from metastore.urls import open_store

TRANSACTIONS = 2_000
CHANGES = 12
RUNS = 3
CALLERS = 64
SEGMENTS = 4
KEYS = 1_000
TOPIC = "lifecycle"
COLLECTED_AFTER_S = 70.0
"""After a minute without an append a segment closes a ledger for its outcomes; the rest is for what follows."""
OPTIONS = ("--gc-retention-ms", "2000", "--gc-interval-ms", "500")
KEPT_BYTES = 100_000
"""By the policy, of the topic."""
OF_TRANSACTIONS = (paths.HEADERS, paths.LEASES, paths.PREPARED, paths.REMEMBERED_WRITERS, paths.OPS)
OF_SEGMENTS = (paths.SEGMENTS, paths.SEGMENT_OWNERS, paths.SEGMENT_STATES)


@contextmanager
def serving(directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and the broker's URL. In the end it is killed with SIGKILL."""
    ports = ("--port", "0", "--broker-port", "0")
    with spawned([*METATXN, "dev", "--data-dir", str(directory), *ports, "-o", "json", *OPTIONS]) as (process, line):
        yield process, json.loads(line)["broker"]
        process.kill()
        process.wait()


# -- a life ----------------------------------------------------------------------------------------------------


def lived(directory: Path, transactions: int, changes: int) -> Path:
    """Live a whole life in `directory`. Returns a copy of the middle of it."""
    middle = directory.with_name("middle")
    with serving(directory) as (process, url):
        with metatxn.connect(url) as client:
            client.create_topic(TOPIC, SEGMENTS)
            client.set_topic_policy(TOPIC, retention_bytes=KEPT_BYTES)

        def copy() -> None:
            process.send_signal(signal.SIGSTOP)
            shutil.copytree(directory, middle)
            process.send_signal(signal.SIGCONT)

        asyncio.run(live(url, transactions, changes, copy))
        say("waiting until all is collected")
        later = directory.with_name("later")
        shutil.copytree(middle, later)
        with serving(later):
            time.sleep(COLLECTED_AFTER_S)
    return middle


async def live(url: str, transactions: int, changes: int, in_the_middle: Callable[[], None]) -> None:
    """Every second transaction is aborted; the layout changes at even distances."""
    random, changing = Random(1), asyncio.Lock()
    due = {transactions * number // changes for number in range(changes)}
    async with metatxn.connect_async(url) as client:
        producer = client.producer(TOPIC)

        async def one(number: int) -> float:
            if number in due:
                async with changing:
                    await change(client, random)
            txn = await client.begin()
            for _ in range(2):
                await producer.send({"number": number}, key=f"key-{random.randrange(KEYS)}", txn=txn)
            await producer.flush()
            if number == transactions // 2:
                in_the_middle()
            await (txn.commit() if number % 2 else txn.abort())
            if number % 1_000 == 0:
                say(f"{number} of {transactions}")
            return 0.0

        await at_once(transactions, CALLERS, one)


async def change(client: metatxn.AsyncClient, random: Random) -> None:
    """Merge two neighbours if there are many segments, otherwise split one."""
    active = sorted((s for s in (await client.topic(TOPIC)).segments if s.state == "active"), key=lambda s: s.range)
    if len(active) > SEGMENTS:
        one, other = random.choice(list(pairwise(active)))
        await client.merge_segments(one.segment, other.segment)
    else:
        await client.split_segment(random.choice(active).segment)


# -- what is left of it ----------------------------------------------------------------------------------------


class Left(NamedTuple):
    segments: int
    most_of_a_segment: int
    of_no_segment: int
    of_transactions: int


async def counted(database: Path) -> Left:
    """The records in the store, whose database a killed process has left."""
    store = await open_store(f"sqlite:///{database}")
    try:
        found: Counter[str] = Counter()
        for prefix in OF_SEGMENTS:
            records = (await store.scan(prefix)).records
            found.update(record.key.removeprefix(prefix).partition("/")[0] for record in records)
        exist = {record.key.removeprefix(paths.SEGMENTS) for record in (await store.scan(paths.SEGMENTS)).records}
        of_transactions = [len((await store.scan(prefix)).records) for prefix in OF_TRANSACTIONS]
        most = max(found[each] for each in exist)
        return Left(len(exist), most, sum(found[each] for each in found.keys() - exist), sum(of_transactions))
    finally:
        await store.close()


def restart_s(directory: Path) -> float:
    """Of a copy: from the start of the process until every segment serves."""
    copy = directory.with_name("restarted")
    shutil.copytree(directory, copy)
    began = time.perf_counter()
    with serving(copy) as (_, url):
        with metatxn.connect(url) as client:
            for segment in client.topic(TOPIC).segments:
                client.segment(segment.segment)
        seconds = time.perf_counter() - began
    shutil.rmtree(copy)
    return seconds


def empty(directory: Path, segments: int) -> Path:
    with serving(directory) as (_, url), metatxn.connect(url) as client:
        client.create_topic(TOPIC, segments)
    return directory


def measure(transactions: int, changes: int, runs: int, place: Path) -> list[Figure]:
    whole, middle = place / "whole", lived(place / "whole", transactions, changes)
    left, later = (asyncio.run(counted(next(each.glob("*.db")))) for each in (whole, place / "later"))
    nothing = empty(place / "empty", left.segments)
    restarts: dict[Path, list[float]] = {nothing: [], whole: [], middle: []}
    for run in range(runs):
        for directory, seconds in restarts.items():
            seconds.append(restart_s(directory))
        say(f"restarts: {run + 1} of {runs}")

    def beside_nothing(directory: Path) -> list[float]:
        return [one / other for one, other in zip(restarts[directory], restarts[nothing], strict=True)]

    return [
        *records("", left),
        *records(", killed in the middle", later),
        Figure("restart with an empty history", restarts[nothing], "s"),
        Figure("restart ÷ that with an empty history", beside_nothing(whole), "ratio", at_most=1.2),
        Figure("restart after kill -9 in the middle ÷ the same", beside_nothing(middle), "ratio", at_most=1.2),
    ]


def records(when: str, left: Left) -> list[Figure]:
    return [
        Figure(f"segments{when}", [left.segments], ""),
        Figure(f"most records of a segment that exists{when}", [left.most_of_a_segment], "", at_most=50),
        Figure(f"records of segments that do not exist{when}", [left.of_no_segment], "", at_most=0),
        Figure(f"records of transactions{when}", [left.of_transactions], "", at_most=0),
    ]


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transactions", type=int, default=TRANSACTIONS)
    parser.add_argument("--changes", type=int, default=CHANGES, help="splits and merges together")
    parser.add_argument("--runs", type=int, default=RUNS, help="of each restart")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        figures = measure(given.transactions, given.changes, given.runs, Path(place))
    publish("lifecycle", f"{given.transactions:,} transactions, {given.changes} splits and merges", figures)


if __name__ == "__main__":
    main()
