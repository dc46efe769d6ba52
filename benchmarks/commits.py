"""Transactions per second on each store, beside single compare-and-set writes to the same store in the same run.

One transaction is a begin and a commit through the coordinator's own code, in this process: two applies that change
nine keys. `CALLERS` of them run at once, and the store's group commit puts them together. The baseline is the same
number of writes (two per transaction), each a compare-and-set of one record, the plain way for that store:

    memory   one apply after the other
    sqlite   one apply after the other: each is a transaction of its own, synced to disk
    etcd     one raw `Txn` request each, through the same stubs, `RAW_IN_FLIGHT` at a time
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import structlog

from benchmarks.report import Figure, percentile, publish
from coordinator.transactions import Transactions
from examples.flights.etcd import running_etcd
from metastore.api import MetadataStore
from metastore.backends.etcd_stubs import Compare, KVStub, PutRequest, RequestOp, TxnRequest
from metastore.urls import open_store

RUNS = 3
CALLERS = 256
RAW_IN_FLIGHT = 64
TRANSACTIONS = {"memory": 4_000, "sqlite": 4_000, "etcd": 6_000}
WRITES_PER_TRANSACTION = 2
VALUE = b'{"state":"OPEN","timeout_ms":1767225660000,"created_ms":1767225600000}'


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def at_once(total: int, callers: int, one: Callable[[int], Awaitable[float]]) -> tuple[float, list[float]]:
    """`one(i)` for each i below `total`, `callers` at a time: (per second, what the calls answered)."""
    numbers = iter(range(total))
    answers: list[float] = []

    async def caller() -> None:
        for number in numbers:
            answers.append(await one(number))

    begun = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return total / (time.perf_counter() - begun), answers


async def transactions(store: MetadataStore, total: int) -> tuple[float, list[float]]:
    """(transactions per second, seconds that each commit took)."""
    coordinator = Transactions(store, now_ms)

    async def one(_: int) -> float:
        begun = await coordinator.begin()
        start = time.perf_counter()
        await coordinator.commit(begun.txn_id)
        return time.perf_counter() - start

    return await at_once(total, CALLERS, one)


async def single_applies(store: MetadataStore, total: int, run: int) -> float:
    async def one(number: int) -> float:
        await store.apply(store.batch().create(f"/bench/{run}/{number}", VALUE))
        return 0.0

    return (await at_once(total, 1, one))[0]


async def raw_etcd(endpoint: str, total: int, run: int) -> float:
    async with grpc.aio.insecure_channel(endpoint) as channel:
        stub = KVStub(channel)

        async def one(number: int) -> float:
            key = f"/raw/{run}/{number}".encode()
            absent = Compare(result=Compare.EQUAL, target=Compare.CREATE, key=key, create_revision=0)
            put = RequestOp(request_put=PutRequest(key=key, value=VALUE))
            answer = await stub.Txn(TxnRequest(compare=[absent], success=[put]))
            assert answer.succeeded
            return 0.0

        return (await at_once(total, RAW_IN_FLIGHT, one))[0]


@asynccontextmanager
async def stores(directory: Path) -> AsyncIterator[list[tuple[str, MetadataStore, str | None]]]:
    with running_etcd(directory / "etcd") as endpoint:
        opened = [
            ("memory", await open_store("memory://"), None),
            ("sqlite", await open_store(f"sqlite:///{directory / 'bench.db'}"), None),
            ("etcd", await open_store(f"etcd://{endpoint}"), endpoint),
        ]
        try:
            yield opened
        finally:
            for _, store, _ in opened:
                await store.close()


async def measure() -> list[Figure]:
    per_second: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as directory:
        async with stores(Path(directory)) as opened:
            for run in range(RUNS):
                for name, store, endpoint in opened:
                    singles = TRANSACTIONS[name] * WRITES_PER_TRANSACTION
                    single = await (
                        raw_etcd(endpoint, singles, run) if endpoint else single_applies(store, singles, run)
                    )
                    rate, seconds = await transactions(store, TRANSACTIONS[name])
                    for figure, value in (
                        ("transactions", rate),
                        ("commit p50", percentile(seconds, 50) * 1000),
                        ("commit p99", percentile(seconds, 99) * 1000),
                        ("single CAS writes", single),
                        ("transactions ÷ single CAS writes", rate / single),
                    ):
                        per_second.setdefault(f"{name}: {figure}", []).append(value)
                    sys.stdout.write(f"run {run + 1} of {RUNS}: {name} {rate:,.0f} transactions/s\n")
    units = {"transactions": "1/s", "single CAS writes": "1/s", "commit p50": "ms", "commit p99": "ms"}
    return [Figure(name, runs, units.get(name.partition(": ")[2], "ratio")) for name, runs in per_second.items()]


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"))
    figures = asyncio.run(measure())
    title = f"Begin and commit, {CALLERS} callers, beside single compare-and-set writes"
    publish("commits", title, figures)


if __name__ == "__main__":
    main()
