"""The metadata stores: what group commit gains, and what it costs an idle caller. Ratios in one run.

*Single* means one request per write, through the plainest client there is: a raw `Txn` on etcd's stubs, one
transaction per write on SQLite (`synchronous=FULL`), one raw `multi` on ZooKeeper. *Grouped* means `apply`, called by
many callers at once. *Ungrouped* means the same batches and the same reads, each sent as one plain request of its own,
without a marker. All run on a freshly started server with the same flags, singles first, each at its best
concurrency. The event loop is the one that the services run on, and the interpreter is tuned as it is there. What
runs on a JVM is run once before it is measured: ZooKeeper compiles itself meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import structlog
import uvloop
from kazoo.client import KazooClient

from benchmarks.commits import at_once
from benchmarks.report import Figure, percentile, publish
from examples.flights.etcd import running_etcd
from metastore.api import MetadataStore
from metastore.backends.etcd import EtcdStore
from metastore.backends.etcd_stubs import Compare, KVStub, PutRequest, RequestOp, TxnRequest
from metastore.backends.options import EtcdOptions
from metastore.txn import paths
from metastore.txn.records.operations import WriteOp
from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metastore.txn.store import INDEXES, begin, finalize, put_write_op, read_plain
from metastore.types import Applied, Batch, Changes
from metastore.urls import open_store
from metatxn.cli.services import tune_interpreter
from metatxn.wire.ids import TxnId
from tests.servers import ZooKeeperServer

RUNS = 5
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


def one_op(store: MetadataStore, txn_ids: list[TxnId], generation: int) -> Callable[[int], Awaitable[float]]:
    """A guarded operation record with its index entry."""
    op = WriteOp(segment=SEGMENT, after="1:17", count=100, writer="w")

    async def one(number: int) -> float:
        txn_id = txn_ids[number % len(txn_ids)]
        await store.apply(put_write_op(store.batch(), txn_id, generation, number, op))
        return 0.0

    return one


class Ungrouped(EtcdStore):
    """What this store would be without group commit and group reads: one plain request per call."""

    async def apply(self, batch: Batch) -> Applied:
        self.refuse_unfit(batch)
        nested = self._wire.nested(self._wire.encode(batch, 126))
        request = TxnRequest.FromString(nested).success[0].request_txn
        answer = await self._connection.call(self._connection.kv.Txn, request, 30)
        assert answer.succeeded
        return Applied(answer.header.revision)

    @classmethod
    async def connect(cls, endpoint: str) -> EtcdStore:
        store = await cls.open([endpoint], indexes=INDEXES, options=EtcdOptions(deadline_ms=60_000))
        store._reads.read = store._read  # type: ignore[method-assign]
        return store


def one_life(store: MetadataStore, first: int) -> Callable[[int], Awaitable[float]]:
    """Begin, three guarded operations, commit, clean-up: all a transaction ever writes."""
    op = WriteOp(segment=SEGMENT, after="1:17", count=100)

    async def one(number: int) -> float:
        txn_id = TxnId(2, first + number)
        header = Header(state=TxnState.OPEN, timeout_ms=now_ms() + 10**9, created_ms=now_ms())
        await store.apply(begin(store.batch(), txn_id, header))
        for counter in range(3):
            await store.apply(put_write_op(store.batch(), txn_id, 1, counter, op))
        records = (await read_plain(store, [txn_id]))[txn_id]
        final = records.header.model_copy(update={"state": TxnState.COMMITTED, "finalized_ms": now_ms()})
        await store.apply(finalize(store.batch(), [records], final))
        operations = (await store.scan(paths.ops_of_transaction(txn_id))).records
        batch = store.batch()
        for record in operations:
            batch.remove(record)
        await store.apply(batch)
        return 0.0

    return one


@dataclass(frozen=True, slots=True)
class Etcd:
    """A freshly started server, and three ways to it."""

    stub: KVStub
    store: EtcdStore
    ungrouped: EtcdStore


@asynccontextmanager
async def fresh_etcd(directory: Path, name: str) -> AsyncIterator[Etcd]:
    with running_etcd(directory / name) as endpoint:
        store = await EtcdStore.open([endpoint], indexes=INDEXES)
        ungrouped = await Ungrouped.connect(endpoint)
        async with grpc.aio.insecure_channel(endpoint) as channel:
            yield Etcd(KVStub(channel), store, ungrouped)
        await ungrouped.close()
        await store.close()


async def best(
    total: Callable[[int], int], callers: Sequence[int], one: Callable[[int], Callable[[int], Awaitable[float]]]
) -> float:
    """The highest rate; `total(n)` calls of `one(n)` for each number n of callers."""
    return max([(await at_once(total(many), many, one(many)))[0] for many in callers])


async def etcd_figures(directory: Path, run: int) -> dict[str, float]:
    figures: dict[str, float] = {}
    async with fresh_etcd(directory, f"single-{run}") as etcd:
        single = await best(lambda _: 10_000, (64, 256), lambda n: one_raw(etcd.stub, f"/s{n}/"))
        grouped = await best(lambda _: 50_000, (256, 1024), lambda n: one_create(etcd.store, f"/g{n}/"))
        figures["etcd: single CAS"], figures["etcd: grouped CAS"] = single, grouped
        figures["etcd: grouped ÷ single CAS"] = grouped / single
    async with fresh_etcd(directory, f"ops-{run}") as etcd:
        txn_ids = await open_transactions(etcd.store, 1, 1_500)
        single = await best(lambda _: 8_000, (64, 256), lambda n: one_op(etcd.ungrouped, txn_ids, n))
        grouped = await best(lambda _: 25_000, (256, 1024), lambda n: one_op(etcd.store, txn_ids, n + 1))
        figures["etcd: ungrouped guarded ops"], figures["etcd: grouped guarded ops"] = single, grouped
        figures["etcd: grouped ÷ ungrouped guarded op"] = grouped / single
    async with fresh_etcd(directory, f"lone-{run}") as etcd:
        lone: list[float] = []
        raw: list[float] = []
        for number in range(20):  # in turns, so that both meet the same machine
            raw += (await at_once(100, 1, one_raw(etcd.stub, f"/r{number}/")))[1]
            lone += (await at_once(100, 1, one_create(etcd.store, f"/l{number}/")))[1]
        figures["etcd: lone apply p50 ÷ raw Txn p50"] = percentile(lone, 50) / percentile(raw, 50)
        p99, share = await watch_figures(etcd.store)
        figures["etcd: watch of 20,000 events/s, p99 put to handled"] = p99
        figures["etcd: watch of 20,000 events/s, share of a core"] = share
    async with fresh_etcd(directory, f"life-{run}") as etcd, watched(etcd.store):
        callers = (16, 64, 256, 1024)
        single = await best(lambda n: max(1_200, 2 * n), callers, lambda n: one_life(etcd.ungrouped, n * 100_000))
        grouped = await best(lambda n: max(4_000, 4 * n), callers, lambda n: one_life(etcd.store, n * 110_000))
        figures["etcd: ungrouped transaction lives"], figures["etcd: transaction lives"] = single, grouped
        figures["etcd: grouped ÷ ungrouped transaction lives"] = grouped / single
    return figures


@asynccontextmanager
async def watched(store: MetadataStore) -> AsyncIterator[None]:
    """One watcher of all headers, as every broker has."""

    async def follow() -> None:
        async with store.watch(paths.HEADERS, await store.current_revision() + 1) as watch:
            async for _ in watch:
                pass

    follower = asyncio.create_task(follow())
    yield
    follower.cancel()


async def watch_figures(store: MetadataStore) -> tuple[float, float]:
    """(p99 in ms from put to handled, CPU of this process per second spent on watching alone) at 20,000 events/s.

    The events are put in batches of 50 by this process too, so its CPU without the watch is measured first. The clock
    starts once the watch has told of a first event: a watch that begins while others write is often behind when etcd
    hears of it, and etcd looks after such watches every 100 ms.
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

    without = await put(5, "/unwatched/")
    delays: list[float] = []
    begun = asyncio.Event()
    async with store.watch("/watched/", await store.current_revision() + 1) as watch:

        async def follow() -> None:
            async for item in watch:
                begun.set()
                assert isinstance(item, Changes)
                for event in item.events:
                    assert event.record is not None
                    delays.append(time.perf_counter() - float(event.record.value))

        follower = asyncio.create_task(follow())
        await store.apply(store.batch().put("/watched/first", repr(time.perf_counter()).encode()))
        await begun.wait()
        delays.clear()
        cpu = await put(5, "/watched/")
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


async def zookeeper_figures(directory: Path, run: int) -> dict[str, float]:
    with ZooKeeperServer(directory / f"zookeeper-{run}", java_options=["-XX:+UseSerialGC"]) as server:
        client = KazooClient(server.endpoint)
        await asyncio.to_thread(client.start)
        loop = asyncio.get_running_loop()

        async def one_multi(number: int) -> float:
            answer = loop.create_future()
            multi = client.transaction()
            multi.create(f"/single-{number}", VALUE)
            multi.commit_async().rawlink(lambda _: loop.call_soon_threadsafe(answer.set_result, 0.0))
            return float(await answer)

        numbers = itertools.count()
        store = await open_store(f"zk://{server.endpoint}/grouped")
        await best(lambda _: 5_000, (256,), lambda _: lambda _: one_multi(next(numbers)))
        for warm_up in range(8):
            await at_once(25_000, 256, one_create(store, f"/warm-up-{warm_up}/"))
        single = await best(lambda _: 5_000, (64, 256), lambda _: lambda _: one_multi(next(numbers)))
        await asyncio.to_thread(client.stop)
        grouped = await best(lambda _: 25_000, (256, 512, 1024, 2048), lambda n: one_create(store, f"/g{n}/"))
        await store.close()
    return {
        "zookeeper: single creates": single,
        "zookeeper: grouped creates": grouped,
        "zookeeper: grouped ÷ single": grouped / single,
    }


TARGETS = {
    "etcd: grouped ÷ single CAS": 5.0,
    "etcd: grouped ÷ ungrouped guarded op": 4.0,
    "etcd: grouped ÷ ungrouped transaction lives": 3.0,
    "sqlite: grouped ÷ ungrouped": 8.0,
    "zookeeper: grouped ÷ single": 8.0,
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
            for backend in (etcd_figures, sqlite_figures, zookeeper_figures):
                for figure, value in (await backend(Path(name), run)).items():
                    runs.setdefault(figure, []).append(value)
                    sys.stdout.write(f"run {run + 1} of {RUNS}: {figure} {value:,.3g}\n")
    return [
        Figure(name, values, unit(name), at_least=TARGETS.get(name), at_most=CEILINGS.get(name))
        for name, values in runs.items()
    ]


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"))
    tune_interpreter()
    publish("store", "The metadata stores", uvloop.run(measure()))


if __name__ == "__main__":
    main()
