"""Goal: one transaction with 100,000 operation records, and 10,000 open ones, stay within every limit of the server.

Method: the records are created as brokers do, many applies at once, each with a guard and an index entry; then they
are listed, counted by their index, deleted in slices, and the directory is proven empty.
"""

from __future__ import annotations

import asyncio

import pytest

from metastore.backends.zookeeper import ZooKeeperStore
from metastore.errors import CheckFailed
from metastore.types import EmptyRange, FirstVersion, IndexDefinition
from tests.metastore.zookeeper.conftest import OpenStore
from tests.servers import ZooKeeperServer

OPERATIONS = 100_000
CALLERS = 500
BY_SEGMENT = IndexDefinition("by-segment", "/txn-op/", lambda key, value: [f"s/{key.removeprefix('/txn-op/')}"])


async def in_parallel(store: ZooKeeperStore, count: int, key: str) -> None:
    async def create(first: int) -> None:
        for number in range(first, count, CALLERS):
            await store.apply(store.batch().check(FirstVersion("/txn/1")).create(f"{key}{number:06d}", b"{}"))

    await asyncio.gather(*(create(first) for first in range(CALLERS)))


@pytest.mark.timeout(240)
async def test_a_transaction_with_a_hundred_thousand_operations(
    own_server: ZooKeeperServer, open_store: OpenStore
) -> None:
    store = await open_store(own_server, indexes=(BY_SEGMENT,), deadline_ms=30_000)
    await store.apply(store.batch().create("/txn/1", b"OPEN"))
    await in_parallel(store, OPERATIONS, "/txn-op/1/")
    everything = await store.scan("/txn-op/1/")
    assert [record.key for record in everything.records] == [f"/txn-op/1/{number:06d}" for number in range(OPERATIONS)]
    assert len(await store.query_index("by-segment")) == OPERATIONS
    first = await store.scan("/txn-op/1/", limit=10)
    assert first.more and first.records == everything.records[:10]
    empty = EmptyRange("/txn-op/1/", "/txn-op/10")
    with pytest.raises(CheckFailed):
        await store.apply(store.batch().check(empty).delete("/txn/1"))
    slices = []
    for start in range(0, OPERATIONS, 500):
        batch = store.batch()
        for record in everything.records[start : start + 500]:
            batch.remove(record)
        slices.append(store.apply(batch))
    await asyncio.gather(*slices)
    await store.apply(store.batch().check(empty).delete("/txn/1"))
    assert (await store.scan("/")).records == []


async def test_ten_thousand_open_transactions(own_server: ZooKeeperServer, open_store: OpenStore) -> None:
    store = await open_store(own_server, deadline_ms=30_000)
    await store.apply(store.batch().create("/txn/1", b"OPEN"))
    await in_parallel(store, 10_000, "/idx-like/")
    await in_parallel(store, 10_000, "/txn/")
    assert len((await store.scan("/txn/", keys_only=True)).records) == 10_001
    assert [r.key for r in (await store.range("/txn/", "/txn0", limit=2, reverse=True)).records] == [
        "/txn/1",
        "/txn/009999",
    ]
