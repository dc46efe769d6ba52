"""The faults that the alerts name, made for real. Each lasts as long as its context, and is repaired at its end."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import httpx

import metatxn
from tests.chaos import store_space
from tests.metatxn.command_line import run_here
from tests.ops.live_cluster import COORDINATORS, LiveCluster, forever

Fault = Callable[[LiveCluster], AbstractAsyncContextManager[None]]
PAYLOAD = "x" * 1000
PAUSE_S = 0.05
ANOTHER_RELEASE = "999.0.0"


@asynccontextmanager
async def meanwhile(*works: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """These are done again and again until the end."""
    tasks = [asyncio.create_task(forever(work)) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _send(cluster: LiveCluster, topic: str, txn: metatxn.AsyncTransaction | None, messages: int) -> None:
    producer = cluster.client.producer(topic, max_entry_messages=1)
    for _ in range(messages):
        await producer.send({"v": PAYLOAD}, txn=txn)
    await producer.flush()


# -- what clients do ----------------------------------------------------------------------------------------------


@asynccontextmanager
async def a_transaction_is_forgotten(cluster: LiveCluster) -> AsyncIterator[None]:
    """It stays open, and others go on to write behind its first entry."""
    topic = await cluster.topic_on("broker-2", "held")
    txn = await cluster.client.begin(timeout_ms=3_600_000)
    await _send(cluster, topic, txn, 1)
    await _send(cluster, topic, None, 150)
    yield
    await txn.abort()


@asynccontextmanager
async def transactions_are_left_to_their_timeout(cluster: LiveCluster) -> AsyncIterator[None]:
    async def leave_one() -> None:
        txn = await cluster.client.begin(timeout_ms=1_000)
        txn.leave_open()
        await asyncio.sleep(PAUSE_S)

    async with meanwhile(leave_one):
        yield


@asynccontextmanager
async def nobody_consumes(cluster: LiveCluster) -> AsyncIterator[None]:
    topic = await cluster.topic_on("broker-2", "abandoned")
    await cluster.client.create_subscription(topic, "nobody")
    await _send(cluster, topic, None, 10)
    yield
    await cluster.client.drop_subscription(topic, "nobody")


@asynccontextmanager
async def a_consumer_is_slower_than_the_producers(cluster: LiveCluster) -> AsyncIterator[None]:
    topic = await cluster.topic_on("broker-2", "behind")
    await cluster.client.create_subscription(topic, "slow")
    await _send(cluster, topic, None, 1_100)
    async with cluster.client.consumer(topic, "slow") as consumer:

        async def consume() -> None:
            message = await consumer.receive(timeout_s=1)
            if message is not None:
                await consumer.acknowledge(message)
            await asyncio.sleep(1)

        async def produce() -> None:
            await _send(cluster, topic, None, 5)
            await asyncio.sleep(PAUSE_S)

        async with meanwhile(consume, produce):
            yield
    await cluster.client.drop_subscription(topic, "slow")


@asynccontextmanager
async def a_backlog_is_too_long(cluster: LiveCluster) -> AsyncIterator[None]:
    topic = await cluster.topic_on("broker-2", "bounded")
    await cluster.client.create_subscription(topic, "late")
    await cluster.client.set_topic_policy(topic, backlog_bytes=10_000)
    number = 0

    async def publish() -> None:
        nonlocal number
        number += 1
        with suppress(TimeoutError):  # a client waits as long as it is told to
            async with asyncio.timeout(2):
                await cluster.client.publish(topic, {"v": PAYLOAD}, producer="p", sequence=number)

    async with meanwhile(publish):
        yield
    await cluster.client.drop_subscription(topic, "late")


@asynccontextmanager
async def a_message_cannot_be_processed(cluster: LiveCluster) -> AsyncIterator[None]:
    topic = await cluster.topic_on("broker-2", "poisoned")
    dead = await cluster.topic_on("broker-2", "dead")
    await cluster.client.create_subscription(topic, "s", dead_letter_topic=dead, max_redeliveries=1)
    async with cluster.client.consumer(topic, "s") as consumer:

        async def refuse() -> None:
            await _send(cluster, topic, None, 1)
            if found := await consumer.receive_many(timeout_s=1):
                await consumer.negative_acknowledge(found)

        async with meanwhile(refuse):
            yield
    await cluster.client.drop_subscription(topic, "s")


@asynccontextmanager
async def connections_are_never_closed(cluster: LiveCluster) -> AsyncIterator[None]:
    """The process may have a few more files open than it has, and clients take them."""
    process = cluster.services["coordinator-2"].pid
    before = resource.prlimit(process, resource.RLIMIT_NOFILE)
    most = len(list(Path(f"/proc/{process}/fd").iterdir())) + 100
    resource.prlimit(process, resource.RLIMIT_NOFILE, (most, before[1]))
    host, _, port = cluster.addresses["coordinator-2"].partition(":")
    taken = [socket.create_connection((host, int(port))) for _ in range(90)]
    yield
    for connection in taken:
        connection.close()
    resource.prlimit(process, resource.RLIMIT_NOFILE, before)


# -- disks --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def a_ledger_is_damaged(cluster: LiveCluster) -> AsyncIterator[None]:
    """A sealed one, with entries of a transaction that is aborted afterwards, which the upkeep then has to find."""
    topic = await cluster.topic_on("broker-1", "damaged")
    txn = await cluster.client.begin(timeout_ms=600_000)
    await _send(cluster, topic, txn, 20)
    await _send(cluster, topic, None, 300)
    (first, *_) = sorted(_ledgers(cluster.data_dir("broker-1"), topic))
    content = bytearray(first.read_bytes())
    content[len(content) // 2] ^= 0xFF
    first.write_bytes(content)
    await txn.abort()
    yield
    await cluster.client.delete_topic(topic)


def _ledgers(directory: Path, topic: str) -> list[Path]:
    name = topic.rpartition("/")[2]
    return [path for path in directory.rglob("*.ledger") if name in str(path)]


@asynccontextmanager
async def a_disk_fills_up(cluster: LiveCluster) -> AsyncIterator[None]:
    with _Ballast(cluster, 0.85):
        yield


@asynccontextmanager
async def a_disk_is_full(cluster: LiveCluster) -> AsyncIterator[None]:
    with _Ballast(cluster, 0.95):
        yield


class _Ballast:
    """A file of others on the disk, so that `part` of it is used."""

    def __init__(self, cluster: LiveCluster, part: float) -> None:
        self._file = cluster.disk.path / "ballast"
        self._part = part

    def __enter__(self) -> None:
        found = os.statvfs(self._file.parent)
        free = found.f_bavail - int(found.f_blocks * (1 - self._part))
        with self._file.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, free * found.f_frsize)

    def __exit__(self, *error: object) -> None:
        self._file.unlink()


# -- the store, and the machines ------------------------------------------------------------------------------------


@asynccontextmanager
async def the_store_is_away(cluster: LiveCluster) -> AsyncIterator[None]:
    """From both coordinators, while clients go on to ask."""
    async with httpx.AsyncClient(base_url=f"http://{cluster.addresses['coordinator-1']}", timeout=30) as http:

        async def ask() -> None:
            await http.get("/v1/txns")
            await asyncio.sleep(PAUSE_S)

        for name in COORDINATORS:
            cluster.ways[name].cut()
        async with meanwhile(*[ask] * 20):
            yield
    for name in COORDINATORS:
        cluster.ways[name].mend()
    await cluster.ready()


@asynccontextmanager
async def the_store_is_full(cluster: LiveCluster) -> AsyncIterator[None]:
    """Its quota is used up: it answers reads, and refuses the aborts of transactions whose deadline passes."""
    for _ in range(20):
        (await cluster.client.begin(timeout_ms=5_000)).leave_open()
    await store_space.fill([cluster.etcd])
    told = await asyncio.to_thread(run_here, "status", METATXN_URL=f"http://{cluster.addresses['coordinator-1']}")
    assert told.returncode == 1 and "is full: " in told.stdout, f"`metatxn status` says {told.stdout}{told.stderr}"
    yield
    await store_space.make_room([cluster.etcd])


@asynccontextmanager
async def the_store_stalls(cluster: LiveCluster) -> AsyncIterator[None]:
    """Every other second, as with a disk that is too slow."""

    async def stall() -> None:
        cluster.ways["coordinator-1"].hold("replies")
        await asyncio.sleep(1.0)
        cluster.ways["coordinator-1"].release(lose=False)
        await asyncio.sleep(1.0)

    async with meanwhile(stall):
        yield
    cluster.ways["coordinator-1"].release(lose=False)


@asynccontextmanager
async def decisions_arrive_late(cluster: LiveCluster) -> AsyncIterator[None]:
    """The broker hears nothing of the store for seconds, and then everything."""
    topic = await cluster.topic_on("broker-2", "late")

    async def delay() -> None:
        opened = [await cluster.client.begin() for _ in range(5)]
        for txn in opened:
            await _send(cluster, topic, txn, 1)
        cluster.ways["broker-2"].hold("replies")
        try:
            for txn in opened:
                await txn.commit()
            await asyncio.sleep(6.5)
        finally:
            cluster.ways["broker-2"].release(lose=False)

    async with meanwhile(delay):
        yield


@asynccontextmanager
async def a_machine_has_no_time(cluster: LiveCluster) -> AsyncIterator[None]:
    """Another process has its processor, most of the time."""

    async def pause() -> None:
        cluster.services["coordinator-2"].freeze()
        await asyncio.sleep(0.7)
        cluster.services["coordinator-2"].thaw()
        await asyncio.sleep(0.3)

    async with meanwhile(pause):
        yield
    cluster.services["coordinator-2"].thaw()


@asynccontextmanager
async def a_broker_loses_the_store_again_and_again(cluster: LiveCluster) -> AsyncIterator[None]:
    """For longer than its lease lasts: the other one of its object store takes its segments, and gives it its share
    when it is back."""
    await cluster.topic_on("broker-3", "moving", segments=16)

    async def lose() -> None:
        cluster.ways["broker-3"].cut()
        await asyncio.sleep(13)
        cluster.ways["broker-3"].mend()
        await asyncio.sleep(6)

    async with meanwhile(lose):
        yield
    cluster.ways["broker-3"].mend()
    await cluster.ready()


@asynccontextmanager
async def a_broker_is_gone(cluster: LiveCluster) -> AsyncIterator[None]:
    """Transactions that have written to its segments end without it."""
    topic = await cluster.topic_on("broker-2", "gone")
    opened = []
    for _ in range(150):
        opened.append(await cluster.client.begin())
        await _send(cluster, topic, opened[-1], 1)
    cluster.services["broker-2"].kill()
    for txn in opened:
        await txn.abort()
    yield
    cluster.services["broker-2"].launch()
    await cluster.ready()


@asynccontextmanager
async def an_upgrade_is_not_finished(cluster: LiveCluster) -> AsyncIterator[None]:
    """One process runs another release than all others."""
    await cluster.restart_as("broker-4", ANOTHER_RELEASE)
    yield
    await cluster.restart_as("broker-4", None)


STORIES: tuple[dict[Fault, tuple[str, ...]], ...] = (
    {
        a_transaction_is_forgotten: ("MetatxnTransactionHangs", "MetatxnReadersHeldBack"),
        transactions_are_left_to_their_timeout: ("MetatxnTransactionsExpire",),
        nobody_consumes: ("MetatxnSubscriptionAbandoned",),
        a_consumer_is_slower_than_the_producers: ("MetatxnSubscriptionFallsBehind",),
        a_backlog_is_too_long: ("MetatxnBacklogHoldsPublishes",),
        a_message_cannot_be_processed: ("MetatxnDeadLetters",),
        connections_are_never_closed: ("MetatxnFilesRunOut",),
        a_ledger_is_damaged: ("MetatxnLedgerDamaged",),
        a_disk_fills_up: ("MetatxnDiskFills",),
        an_upgrade_is_not_finished: ("MetatxnVersionsDiffer",),
    },
    {
        a_disk_is_full: ("MetatxnPublishesRefused",),
        the_store_stalls: ("MetatxnStoreSlow",),
        decisions_arrive_late: ("MetatxnDecisionsSlow",),
        a_machine_has_no_time: ("MetatxnEventLoopLate",),
    },
    {the_store_is_away: ("MetatxnRequestsFail", "MetatxnStoreFails")},
    {the_store_is_full: ("MetatxnTimeoutSweepFails",)},
    {a_broker_loses_the_store_again_and_again: ("MetatxnSegmentsMove",)},
    {a_broker_is_gone: ("MetatxnServiceDown", "MetatxnGarbageStays")},
)
"""The faults of a story are there at the same time. By fault, the alerts that have to fire."""


async def make(faults: AsyncExitStack, story: dict[Fault, tuple[str, ...]], cluster: LiveCluster) -> None:
    for fault in story:
        await faults.enter_async_context(fault(cluster))
