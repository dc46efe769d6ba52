"""Writing the records of a backup into an empty store.

A header is decided by its second write, and every process sees that from the number of its writes (DESIGN §5.1). So a
decided one is written twice here, too. Entries of indexes come with their records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from metastore.api import MetadataStore
from metastore.slices import slices
from metastore.txn import paths
from metastore.txn.records.transactions import Header
from metastore.types import Record

_TOGETHER = 20
"""The records that any store allows in one apply, with checks and entries of indexes."""
_AT_ONCE = 8
Pair = tuple[str, bytes]


async def load_records(
    store: MetadataStore, records: Sequence[Pair], wrote: Callable[[int], None] = lambda size: None
) -> None:
    """Write these records, none of which exists yet. `wrote` is told the sizes. Raises `CheckFailed` if one exists, and
    the store's errors."""
    indexes = tuple(index.root for index in store.indexes)
    own = [record for record in records if not record[0].startswith(indexes)]
    turns = asyncio.Semaphore(_AT_ONCE)

    async def write(some: Sequence[Pair]) -> None:
        async with turns:
            await _write(store, some)
        wrote(sum(len(key) + len(value) for key, value in some))

    parts = slices(store, own, _TOGETHER, lambda batch, record: batch.create(*record))
    await asyncio.gather(*(write(some) for some in parts))


async def _write(store: MetadataStore, some: Sequence[Pair]) -> None:
    opened: dict[str, tuple[bytes, bytes]] = {}
    batch = store.batch()
    for key, value in some:
        if key.startswith(paths.HEADERS) and (header := Header.decode(value)).state.final:
            opened[key] = header.as_begun.encode(), value
            value = opened[key][0]
        batch.create(key, value)
    revision = (await store.apply(batch)).revision
    if opened:
        batch = store.batch()
        for key, (before, value) in opened.items():
            batch.replace(Record(key, before, revision, first=True), value)
        await store.apply(batch)
