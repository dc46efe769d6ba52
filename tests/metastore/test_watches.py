"""Goal: the log and its queues keep their bounds and never hide that something was lost.

Method: changes are published by hand, so that a feed can be late, lossy or too fast.
"""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from metastore.types import Changes, Event, Record, Resync, WatchItem
from metastore.watches import ChangeLog, QueueWatch, size_bytes


def change(revision: int, *keys: str) -> Changes:
    return Changes(revision, tuple(Event(key, Record(key, b"", revision, True)) for key in keys or ("/a",)))


ONE_EVENT = size_bytes(change(1).events)


async def drained(watch: QueueWatch, count: int) -> list[WatchItem]:
    return [await anext(watch) for _ in range(count)]


async def test_a_watch_ahead_of_a_late_feed_repeats_nothing() -> None:
    """A reader saw revision 4 before the feed published 3: the watch behind that read starts at 5."""
    log = ChangeLog(2)
    watch = log.watch("/", 5)
    for revision in (3, 4, 5):
        log.publish(change(revision))
    assert await drained(watch, 1) == [change(5)]


async def test_a_backlog_that_grows_too_long_becomes_one_resync() -> None:
    watch = QueueWatch("/", lambda _: None, max_bytes=3 * ONE_EVENT)
    for revision in range(1, 6):
        watch.offer(change(revision))
    first, second = await drained(watch, 2)
    assert isinstance(first, Resync) and first.revision == 4
    assert second == change(5)


async def test_a_consumer_that_never_reads_costs_no_more_than_its_bound() -> None:
    """Few events with large values count as much as many with small ones."""
    log = ChangeLog(0, max_bytes=1_000_000)
    watch = QueueWatch("/", lambda _: None, max_bytes=1_000_000)
    tracemalloc.start()
    try:
        for revision in range(1, 300):
            size = 100_000 if revision % 2 else 10
            changes = Changes(revision, (Event("/a", Record("/a", bytes(size), revision, True)),))
            log.publish(changes)
            watch.offer(changes)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2_500_000
    (resync,) = await drained(watch, 1)
    assert isinstance(resync, Resync)


async def test_a_consumer_that_keeps_up_never_sees_a_resync() -> None:
    watch = QueueWatch("/", lambda _: None, max_bytes=3 * ONE_EVENT)
    for revision in range(1, 20):
        watch.offer(change(revision, "/a", "/b"))
        assert await drained(watch, 1) == [change(revision, "/a", "/b")]


async def test_the_log_forgets_its_oldest_changes_and_says_so() -> None:
    log = ChangeLog(1, max_bytes=3 * ONE_EVENT)
    for revision in range(2, 8):
        log.publish(change(revision))
    assert log.floor == 4
    (item,) = await drained(log.watch("/", 4), 1)
    assert isinstance(item, Resync) and item.revision == 7
    assert await drained(log.watch("/", 5), 3) == [change(5), change(6), change(7)]


async def test_a_lossy_feed_tells_every_watch() -> None:
    log = ChangeLog(1)
    watch = log.watch("/", 2)
    log.publish(change(2))
    log.resync(9, "lost")
    log.publish(change(10))
    item, after = await drained(watch, 2)
    assert item == Resync(9, "lost")
    assert after == change(10)
    assert isinstance(await anext(log.watch("/", 9)), Resync)


async def test_revisions_only_grow() -> None:
    log = ChangeLog(3)
    with pytest.raises(AssertionError):
        log.publish(change(3))


async def test_closing_the_log_wakes_who_waits() -> None:
    log = ChangeLog(1)
    waiting = asyncio.create_task(anext(log.watch("/", 2), None))
    await asyncio.sleep(0)
    await log.close()
    assert await waiting is None
