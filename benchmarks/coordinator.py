"""The coordinator: what its rules cost beside plain writes, and what its HTTP costs beside a route that does nothing.

Five parts, all ratios of one run:

*In process.* Begin and commit through the coordinator's own code, beside the same code on a store that sends every
apply and every read as one plain request (`benchmarks.store.Ungrouped`), with the same number of callers, in turns.

*End latency.* Transactions with 1, 100 and 10,000 operation records are committed in turns, one at a time: the time
of a commit must not know how much was written.

*Garbage collection.* A few callers begin and commit at a steady rate: while the sweep deletes the headers of 100,000
finished transactions, in the same process as in a coordinator, and before and after it, when nothing else happens. The
slowest of their commits must hardly notice.

*REST.* A worker process, with logs and garbage collector set up as `metatxn coordinator` does, serves a coordinator
and, on a second port and the same event loop, a bare FastAPI route that does nothing. `wrk` holds 64 connections to
either. Its script begins a transaction when it knows none to commit, so begins and commits alternate. Another one sends
both in batches. All three take turns of a second.

*Workers.* The same load on two worker processes, half the connections each. How many cores were busy meanwhile, and how
many of them with the workers, says what limits.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import structlog
import uvloop
from fastapi import FastAPI

from benchmarks.commits import at_once, now_ms
from benchmarks.report import Figure, percentile, publish
from benchmarks.store import SEGMENT, Ungrouped
from coordinator.batches import Done, run_batch
from coordinator.gc_sweep import GcSweep
from coordinator.service import CoordinatorService
from coordinator.transactions import Transactions
from examples.flights.etcd import running_etcd
from examples.flights.processes import stop
from metastore.api import MetadataStore
from metastore.backends.etcd import EtcdStore
from metastore.txn import paths
from metastore.txn.records.operations import WriteOp
from metastore.txn.store import INDEXES, put_write_op
from metastore.urls import open_store
from metatxn.cli.services import tune_interpreter
from metatxn.service.server import HttpServer
from metatxn.wire.coordinator import BeginItem, CommitItem
from metatxn.wire.ids import TxnId

RUNS = 3
CALLERS = 256
CONNECTIONS = 64
LOADS = {"nothing": CONNECTIONS, "alternate": CONNECTIONS, "batches": 4}
TURNS = 4
TURNS_IN_PROCESS = 12
TURN_S = 1
WORKERS_S = 4
OPERATIONS = (1, 100, 10_000)
COMMITS_PER_RUN = 70
SETTLING = 500
FINISHED = 100_000
STEADY_CALLERS = 8
STEADY_PAUSE_S = 0.01
IDLE_COMMITS = 3_000
BATCH = 500
OPERATIONS_PER_APPLY = 40

_ALTERNATE = """
local open = {}
request = function()
  local id = table.remove(open)
  if id then return wrk.format("POST", "/v1/txns/" .. id .. "/commit") end
  return wrk.format("POST", "/v1/txns")
end
response = function(status, headers, body)
  if status == 201 then table.insert(open, string.match(body, '"txn_id":"(%x+)"')) end
end
"""
_NOTHING = """
request = function() return wrk.format("POST", "/nothing") end
response = function(status, headers, body) end
"""
_BATCHES = """
local ready = {}
local begins = {}
for number = 1, BATCH do begins[number] = '{"op":"begin"}' end
local json = { ["Content-Type"] = "application/json" }
local all_begins = wrk.format("POST", "/v1/txns/batch", json, '{"items":[' .. table.concat(begins, ",") .. ']}')
request = function()
  local items = table.remove(ready)
  if items then return wrk.format("POST", "/v1/txns/batch", json, '{"items":[' .. items .. ']}') end
  return all_begins
end
response = function(status, headers, body)
  if string.find(body, '"status":201', 1, true) then
    local commits = {}
    for id in string.gmatch(body, '"txn_id":"(%x+)"') do
      commits[#commits + 1] = '{"op":"commit","txn_id":"' .. id .. '"}'
    end
    table.insert(ready, table.concat(commits, ","))
  end
end
"""


# -- in process -----------------------------------------------------------------------------------------------------


async def begin_and_commit(store: MetadataStore, total: int) -> float:
    """Transactions per second, `CALLERS` at a time."""
    coordinator = Transactions(store, now_ms)

    async def one(_: int) -> float:
        begun = await coordinator.begin()
        await coordinator.commit(begun.txn_id)
        return 0.0

    return (await at_once(total, CALLERS, one))[0]


async def in_process(endpoint: str) -> dict[str, float]:
    """Both take turns, because the speed of such a machine changes within seconds, and many of them: the ratios of
    single pairs of turns are between 2.7 and 4.3."""
    single_store = await Ungrouped.connect(endpoint)
    store = await EtcdStore.open([endpoint], indexes=INDEXES)
    single: list[float] = []
    grouped: list[float] = []
    for _ in range(TURNS_IN_PROCESS):
        single.append(await begin_and_commit(single_store, 1_000))
        grouped.append(await begin_and_commit(store, 3_000))
    await single_store.close()
    await store.close()
    return {
        "etcd: begin+commit, plain requests": statistics.harmonic_mean(single),
        "etcd: begin+commit": statistics.harmonic_mean(grouped),
        "etcd: begin+commit ÷ plain requests": statistics.harmonic_mean(grouped) / statistics.harmonic_mean(single),
    }


# -- latency of the end ---------------------------------------------------------------------------------------------


async def with_operations(coordinator: Transactions, count: int) -> TxnId:
    begun = await coordinator.begin()
    txn_id = begun.txn_id
    store = coordinator.store
    op = WriteOp(segment=SEGMENT, after="1:17", count=100)

    async def some(number: int) -> float:
        first, end = number * OPERATIONS_PER_APPLY, min((number + 1) * OPERATIONS_PER_APPLY, count)
        batch = put_write_op(store.batch(), txn_id, 1, first, op)
        for counter in range(first + 1, end):
            batch.create(paths.write_op(txn_id, SEGMENT, 1, counter), op.encode())
        await store.apply(batch)
        return 0.0

    await at_once(-(-count // OPERATIONS_PER_APPLY), 16, some)
    return txn_id


async def remove_operations(store: MetadataStore, txn_id: TxnId) -> None:
    """As participants do: in slices, with their index entries."""
    prefix = paths.ops_of_transaction(txn_id)
    while records := (await store.scan(prefix, limit=1_000)).records:
        slices = [store.batch() for _ in range(0, len(records), 50)]
        for number, record in enumerate(records):
            slices[number // 50].remove(record)
        await asyncio.gather(*map(store.apply, slices))


async def end_latencies(endpoint: str) -> dict[str, float]:
    store = await EtcdStore.open([endpoint], indexes=INDEXES)
    coordinator = Transactions(store, now_ms)
    seconds: dict[int, list[float]] = {count: [] for count in OPERATIONS}
    for run in range(COMMITS_PER_RUN):
        txn_ids = {count: await with_operations(coordinator, count) for count in OPERATIONS}
        await begin_and_commit(store, SETTLING)  # the server still has the operations to digest
        for turn in range(len(OPERATIONS)):
            count = OPERATIONS[(run + turn) % len(OPERATIONS)]
            start = time.perf_counter()
            await coordinator.commit(txn_ids[count])
            seconds[count].append(time.perf_counter() - start)
        for txn_id in txn_ids.values():
            await remove_operations(store, txn_id)
    await store.close()
    p50 = {count: percentile(seconds[count], 50) * 1000 for count in OPERATIONS}
    figures = {f"etcd: commit p50 with {count:,} operations": p50[count] for count in OPERATIONS}
    return figures | {"etcd: commit p50, most ÷ least": max(p50.values()) / min(p50.values())}


# -- garbage collection ---------------------------------------------------------------------------------------------


async def steady_commits(coordinator: Transactions, enough: Callable[[list[float]], bool]) -> list[float]:
    """Seconds that each commit took, of a few callers who pause after each, until there are enough."""
    seconds: list[float] = []

    async def caller() -> None:
        while not enough(seconds):
            begun = await coordinator.begin()
            start = time.perf_counter()
            await coordinator.commit(begun.txn_id)
            seconds.append(time.perf_counter() - start)
            await asyncio.sleep(STEADY_PAUSE_S)

    await asyncio.gather(*(caller() for _ in range(STEADY_CALLERS)))
    return seconds


async def finish(coordinator: Transactions, count: int) -> None:
    """Leave this many committed transactions behind."""
    for _ in range(0, count, BATCH):
        begun = await run_batch(coordinator, [BeginItem(op="begin")] * BATCH)
        ids = [answer.txn["txn_id"] for answer in begun if isinstance(answer, Done)]
        ended = await run_batch(coordinator, [CommitItem(op="commit", txn_id=txn_id) for txn_id in ids])
        assert all(isinstance(answer, Done) for answer in ended) and len(ended) == BATCH


async def collecting(endpoint: str) -> dict[str, float]:
    store = await EtcdStore.open([endpoint], indexes=INDEXES)
    coordinator = Transactions(store, now_ms)
    await finish(coordinator, FINISHED)
    sweep = GcSweep(store, now_ms, coordinator.metrics, retention_ms=0)

    def half(seconds: list[float]) -> bool:
        return len(seconds) >= IDLE_COMMITS // 2

    await steady_commits(coordinator, lambda seconds: len(seconds) >= IDLE_COMMITS // 4)  # warm
    beside_nothing = await steady_commits(coordinator, half)
    start = time.perf_counter()
    collection = asyncio.create_task(sweep.collect_once())
    meanwhile = await steady_commits(coordinator, lambda _: collection.done())
    collected = await collection
    rate = collected.deleted / (time.perf_counter() - start)
    assert collected.deleted >= FINISHED and not collected.kept, collected
    beside_nothing += await steady_commits(coordinator, half)
    await store.close()
    idle = percentile(beside_nothing, 99)
    return {
        "etcd: commit p99, idle": idle * 1000,
        "etcd: headers collected": rate,
        "etcd: commit p99 while 100,000 transactions are collected ÷ idle": percentile(meanwhile, 99) / idle,
    }


# -- over HTTP ------------------------------------------------------------------------------------------------------


async def serve(url: str) -> None:
    """A worker: prints the URL of its coordinator and that of the route that does nothing, then serves until killed."""
    store = await open_store(url)
    service = CoordinatorService(store, port=0)
    await service.start()
    bare = FastAPI()

    @bare.post("/nothing")
    async def nothing() -> None:
        return None

    beside = HttpServer(bare, "127.0.0.1", 0)
    beside.bind()
    await beside.start()
    tune_interpreter()
    sys.stdout.write(json.dumps([service.url, beside.url]) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


@contextmanager
def worker(url: str) -> Iterator[tuple[str, str, int]]:
    """The URLs that it prints, and its process."""
    command = [sys.executable, "-m", "benchmarks.coordinator", "--serve", url]
    environment = {**os.environ, "METATXN_LOG_LEVEL": "warning"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as process:
        assert process.stdout is not None
        coordinator, nothing = json.loads(process.stdout.readline())
        try:
            yield coordinator, nothing, process.pid
        finally:
            stop(process)


def start_wrk(url: str, script: Path, connections: int, seconds: int = TURN_S) -> subprocess.Popen[str]:
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout=10s", "-s", str(script), url]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def rate(process: subprocess.Popen[str]) -> float:
    """Requests per second. Raises when any answer was no success."""
    output, _ = process.communicate()
    if "Non-2xx" in output or "Socket errors" in output:
        raise SystemExit(f"wrk met errors:\n{output}")
    found = re.search(r"Requests/sec:\s+([\d.]+)", output)
    assert found, output
    return float(found[1])


def over_http(kind: str, url: str, scripts: dict[str, Path]) -> dict[str, float]:
    """All three in turn, again and again: the speed of a machine changes within the seconds that one of them takes."""
    rates: dict[str, list[float]] = {script: [] for script in LOADS}
    with worker(url) as (coordinator, nothing, _):
        start_wrk(coordinator, scripts["alternate"], CONNECTIONS).communicate()  # warm
        for _ in range(TURNS):
            for script, connections in LOADS.items():
                asked = nothing if script == "nothing" else coordinator
                rates[script].append(rate(start_wrk(asked, scripts[script], connections)))
    bare, single, batches = map(statistics.mean, rates.values())
    return {
        f"{kind}: REST route that does nothing": bare,
        f"{kind}: REST begin and commit": single,
        f"{kind}: REST begin and commit ÷ nothing": single / bare,
        f"{kind}: transactions in batches ÷ one by one": batches * BATCH / single,
    }


def cores_busy() -> float:
    """Seconds that all cores together have worked since the machine was started."""
    user, nice, system, _, _, interrupts, soft_interrupts = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + interrupts + soft_interrupts) / os.sysconf("SC_CLK_TCK")


def seconds_worked(process: int) -> float:
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def two_workers(url: str, scripts: dict[str, Path], one_worker: float) -> dict[str, float]:
    with ExitStack() as stack:
        workers = [stack.enter_context(worker(url)) for _ in range(2)]
        start, busy = time.perf_counter(), cores_busy()
        worked = sum(seconds_worked(process) for _, _, process in workers)
        started = [start_wrk(url, scripts["alternate"], CONNECTIONS // 2, WORKERS_S) for url, _, _ in workers]
        both = sum(map(rate, started))
        took = time.perf_counter() - start
        busy = (cores_busy() - busy) / took
        worked = (sum(seconds_worked(process) for _, _, process in workers) - worked) / took
    return {WORKERS: both / one_worker, CORES: busy, CORES_OF_WORKERS: worked}


def what_limits(figures: Sequence[Figure]) -> str:
    found = {figure.name: figure.value for figure in figures}
    busy, workers, cores = found[CORES], found[CORES_OF_WORKERS], os.cpu_count() or 1
    used = f"of {cores} cores {busy:.2f} were busy, {workers:.2f} with the workers, the rest with etcd and wrk"
    limit = "the cores limit" if busy > 0.9 * cores else "something else than the cores limits"
    return f"Two workers do {found[WORKERS]:.2f} times the work of one: {used}; so {limit}."


# -- all ------------------------------------------------------------------------------------------------------------

WORKERS = "etcd: REST, two workers ÷ one"
CORES = "etcd: two workers, cores busy"
CORES_OF_WORKERS = "etcd: two workers, cores busy with them"
TARGETS = {
    "etcd: begin+commit ÷ plain requests": 3.0,
    "sqlite: REST begin and commit ÷ nothing": 0.4,
    "etcd: REST begin and commit ÷ nothing": 0.4,
    "sqlite: transactions in batches ÷ one by one": 5.0,
    "etcd: transactions in batches ÷ one by one": 5.0,
}
CEILINGS = {
    "etcd: commit p50, most ÷ least": 1.3,
    "etcd: commit p99 while 100,000 transactions are collected ÷ idle": 2.0,
}


def unit(name: str) -> str:
    if "÷" in name:
        return "ratio"
    if "cores" in name:
        return "cores"
    return "ms" if "p50" in name or "p99" in name else "1/s"


def one_run(directory: Path, scripts: dict[str, Path], run: int) -> Iterator[tuple[str, float]]:
    with running_etcd(directory / f"plain-{run}") as endpoint:
        yield from uvloop.run(in_process(endpoint)).items()
    with running_etcd(directory / f"latency-{run}") as endpoint:
        yield from uvloop.run(end_latencies(endpoint)).items()
    with running_etcd(directory / f"collecting-{run}") as endpoint:
        yield from uvloop.run(collecting(endpoint)).items()
    yield from over_http("sqlite", f"sqlite:///{directory / f'{run}.db'}", scripts).items()
    with running_etcd(directory / f"rest-{run}") as endpoint:
        figures = over_http("etcd", f"etcd://{endpoint}", scripts)
        yield from figures.items()
        yield from two_workers(f"etcd://{endpoint}", scripts, figures["etcd: REST begin and commit"]).items()


def measure() -> list[Figure]:
    runs: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        scripts = {}
        for script, text in (("alternate", _ALTERNATE), ("nothing", _NOTHING), ("batches", _BATCHES)):
            scripts[script] = directory / f"{script}.lua"
            scripts[script].write_text(text.replace("BATCH", str(BATCH)))
        for run in range(RUNS):
            for figure, value in one_run(directory, scripts, run):
                runs.setdefault(figure, []).append(value)
                sys.stdout.write(f"run {run + 1} of {RUNS}: {figure} {value:,.3g}\n")
                sys.stdout.flush()
    return [
        Figure(name, values, unit(name), at_least=TARGETS.get(name), at_most=CEILINGS.get(name))
        for name, values in runs.items()
    ]


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"), cache_logger_on_first_use=True)
    if sys.argv[1:2] == ["--serve"]:
        uvloop.run(serve(sys.argv[2]))
    else:
        figures = measure()
        publish("coordinator", "The coordinator", figures)
        sys.stdout.write(f"{what_limits(figures)}\n")


if __name__ == "__main__":
    main()
