"""A bit of everything that a store promises, for the ways to reach one: TLS, users, several servers."""

from __future__ import annotations

import asyncio

import pytest

from metastore.api import MetadataStore
from metastore.errors import CheckFailed
from metastore.types import Changes


async def hold_small_contract(store: MetadataStore, other: MetadataStore) -> None:
    """`store` and `other` are clients of one empty root."""
    start = await store.current_revision()
    async with other.watch("/small/", start + 1) as watch:
        batches = [store.batch().create(f"/small/{number:02d}", b"new") for number in range(50)]
        applied = await asyncio.gather(*(store.apply(batch) for batch in batches))
        seen: list[str] = []
        while len(seen) < len(batches):
            item = await anext(watch)
            assert isinstance(item, Changes)
            seen += [event.key for event in item.events]
    assert sorted(seen) == [f"/small/{number:02d}" for number in range(50)]
    with pytest.raises(CheckFailed):
        await other.apply(other.batch().create("/small/00", b"late"))
    record = await other.get("/small/00")
    assert record is not None and (record.value, record.version) == (b"new", applied[0].revision)
    await other.apply(other.batch().replace(record, b"x" * 100_000).delete_range("/small/01", "/small/49"))
    assert [(found.key, len(found.value)) for found in (await store.scan("/small/")).records] == [
        ("/small/00", 100_000),
        ("/small/49", 3),
    ]
    assert await other.lease_ids("/small-ids", 10) == range(1, 11)
    held = await store.ephemeral("/live", b"here", 2_000)
    assert await other.get("/live") is not None
    await held.close()
    assert await other.get("/live") is None
