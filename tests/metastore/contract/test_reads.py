"""Goal: reads are linearizable, come from one revision, and are in the order of UTF-8 bytes.

Method: exact listings of hand-made records, and a token that a writer moves between keys in one apply: anyone who reads
two states at once sees no token or two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from metastore.api import MetadataStore

KEYS = ["/a", "/b", "/b/1", "/b/10", "/b/2", "/c"]


async def fill(store: MetadataStore, keys: list[str]) -> None:
    batch = store.batch()
    for key in keys:
        batch.put(key, f"value of {key}".encode())
    await store.apply(batch)


async def test_a_range_holds_its_start_and_not_its_end(store: MetadataStore) -> None:
    await fill(store, KEYS)
    found = await store.range("/b", "/c")
    assert [record.key for record in found.records] == ["/b", "/b/1", "/b/10", "/b/2"]
    assert found.records[0].value == b"value of /b"
    assert not found.more


async def test_a_scan_holds_what_starts_with_the_prefix(store: MetadataStore) -> None:
    await fill(store, KEYS)
    assert [record.key for record in (await store.scan("/b/")).records] == ["/b/1", "/b/10", "/b/2"]
    assert (await store.scan("/none/")).records == []


async def test_a_store_outside_of_this_process_tells_its_size(store: MetadataStore) -> None:
    await fill(store, KEYS)
    size = await store.size_bytes()
    assert size is None if store.kind == "memory" else size is not None and size > 0


async def test_limit_and_more(store: MetadataStore) -> None:
    await fill(store, KEYS)
    for limit in range(1, len(KEYS) + 2):
        found = await store.scan("/", limit=limit)
        assert [record.key for record in found.records] == KEYS[:limit]
        assert found.more == (limit < len(KEYS))


async def test_reverse(store: MetadataStore) -> None:
    await fill(store, KEYS)
    found = await store.range("/b", "/c", reverse=True, limit=2)
    assert [record.key for record in found.records] == ["/b/2", "/b/10"]
    assert found.more
    assert [record.key for record in (await store.range("/", "0", reverse=True)).records] == KEYS[::-1]


async def test_keys_only_has_everything_but_the_values(store: MetadataStore) -> None:
    await fill(store, KEYS)
    await store.apply(store.batch().put("/a", b"again"))
    full, bare = await store.scan("/"), await store.scan("/", keys_only=True)
    assert [record.value for record in bare.records] == [b""] * len(KEYS)
    assert [(r.key, r.version, r.first) for r in bare.records] == [(r.key, r.version, r.first) for r in full.records]


async def test_an_empty_range(store: MetadataStore) -> None:
    await fill(store, KEYS)
    assert (await store.range("/b", "/b")).records == []
    assert (await store.range("/c", "/b")).records == []


async def test_several_keys_at_one_revision(store: MetadataStore) -> None:
    await fill(store, KEYS)
    snapshot = await store.get_many(["/b", "/none", "/a"])
    assert {key: record and record.value for key, record in snapshot.records.items()} == {
        "/b": b"value of /b",
        "/none": None,
        "/a": b"value of /a",
    }
    assert max(record.version for record in snapshot.records.values() if record) <= snapshot.revision


async def test_more_keys_than_one_request_takes(store: MetadataStore) -> None:
    await fill(store, [f"/k/{number:03d}" for number in range(0, 100, 2)])
    snapshot = await store.get_many([f"/k/{number:03d}" for number in range(250)])
    assert sum(record is not None for record in snapshot.records.values()) == 50
    assert len(snapshot.records) == 250


async def test_keys_sort_by_their_utf_8_bytes(store: MetadataStore) -> None:
    # UTF-16 order would put the last but one behind the last; a language's order would mix the cases.
    keys = ["/A", "/Z", "/a", "/é", "/\ud7ff", "/\ue000", "/\uffff", "/\U00010000", "/\U0010ffff"]
    assert keys == sorted(keys, key=str.encode)
    await fill(store, keys[::-1])
    assert [record.key for record in (await store.scan("/")).records] == keys
    assert [record.key for record in (await store.range("/\ue000", "/\U0010ffff")).records] == keys[5:-1]


async def test_a_read_sees_every_apply_answered_before_it(store: MetadataStore) -> None:
    async def write_then_read(name: int) -> None:
        for number in range(10):
            applied = await store.apply(store.batch().put(f"/{name}", str(number).encode()))
            record = await store.get(f"/{name}")
            assert record is not None and record.value == str(number).encode()
            assert (await store.range(f"/{name}", f"/{name}0")).revision >= applied.revision

    await asyncio.gather(*(write_then_read(name) for name in range(10)))


@pytest.mark.parametrize("wanted", [5, 1_100], ids=["few", "many"])
async def test_a_read_sees_one_state(store: MetadataStore, wanted: int) -> None:
    keys = [f"/place/{number:04d}" for number in range(wanted)]
    places = keys[:: wanted // 5]
    await store.apply(store.batch().put(places[0], b"token"))
    moving = True

    async def move() -> None:
        nonlocal moving
        for step in range(100):
            await store.apply(store.batch().delete(places[step % 5]).put(places[(step + 1) % 5], b"token"))
        moving = False

    async def look() -> None:
        while moving:
            assert len((await store.scan("/place/")).records) == 1
            found = await store.get_many(keys)
            (token,) = filter(None, found.records.values())
            assert token.version <= found.revision
            # The memory store never suspends a reader, so the writer needs a turn of its own.
            await asyncio.sleep(0)

    await asyncio.gather(move(), look(), look())


async def test_each_of_any_number_of_keys(store: MetadataStore) -> None:
    keys = [f"/k/{number:03d}" for number in range(250)]
    await fill(store, keys[::2])
    found = await store.get_each(reversed(keys))
    assert list(found) == keys[::-1]
    assert {key for key, record in found.items() if record} == set(keys[::2])
    assert await store.get_each(()) == {}


async def test_each_record_in_the_order_of_its_key_as_it_was_asked_for(store: MetadataStore) -> None:
    keys = [f"/k/{number:03d}" for number in range(250)]
    await fill(store, keys[::2])
    read = [(key, record) async for key, record in store.each(reversed(keys))]
    assert [key for key, _ in read] == keys[::-1]
    assert [key for key, record in read if record is not None] == keys[::2][::-1]
    assert all(record.key == key and record.value == f"value of {key}".encode() for key, record in read if record)
    assert [key async for key, _ in store.each(())] == []


async def test_each_reads_on_after_what_was_written_meanwhile(store: MetadataStore) -> None:
    """A part is read when its first key is asked for, and no earlier: what was changed by then is seen. What was read
    before is told as it was, once."""
    keys = [f"/k/{number:03d}" for number in range(250)]
    await fill(store, keys)
    seen: dict[str, bytes | None] = {}
    async for key, record in store.each(keys):
        if not seen:
            await store.apply(store.batch().put(keys[-1], b"later").put(keys[0], b"later").delete(keys[-2]))
        assert key not in seen
        seen[key] = record and record.value
    assert seen[keys[0]] == f"value of {keys[0]}".encode()
    assert (seen[keys[-1]], seen[keys[-2]]) == (b"later", None)


async def test_other_work_has_its_turn_while_each_record_is_read(store: MetadataStore) -> None:
    """A store in memory has nothing to wait for, and would keep everything else waiting."""
    keys = [f"/k/{number:03d}" for number in range(1_000)]
    turns = 0

    async def work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    working = asyncio.create_task(work())
    taken = [turns async for _ in store.each(keys)]
    working.cancel()
    most = max(taken.count(turn) for turn in set(taken))
    assert len(set(taken)) > 5 and most <= 200, "this many records in one turn"


async def test_who_stops_early_reads_no_more(store: MetadataStore) -> None:
    asked: list[str] = []

    def wanted() -> Iterator[str]:
        for number in range(1_000):
            asked.append(f"/k/{number:03d}")
            yield asked[-1]

    async for _ in store.each(wanted()):
        break
    assert 0 < len(asked) < 500
