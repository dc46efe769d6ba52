"""Goal: a leased number is never handed out twice, to anyone.

Method: many callers of several clients lease blocks at once; all blocks together must have no duplicate.
"""

from __future__ import annotations

import asyncio

from metastore.api import MetadataStore
from tests.metastore.factories import Backend


async def test_blocks_start_at_one_and_follow_each_other(store: MetadataStore) -> None:
    assert await store.lease_ids("/seq/a", 10) == range(1, 11)
    assert await store.lease_ids("/seq/a", 1) == range(11, 12)
    assert await store.lease_ids("/seq/b", 5) == range(1, 6)
    record = await store.get("/seq/a")
    assert record is not None and record.value == b"12"


async def test_concurrent_blocks_are_disjoint(backend: Backend) -> None:
    clients = [await backend.open() for _ in range(3)]

    async def lease(client: MetadataStore, count: int) -> list[range]:
        return [await client.lease_ids("/seq/a", count) for _ in range(5)]

    leased = await asyncio.gather(*(lease(clients[n % 3], n % 4 + 1) for n in range(12)))
    numbers = [number for blocks in leased for block in blocks for number in block]
    assert len(numbers) == len(set(numbers))
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    for blocks in leased:
        assert [block.start for block in blocks] == sorted(block.start for block in blocks)
