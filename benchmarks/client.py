"""What the client library costs the program that uses it: CPU time of its process, with `metatxn dev` on SQLite as
another process.

*A small transaction* is begin, one message of 100 bytes to each of two topics, and commit, one after the other: with
the asyncio client on asyncio's own loop, and with the blocking client.

*Producers at once.* This many of one asyncio client, each of which makes small transactions one after the other for
some seconds.

*Begins at once.* This many `begin` of one asyncio client, none of which waits for another. All of them succeed.

*Starting.* `import metatxn`, the same with all that a client needs, and `metatxn --help`.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import metatxn
from benchmarks.report import Figure, percentile, publish
from benchmarks.services import METATXN
from examples.flights.demo import running_dev

RUNS = 5
TRANSACTIONS = 300
PRODUCERS = (16, 64, 256)
SECONDS = 4
BEGINS = 10_000
PATIENCE_S = 300
MESSAGE = "x" * 88
"""In its entry it takes 100 bytes."""


def cpu_s(who: int = resource.RUSAGE_SELF) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


async def small_transactions(url: str) -> tuple[float, float]:
    """CPU and wall time of one, in ms."""
    async with metatxn.connect_async(url, request_timeout_s=PATIENCE_S) as client:
        one, two = client.producer("one"), client.producer("two")

        async def transact(count: int) -> None:
            for _ in range(count):
                txn = await client.begin()
                await one.send(MESSAGE, txn=txn)
                await two.send(MESSAGE, txn=txn)
                await txn.commit()

        await transact(20)
        cpu, begun = cpu_s(), time.perf_counter()
        await transact(TRANSACTIONS)
        return (cpu_s() - cpu) / TRANSACTIONS * 1e3, (time.perf_counter() - begun) / TRANSACTIONS * 1e3


def blocking_small_transactions(url: str) -> tuple[float, float]:
    with metatxn.connect(url, request_timeout_s=PATIENCE_S) as client:
        one, two = client.producer("one"), client.producer("two")

        def transact(count: int) -> None:
            for _ in range(count):
                txn = client.begin()
                one.send(MESSAGE, txn=txn)
                two.send(MESSAGE, txn=txn)
                txn.commit()

        transact(20)
        cpu, begun = cpu_s(), time.perf_counter()
        transact(TRANSACTIONS)
        return (cpu_s() - cpu) / TRANSACTIONS * 1e3, (time.perf_counter() - begun) / TRANSACTIONS * 1e3


async def producers_at_once(url: str, count: int) -> tuple[float, float, float]:
    """CPU time of one transaction and the 99th percentile of its latency, in ms, and transactions per second."""
    latencies_ms: list[float] = []
    async with metatxn.connect_async(url) as client:
        await client.begin()
        cpu, begun = cpu_s(), time.perf_counter()

        async def produce() -> None:
            one, two = client.producer("one"), client.producer("two")
            while (start := time.perf_counter()) < begun + SECONDS:
                txn = await client.begin()
                await one.send(MESSAGE, txn=txn)
                await two.send(MESSAGE, txn=txn)
                await txn.commit()
                latencies_ms.append((time.perf_counter() - start) * 1e3)

        await asyncio.gather(*[produce() for _ in range(count)])
        done, seconds = len(latencies_ms), time.perf_counter() - begun
        return (cpu_s() - cpu) / done * 1e3, percentile(latencies_ms, 99), done / seconds


async def begins_at_once(url: str) -> float:
    """CPU time of one, in ms."""
    async with metatxn.connect_async(url) as client:
        await client.begin()
        gc.collect()
        cpu = cpu_s()
        begun = await asyncio.gather(*[client.begin(timeout_ms=10_000) for _ in range(BEGINS)])
        assert len({txn.id for txn in begun}) == BEGINS
        return (cpu_s() - cpu) / BEGINS * 1e3


def started(*command: str) -> float:
    """CPU time, in ms."""
    before = cpu_s(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return (cpu_s(resource.RUSAGE_CHILDREN) - before) * 1e3


def measured(url: str) -> Iterator[tuple[str, float]]:
    cpu_ms, wall_ms = asyncio.run(small_transactions(url))
    yield "small transaction, asyncio: CPU of the client", cpu_ms
    yield "small transaction, asyncio: begin to committed", wall_ms
    cpu_ms, wall_ms = blocking_small_transactions(url)
    yield "small transaction, blocking: CPU of the client", cpu_ms
    yield "small transaction, blocking: begin to committed", wall_ms
    for count in PRODUCERS:
        cpu_ms, p99_ms, per_s = asyncio.run(producers_at_once(url, count))
        yield f"{count} producers at once: CPU of the client for each transaction", cpu_ms
        yield f"{count} producers at once: begin to committed p99", p99_ms
        yield f"{count} producers at once: transactions", per_s
    yield f"{BEGINS:,} begins at once: CPU of the client, each", asyncio.run(begins_at_once(url))
    yield "import metatxn: CPU", started(sys.executable, "-c", "import metatxn")
    yield "import metatxn; metatxn.connect: CPU", started(sys.executable, "-c", "import metatxn; metatxn.connect")
    yield "metatxn --help: CPU", started(*METATXN, "--help")


TARGETS = {
    "small transaction, asyncio: CPU of the client": 2.4,
    f"{BEGINS:,} begins at once: CPU of the client, each": 1.0,
    "import metatxn: CPU": 150,
    "metatxn --help: CPU": 400,
}


def main() -> None:
    runs: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory, running_dev(Path(directory), None) as url:
        with metatxn.connect(url) as client:
            client.create_topic("one")
            client.create_topic("two")
        for _ in range(RUNS):
            for name, value in measured(url):
                runs.setdefault(name, []).append(value)
    figures = [
        Figure(name, values, "1/s" if name.endswith("transactions") else "ms", at_most=TARGETS.get(name))
        for name, values in runs.items()
    ]
    publish("client", "The client", figures)


if __name__ == "__main__":
    main()
