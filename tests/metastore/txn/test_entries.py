"""Goal: the open transactions of many segments are read together, and of each all that it has and nothing else.

Method: records of operations below drawn prefixes, some of which are asked for; what is told is compared with a read of
each prefix alone, with pages of one entry and more. Reads are counted, and an entry moves while they go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import nullcontext
from random import Random

import pytest

from metastore.backends.memory import MemoryStore
from metastore.keys import prefix_end
from metastore.txn import entries, paths
from metastore.txn.entries import with_operations
from metastore.txn.records.operations import WriteOp
from metastore.txn.store import INDEXES
from metatxn.wire.ids import TxnId

INDEX = "writes-by-segment"


class Counted(MemoryStore):
    """Counts the reads of an index."""

    reads = 0

    async def query_index(
        self, name: str, start: str = "", end: str | None = None, *, limit: int = 0, reverse: bool = False
    ) -> list[str]:
        self.reads += 1
        return await super().query_index(name, start, end, limit=limit, reverse=reverse)


@pytest.fixture
async def store() -> AsyncIterator[Counted]:
    store = Counted(INDEXES)
    yield store
    await store.close()


def segment_id(number: int) -> str:
    """Some begin with the name of another one."""
    return f"segment://public/default/t{number % 7}/0000-ffff-{number}"


async def written(store: MemoryStore, segment: str, txn_id: TxnId, count: int = 1) -> None:
    batch = store.batch()
    for number in range(count):
        op = WriteOp(segment=segment, after="1:-1", count=1)
        batch.create(paths.write_op(txn_id, segment, 1, number), op.encode())
    await store.apply(batch)


async def told(store: MemoryStore, segments: Iterable[str]) -> list[tuple[str, list[TxnId]]]:
    of = {paths.writes_by_segment(segment): segment for segment in segments}
    return [each async for each in with_operations(store, INDEX, of, nullcontext)]


async def alone(store: MemoryStore, segment: str) -> list[TxnId]:
    prefix = paths.writes_by_segment(segment)
    found = await store.query_index(INDEX, prefix, prefix_end(prefix))
    return list(dict.fromkeys(TxnId.parse(entry.split("/")[1]) for entry in found))


@pytest.mark.parametrize("page", [1, 2, 3, 1_000])
@pytest.mark.parametrize("seed", range(8))
async def test_together_they_are_told_as_alone(
    store: Counted, monkeypatch: pytest.MonkeyPatch, page: int, seed: int
) -> None:
    monkeypatch.setattr(entries, "ENTRIES_PER_READ", page)
    random = Random(seed)
    segments = [segment_id(number) for number in range(20)]
    for _ in range(random.randrange(40)):
        txn_id = TxnId(1, random.randrange(6))
        segment = random.choice(segments)
        if txn_id not in await alone(store, segment):
            await written(store, segment, txn_id, random.randrange(1, 4))
    asked = random.sample(segments, random.randrange(21))
    found = await told(store, asked)
    assert [segment for segment, _ in found] == sorted(asked, key=paths.writes_by_segment)
    assert dict(found) == {segment: await alone(store, segment) for segment in asked}


async def test_one_read_shows_that_ten_thousand_segments_have_none(store: Counted) -> None:
    await told(store, map(segment_id, range(10_000)))
    assert store.reads == 1
    assert await told(store, ()) == [] and store.reads == 1


async def test_what_others_have_in_between_is_passed_over(store: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "ENTRIES_PER_READ", 10)
    first, others, last = "segment://a/b/c/1", "segment://a/b/d/1", "segment://a/b/e/1"
    for number in range(100):
        await written(store, others, TxnId(1, number))
    for segment in (first, last):
        await written(store, segment, TxnId(2, 1))
    assert await told(store, [first, last]) == [(first, [TxnId(2, 1)]), (last, [TxnId(2, 1)])]
    assert store.reads == 2


async def test_an_operation_that_is_there_all_the_time_is_told_whatever_comes_and_goes(
    store: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "ENTRIES_PER_READ", 2)
    segments = [segment_id(number) for number in range(10)]
    stays = TxnId(1, 5)
    for segment in segments:
        for number in (3, 5, 7):
            await written(store, segment, TxnId(1, number))
    of = {paths.writes_by_segment(segment): segment for segment in segments}
    seen = []
    async for segment, found in with_operations(store, INDEX, of, nullcontext):
        seen.append(segment)
        assert stays in found and found == sorted(set(found))
        for each in segments:
            batch = store.batch()
            for number in (3, 7):
                key = paths.write_op(TxnId(1, number), each, 1, 0)
                record = await store.get(key)
                if record is not None:
                    batch.remove(record)
                else:
                    batch.create(key, WriteOp(segment=each, after="1:-1", count=1).encode())
            await store.apply(batch)
    assert seen == sorted(segments, key=paths.writes_by_segment)


async def test_other_work_has_its_turn_between_segments_without_operations(store: Counted) -> None:
    turns = 0

    async def work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    working = asyncio.create_task(work())
    await told(store, map(segment_id, range(1_000)))
    working.cancel()
    assert turns >= 10
