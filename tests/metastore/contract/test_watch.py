"""Goal: a watch tells every change once and in order, or says `Resync`; never a silent gap.

Two promises. *Every* watch: anyone who replays it, and reads again after each `Resync`, never goes back, and arrives at
the last state of each key; changes may collapse (scenario 104). Only one that *tells every change*
(`where_every_change_is_told`): each apply is one item, and behind a listing there is no `Resync` without a cause.

Method: what a watch delivered is replayed onto a snapshot and compared with the store. Compaction is forced, and the
queue is made small, to see the gap announced.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from metastore.api import MetadataStore
from metastore.errors import CheckFailed
from metastore.types import Changes, Record, Resync, Watch
from metastore.watches import EVENT_BYTES
from tests.metastore.factories import Backend, where, where_every_change_is_told


class Replay:
    """A consumer that relies on nothing but what every watch promises."""

    def __init__(self, store: MetadataStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix
        self.records: dict[str, Record] = {}
        self.revision = 0

    async def list(self) -> None:
        listing = await self._store.scan(self._prefix)
        self.records = {record.key: record for record in listing.records}
        self.revision = listing.revision

    async def follow(self, watch: Watch, key: str, value: bytes | None) -> None:
        """Until `key` holds `value`; None: until it is gone."""
        while (self.records[key].value if key in self.records else None) != value:
            item = await anext(watch)
            if isinstance(item, Resync):
                await self.list()
                assert self.revision >= item.revision, "a reader after the gap must see what it hid"
            elif item.revision > self.revision:
                self._take(item)

    def _take(self, changes: Changes) -> None:
        self.revision = changes.revision
        assert len({event.key for event in changes.events}) == len(changes.events)
        for key, record in ((event.key, event.record) for event in changes.events):
            assert key.startswith(self._prefix)
            if record is None:
                self.records.pop(key, None)
            else:
                assert key not in self.records or self.records[key].version <= record.version, "it went back"
                assert record.version <= changes.revision
                self.records[key] = record


async def next_changes(watch: Watch) -> Changes:
    item = await anext(watch)
    assert isinstance(item, Changes), item
    return item


# -- what every watch promises -------------------------------------------------------------------------------------


async def test_the_last_state_of_each_key_arrives_and_nothing_goes_back(backend: Backend) -> None:
    """Scenario 104: events may collapse, the last one is always delivered. Deletions are events, too."""
    store, reader = await backend.open(), await backend.open()
    await store.apply(store.batch().put("/a/kept", b"").put("/a/gone", b"").put("/b/1", b""))
    replay = Replay(reader, "/a/")
    await replay.list()

    async def write(seed: int) -> None:
        dice = random.Random(seed)
        for number in range(30):
            key = f"/a/{dice.randrange(10)}"
            batch = store.batch()
            await store.apply(batch.delete(key) if dice.random() < 0.3 else batch.put(key, f"{seed}:{number}".encode()))

    async def write_all() -> None:
        await asyncio.gather(*(write(seed) for seed in range(5)))
        await store.apply(store.batch().delete("/a/gone").put("/b/1", b"no"))
        await store.apply(store.batch().put("/a/end", b""))

    async with reader.watch("/a/", replay.revision + 1) as watch:
        writing = asyncio.create_task(write_all())
        await replay.follow(watch, "/a/end", b"")
        await writing
    assert list(replay.records) and "/a/gone" not in replay.records
    assert sorted(replay.records.values(), key=lambda record: record.key) == (await reader.scan("/a/")).records


async def test_a_change_and_a_deletion_arrive_while_the_watch_waits(store: MetadataStore) -> None:
    replay = Replay(store, "/a/")
    async with store.watch("/a/", await store.current_revision() + 1) as watch:
        for value in (b"1", b"2", None, b"3"):
            waiting = asyncio.create_task(replay.follow(watch, "/a/1", value))
            await asyncio.sleep(0)
            batch = store.batch()
            await store.apply(batch.delete("/a/1") if value is None else batch.put("/a/1", value))
            await waiting


async def test_nothing_before_its_first_revision_is_told(store: MetadataStore) -> None:
    """A watch may start in the future, up to a write that is on its way."""
    start = await store.current_revision()
    async with store.watch("/a/", start + 3) as watch:
        reading = asyncio.create_task(anext(watch))
        await asyncio.sleep(0)
        applied = [await store.apply(store.batch().put("/a/1", str(n).encode())) for n in range(6)]
        due = [a.revision for a in applied if a.revision >= start + 3]
        seen = [await reading]
        while seen[-1].revision < due[-1]:
            seen.append(await anext(watch))
    assert seen[0].revision >= due[0]
    assert [item.revision for item in seen] == sorted({item.revision for item in seen})


async def test_a_waiting_watch_outlives_a_compaction(backend: Backend, store: MetadataStore) -> None:
    replay = Replay(store, "/a/")
    async with store.watch("/a/", await store.current_revision() + 1) as watch:
        for number in range(5):
            await store.apply(store.batch().put("/a/1", str(number).encode()))
            await replay.follow(watch, "/a/1", str(number).encode())
            await backend.compact()


async def test_a_watch_from_before_a_compaction_starts_with_a_resync(backend: Backend, store: MetadataStore) -> None:
    old = await store.apply(store.batch().put("/a/1", b""))
    for number in range(3):
        await store.apply(store.batch().put("/a/2", str(number).encode()))
    await backend.compact()
    async with store.watch("/a/", old.revision) as watch:
        item = await anext(watch)
        assert isinstance(item, Resync)
        assert item.reason
        assert (await store.scan("/a/")).revision >= item.revision
        applied = await store.apply(store.batch().put("/a/3", b""))
        assert applied.revision > item.revision
        assert (await next_changes(watch)).revision == applied.revision


async def test_a_slow_consumer_gets_a_resync_and_the_stream_goes_on(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metastore.watches.MAX_QUEUED_BYTES", 10 * EVENT_BYTES)
    start = await store.current_revision()
    async with store.watch("/a/", start + 1) as watch:
        # One change that is larger than the queue: no consumer is fast enough for it.
        flood = store.batch()
        for number in range(11):
            flood.put(f"/a/{number}", b"")
        flooded = await store.apply(flood)
        final = await store.apply(store.batch().put("/a/last", b""))
        seen = [await anext(watch)]
        while seen[-1].revision < final.revision:
            seen.append(await anext(watch))
    assert isinstance(seen[0], Resync)
    assert seen[0].revision >= flooded.revision
    assert [item.revision for item in seen] == sorted({item.revision for item in seen})


async def test_a_closed_watch_ends(store: MetadataStore) -> None:
    watch = store.watch("/a/", 1)
    waiting = asyncio.create_task(anext(store.watch("/b/", await store.current_revision() + 1), None))
    await watch.close()
    await watch.close()
    assert [item async for item in watch] == []
    await asyncio.sleep(0)
    assert not waiting.done()
    await store.close()
    assert await waiting is None


# -- what only a watch promises that tells every change ------------------------------------------------------------


@where_every_change_is_told
async def test_changes_below_the_prefix_in_order(store: MetadataStore) -> None:
    start = await store.current_revision()
    async with store.watch("/a/", start + 1) as watch:
        first = await store.apply(store.batch().put("/a/1", b"x").put("/b/1", b"no"))
        await store.apply(store.batch().put("/b/2", b"no"))
        await store.apply(store.batch().put("/a", b"no").put("/a0", b"no"))
        second = await store.apply(store.batch().put("/a/1", b"y").put("/a/2", b"z"))
        third = await store.apply(store.batch().delete("/a/1").delete("/a/none"))
        one, two, three = [await next_changes(watch) for _ in range(3)]
    assert one.revision == first.revision
    assert [(event.key, event.record) for event in one.events] == [("/a/1", Record("/a/1", b"x", first.revision, True))]
    assert two.revision == second.revision
    assert {event.record for event in two.events} == {
        Record("/a/1", b"y", second.revision, False),
        Record("/a/2", b"z", second.revision, True),
    }
    assert three.revision == third.revision
    assert [(event.key, event.record) for event in three.events] == [("/a/1", None)]


@where_every_change_is_told
async def test_a_watch_can_start_in_the_past(store: MetadataStore) -> None:
    applied = [await store.apply(store.batch().put("/a/1", str(n).encode())) for n in range(5)]
    async with store.watch("/a/", applied[2].revision) as watch:
        assert [(await next_changes(watch)).revision for _ in range(3)] == [a.revision for a in applied[2:]]


@where_every_change_is_told
async def test_a_watch_can_start_in_the_future(store: MetadataStore) -> None:
    start = await store.current_revision()
    async with store.watch("/a/", start + 3) as watch:
        applied = [await store.apply(store.batch().put("/a/1", str(n).encode())) for n in range(6)]
        due = [a.revision for a in applied if a.revision >= start + 3]
        assert [(await next_changes(watch)).revision for _ in due] == due


@where_every_change_is_told
async def test_a_deleted_range_is_seen_key_by_key(store: MetadataStore) -> None:
    await store.apply(store.batch().put("/a/1", b"").put("/a/2", b"").put("/a", b""))
    start = await store.current_revision()
    async with store.watch("/a/", start + 1) as watch:
        await store.apply(store.batch().delete_range("/a/", "/a0").put("/a0", b""))
        changes = await next_changes(watch)
    assert [(event.key, event.record) for event in changes.events] == [("/a/1", None), ("/a/2", None)]


@where(lambda factory: factory.keeps_every_change and factory.keeps_entries)
async def test_index_entries_are_seen_with_their_record(store: MetadataStore) -> None:
    await store.apply(store.batch().create("/item/1", b"red"))
    record = await store.get("/item/1")
    assert record is not None
    start = await store.current_revision()
    async with store.watch("/", start + 1) as watch:
        await store.apply(store.batch().replace(record, b"blue"))
        changes = await next_changes(watch)
    assert {event.key: event.record is not None for event in changes.events} == {
        "/idx/by-color/red/1": False,
        "/idx/by-color/blue/1": True,
        "/item/1": True,
    }


@where_every_change_is_told
async def test_a_lost_apply_is_not_seen(store: MetadataStore) -> None:
    await store.apply(store.batch().put("/a/1", b"old"))
    start = await store.current_revision()
    async with store.watch("/a/", start + 1) as watch:
        with pytest.raises(CheckFailed):
            await store.apply(store.batch().create("/a/1", b"").put("/a/2", b""))
        applied = await store.apply(store.batch().put("/a/3", b""))
        assert (await next_changes(watch)).revision == applied.revision


@where_every_change_is_told
async def test_a_snapshot_and_a_watch_behind_it_have_no_gap_and_no_duplicate(backend: Backend) -> None:
    store, reader = await backend.open(), await backend.open()
    writers_left = 6

    async def write(seed: int) -> None:
        nonlocal writers_left
        dice = random.Random(seed)
        for number in range(30):
            key = f"/a/{dice.randrange(20)}"
            batch = store.batch()
            await store.apply(batch.delete(key) if dice.random() < 0.3 else batch.put(key, f"{seed}:{number}".encode()))
            await asyncio.sleep(0)
        writers_left -= 1
        if not writers_left:
            await store.apply(store.batch().put("/a/end", b""))

    async def follow() -> dict[str, Record]:
        listing = await reader.scan("/a/")
        state = {record.key: record for record in listing.records}
        seen = listing.revision
        async with reader.watch("/a/", listing.revision + 1) as watch:
            while "/a/end" not in state:
                changes = await next_changes(watch)
                assert changes.revision > seen, "a duplicate, or out of order"
                seen = changes.revision
                for event in changes.events:
                    if event.record is None:
                        assert event.key in state, "a deletion of what was never there: an event is missing"
                        del state[event.key]
                    else:
                        known = state.get(event.key)
                        assert known is None or known.version < event.record.version
                        assert event.record.first == (known is None), "an event is missing"
                        state[event.key] = event.record
        return state

    async def follow_a_little_later(turns: int) -> dict[str, Record]:
        for _ in range(turns):
            await reader.get("/a/0")
            await asyncio.sleep(0)
        return await follow()

    followers = [follow_a_little_later(turns) for turns in range(0, 40, 4)]
    states = await asyncio.gather(*followers, *(write(seed) for seed in range(writers_left)))
    now = {record.key: record for record in (await store.scan("/a/")).records}
    assert all(state == now for state in states[: len(followers)])


@where_every_change_is_told
async def test_a_live_watch_outlives_a_compaction(backend: Backend, store: MetadataStore) -> None:
    start = await store.current_revision()
    async with store.watch("/a/", start + 1) as watch:
        for number in range(5):
            applied = await store.apply(store.batch().put("/a/1", str(number).encode()))
            assert (await next_changes(watch)).revision == applied.revision
            await backend.compact()


@where_every_change_is_told
async def test_watches_are_independent(store: MetadataStore) -> None:
    start = await store.current_revision()
    watches = [store.watch("/a/", start + 1) for _ in range(5)]
    await watches[2].close()
    applied = await store.apply(store.batch().put("/a/1", b""))
    for watch in watches[:2] + watches[3:]:
        assert (await next_changes(watch)).revision == applied.revision
        await watch.close()
