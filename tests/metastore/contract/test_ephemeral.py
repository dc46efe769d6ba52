"""Goal: an ephemeral record is a record like any other while its owner lives, and goes when the owner lets go.

How it goes when the process dies is each backend's own affair and tested with that backend.
"""

from __future__ import annotations

from metastore.api import MetadataStore
from metastore.types import Changes
from tests.metastore.factories import where_every_change_is_told

TTL_MS = 5_000


async def test_it_is_there_until_closed(store: MetadataStore) -> None:
    ephemeral = await store.ephemeral("/live/1", b"here", TTL_MS)
    record = await store.get("/live/1")
    assert record is not None and record.value == b"here"
    assert [found.key for found in (await store.scan("/live/")).records] == ["/live/1"]
    await ephemeral.close()
    assert await store.get("/live/1") is None
    await ephemeral.close()


@where_every_change_is_told
async def test_watches_see_it_come_and_go(store: MetadataStore) -> None:
    start = await store.current_revision()
    async with store.watch("/live/", start + 1) as watch:
        await (await store.ephemeral("/live/1", b"here", TTL_MS)).close()
        seen = [await anext(watch), await anext(watch)]
    assert [[event.record is not None for event in item.events] for item in seen if isinstance(item, Changes)] == [
        [True],
        [False],
    ]


async def test_a_later_record_of_the_same_key_is_not_taken_away(store: MetadataStore) -> None:
    ephemeral = await store.ephemeral("/live/1", b"old", TTL_MS)
    await store.apply(store.batch().put("/live/1", b"new"))
    await ephemeral.close()
    record = await store.get("/live/1")
    assert record is not None and record.value == b"new"


async def test_a_new_owner_replaces_the_old_one(store: MetadataStore) -> None:
    old = await store.ephemeral("/live/1", b"old", TTL_MS)
    new = await store.ephemeral("/live/1", b"new", TTL_MS)
    await old.close()
    record = await store.get("/live/1")
    assert record is not None and record.value == b"new"
    await new.close()
    assert await store.get("/live/1") is None
