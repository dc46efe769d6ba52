"""What one transaction, one open transaction, one topic, one segment and one connection cost: the unit costs of the
capacity model in `docs/operations.md`.

A coordinator, a broker with local files and an etcd serve one asyncio client, each in a process of its own. 32
transactions are under way, with a message of 100 bytes in each of their segments. CPU is what the kernel counts for
each process, so other work on the machine disturbs it little. Applies are counted by the services, and bytes are those
of the keys and values in the store. Memory is what the broker and the coordinator have more than before.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import uvloop

import metatxn
from benchmarks.report import Figure, publish
from benchmarks.services import Service, cpu_s, running
from examples.flights.etcd import running_etcd
from examples.flights.processes import free_port
from metastore.check import dump
from metastore.urls import open_store_to_read
from metatxn.wire.broker import hash_of_key

SEGMENTS = (1, 4, 16)
TRANSACTIONS = 400
AT_ONCE = 32
OPEN = 2_000
TOPICS = 200
CONNECTIONS = 1_000
IDLE_MIB = 200
"""What a broker with that many idle connections of Kafka clients may take."""
HELLOS = {
    "Kafka": (10).to_bytes(4) + b"\0\x12\0\0\0\0\0\1\xff\xff",
    "Pulsar": b"\0\0\0\x0c\0\0\0\x08\x08\x02\x12\x04\x0a\x00\x20\x15",
    "REST": b"GET /livez HTTP/1.1\r\nhost: broker\r\n\r\n",
}
"""A first request that each listener answers: the versions, CONNECT, and whether it lives."""
APPLIES = re.compile(r'^metatxn_store_seconds_count\{operation="apply"\} ([0-9.e+]+)$', re.MULTILINE)


def applies(service: Service) -> float:
    text = urllib.request.urlopen(f"{service.url}/metrics", timeout=10).read().decode()
    found = APPLIES.search(text)
    return float(found[1]) if found is not None else 0.0


def etcd_pid(endpoint: str) -> int:
    (pid,) = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if f"--listen-client-urls=http://{endpoint}".encode() in path.read_bytes()
    ]
    return pid


async def stored_bytes(url: str) -> int:
    store = await open_store_to_read(url)
    try:
        return sum([len(record.key) + len(record.value) async for record in dump(store)])
    finally:
        await store.close()


async def transactions(client: metatxn.AsyncClient, topic: str, segments: int, count: int, *, end: bool = True) -> None:
    producer = client.producer(topic)
    layout = await client.topic(topic)
    keys = [next(key for key in map(str, range(10_000)) if _in(key, each.range)) for each in layout.segments]

    async def one() -> None:
        txn = await client.begin(600_000)
        await asyncio.gather(*(producer.send("v" * 100, key, txn=txn) for key in keys))
        if end:
            await txn.commit()
        else:
            txn.leave_open()

    left = iter(range(count))

    async def some() -> None:
        for _ in left:
            await one()

    await asyncio.gather(*(some() for _ in range(AT_ONCE)))
    await producer.close()


def _in(key: str, bounds: tuple[int, int]) -> bool:
    return bounds[0] <= hash_of_key(key) <= bounds[1]


async def measured(coordinator: Service, broker: Service, etcd: str, url: str) -> list[Figure]:
    figures = []
    pids = {"coordinator": coordinator.process.pid, "broker": broker.process.pid, "etcd": etcd_pid(etcd)}
    async with metatxn.connect_async(coordinator.url) as client:
        for segments in SEGMENTS:
            topic = f"of-{segments}"
            await client.create_topic(topic, segments=segments)
            await transactions(client, topic, segments, AT_ONCE * 4)
            before = {name: cpu_s(pid) for name, pid in pids.items()}
            asked, was = applies(coordinator) + applies(broker), await stored_bytes(url)
            await transactions(client, topic, segments, TRANSACTIONS)
            await asyncio.sleep(3)  # what is done behind the commits
            for name, pid in pids.items():
                each_ms = (cpu_s(pid) - before[name]) / TRANSACTIONS * 1000
                figures.append(Figure(f"{segments} segments: CPU of the {name}", [each_ms], "ms"))
            done = (applies(coordinator) + applies(broker) - asked) / TRANSACTIONS
            figures.append(Figure(f"{segments} segments: applies", [done], ""))
            empty = await stored_bytes(url)
            kept = (empty - was) / TRANSACTIONS
            figures.append(Figure(f"{segments} segments: bytes in the store until it is collected", [kept], "B"))
            await transactions(client, topic, segments, TRANSACTIONS, end=False)
            size = (await stored_bytes(url) - empty) / TRANSACTIONS
            figures.append(Figure(f"{segments} segments: bytes in the store while open", [size], "B"))
        figures += await memory(client, coordinator, broker)
    return figures


async def memory(client: metatxn.AsyncClient, coordinator: Service, broker: Service) -> list[Figure]:
    figures = []
    before = broker.resident_bytes, coordinator.resident_bytes
    await transactions(client, "of-1", 1, OPEN, end=False)
    for name, service, was in (("broker", broker, before[0]), ("coordinator", coordinator, before[1])):
        figures.append(Figure(f"memory of the {name}, open transaction", [(service.resident_bytes - was) / OPEN], "B"))
    was = broker.resident_bytes
    for number in range(TOPICS):
        await client.create_topic(f"small-{number}")
    figures.append(Figure("memory of the broker, topic of one segment", [(broker.resident_bytes - was) / TOPICS], "B"))
    was = broker.resident_bytes
    for number in range(TOPICS // 50):
        await client.create_topic(f"large-{number}", segments=50)
    figures.append(Figure("memory of the broker, further segment", [(broker.resident_bytes - was) / TOPICS], "B"))
    return figures


async def connections(broker: Service, ports: dict[str, int]) -> list[Figure]:
    """Of clients that have asked once and ask no more."""
    figures = []
    for name, hello in HELLOS.items():
        was = broker.resident_bytes
        held = []
        for _ in range(CONNECTIONS):
            reader, writer = await asyncio.open_connection("127.0.0.1", ports[name])
            writer.write(hello)
            await reader.read(1)
            held.append(writer)
        now = broker.resident_bytes
        figures.append(Figure(f"memory of the broker, connection of {name}", [(now - was) / CONNECTIONS], "B"))
        if name == "Kafka":
            what = f"memory of the broker with {CONNECTIONS:,} idle connections of Kafka"
            figures.append(Figure(what, [now / 2**20], "MiB", at_most=IDLE_MIB))
        for writer in held:
            writer.close()
    return figures


async def all_of(coordinator: Service, broker: Service, etcd: str, url: str, ports: dict[str, int]) -> list[Figure]:
    """Connections come first, because what a broker has once needed it does not give back."""
    return await connections(broker, ports) + await measured(coordinator, broker, etcd, url)


def main() -> None:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        etcd = stack.enter_context(running_etcd(directory / "etcd"))
        url = f"etcd://{etcd}"
        coordinator = stack.enter_context(running("coordinator", "--store", url))
        ports = {"Kafka": free_port(), "Pulsar": free_port()}
        options = [f"--{name.lower()}-port={port}" for name, port in ports.items()]
        broker = stack.enter_context(running("broker", "--store", url, "--data-dir", str(directory / "data"), *options))
        ports["REST"] = broker.address[1]
        publish("capacity", "Unit costs", uvloop.run(all_of(coordinator, broker, etcd, url, ports)))


if __name__ == "__main__":
    main()
