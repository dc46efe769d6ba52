"""Goal: a page of topics costs a few reads of the store, however many topics it has, and shows each as a read of that
topic alone would."""

from __future__ import annotations

import pytest

from metastore.backends.memory import MemoryStore
from metastore.txn import paths
from metastore.txn.records.topics import TopicRecord
from metastore.txn.store import INDEXES
from metatxn.wire import errors
from participants.messages import topics as module
from participants.messages.topics import Topics
from tests.coordinator.stores import FaultyStore

SEGMENTS = 7
KEYS = 1 + 2 * SEGMENTS


@pytest.fixture
async def store() -> FaultyStore:
    return FaultyStore(MemoryStore(INDEXES))


async def created(topics: Topics) -> list[TopicRecord]:
    return [await topics.create(f"a/b/{letter}", SEGMENTS, None, "here", 1) for letter in "vwxyz"]


@pytest.mark.parametrize(("keys_per_read", "reads"), [(KEYS - 1, 5), (2 * KEYS, 3), (5 * KEYS, 1)])
async def test_topics_are_read_together(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch, keys_per_read: int, reads: int
) -> None:
    topics = Topics(store)
    records = await created(topics)
    one_by_one = [await topics.describe(each) for each in records]
    monkeypatch.setattr(module, "KEYS_PER_READ", keys_per_read)
    store.requests = 0
    assert await topics.describe_each(records) == one_by_one
    assert store.requests == reads


async def test_what_has_changed_since_the_page_was_read(store: FaultyStore) -> None:
    """A deleted topic is left out; one that has lost a segment is shown as it is now."""
    topics = Topics(store)
    records = await created(topics)
    deleted, shorter, others = records[1], records[3], [records[0], records[2], records[4]]
    await write(store, deleted.model_copy(update={"deleted": True}), deleted.segments[0])
    await write(store, shorter.model_copy(update={"segments": shorter.segments[1:]}), shorter.segments[0])
    with pytest.raises(errors.NotFound):
        await topics.describe(deleted)
    described = {each.name: each for each in await topics.describe_each(records)}
    assert sorted(described) == sorted([shorter.name, *(each.name for each in others)])
    assert [each.segment for each in described[shorter.name].segments] == list(shorter.segments[1:])


async def write(store: FaultyStore, topic: TopicRecord, removed: str) -> None:
    """The topic as it is now, without the record of one segment."""
    batch = store.batch().put(paths.topic(topic.name), topic.encode())
    segment = await store.get(paths.segment(removed))
    assert segment is not None
    await store.apply(batch.remove(segment))
