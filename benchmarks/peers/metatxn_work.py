"""The jobs by metatxn's asyncio client, with what it does when nothing is set, but for patience."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import count as numbers_from
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

import metatxn
from benchmarks.peers import work
from benchmarks.peers.work import (
    ENTRY_OVERHEAD_BYTES,
    PATIENCE_S,
    WARM_UP,
    Found,
    Job,
    Meter,
    Times,
    Watched,
    numbered,
)
from metatxn.wire.broker import hash_of_key

TIMEOUT_MS = PATIENCE_S * 1000
ROW_ID_BYTES = 8
COMMITS_AT_ONCE = 4


def connected(address: str) -> metatxn.AsyncClient:
    return metatxn.connect_async(address, request_timeout_s=PATIENCE_S)


def prepare(job: Job) -> Found:
    """Topics of this many segments each."""

    async def run() -> Found:
        async with connected(job.address) as client:
            for topic in job.topics:
                await client.create_topic(topic, segments=job.segments)
        return {}

    return asyncio.run(run())


def message(number: int, size: int) -> str:
    return numbered(number, size - ENTRY_OVERHEAD_BYTES)


def small(job: Job) -> Found:
    return asyncio.run(_small(job))


async def _small(job: Job) -> Found:
    times, meter = Times(), Meter(job.pids)
    async with connected(job.address) as client:
        producers = [client.producer(topic) for topic in job.topics]

        async def run(first: int, count: int, pause_s: float) -> None:
            begun = time.monotonic()
            for number in range(count):
                await asyncio.sleep(max(0.0, begun + number * pause_s - time.monotonic()))
                times.begun.append(time.monotonic())
                txn = await client.begin()
                for producer in producers:
                    await producer.send(message(first + number, job.size), txn=txn)
                times.ready.append(time.monotonic())
                await txn.commit()
                times.committed.append(time.monotonic())

        with Watched(job, WARM_UP + 2 * job.count, len(job.topics)) as watched:
            await run(0, WARM_UP, 0)
            meter.begin()
            await run(WARM_UP, job.count, 0)
            meter.end()
            await run(WARM_UP + job.count, job.count, work.PACE_S)
            return meter.each(job.count) | times.found(watched.seen(), WARM_UP + job.count)


def concurrent(job: Job) -> Found:
    return asyncio.run(_concurrent(job))


async def _concurrent(job: Job) -> Found:
    """A task for each producer, all of one client."""
    over = False
    ended: list[tuple[float, float]] = []
    async with connected(job.address) as client:

        async def produce() -> None:
            producers = [client.producer(topic) for topic in job.topics]
            while not over:
                begun = time.monotonic()
                txn = await client.begin()
                for producer in producers:
                    await producer.send(message(0, job.size), txn=txn)
                await txn.commit()
                ended.append((time.monotonic(), time.monotonic() - begun))

        async with asyncio.TaskGroup() as group:
            for _ in range(job.count):
                group.create_task(produce())
            meter = Meter(job.pids)
            await asyncio.sleep(work.RAMP_S)
            meter.begin()
            await asyncio.sleep(job.seconds)
            meter.end()
            over = True
    return work.counted(meter, ended)


def wide(job: Job) -> Found:
    return asyncio.run(_wide(job))


async def _wide(job: Job) -> Found:
    times, meter = Times(), Meter(job.pids)
    async with connected(job.address) as client:
        places = [(client.producer(topic), key) for topic in job.topics for key in await _keys(client, topic)]
        with Watched(job, job.count + 1, len(places)) as watched:
            for number in range(job.count + 1):
                if number == 1:
                    meter.begin()
                await asyncio.sleep(work.REST_S)
                times.begun.append(time.monotonic())
                txn = await client.begin(timeout_ms=TIMEOUT_MS)
                sent = [await producer.send(message(number, job.size), key=key, txn=txn) for producer, key in places]
                await asyncio.gather(*sent)
                times.ready.append(time.monotonic())
                await txn.commit()
                times.committed.append(time.monotonic())
            seen = watched.seen()
            meter.end()
    return meter.each(job.count) | times.found(seen, 1)


async def _keys(client: metatxn.AsyncClient, topic: str) -> list[str]:
    """One that each of its segments gets."""
    keys = []
    for segment in (await client.topic(topic)).segments:
        low, high = segment.range
        keys.append(next(str(n) for n in numbers_from() if low <= hash_of_key(str(n)) <= high))
    return keys


def write(job: Job) -> Found:
    return asyncio.run(_write(job))


async def _write(job: Job) -> Found:
    """For this many seconds, in transactions of `MESSAGES_PER_TRANSACTION` or in none. A transaction commits while the
    next ones are written, which a producer of Kafka cannot do."""
    (topic,), count, meter = job.topics, 0, Meter(job.pids)
    async with connected(job.address) as client:
        async with FORMS[job.form](client, topic, job.size) as portion:
            meter.begin()
            until = time.monotonic() + job.seconds
            commits: deque[asyncio.Task[object]] = deque()
            while time.monotonic() < until:
                txn = await client.begin() if job.transactional else None
                await portion(txn)
                if txn is not None:
                    commits.append(asyncio.create_task(txn.commit()))
                if len(commits) > COMMITS_AT_ONCE:
                    await commits.popleft()
                count += work.MESSAGES_PER_TRANSACTION
            await asyncio.gather(*commits)
        meter.end()
    return meter.each(count, 1e6) | {"count": count}


Portion = Callable[[metatxn.AsyncTransaction | None], Coroutine[Any, Any, None]]


@asynccontextmanager
async def _sending_messages(client: metatxn.AsyncClient, topic: str, size: int) -> AsyncIterator[Portion]:
    value = message(0, size)
    async with client.producer(topic) as producer:

        async def portion(txn: metatxn.AsyncTransaction | None) -> None:
            for _ in range(work.MESSAGES_PER_TRANSACTION):
                await producer.send(value, txn=txn)

        yield portion


@asynccontextmanager
async def _sending_together(client: metatxn.AsyncClient, topic: str, size: int) -> AsyncIterator[Portion]:
    values = [message(number, size) for number in range(work.MESSAGES_PER_TRANSACTION)]
    async with client.producer(topic) as producer:

        async def portion(txn: metatxn.AsyncTransaction | None) -> None:
            await producer.send_many(values, txn=txn)

        yield portion


@asynccontextmanager
async def _sending_tables(client: metatxn.AsyncClient, topic: str, size: int) -> AsyncIterator[Portion]:
    """Rows of this many bytes: an integer, and letters."""
    rows = work.MESSAGES_PER_TRANSACTION
    table = pa.table({"id": list(range(rows)), "payload": ["x" * (size - ROW_ID_BYTES)] * rows})
    async with client.table_writer(topic) as plain:

        async def portion(txn: metatxn.AsyncTransaction | None) -> None:
            if txn is None:
                await plain.write(table)
                return
            async with client.table_writer(topic, txn) as writer:
                await writer.write(table)

        yield portion


FORMS = {work.MESSAGES: _sending_messages, work.TOGETHER: _sending_together, work.TABLES: _sending_tables}


def read(job: Job) -> Found:
    return asyncio.run(_read(job))


async def _read(job: Job) -> Found:
    meter = Meter(job.pids)
    (topic,) = job.topics
    async with connected(job.address) as client:
        with meter.running():
            if job.form == work.TABLES:
                count = (await client.read_table(topic)).num_rows
            else:
                count = sum([1 async for each in await client.reader(topic) if each.value])
    assert count == job.count
    return meter.each(count, 1e6)


def watch(address: str, topics: list[str], ready: Callable[[], None], take: Callable[[str], bool]) -> None:
    asyncio.run(_watch(address, topics, ready, take))


async def _watch(address: str, topics: list[str], ready: Callable[[], None], take: Callable[[str], bool]) -> None:
    async with connected(address) as client:
        readers = [await client.reader(topic, start="latest", follow=True) for topic in topics]
        over = asyncio.Event()

        async def follow(reader: metatxn.AsyncReader) -> None:
            async for each in reader:
                if take(each.value):
                    over.set()

        tasks = [asyncio.create_task(follow(reader)) for reader in readers]
        ready()
        await over.wait()
        for task in tasks:
            task.cancel()


def first(job: Job) -> Found:
    """When the first transaction of a new system was committed, as soon as that accepts connections."""
    url = urlsplit(job.address)
    while True:
        with socket.socket() as probe:
            if not probe.connect_ex((url.hostname, url.port)):
                break
        time.sleep(0.02)
    return asyncio.run(_first(job))


async def _first(job: Job) -> Found:
    async with connected(job.address) as client:
        for topic in job.topics:
            await client.create_topic(topic)
        txn = await client.begin()
        for topic in job.topics:
            await client.producer(topic).send(message(0, job.size), txn=txn)
        await txn.commit()
        return {"at": time.monotonic()}


def held(job: Job) -> Found:
    """This many transactions are open while the system is killed."""
    return asyncio.run(_held(job))


async def _held(job: Job) -> Found:
    async with connected(job.address) as client:
        producer = client.producer(job.topics[0])
        begun = [client.begin(timeout_ms=TIMEOUT_MS) for _ in range(job.count)]
        held = await asyncio.gather(*begun)
        await asyncio.gather(*[await producer.send(message(0, job.size), txn=txn) for txn in held])
        work.say("held")
        await asyncio.to_thread(work.hear)
        killed = time.monotonic()
        ends = await asyncio.gather(*[txn.commit() for txn in held], return_exceptions=True)
        all_committed = time.monotonic()
        committed = sum(not isinstance(end, BaseException) for end in ends)
        found = 0
        async for _ in await client.reader(job.topics[0], follow=True):
            found += 1
            if found == committed:
                break
        return {
            "committed": all_committed - killed,
            "read": time.monotonic() - killed,
            "lost": job.count - committed,
        }
