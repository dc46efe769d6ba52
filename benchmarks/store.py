"""The metadata stores: what group commit gains, and what it costs an idle caller. Ratios in one run.

*Single* means one request per write, through the plainest client there is: a raw `Txn` on etcd's stubs, one
transaction per write on SQLite (`synchronous=FULL`), one raw `multi` on ZooKeeper. *Grouped* means `apply`, called by
many callers at once. On etcd both run on a freshly started server with the same flags, singles first.
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

from benchmarks.commits import at_once
from benchmarks.report import Figure, percentile, publish
from examples.flights.etcd import running_etcd
from metastore.api import MetadataStore
from metastore.backends.etcd_stubs import Compare, KVStub, PutRequest, RequestOp, TxnRequest
from metastore.txn import paths
from metastore.txn.ids import TxnId
from metastore.txn.records import Header, WriteOp
from metastore.txn.states import TxnState
from metastore.txn.store import TxnStore, begin, put_write_op
from metastore.types import Changes
from metastore.urls import open_store

RUNS = 3
VALUE = b"x" * 200
SEGMENT = "segment://public/default/orders/0000-ffff-0"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def one_create(store: MetadataStore, prefix: str) -> Callable[[int], Awaitable[float]]:
    async def one(number: int) -> float:
        start = time.perf_counter()
        await store.apply(store.batch().create(f"{prefix}{number}", VALUE))
        return time.perf_counter() - start

    return one


def one_raw(stub: KVStub, prefix: str) -> Callable[[int], Awaitable[float]]:
    async def one(number: int) -> float:
        key = f"{prefix}{number}".encode()
        start = time.perf_counter()
        absent = Compare(result=Compare.EQUAL, target=Compare.CREATE, key=key, create_revision=0)
        put = RequestOp(request_put=PutRequest(key=key, value=VALUE))
        await stub.Txn(TxnRequest(compare=[absent], success=[put]))
        return time.perf_counter() - start

    return one


async def open_transactions(store: MetadataStore, first: int, count: int) -> list[TxnId]:
    txn_ids = [TxnId(1, first + number) for number in range(count)]
    header = Header(state=TxnState.OPEN, timeout_ms=now_ms() + 10**9, created_ms=now_ms())
    await asyncio.gather(*(store.apply(begin(store.batch(), txn_id, header)) for txn_id in txn_ids))
    return txn_ids


def one_op(store: MetadataStore, txn_ids: list[TxnId]) -> Callable[[int], Awaitable[float]]:
    """A guarded operation record with its index entry."""
    op = WriteOp(segment=SEGMENT, after="1:17", count=100, writer="w")

    async def one(number: int) -> float:
        txn_id = txn_ids[number % len(txn_ids)]
        await store.apply(put_write_op(store.batch(), txn_id, 1, number, op))
        return 0.0

    return one


def one_raw_op(stub: KVStub, txn_ids: list[TxnId]) -> Callable[[int], Awaitable[float]]:
    value = WriteOp(segment=SEGMENT, after="1:17", count=100, writer="w").encode()

    async def one(number: int) -> float:
        txn_id = txn_ids[number % len(txn_ids)]
        key = paths.write_op(txn_id, SEGMENT, 2, number)
        entry = "/idx/writes-by-segment/" + paths.writes_by_segment(SEGMENT) + "/".join(paths.op_key_parts(key))
        compare = [
            Compare(target=Compare.VERSION, key=paths.header(txn_id).encode(), version=1),
            Compare(target=Compare.CREATE, key=paths.prepared(txn_id).encode(), create_revision=0),
            Compare(target=Compare.CREATE, key=key.encode(), create_revision=0),
        ]
        puts = [PutRequest(key=key.encode(), value=value), PutRequest(key=entry.encode(), value=b"")]
        answer = await stub.Txn(TxnRequest(compare=compare, success=[RequestOp(request_put=put) for put in puts]))
        assert answer.succeeded
        return 0.0

    return one


def one_life(store: MetadataStore, first: int) -> Callable[[int], Awaitable[float]]:
    """Begin, three guarded operations, commit, clean-up: all a transaction ever writes."""
    op = WriteOp(segment=SEGMENT, after="1:17", count=100)
    txns = TxnStore(store)

    async def one(number: int) -> float:
        txn_id = TxnId(2, first + number)
        header = Header(state=TxnState.OPEN, timeout_ms=now_ms() + 10**9, created_ms=now_ms())
        await store.apply(begin(store.batch(), txn_id, header))
        for counter in range(3):
            await store.apply(put_write_op(store.batch(), txn_id, 1, counter, op))
        records = await txns.read(txn_id)
        assert records is not None
        final = records.header.model_copy(update={"state": TxnState.COMMITTED, "finalized_ms": now_ms()})
        await store.apply(records.finalize(store.batch(), final))
        operations = (await store.scan(paths.ops_of_transaction(txn_id))).records
        batch = store.batch()
        for record in operations:
            batch.remove(record)
        await store.apply(batch)
        return 0.0

    return one


@asynccontextmanager
async def fresh_etcd(directory: Path, name: str) -> AsyncIterator[tuple[MetadataStore, KVStub]]:
    with running_etcd(directory / name) as endpoint:
        store = await open_store(f"etcd://{endpoint}")
        async with grpc.aio.insecure_channel(endpoint) as channel:
            yield store, KVStub(channel)
        await store.close()


async def etcd_figures(directory: Path, run: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    async with fresh_etcd(directory, f"single-{run}") as (store, stub):
        singles = [(await at_once(8_000, flight, one_raw(stub, f"/s{flight}/")))[0] for flight in (64, 256)]
        grouped = [(await at_once(25_000, callers, one_create(store, f"/g{callers}/")))[0] for callers in (256, 1024)]
        figures["etcd: single CAS"], figures["etcd: grouped CAS"] = max(singles), max(grouped)
        figures["etcd: grouped ÷ single CAS"] = max(grouped) / max(singles)
    async with fresh_etcd(directory, f"ops-{run}") as (store, stub):
        txn_ids = await open_transactions(store, 1, 500)
        single = (await at_once(8_000, 64, one_raw_op(stub, txn_ids)))[0]
        many = (await at_once(20_000, 256, one_op(store, txn_ids)))[0]
        figures["etcd: grouped ÷ ungrouped guarded op"] = many / single
    async with fresh_etcd(directory, f"lone-{run}") as (store, stub):
        lone: list[float] = []
        raw: list[float] = []
        for number in range(20):  # in turns, so that both meet the same machine
            raw += (await at_once(100, 1, one_raw(stub, f"/r{number}/")))[1]
            lone += (await at_once(100, 1, one_create(store, f"/l{number}/")))[1]
        figures["etcd: lone apply p50 ÷ raw Txn p50"] = percentile(lone, 50) / percentile(raw, 50)
        p99, share = await watch_figures(store)
        figures["etcd: watch of 20,000 events/s, p99 put to handled"] = p99
        figures["etcd: watch of 20,000 events/s, share of a core"] = share
    async with fresh_etcd(directory, f"life-{run}") as (store, stub):
        one_by_one = (await at_once(150, 1, one_life(store, 1)))[0]
        lives = [(await at_once(3_000, callers, one_life(store, callers * 10_000)))[0] for callers in (64, 256)]
        figures["etcd: transaction lives"] = max(lives)
        figures["etcd: transaction lives, one after the other"] = one_by_one
    return figures


async def watch_figures(store: MetadataStore) -> tuple[float, float]:
    """(p99 in ms from put to handled, CPU of this process per second spent on watching alone) at 20,000 events/s.

    The events are put in batches of 50 by this process too, so its CPU without the watch is measured first.
    """

    async def put(seconds: float, prefix: str) -> float:
        cpu, begun, sent = time.process_time(), time.perf_counter(), 0
        while (elapsed := time.perf_counter() - begun) < seconds:
            if sent < elapsed * 400:
                batch = store.batch()
                stamp = repr(time.perf_counter()).encode()
                for number in range(50):
                    batch.put(f"{prefix}{sent}/{number}", stamp)
                await store.apply(batch)
                sent += 1
            else:
                await asyncio.sleep(0.001)
        return (time.process_time() - cpu) / seconds

    without = await put(3, "/unwatched/")
    delays: list[float] = []
    async with store.watch("/watched/", await store.current_revision() + 1) as watch:

        async def follow() -> None:
            async for item in watch:
                assert isinstance(item, Changes)
                for event in item.events:
                    assert event.record is not None
                    delays.append(time.perf_counter() - float(event.record.value))

        follower = asyncio.create_task(follow())
        cpu = await put(3, "/watched/")
        follower.cancel()
    return percentile(delays, 99) * 1000, max(0.0, cpu - without)


async def sqlite_figures(directory: Path, run: int) -> dict[str, float]:
    store = await open_store(f"sqlite:///{directory / f'{run}.db'}")
    single = (await at_once(2_000, 1, one_create(store, "/s/")))[0]
    grouped = (await at_once(30_000, 512, one_create(store, "/g/")))[0]
    await store.close()
    return {
        "sqlite: ungrouped writes": single,
        "sqlite: grouped writes": grouped,
        "sqlite: grouped ÷ ungrouped": grouped / single,
    }


TARGETS = {
    "etcd: grouped ÷ single CAS": 5.0,
    "etcd: grouped ÷ ungrouped guarded op": 4.0,
    "sqlite: grouped ÷ ungrouped": 8.0,
}
CEILINGS = {
    "etcd: lone apply p50 ÷ raw Txn p50": 1.2,
    "etcd: watch of 20,000 events/s, p99 put to handled": 20.0,
    "etcd: watch of 20,000 events/s, share of a core": 0.2,
}


def unit(name: str) -> str:
    if "÷" in name or "share" in name:
        return "ratio"
    return "ms" if "p99" in name else "1/s"


async def measure() -> list[Figure]:
    runs: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        for run in range(RUNS):
            for figures in (await etcd_figures(Path(name), run), await sqlite_figures(Path(name), run)):
                for figure, value in figures.items():
                    runs.setdefault(figure, []).append(value)
                    sys.stdout.write(f"run {run + 1} of {RUNS}: {figure} {value:,.3g}\n")
    return [
        Figure(name, values, unit(name), at_least=TARGETS.get(name), at_most=CEILINGS.get(name))
        for name, values in runs.items()
    ]


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"))
    publish("store", "The metadata stores", asyncio.run(measure()))


if __name__ == "__main__":
    main()
