"""Goal: a client of Pulsar's always sees segments for every key, whatever of a split or merge is seen first.

Method: the records of a topic are changed one after the other, as watches of different records may show them; and a
real merge, looked at while it is half done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import permutations

import pytest

from metastore.backends.memory import MemoryStore
from metastore.txn import paths
from metastore.txn.records.json_record import JsonRecord
from metastore.txn.records.segments import MergeClaim, SegmentRecord
from metastore.txn.records.topics import TopicRecord
from metatxn_gateways.pulsar.layouts import SegmentGraphs
from tests.gateways.pulsar.client import PATIENCE_S
from tests.gateways.pulsar.conftest import PulsarGateway

TOPIC = "public/default/t"
PARENT, LOW, HIGH = (f"segment://{TOPIC}/{part}" for part in ("0000-ffff-0", "0000-7fff-1", "8000-ffff-2"))
RANGES = {PARENT: (0, 65535), LOW: (0, 32767), HIGH: (32768, 65535)}


def topic(*segments: str) -> TopicRecord:
    return TopicRecord(name=TOPIC, segments=segments, next_segment=3, created_ms=1, format="pulsar")


def segment(name: str, state: str = "active", **fields: object) -> SegmentRecord:
    return SegmentRecord.model_validate(
        {"topic": TOPIC, "range": RANGES[name], "storage": "s", "state": state, "parents": (), **fields}
    )


class Seen:
    """The layouts as a watcher sees them."""

    def __init__(self, store: MemoryStore, graphs: SegmentGraphs) -> None:
        self.store = store
        self.graphs = graphs
        self._changed = asyncio.Event()
        self.leave: Callable[[], None] = graphs.watch(TOPIC, self._changed.set)

    async def change(self, key: str, record: JsonRecord) -> None:
        """Put a record, and wait until that is seen."""
        self._changed.clear()
        stored = await self.store.get(key)
        batch = self.store.batch()
        await self.store.apply(batch.replace(stored, record.encode()) if stored else batch.create(key, record.encode()))
        async with asyncio.timeout(PATIENCE_S):
            await self._changed.wait()

    def active(self) -> list[str]:
        graph = self.graphs.get(TOPIC)
        return [] if graph is None else [name for name in graph.segments if not graph.is_sealed(name)]


@pytest.fixture
async def seen() -> AsyncIterator[Seen]:
    """A topic with one segment."""
    store = MemoryStore()
    graphs = SegmentGraphs(store)
    async with graphs.running():
        seen = Seen(store, graphs)
        await seen.change(paths.topic(TOPIC), topic(PARENT))
        assert graphs.get(TOPIC) is None and graphs.exists(TOPIC)
        await seen.change(paths.segment(PARENT), segment(PARENT))
        assert seen.active() == [PARENT]
        yield seen


@pytest.mark.parametrize("order", list(permutations(range(4))))
async def test_a_split_is_seen_at_once(seen: Seen, order: tuple[int, ...]) -> None:
    changes = (
        (paths.segment(PARENT), segment(PARENT, "sealed", children=(LOW, HIGH))),
        (paths.segment(LOW), segment(LOW, parents=(PARENT,))),
        (paths.segment(HIGH), segment(HIGH, parents=(PARENT,))),
        (paths.topic(TOPIC), topic(PARENT, LOW, HIGH)),
    )
    done: set[int] = set()
    for step in order:
        await seen.change(*changes[step])
        done.add(step)
        with_children = done >= {1, 2, 3}  # then the parent counts as sealed, whether that was seen or not
        assert seen.active() == ([LOW, HIGH] if with_children else [PARENT])


async def test_what_is_sealed_for_a_merge_is_shown_as_active_until_that_is_over(seen: Seen) -> None:
    for name in (LOW, HIGH):
        await seen.change(paths.segment(name), segment(name))
    await seen.change(paths.topic(TOPIC), topic(LOW, HIGH))
    for name, other in ((LOW, HIGH), (HIGH, LOW)):
        claim = MergeClaim(other=other, child=PARENT, claimed_ms=1)
        await seen.change(paths.segment(name), segment(name, "sealed", merge=claim))
        assert seen.active() == [LOW, HIGH]
    for name in (LOW, HIGH):
        await seen.change(paths.segment(name), segment(name, "sealed", children=(PARENT,)))
        assert seen.active() == [LOW, HIGH]
    await seen.change(paths.segment(PARENT), segment(PARENT, parents=(LOW, HIGH)))
    await seen.change(paths.topic(TOPIC), topic(LOW, HIGH, PARENT))
    assert seen.active() == [PARENT]


async def test_a_segment_that_was_sealed_by_hand_is_shown_as_sealed(seen: Seen) -> None:
    await seen.change(paths.segment(PARENT), segment(PARENT, "sealed"))
    assert seen.active() == []


async def test_a_topic_that_is_gone_or_that_nobody_watches_is_not_remembered(seen: Seen) -> None:
    await seen.change(paths.segment(PARENT), segment(PARENT, "sealed", children=(LOW,)))
    assert seen.active() == [PARENT]
    deleted = topic(PARENT).model_copy(update={"deleted": True})
    await seen.change(paths.topic(TOPIC), deleted)
    assert seen.graphs.get(TOPIC) is None and not seen.graphs.exists(TOPIC)
    await seen.change(paths.topic(TOPIC), topic(PARENT))
    assert seen.graphs.get(TOPIC) is None, "a topic of the same name is another one"
    await seen.change(paths.segment(PARENT), segment(PARENT))
    assert seen.active() == [PARENT]
    seen.leave()
    await seen.store.apply(seen.store.batch().put(paths.topic(TOPIC), topic(PARENT, LOW).encode()))
    assert seen.graphs._whole == {}


async def test_every_layout_that_a_client_is_told_has_a_segment_for_every_key(gateway: PulsarGateway) -> None:
    (segment_id,) = await gateway.create("t")
    async with gateway.client() as client:
        layouts = [(await client.layout("t")).layout]
        for _ in range(3):
            (segment_id,) = await gateway.merge(await gateway.split(segment_id))
        while layouts[-1].segments[-1].segment_id != int(segment_id.rpartition("-")[2]):
            layouts.append((await client.next("scalable_topic_update")).layout)
        for layout in layouts:
            active = sorted((each.hash_start, each.hash_end) for each in layout.segments if each.state == 0)
            assert [low for low, _ in active] == [0, *(high + 1 for _, high in active[:-1])], layout
            assert active[-1][1] == 65535, layout
