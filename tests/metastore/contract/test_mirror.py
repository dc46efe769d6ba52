"""Goal: a `Mirror` converges to the store, whatever happens to its watch, and reports every difference.

Method: the calls of `on_change` are replayed into a copy, which must equal the mirror's records and the store.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from metastore.api import MetadataStore
from metastore.types import Event, Record, Watch, WatchItem
from metastore.watches import EVENT_BYTES, Mirror
from tests.metastore.factories import Backend

END = "/a/end"


class Copy:
    """What a consumer of the mirror knows."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self._news = asyncio.Event()

    def take(self, event: Event) -> None:
        if event.record is None:
            del self.records[event.key]
        else:
            known = self.records.get(event.key)
            assert known is None or known.version < event.record.version, "it only moves forward"
            self.records[event.key] = event.record
        self._news.set()

    async def holds(self, key: str, value: bytes | None) -> None:
        while True:
            record = self.records.get(key)
            if (record and record.value) == value:
                return
            self._news.clear()
            await self._news.wait()


async def listing(store: MetadataStore) -> dict[str, Record]:
    return {record.key: record for record in (await store.scan("/a/")).records}


async def test_it_is_complete_when_entered(store: MetadataStore) -> None:
    await store.apply(store.batch().put("/a/1", b"").put("/a/2", b"").put("/b/1", b""))
    copy = Copy()
    mirror = Mirror(store, "/a/", copy.take)
    async with mirror.running():
        assert mirror.records == copy.records == await listing(store)
        assert mirror.revision >= max(record.version for record in mirror.records.values())


async def test_it_follows_concurrent_writers(backend: Backend) -> None:
    store, reader = await backend.open(), await backend.open()
    copy = Copy()
    mirror = Mirror(reader, "/a/", copy.take)

    async def write(seed: int) -> None:
        dice = random.Random(seed)
        for number in range(30):
            key = f"/a/{dice.randrange(10)}"
            batch = store.batch()
            await store.apply(batch.delete(key) if dice.random() < 0.3 else batch.put(key, f"{seed}:{number}".encode()))
            await asyncio.sleep(0)

    writers = [asyncio.create_task(write(seed)) for seed in range(5)]
    await asyncio.sleep(0)
    async with mirror.running():
        await asyncio.gather(*writers)
        applied = await store.apply(store.batch().put(END, b"x"))
        await copy.holds(END, b"x")
        assert mirror.records == copy.records == await listing(store)
        # The event is handed out before the revision of its group is complete; one turn later it is.
        await asyncio.sleep(0)
        assert mirror.revision >= applied.revision


class Stalled(Watch):
    """A watch that is not read before it `may` be."""

    def __init__(self, watch: Watch, may: asyncio.Event) -> None:
        self._watch = watch
        self._may = may

    async def __anext__(self) -> WatchItem:
        await self._may.wait()
        return await anext(self._watch)

    async def close(self) -> None:
        await self._watch.close()


async def test_it_lists_again_after_a_gap(store: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody reads the watch until everything has happened. By then its queue has overflown; and one that has no queue,
    because it looks when it is read, finds that its first look comes too late for what followed the listing."""
    monkeypatch.setattr("metastore.watches.MAX_QUEUED_BYTES", 5 * EVENT_BYTES)
    may_read = asyncio.Event()
    watch = store.watch
    monkeypatch.setattr(store, "watch", lambda prefix, revision: Stalled(watch(prefix, revision), may_read))
    await store.apply(store.batch().put("/a/gone", b"").put("/a/kept", b"").put("/a/1", b""))
    copy = Copy()
    mirror = Mirror(store, "/a/", copy.take)
    async with mirror.running():
        await store.apply(store.batch().delete("/a/gone").delete_range("/a/1", "/a/2"))
        # More events in one change than the queue takes.
        batch = store.batch()
        for number in range(10):
            batch.put(f"/a/new{number}", b"")
        await store.apply(batch)
        await store.apply(store.batch().put(END, b"x"))
        may_read.set()
        await copy.holds(END, b"x")
        assert mirror.records == copy.records == await listing(store)
        assert mirror.resyncs >= 1
        # It follows what comes behind the gap.
        await store.apply(store.batch().put(END, b"y"))
        await copy.holds(END, b"y")
        assert mirror.records == copy.records == await listing(store)


async def test_it_can_be_left_and_the_store_goes_on(store: MetadataStore) -> None:
    copy = Copy()
    async with Mirror(store, "/a/", copy.take).running():
        await store.apply(store.batch().put("/a/1", b"x"))
        await copy.holds("/a/1", b"x")
    await store.apply(store.batch().put("/a/1", b"y"))
    await copy.holds("/a/1", b"x")
