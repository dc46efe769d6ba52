"""The participants: what a transaction costs the data path, how soon it is visible, and what history costs. Ratios of
one run, services as processes of their own, on etcd unless said.

*Appends.* One writer sends messages of 1 KiB through the client library, which batches them, for some seconds: outside
of transactions, and inside, with a commit every 100 ms, and every 10 ms, in turns. It begins the next
transaction while it writes and goes on in it while the last one is being committed, so that the pipe stays full; a
round ends when everything is durable and committed. Each round inside is divided by the mean of the plain ones right
before and behind it, because the speed of a machine changes. Beside the rates stand the ratios of the CPU time of
everything that takes part, per message: a busy machine changes them less.

*Bodies.* `wrk` posts bodies of 1 MiB to a broker on a few connections, beside a bare loop that writes and syncs as
many to a file on the same disk; then it reads them back, in answers as large as a broker gives, beside a FastAPI route
of the same HTTP server that answers with as many bytes from memory: in turns of a second, because the speed of a
machine changes within the seconds that all of it takes.

*Visibility.* A ring of open transactions, each with one entry: the oldest one, which holds back all others, is
committed over HTTP while a reader waits behind it with a long poll. From sending the commit to the last byte of the
reader's answer, so the commit itself is part of it. With 1 and with 1,000 other open transactions behind it.

*Restart.* A broker with 10,000 or 1,000,000 old entries and 100 open transactions is killed with -9; from starting
the next process to its readiness. Each restart finds a copy of the same files and of the same store (SQLite).

*Metadata writes.* Applies counted below the services, which run in this process, on the store in memory.

*Memory.* Resident bytes of a broker after 10,000 and after 100,000 finished transactions, whose headers nobody has
collected. With `--full` after 1,000,000, which takes a quarter of an hour longer.

Named parts (appends, bodies, visibility, restart, writes, memory) are measured alone: they write the file anew.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from urllib.parse import quote

import structlog
import uvloop
from fastapi import FastAPI
from fastapi.responses import Response

import metatxn
from benchmarks.commits import at_once, now_ms
from benchmarks.report import Figure, percentile, publish
from benchmarks.services import Service, running, spawned
from coordinator.batches import Done, run_batch
from coordinator.transactions import Transactions
from examples.flights.etcd import running_etcd
from metastore.api import MetadataStore
from metastore.backends.memory import MemoryStore
from metastore.txn.store import INDEXES
from metastore.types import Applied, Batch
from metastore.urls import open_store
from metatxn.cli.services import tune_interpreter
from metatxn.service.server import HttpServer
from metatxn.wire.broker import FRAMES_MEDIA_TYPE, NEXT_HEADER, Message
from metatxn.wire.coordinator import BatchItem, BeginItem, BeginRequest, CommitItem
from metatxn.wire.frames import Entry, PayloadKind
from metatxn.wire.ids import TxnId
from participants.api.frames_response import ANSWER_BYTES
from participants.segment.segment import Segment
from participants.service import BrokerService
from participants.topic.messages import Messages, PublishOptions

RUNS = 3
PAIRS = 9
SECONDS = 2.5
MESSAGE = {"text": "x" * 1_000}
COMMIT_EVERY_S = {"100 ms": 0.1, "10 ms": 0.01}
COMMITS_AT_ONCE = 4

MIB = 1 << 20
BODIES = 1_000
BODIES_PER_PAGE = ANSWER_BYTES // MIB
CONNECTIONS = 4
POST_S = 4
READ_S, READ_TURNS = 1, 8

OTHERS = (1, 1_000)
COMMITS = 300
LONG_POLL_MS = 60_000

OLD_ENTRIES = (10_000, 1_000_000)
OPEN_TRANSACTIONS = 100
OLD_PAYLOAD = b"x" * 100

SEGMENTS = 4
COUNTED = 50

FINISHED = (10_000, 100_000)
FINISHED_IN_FULL = (10_000, 1_000_000)
WRITERS = 32
BATCH = 20
"""Transactions that are begun, and then committed, by one call."""

LONG_MS = 86_400_000
Figures = Iterator[tuple[str, float]]


# -- appends --------------------------------------------------------------------------------------------------------


class Cluster:
    """etcd, a coordinator, a broker, and a client of them in this process."""

    def __init__(self, etcd: str, coordinator: Service, broker: Service, client: metatxn.Client) -> None:
        self.client = client
        self._etcd = etcd
        self._services = (coordinator, broker)

    @property
    def cpu_s(self) -> float:
        """Of all of them, so far."""
        with urllib.request.urlopen(f"http://{self._etcd}/metrics") as answer:
            found = re.search(rb"^process_cpu_seconds_total (\S+)", answer.read(), re.MULTILINE)
        assert found
        return float(found[1]) + time.process_time() + sum(service.cpu_s for service in self._services)


@contextmanager
def cluster(directory: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        endpoint = stack.enter_context(running_etcd(directory / "etcd"))
        store = ("--store", f"etcd://{endpoint}")
        coordinator = stack.enter_context(running("coordinator", *store))
        broker = stack.enter_context(running("broker", *store, "--data-dir", str(directory / "broker")))
        client = stack.enter_context(metatxn.connect(coordinator.url))
        yield Cluster(endpoint, coordinator, broker, client)


@dataclass(frozen=True, slots=True)
class Round:
    messages_per_s: float
    cpu_us: float  # per message


def measured(cluster: Cluster, write: Iterator[int]) -> Round:
    cpu_s, begun = cluster.cpu_s, time.perf_counter()
    messages = sum(write)
    seconds = time.perf_counter() - begun
    return Round(messages / seconds, (cluster.cpu_s - cpu_s) / messages * 1e6)


def plain(client: metatxn.Client, topic: str) -> Iterator[int]:
    """Messages sent, in parts; all of them are durable in the end."""
    with client.producer(topic) as producer:
        yield send_for(SECONDS, producer, None)


def inside(client: metatxn.Client, topic: str, every_s: float) -> Iterator[int]:
    """Messages sent, in parts; all of them are committed in the end."""
    with client.producer(topic) as producer, ThreadPoolExecutor(COMMITS_AT_ONCE + 1) as background:
        ending: list[Future[object]] = []
        upcoming = background.submit(client.begin)
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            txn, upcoming = upcoming.result(), background.submit(client.begin)
            yield send_for(every_s, producer, txn)
            ending.append(background.submit(txn.commit))
            if len(ending) > COMMITS_AT_ONCE:
                ending.pop(0).result()
        for commit in ending:
            commit.result()
        upcoming.result().abort()


def send_for(seconds: float, producer: metatxn.Producer, txn: metatxn.Transaction | None) -> int:
    end = time.perf_counter() + seconds
    for sent in itertools.count(1):
        producer.send(MESSAGE, txn=txn)
        if time.perf_counter() >= end:
            return sent
    raise AssertionError("never ends")


def appends(directory: Path) -> Figures:
    with cluster(directory) as running_cluster:
        client = running_cluster.client
        topic = client.create_topic("appends").name
        for every_s in COMMIT_EVERY_S.values():
            measured(running_cluster, inside(client, topic, every_s))  # warm
        before = measured(running_cluster, plain(client, topic))
        for _ in range(PAIRS):
            yield "plain appends of 1 KiB", before.messages_per_s
            for interval, every_s in COMMIT_EVERY_S.items():
                within = measured(running_cluster, inside(client, topic, every_s))
                after = measured(running_cluster, plain(client, topic))
                rate, cpu_us = mean([before.messages_per_s, after.messages_per_s]), mean([before.cpu_us, after.cpu_us])
                yield f"appends, commit every {interval} ÷ plain", within.messages_per_s / rate
                yield f"CPU per append, commit every {interval} ÷ plain", within.cpu_us / cpu_us
                before = after


# -- bodies ---------------------------------------------------------------------------------------------------------

_POST = f"""
wrk.method = "POST"
wrk.body = string.rep("x", {MIB})
wrk.headers["Content-Type"] = "application/octet-stream"
"""
_READ = """
local entry = 0
request = function()
  entry = (entry + 1) % ENTRIES
  return wrk.format("GET", wrk.path .. "?max_bytes=BYTES&after=LEDGER:" .. entry - 1)
end
"""


def wrk_mib_per_s(url: str, seconds: int, script: Path | None = None, bodies: int = 1) -> float:
    """MiB per second, `bodies` of 1 MiB with each request. Raises when any answer was no success."""
    command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--timeout=10s"]
    command += ["-s", str(script)] if script is not None else []
    output = subprocess.run([*command, url], capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in output or "Socket errors" in output:
        raise SystemExit(f"wrk met errors:\n{output}")
    found = re.search(r"Requests/sec:\s+([\d.]+)", output)
    assert found, output
    return bodies * float(found[1])


def bare_loop(path: Path) -> float:
    """MiB per second of writing and syncing bodies one after another."""
    body = b"x" * MIB
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    begun = time.perf_counter()
    for _ in range(BODIES):
        os.write(file, body)
        os.fdatasync(file)
    seconds = time.perf_counter() - begun
    os.close(file)
    path.unlink()
    return BODIES / seconds


async def serve_body() -> None:
    """Prints the URL of a route that answers with as much as a page of a segment holds, and serves until killed."""
    bare, body = FastAPI(), b"x" * MIB * BODIES_PER_PAGE

    @bare.get("/body")
    async def answer() -> Response:
        return Response(body, media_type=FRAMES_MEDIA_TYPE)

    server = HttpServer(bare, "127.0.0.1", 0)
    server.bind()
    await server.start()
    tune_interpreter()
    print_line(f"{server.url}/body")
    await asyncio.Event().wait()


def bodies(directory: Path) -> Figures:
    post, read = directory / "post.lua", directory / "read.lua"
    post.write_text(_POST)
    store = f"sqlite:///{directory / 'bodies.db'}"
    with (
        running("broker", "--store", store, "--data-dir", str(directory / "bodies")) as broker,
        metatxn.connect(broker.url) as client,
        spawned([sys.executable, "-m", __spec__.name, "--serve-body"]) as (_, bare_url),
    ):
        segment = client.create_topic("bodies").segments[0].segment
        url = f"{broker.url}/v1/segments/{quote(segment, safe='')}/entries"
        wrk_mib_per_s(url, POST_S, post)  # warm
        detail = client.segment(segment)
        ledger, _, last = detail.last_position.partition(":")
        entries = str(int(last) - BODIES_PER_PAGE)
        script = _READ.replace("ENTRIES", entries).replace("BYTES", str(ANSWER_BYTES)).replace("LEDGER", ledger)
        read.write_text(script)
        for _ in range(RUNS):
            loop = bare_loop(directory / "bare")
            appended = wrk_mib_per_s(url, POST_S, post)
            yield "write and sync in a bare loop", loop
            yield "appends of 1 MiB", appended
            yield "appends of 1 MiB ÷ bare loop", appended / loop
            bare, returned = [], []
            for _ in range(READ_TURNS):
                bare.append(wrk_mib_per_s(bare_url.strip(), READ_S, bodies=BODIES_PER_PAGE))
                returned.append(wrk_mib_per_s(url, READ_S, read, BODIES_PER_PAGE))
            yield "1 MiB from a bare route", mean(bare)
            yield "reads of 1 MiB", mean(returned)
            yield "reads of 1 MiB ÷ bare route", mean(returned) / mean(bare)


# -- over one connection --------------------------------------------------------------------------------------------


class Connection:
    """HTTP in its plainest form, so that the client's part of a latency is small."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    @asynccontextmanager
    async def to(cls, service: Service) -> AsyncIterator[Connection]:
        reader, writer = await asyncio.open_connection(*service.address)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()

    async def request(self, method: str, path: str, body: bytes = b"") -> tuple[str, bytes]:
        """Head and body of a 2xx answer."""
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        head += "Content-Type: application/octet-stream\r\n\r\n" if body else "\r\n"
        self._writer.write(head.encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"content-length: (\d+)", answer, re.IGNORECASE)
        content = await self._reader.readexactly(int(length[1])) if length else b""
        assert answer.startswith("HTTP/1.1 2"), answer + content.decode(errors="replace")
        return answer, content


def entries_path(segment: str) -> str:
    return f"/v1/segments/{quote(segment, safe='')}/entries"


async def begun(coordinator: Transactions) -> TxnId:
    answer = await coordinator.begin(BeginRequest(timeout_ms=LONG_MS))
    return answer.txn_id


# -- visibility -----------------------------------------------------------------------------------------------------


async def visibility(coordinator: Service, broker: Service, store: MetadataStore, others: int) -> list[float]:
    """Seconds from sending a commit to having its entry, one transaction after another."""
    with metatxn.connect(broker.url) as client:
        segment = client.create_topic(f"visible-{others}-{now_ms()}").segments[0].segment
    transactions = Transactions(store, now_ms)
    seconds: list[float] = []
    async with (
        Connection.to(coordinator) as deciding,
        Connection.to(broker) as writing,
        Connection.to(broker) as reading,
    ):

        async def another() -> TxnId:
            txn_id = await begun(transactions)
            await writing.request("POST", f"{entries_path(segment)}?txn_id={txn_id}", str(txn_id).encode())
            return txn_id

        ring = [await another() for _ in range(others + 1)]
        after = ""
        for _ in range(COMMITS):
            oldest = ring.pop(0)
            waiting = asyncio.create_task(
                reading.request("GET", f"{entries_path(segment)}?wait_ms={LONG_POLL_MS}{after}")
            )
            ring.append(await another())
            start = time.perf_counter()
            commit = asyncio.create_task(deciding.request("POST", f"/v1/txns/{oldest}/commit"))
            head, content = await waiting
            seconds.append(time.perf_counter() - start)
            await commit
            assert content.endswith(str(oldest).encode()), "exactly this one has become visible"
            found = re.search(rf"{NEXT_HEADER}: (\S+)", head, re.IGNORECASE)
            assert found
            after = f"&after={found[1]}"
    return seconds


async def visibilities(endpoint: str, coordinator: Service, broker: Service) -> dict[str, float]:
    store = await open_store(f"etcd://{endpoint}")
    seconds = {others: await visibility(coordinator, broker, store, others) for others in OTHERS}
    await store.close()
    few, many = (percentile(seconds[others], 50) for others in OTHERS)
    return {
        "commit to visible p50": few * 1000,
        "commit to visible p99": percentile(seconds[OTHERS[0]], 99) * 1000,
        f"commit to visible p50, {OTHERS[1]:,} others open": many * 1000,
        f"commit to visible p99, {OTHERS[1]:,} others open": percentile(seconds[OTHERS[1]], 99) * 1000,
        f"commit to visible p50, {OTHERS[1]:,} others ÷ {OTHERS[0]}": many / few,
    }


def visible(directory: Path) -> Figures:
    with running_etcd(directory / "visible") as endpoint:
        store = ("--store", f"etcd://{endpoint}")
        data = ("--data-dir", str(directory / "visible-broker"))
        with running("coordinator", *store) as coordinator, running("broker", *store, *data) as broker:
            uvloop.run(visibilities(endpoint, coordinator, broker))  # warm
            for _ in range(RUNS):
                yield from uvloop.run(visibilities(endpoint, coordinator, broker)).items()


# -- restart --------------------------------------------------------------------------------------------------------


async def new_segment(service: BrokerService, segments: int = 1) -> list[Segment]:
    """The segments of a new topic `t`, served."""
    broker = service.broker
    assert broker is not None
    topic = await broker.topics.create("public/default/t", segments, None, broker.storage.storage_id, now_ms())
    await broker.until_opened(topic.segments)
    return [await broker.segment(segment_id) for segment_id in topic.segments]


async def fill(directory: Path, entries: int) -> None:
    """Prints a line once this many entries and the open transactions are there, and waits to be killed."""
    store = await open_store(f"sqlite:///{directory / 'store.db'}")
    service = BrokerService(store, data_dir=directory / "data", port=0)
    await service.start()
    (segment,) = await new_segment(service)
    tune_interpreter()

    async def one(_: int) -> float:
        await segment.publish(Entry(OLD_PAYLOAD, PayloadKind.BYTES, 1))
        return 0.0

    await at_once(entries, 1_000, one)
    transactions = Transactions(store, now_ms)
    for _ in range(OPEN_TRANSACTIONS):
        await segment.publish(Entry(OLD_PAYLOAD, PayloadKind.BYTES, 1, await begun(transactions)))
    print_line(segment.id)
    await asyncio.Event().wait()


def restart_s(directory: Path, entries: int, segment: str) -> float:
    begun = time.perf_counter()
    options = ("--store", f"sqlite:///{directory / 'store.db'}", "--data-dir", str(directory / "data"))
    with running("broker", *options) as broker, metatxn.connect(broker.url) as client:
        seconds = time.perf_counter() - begun
        found = client.segment(segment)
        assert found.entries == entries + OPEN_TRANSACTIONS, found
        assert len(found.open_transactions) == OPEN_TRANSACTIONS, found
        broker.kill()
    return seconds


def restarts(directory: Path) -> Figures:
    segments = {}
    for entries in OLD_ENTRIES:
        filled = directory / f"filled-{entries}"
        filled.mkdir()
        command = [sys.executable, "-m", __spec__.name, "--fill", str(filled), str(entries)]
        with spawned(command) as (process, line):
            segments[entries] = line.strip()
            process.kill()
            process.wait()
    for _ in range(RUNS):
        seconds = []
        for entries, segment in segments.items():
            copy = directory / "restarted"
            shutil.copytree(directory / f"filled-{entries}", copy)
            seconds.append(restart_s(copy, entries, segment))
            shutil.rmtree(copy)
            yield f"restart with {entries:,} old entries", seconds[-1]
        few, many = OLD_ENTRIES
        yield f"restart with {many:,} old entries ÷ {few:,}", seconds[1] / seconds[0]


# -- metadata writes ------------------------------------------------------------------------------------------------


class CountingStore(MemoryStore):
    applies = 0

    async def apply(self, batch: Batch) -> Applied:
        self.applies += 1
        return await super().apply(batch)


async def counted(directory: Path) -> dict[str, float]:
    store = CountingStore(INDEXES)
    service = BrokerService(store, data_dir=directory / "counted", port=0)
    await service.start()
    assert service.broker is not None
    segments = await new_segment(service, SEGMENTS)
    messages = Messages(service.broker)
    transactions = Transactions(store, now_ms)
    batch = [Message(key=str(number), value=number) for number in range(1_000)]
    await transactions.begin()  # leases the numbers of those below

    async def publish(txn_id: TxnId | None) -> None:
        await messages.publish("public/default/t", batch, PublishOptions(txn_id, None, None))

    before = store.applies
    for _ in range(COUNTED):
        await publish(None)
    after_plain = store.applies
    to_commit = 0
    for _ in range(COUNTED):
        start = store.applies
        txn_id = await begun(transactions)
        await publish(txn_id)
        await transactions.commit(txn_id)
        to_commit += store.applies - start  # the commit returns before its watchers hear of it
        while any(list(segment.buffer.tracked()) for segment in segments):  # noqa: ASYNC110  nothing tells of its end
            await asyncio.sleep(0.001)
    cleanup = store.applies - after_plain - to_commit
    await service.stop()
    await store.close()
    return {
        "metadata writes per plain append": (after_plain - before) / COUNTED,
        f"metadata writes per transaction over {SEGMENTS} segments": to_commit / COUNTED,
        "metadata writes of clean-up per segment": cleanup / COUNTED / SEGMENTS,
    }


def metadata_writes(directory: Path) -> Figures:
    yield from uvloop.run(counted(directory)).items()


# -- memory ---------------------------------------------------------------------------------------------------------


async def finish_transactions(broker: Service, store: MetadataStore, segment: str, count: int) -> None:
    """Begin, one entry, commit; returns when the broker has nothing left to do for any of them."""
    transactions = Transactions(store, now_ms)
    batches = iter(range(0, count, BATCH))

    async def done(items: list[BatchItem]) -> list[str]:
        answers = await run_batch(transactions, items)
        return [answer.txn["txn_id"] for answer in answers if isinstance(answer, Done)]

    async def writer() -> None:
        async with Connection.to(broker) as connection:
            for first in batches:
                txn_ids = await done([BeginItem(op="begin", timeout_ms=LONG_MS)] * min(BATCH, count - first))
                for txn_id in txn_ids:
                    await connection.request("POST", f"{entries_path(segment)}?txn_id={txn_id}", OLD_PAYLOAD)
                ended = await done([CommitItem(op="commit", txn_id=TxnId.parse(txn_id)) for txn_id in txn_ids])
                assert ended == txn_ids, "all of them were begun and are committed"

    await asyncio.gather(*(writer() for _ in range(WRITERS)))
    with metatxn.connect(broker.url) as client:
        while client.segment(segment).open_transactions:  # noqa: ASYNC110  it is in another process
            await asyncio.sleep(0.1)


async def resident(endpoint: str, broker: Service, counts: tuple[int, int]) -> dict[str, float]:
    store = await open_store(f"etcd://{endpoint}")
    with metatxn.connect(broker.url) as client:
        segment = client.create_topic("memory").segments[0].segment
    done, found = 0, []
    for count in counts:
        await finish_transactions(broker, store, segment, count - done)
        done = count
        found.append(broker.resident_bytes / MIB)
    await store.close()
    few, many = counts
    return {
        f"memory after {few:,} finished transactions": found[0],
        f"memory after {many:,} finished transactions": found[1],
        f"memory after {many:,} ÷ {few:,} finished transactions": found[1] / found[0],
    }


def memory(directory: Path, counts: tuple[int, int]) -> Figures:
    with running_etcd(directory / "memory") as endpoint:
        data = ("--data-dir", str(directory / "memory-broker"))
        with running("broker", "--store", f"etcd://{endpoint}", *data) as broker:
            yield from uvloop.run(resident(endpoint, broker, counts)).items()


# -- all ------------------------------------------------------------------------------------------------------------

TARGETS = {
    "appends, commit every 100 ms ÷ plain": 0.95,
    "appends, commit every 10 ms ÷ plain": 0.8,
    "appends of 1 MiB ÷ bare loop": 0.4,
    "reads of 1 MiB ÷ bare route": 0.6,
}
CEILINGS = {
    "commit to visible p50": 5,
    "commit to visible p99": 25,
    "commit to visible p50, 1,000 others open": 5,
    "commit to visible p99, 1,000 others open": 25,
    "commit to visible p50, 1,000 others ÷ 1": 1.3,
    "restart with 1,000,000 old entries ÷ 10,000": 1.5,
    "metadata writes per plain append": 0,
    f"metadata writes per transaction over {SEGMENTS} segments": SEGMENTS + 2,
    "metadata writes of clean-up per segment": 1,
    "memory after 100,000 ÷ 10,000 finished transactions": 1.1,
    "memory after 1,000,000 ÷ 10,000 finished transactions": 1.1,
}


def unit(name: str) -> str:
    if "÷" in name:
        return "ratio"
    if "p50" in name or "p99" in name:
        return "ms"
    if name.startswith("metadata writes"):
        return "applies"
    if name.startswith("restart"):
        return "s"
    if name.startswith("memory"):
        return "MiB"
    return "1/s" if name.startswith("plain") else "MiB/s"


def parts(directory: Path, *, full: bool) -> dict[str, Figures]:
    return {
        "appends": appends(directory),
        "bodies": bodies(directory),
        "visibility": visible(directory),
        "restart": restarts(directory),
        "writes": metadata_writes(directory),
        "memory": memory(directory, FINISHED_IN_FULL if full else FINISHED),
    }


def measure(wanted: list[str], *, full: bool) -> list[Figure]:
    runs: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        for part, figures in parts(Path(name), full=full).items():
            if wanted and part not in wanted:
                continue
            for figure, value in figures:
                runs.setdefault(figure, []).append(value)
                print_line(f"{part}: {figure} {value:,.3g}")
    return [
        Figure(name, values, unit(name), at_least=TARGETS.get(name), at_most=CEILINGS.get(name))
        for name, values in runs.items()
    ]


def print_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("warning"), cache_logger_on_first_use=True)
    match sys.argv[1:]:
        case ["--serve-body"]:
            uvloop.run(serve_body())
        case ["--fill", directory, entries]:
            uvloop.run(fill(Path(directory), int(entries)))
        case options:
            wanted = [option for option in options if option != "--full"]
            publish("participants", "The participants", measure(wanted, full="--full" in options))


if __name__ == "__main__":
    main()
