"""A counter never gives out a number twice under one name, although its record was forgotten (DESIGN §5.26).

Method: the memory store, and every order of a creator's reads and writes with those of another life of the same record.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

from metastore.backends.memory import MemoryStore
from metastore.errors import CheckFailed
from metastore.txn import paths
from metastore.txn.forgetting import Counter, beginning, forget, was_deleted
from metastore.txn.records.processes import Incarnation
from metastore.txn.records.segments import OwnerRecord
from metastore.txn.records.topics import TopicRecord
from metastore.txn.records.transactions import FirstNumber
from metastore.txn.store import INDEXES
from metastore.types import Record

NAME = "/topic/public%2Fdefault%2Ft"


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    opened = MemoryStore(INDEXES)
    yield opened
    await opened.close()


async def record_of(store: MemoryStore, key: str) -> Record:
    found = await store.get(key)
    assert found is not None
    return found


async def create(store: MemoryStore, key: str = NAME) -> int:
    first = await beginning(store)
    await store.apply(store.batch().check(first.check).create(key, b"%d" % first.number))
    return first.number


async def live(store: MemoryStore, upto: int, key: str = NAME) -> list[int]:
    """The numbers of one whole life of a record: created, counted, forgotten."""
    first = await create(store, key)
    last = max(first, upto)
    await forget(store, [Counter(await record_of(store, key), last)])
    return list(range(first, last + 1))


async def test_counters_go_on_above_everything_that_was_forgotten(store: MemoryStore) -> None:
    assert (await beginning(store)).number == 0
    assert await live(store, 3) == [0, 1, 2, 3]
    assert await create(store, "/topic/other") == 4
    assert await live(store, 9) == [4, 5, 6, 7, 8, 9]
    await forget(store, [Counter(await record_of(store, "/topic/other"), 5)])
    assert (await beginning(store)).number == 10, "it never goes back"


async def test_several_are_forgotten_together_or_none(store: MemoryStore) -> None:
    for key in ("/topic/a", "/topic/b"):
        await create(store, key)
    counters = [Counter(await record_of(store, "/topic/a"), 7), Counter(await record_of(store, "/topic/b"), 4)]
    await store.apply(store.batch().put("/topic/b", b"it is used again"))
    with pytest.raises(CheckFailed):
        await forget(store, counters)
    assert await store.get("/topic/a") is not None and (await beginning(store)).number == 0
    await forget(store, [counters[0], Counter(await record_of(store, "/topic/b"), 4)])
    assert await store.get("/topic/a") is None and (await beginning(store)).number == 8


@pytest.mark.parametrize("name_first", [True, False])
@pytest.mark.parametrize("at", list(itertools.combinations_with_replacement(range(3), 2)))
@pytest.mark.parametrize("before", [0, 20])
async def test_a_creator_that_is_overtaken_never_reuses_a_number(
    store: MemoryStore, name_first: bool, at: tuple[int, ...], before: int
) -> None:
    """It reads twice, in either order, and then applies; other lives of the record fit in between at any places."""
    if before:
        await live(store, before, "/topic/other")
    used: list[int] = []
    step = itertools.count()

    async def others() -> None:
        for _ in range(at.count(next(step))):
            used.extend(await live(store, 5))

    await others()
    absent = await store.get(NAME) if name_first else None
    first = None if name_first else await beginning(store)
    await others()
    absent = absent if name_first else await store.get(NAME)
    first = first or await beginning(store)
    await others()
    assert absent is None
    try:
        await store.apply(store.batch().check(first.check).create(NAME, b""))
    except CheckFailed:
        return
    assert first.number not in used


async def test_it_is_above_the_numbers_of_a_store_that_was_restored(store: MemoryStore) -> None:
    await live(store, 3)
    incarnation = Incarnation(id="a", begun_ms=1, recovered_ms=1_000)
    await store.apply(store.batch().put(paths.INCARNATION, incarnation.encode()))
    assert (await beginning(store)).number == 1_000
    await store.apply(store.batch().put(paths.FIRST_NUMBER, FirstNumber(number=2_000).encode()))
    assert (await beginning(store)).number == 2_000


def segment(number: int) -> str:
    return f"segment://public/default/t/0000-ffff-{number}"


def topic(*segments: int, **settings: Any) -> TopicRecord:
    name = "public/default/t"
    return TopicRecord(name=name, segments=tuple(map(segment, segments)), next_segment=7, created_ms=1, **settings)


@pytest.mark.parametrize(
    ("topic", "deleted", "lost"),
    [
        pytest.param(None, [0, 11], [12, 30], id="forgotten"),
        pytest.param(topic(deleted=True), [0, 6], [7, 11], id="deleted"),
        pytest.param(topic(5), [0, 4], [5, 6, 11], id="created again"),
        pytest.param(topic(6, first_segment=3), [0, 2], [3, 6, 11], id="after removals"),
    ],
)
async def test_bytes_that_are_left_over_are_told_from_bytes_of_a_topic_that_was_lost(
    store: MemoryStore, topic: TopicRecord | None, deleted: list[int], lost: list[int]
) -> None:
    await live(store, 11, "/topic/other")
    if topic is not None:
        await store.apply(store.batch().create(NAME, topic.encode()))
    assert [await was_deleted(store, segment(number)) for number in deleted] == [True] * len(deleted)
    assert [await was_deleted(store, segment(number)) for number in lost] == [False] * len(lost)
    owner = OwnerRecord(broker="", url="", generation=3, deleted=True)
    await store.apply(store.batch().create(paths.segment_owner(segment(lost[0])), owner.encode()))
    assert await was_deleted(store, segment(lost[0]))
    assert not await was_deleted(store, "not a segment")
