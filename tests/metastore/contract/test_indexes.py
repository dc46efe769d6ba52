"""Goal: an index entry exists exactly when its record says so, at every revision.

Method: records that hold colors, indexed by color; the entries are compared with what the records say, while many
writers change them: where entries are records, in the same listing.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from metastore.api import MetadataStore
from metastore.errors import CheckFailed
from metastore.types import Record
from tests.metastore.factories import BY_COLOR, ITEMS, Backend, where_entries_are_records


async def existing(store: MetadataStore, key: str) -> Record:
    record = await store.get(key)
    assert record is not None
    return record


async def colors(store: MetadataStore) -> list[str]:
    return await store.query_index(BY_COLOR.name)


async def test_entries_come_and_go_with_their_record(store: MetadataStore) -> None:
    await store.apply(store.batch().create("/item/1", b"red,blue").create("/item/2", b"red"))
    assert await colors(store) == ["blue/1", "red/1", "red/2"]
    await store.apply(store.batch().replace(await existing(store, "/item/1"), b"blue,green"))
    assert await colors(store) == ["blue/1", "green/1", "red/2"]
    await store.apply(store.batch().remove(await existing(store, "/item/1")))
    assert await colors(store) == ["red/2"]


@where_entries_are_records
async def test_an_entry_that_stays_is_not_written_again(store: MetadataStore) -> None:
    await store.apply(store.batch().create("/item/1", b"red"))
    before = await existing(store, "/idx/by-color/red/1")
    await store.apply(store.batch().replace(await existing(store, "/item/1"), b"red,blue"))
    assert await existing(store, "/idx/by-color/red/1") == before


async def test_a_lost_check_moves_no_entry(store: MetadataStore) -> None:
    await store.apply(store.batch().create("/item/1", b"red"))
    stale = await existing(store, "/item/1")
    await store.apply(store.batch().replace(stale, b"blue"))
    for batch in (
        store.batch().replace(stale, b"green"),
        store.batch().remove(stale),
        store.batch().create("/item/1", b"green"),
    ):
        with pytest.raises(CheckFailed):
            await store.apply(batch)
    assert await colors(store) == ["blue/1"]


async def test_query_takes_a_range_a_limit_and_an_order(store: MetadataStore) -> None:
    batch = store.batch()
    for number in range(4):
        batch.create(f"/item/{number}", b"red,blue" if number % 2 else b"red")
    await store.apply(batch)
    assert await store.query_index("by-color", "red/", "red0") == ["red/0", "red/1", "red/2", "red/3"]
    assert await store.query_index("by-color", "red/1", "red/3") == ["red/1", "red/2"]
    assert await store.query_index("by-color", limit=3) == ["blue/1", "blue/3", "red/0"]
    assert await store.query_index("by-color", reverse=True, limit=2) == ["red/3", "red/2"]
    assert await store.query_index("by-color", "red/2") == ["red/2", "red/3"]


async def test_an_undeclared_index_is_a_programming_error(store: MetadataStore) -> None:
    with pytest.raises(AssertionError, match="not declared"):
        await store.query_index("by-size")


async def test_bare_writes_cannot_touch_indexed_records_or_entries(store: MetadataStore) -> None:
    for key in ("/item/1", "/idx/by-color/red/1"):
        with pytest.raises(AssertionError):
            store.batch().put(key, b"red")
        with pytest.raises(AssertionError):
            store.batch().delete(key)
    for start, end in (("/item/", "/item0"), ("/idx/", "/idx0"), ("/", "0"), ("/item/7", "/j")):
        with pytest.raises(AssertionError):
            store.batch().delete_range(start, end)
    store.batch().delete_range("/item0", "/j").put("/idx/other/1", b"")


async def change_colors(store: MetadataStore, seed: int) -> None:
    """Create, repaint and remove five items; who loses goes on."""
    dice = random.Random(seed)
    for _ in range(25):
        key = f"{ITEMS}{dice.randrange(5)}"
        value = ",".join(dice.sample(["red", "blue", "green", ""], 2)).encode()
        record = await store.get(key)
        batch = store.batch()
        if record is None:
            batch.create(key, value)
        elif dice.random() < 0.3:
            batch.remove(record)
        else:
            batch.replace(record, value)
        try:
            await store.apply(batch)
        except CheckFailed:
            await asyncio.sleep(0)


def said_by(records: list[Record]) -> list[str]:
    """The keys of the entries that these records should have."""
    return sorted({entry for record in records for entry in BY_COLOR.keys(record.key, record.value)})


async def test_concurrent_writers_leave_the_entries_that_their_records_say(backend: Backend) -> None:
    stores = [await backend.open() for _ in range(2)]
    await asyncio.gather(*(change_colors(stores[seed % 2], seed) for seed in range(8)))
    for store in stores:
        said = said_by((await store.scan(ITEMS)).records)
        assert said
        assert [BY_COLOR.root + entry for entry in await colors(store)] == said


@where_entries_are_records
async def test_entries_and_records_agree_at_every_revision(store: MetadataStore) -> None:
    writers = [asyncio.create_task(change_colors(store, seed)) for seed in range(8)]
    while not all(writer.done() for writer in writers):
        everything = (await store.range("/idx/", "/j")).records
        records = [record for record in everything if record.key.startswith(ITEMS)]
        assert [record.key for record in everything if record.key.startswith(BY_COLOR.root)] == said_by(records)
        await asyncio.sleep(0)
    await asyncio.gather(*writers)
