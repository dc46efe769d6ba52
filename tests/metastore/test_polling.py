"""Goal: a watch that looks from time to time tells the difference between its looks, says `Resync` where it cannot, and
reads and keeps no more than it must.

Method: a store in memory whose watch is taken away; applies are placed between looks, and looks are counted.
"""

from __future__ import annotations

import asyncio

import pytest

from metastore.api import MetadataStore
from metastore.backends.memory import MemoryStore
from metastore.errors import StoreUnavailable
from metastore.types import Changes, Event, RangeResult, Record, Resync


class _Polled(MemoryStore):
    """Counts the looks and can be away; `looked` is set after each."""

    watch = MetadataStore.watch
    poll_interval_ms = 1

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[str] = []
        self.looked = asyncio.Event()
        self.away = False

    async def range(
        self, start: str, end: str, *, limit: int = 0, reverse: bool = False, keys_only: bool = False
    ) -> RangeResult:
        self.looks.append("keys" if keys_only else "values")
        self.looked.set()
        if self.away:
            raise StoreUnavailable("away")
        return await super().range(start, end, limit=limit, reverse=reverse, keys_only=keys_only)

    async def more_looks(self, count: int) -> None:
        for _ in range(count):
            self.looked.clear()
            await self.looked.wait()


@pytest.fixture
async def store() -> _Polled:
    return _Polled()


async def write(store: MetadataStore, key: str, value: bytes) -> Record:
    return Record(key, value, (await store.apply(store.batch().put(key, value))).revision, first=True)


async def test_behind_a_listing_it_tells_what_is_different(store: _Polled) -> None:
    await write(store, "/a/gone", b"")
    await write(store, "/a/kept", b"")
    watch = store.watch("/a/", await store.current_revision() + 1)
    waiting = asyncio.create_task(anext(watch))
    await store.more_looks(2)
    one = await write(store, "/a/1", b"1")
    await write(store, "/a/2", b"collapses")
    await store.apply(store.batch().delete("/a/gone").delete("/a/2"))
    await write(store, "/b/1", b"no")
    await store.apply(store.batch().put("/a/kept", b"again"))
    revision = await store.current_revision()
    kept = Record("/a/kept", b"again", revision, first=False)
    assert await waiting == Changes(revision, (Event("/a/gone", None), Event("/a/1", one), Event("/a/kept", kept)))


async def test_what_was_applied_before_its_first_look_is_a_resync(store: _Polled) -> None:
    """A deletion leaves no trace, so the look cannot tell whether there was one."""
    await write(store, "/a/gone", b"")
    watch = store.watch("/a/", await store.current_revision() + 1)
    await store.apply(store.batch().delete("/a/gone"))
    item = await anext(watch)
    assert isinstance(item, Resync) and item.revision == await store.current_revision()
    after = await write(store, "/a/1", b"")
    assert await anext(watch) == Changes(after.version, (Event("/a/1", after),))


async def test_from_the_beginning_of_all_it_is_a_resync_too(store: _Polled) -> None:
    for revision in (-1, 0, 1):
        assert isinstance(await anext(store.watch("/a/", revision)), Resync)


async def test_until_its_first_revision_it_is_silent(store: _Polled) -> None:
    start = await store.current_revision()
    watch = store.watch("/a/", start + 3)
    waiting = asyncio.create_task(anext(watch))
    for number in range(2):
        await store.more_looks(2)
        await write(store, f"/a/{number}", b"too early")
    await store.more_looks(2)
    told = await write(store, "/a/told", b"")
    assert told.version == start + 3
    assert await waiting == Changes(told.version, (Event("/a/told", told),))


async def test_a_first_revision_that_passed_between_two_looks_is_a_resync(store: _Polled) -> None:
    start = await store.current_revision()
    waiting = asyncio.create_task(anext(store.watch("/a/", start + 2)))
    await store.more_looks(2)
    for number in range(3):
        await write(store, f"/a/{number}", b"")
    assert await waiting == Resync(start + 3, f"what was applied before revision {start + 2} was not observed")


async def test_values_are_read_only_when_a_key_has_changed(store: _Polled) -> None:
    await write(store, "/a/1", b"")
    waiting = asyncio.create_task(anext(store.watch("/a/", await store.current_revision() + 1)))
    await store.more_looks(2)
    store.looks.clear()
    await write(store, "/b/1", b"elsewhere")
    await store.more_looks(3)
    assert set(store.looks) == {"keys"}
    await write(store, "/a/2", b"")
    await waiting
    assert store.looks.count("values") == 1


async def test_nothing_is_read_for_a_consumer_that_does_not_ask(store: _Polled) -> None:
    """So nothing is queued either: what it missed collapses into the next item."""
    watch = store.watch("/a/", await store.current_revision() + 1)
    waiting = asyncio.create_task(anext(watch))
    await store.more_looks(2)
    await write(store, "/a/1", b"0")
    await waiting
    store.looks.clear()
    for number in range(50):
        await store.apply(store.batch().put("/a/1", str(number).encode()))
        await asyncio.sleep(0)
    assert store.looks == []
    item = await anext(watch)
    assert isinstance(item, Changes) and [event.record and event.record.value for event in item.events] == [b"49"]


async def test_it_goes_on_when_the_store_is_back(store: _Polled) -> None:
    waiting = asyncio.create_task(anext(store.watch("/a/", await store.current_revision() + 1)))
    await store.more_looks(2)
    store.away = True
    await store.more_looks(3)
    written = await write(store, "/a/1", b"")
    store.away = False
    assert await waiting == Changes(written.version, (Event("/a/1", written),))


async def test_a_cancelled_consumer_has_missed_nothing(store: _Polled) -> None:
    watch = store.watch("/a/", await store.current_revision() + 1)
    waiting = asyncio.create_task(anext(watch))
    await store.more_looks(2)
    written = await write(store, "/a/1", b"")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await anext(watch) == Changes(written.version, (Event("/a/1", written),))


async def test_closing_wakes_who_waits(store: _Polled) -> None:
    store.poll_interval_ms = 3_600_000
    watch = store.watch("/a/", await store.current_revision() + 1)
    waiting = asyncio.create_task(anext(watch, None))
    await store.more_looks(1)
    await watch.close()
    assert await waiting is None
