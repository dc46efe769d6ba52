"""Goal: index entries and records never disagree, no matter who dies in the middle of whatever.

Method: a process writes indexed records from many tasks: items whose entries move at every write, and whole lives of
transactions (begin, operations, keep-alive, prepare, decision, timeout, cleanup, collection). It is killed with -9
while batches are on their way, and its server too. While it writes, and after each death, records and entries are
read together at one revision, and the entries must be exactly those that the records call for. At the end the check
of the store's laws has no complaint. Each process dies once, and four times in `make test-all`.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from metastore.api import MetadataStore
from metastore.backends.memory import MemoryStore
from metastore.check import StoreCheck
from metastore.errors import StoreUnavailable
from metastore.keys import prefix_end
from metastore.txn import paths
from metastore.txn.records.segments import OwnerRecord, SegmentRecord
from metastore.txn.records.topics import TopicRecord
from metastore.txn.records.transactions import Header, Lease, Prepared
from metastore.types import IndexDefinition, Record
from metastore.urls import open_store, open_store_to_read
from tests.extent import usually
from tests.metastore.storms.hammer import GENERATION, SEGMENTS, WORKS, Work, hammer
from tests.metastore.storms.places import SERVED, FilePlace, ServedPlace, served

ROUNDS = usually(1, 4)
READS_PER_ROUND = 4
ANSWERS_BETWEEN_READS = 40
REPOSITORY = Path(__file__).parents[3]


@asynccontextmanager
async def in_a_file(directory: Path) -> AsyncIterator[FilePlace]:
    yield FilePlace(directory)


PLACES: dict[str, Callable[[Path], AbstractAsyncContextManager[ServedPlace | FilePlace]]] = {
    "sqlite": in_a_file,
    **{name: partial(served, kind) for name, kind in SERVED.items()},
}


class Process:
    """A hammer in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, work: str, url: str, seed: int) -> Process:
        command = (sys.executable, "-m", "tests.metastore.storms.hammer", work, url, str(seed))
        return cls(await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, cwd=REPOSITORY))

    async def answers(self, count: int) -> None:
        """Until this many more applies were answered."""
        assert self._process.stdout is not None
        for _ in range(count):
            assert await self._process.stdout.readline(), "the hammer has ended by itself"

    async def kill(self) -> None:
        self._process.kill()
        await self._process.communicate()


async def make_topic(store: MetadataStore) -> None:
    """What operations on `SEGMENTS` need to be there."""
    topic = "public/default/orders"
    batch = store.batch().create(
        paths.topic(topic), TopicRecord(name=topic, segments=tuple(SEGMENTS), next_segment=2, created_ms=1).encode()
    )
    for number, segment in enumerate(SEGMENTS):
        low = number * 0x8000
        record = SegmentRecord(topic=topic, range=(low, low + 0x7FFF), storage="s")
        owner = OwnerRecord(broker="b", url="http://b", generation=GENERATION)
        batch.create(paths.segment(segment), record.encode())
        batch.create(paths.segment_owner(segment), owner.encode())
    await store.apply(batch)


def called_for(records: Iterable[Record], indexes: Iterable[IndexDefinition]) -> set[str]:
    """The entries that `records` should have; of the deadline index, which no definition describes, too."""
    by_key = {record.key: record for record in records}
    entries = {
        entry
        for index in indexes
        for key, record in by_key.items()
        if key.startswith(index.prefix)
        for entry in index.keys(key, record.value)
    }
    for key, record in by_key.items():
        if not key.startswith(paths.HEADERS):
            continue
        txn_id, header = paths.txn_id_of_header(key), Header.decode(record.value)
        if header.state.final:
            continue
        deadline_ms = header.timeout_ms
        if lease := by_key.get(paths.lease(txn_id)):
            deadline_ms = Lease.decode(lease.value).deadline_ms
        if prepared := by_key.get(paths.prepared(txn_id)):
            deadline_ms = Prepared.decode(prepared.value).deadline_ms
        entries.add(paths.deadline_entry(deadline_ms, txn_id))
    return entries


async def assert_agreement(store: MetadataStore, work: Work) -> int:
    """In one read of everything, at one revision. Returns the number of entries."""
    everything = (await store.range("/", prefix_end("/"))).records
    stored = {record.key for record in everything if record.key.startswith("/idx/")}
    expected = called_for((record for record in everything if record.key not in stored), work.indexes)
    assert stored == expected, f"without record: {stored - expected}, without entry: {expected - stored}"
    return len(stored)


async def until_it_answers(store: MetadataStore) -> None:
    """The reader's own connection may take longer to come back behind a restart than a request waits for it."""
    while True:
        with suppress(StoreUnavailable):
            await store.current_revision()
            return


async def assert_lawful(store: MetadataStore, work: Work) -> None:
    assert await assert_agreement(store, work) > 0
    if work is WORKS["transactions"]:
        assert [finding async for finding in StoreCheck(store).findings()] == []


@pytest.mark.parametrize("name", sorted(WORKS))
@pytest.mark.parametrize("kind", sorted(PLACES))
async def test_entries_and_records_agree_whoever_dies(kind: str, name: str, tmp_path: Path) -> None:
    work, dice = WORKS[name], random.Random(1)
    async with PLACES[kind](tmp_path) as place, AsyncExitStack() as stack:
        store = await open_store(place.url, work.indexes)
        if name == "transactions":
            await make_topic(store)
        await store.close()
        reader = await open_store_to_read(place.url)
        stack.push_async_callback(reader.close)
        for seed in range(ROUNDS):
            process = await Process.start(name, place.url, seed)
            try:
                for _ in range(READS_PER_ROUND):
                    await process.answers(ANSWERS_BETWEEN_READS)
                    await assert_agreement(reader, work)
                if isinstance(place, ServedPlace):
                    await place.restart()
                await process.answers(dice.randrange(50, 300))
            finally:
                await process.kill()
            await until_it_answers(reader)
            await assert_agreement(reader, work)
        await assert_lawful(reader, work)


@pytest.mark.parametrize("name", sorted(WORKS))
async def test_entries_and_records_agree_in_memory(name: str) -> None:
    """Here the hammer dies as a task: it is cancelled."""
    work, answered = WORKS[name], asyncio.Event()
    store = MemoryStore(work.indexes)
    if name == "transactions":
        await make_topic(store)
    for seed in range(ROUNDS):
        hammering = asyncio.create_task(hammer(store, work, seed, answered.set))
        for _ in range(ANSWERS_BETWEEN_READS):
            answered.clear()
            await answered.wait()
            await assert_agreement(store, work)
        hammering.cancel()
        await asyncio.gather(hammering, return_exceptions=True)
    await assert_lawful(store, work)
    await store.close()
