"""Watches inside one process: a log of recent changes, delivered to any number of bounded queues.

Every backend feeds one `ChangeLog`: memory and SQLite from their own writes, etcd and ZooKeeper from one server watch
per prefix. Watch callbacks only enqueue; the owner of a `QueueWatch` drains it at its own pace.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from metastore.api import MetadataStore
from metastore.background import Backoff, in_background
from metastore.errors import StoreUnavailable
from metastore.types import Changes, Event, Record, Resync, Revision, Watch, WatchItem

MAX_QUEUED_BYTES = 64 << 20
MAX_LOGGED_BYTES = 64 << 20
EVENT_BYTES = 500
"""The approximate memory of an event besides its key and value. A limit on the number of events alone would not limit
memory: one value may be as large as a batch."""


class Written(NamedTuple):
    """What one apply has deleted and put. Events are made of it only below a prefix that is watched.

    `known` are those of the keys put that existed before.
    """

    revision: Revision
    deleted: Sequence[str]
    puts: Mapping[str, bytes]
    known: Collection[str]

    @property
    def size_bytes(self) -> int:
        keys = sum(map(len, self.puts)) + sum(map(len, self.deleted))
        values = sum(map(len, self.puts.values()))
        return EVENT_BYTES * (len(self.puts) + len(self.deleted)) + keys + values

    def below(self, prefix: str) -> tuple[Event, ...]:
        gone = [Event(key, None) for key in self.deleted if key.startswith(prefix)]
        there = (
            Event(key, Record(key, value, self.revision, key not in self.known))
            for key, value in self.puts.items()
            if key.startswith(prefix)
        )
        return (*gone, *there)


def size_bytes(events: Iterable[Event]) -> int:
    return sum(EVENT_BYTES + len(key) + (len(record.value) if record else 0) for key, record in events)


class QueueWatch(Watch):
    """A bounded queue of watch items. A consumer that falls too far behind gets a `Resync` instead of the backlog.

    Changes before `from_revision` are dropped even if they are offered late: a read can be ahead of the feed, and a
    watch that continues after that read must not repeat what the read has shown.
    """

    def __init__(
        self,
        prefix: str,
        on_close: Callable[[QueueWatch], None],
        max_bytes: int = MAX_QUEUED_BYTES,
        from_revision: Revision = 0,
    ) -> None:
        self.prefix = prefix
        self._on_close = on_close
        self._max_bytes = max_bytes
        self._from_revision = from_revision
        self._items: deque[tuple[WatchItem, int]] = deque()
        self._queued_bytes = 0
        self._wakeup = asyncio.Event()
        self._closed = False

    def offer(self, changes: Changes | Written) -> None:
        """Enqueue the events below this watch's prefix. Never blocks."""
        if changes.revision < self._from_revision:
            return
        events = changes.below(self.prefix)
        if not events:
            return
        size = size_bytes(events)
        if self._queued_bytes + size > self._max_bytes:
            self.resync(changes.revision, "the consumer was too slow")
            return
        self._items.append((Changes(changes.revision, events), size))
        self._queued_bytes += size
        self._wakeup.set()

    def resync(self, revision: Revision, reason: str) -> None:
        """Drop the backlog and tell the consumer to read again at or after `revision`."""
        self._items.clear()
        self._queued_bytes = 0
        self._items.append((Resync(revision, reason), 0))
        self._wakeup.set()

    async def __anext__(self) -> WatchItem:
        while not self._items:
            if self._closed:
                raise StopAsyncIteration
            self._wakeup.clear()
            await self._wakeup.wait()
        item, size = self._items.popleft()
        self._queued_bytes -= size
        return item

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._items.clear()
            self._wakeup.set()
            self._on_close(self)


class ChangeLog:
    """Recent changes in memory, so that a watch can start a little in the past, and the queues that follow them.

    `floor` is the last revision that is no longer in the log: a watch from at or below it starts with a `Resync`.
    `on_idle` is called when the last watch has been closed, so that the feed of the log can stop.
    """

    def __init__(
        self,
        revision: Revision,
        max_bytes: int = MAX_LOGGED_BYTES,
        on_idle: Callable[[], None] | None = None,
    ) -> None:
        self.floor = revision
        self.revision = revision
        self._max_bytes = max_bytes
        self._on_idle = on_idle
        self._changes: deque[tuple[Changes | Written, int]] = deque()
        self._logged_bytes = 0
        self._watches: list[QueueWatch] = []

    def publish(self, changes: Changes | Written) -> None:
        assert changes.revision > self.revision, "revisions must grow"
        self.revision = changes.revision
        size = changes.size_bytes if isinstance(changes, Written) else size_bytes(changes.events)
        self._changes.append((changes, size))
        self._logged_bytes += size
        while self._logged_bytes > self._max_bytes:
            self.compact(self._changes[0][0].revision)
        for watch in self._watches:
            watch.offer(changes)

    def compact(self, revision: Revision) -> None:
        """Forget the changes at or below `revision`."""
        while self._changes and self._changes[0][0].revision <= revision:
            self._logged_bytes -= self._changes.popleft()[1]
        self.floor = max(self.floor, min(revision, self.revision))

    def resync(self, revision: Revision, reason: str) -> None:
        """The feed itself lost events up to `revision`: forget everything and notify every watch."""
        self._changes.clear()
        self._logged_bytes = 0
        self.floor = self.revision = max(revision, self.revision)
        for watch in self._watches:
            watch.resync(self.revision, reason)

    def watch(self, prefix: str, from_revision: Revision) -> QueueWatch:
        watch = QueueWatch(prefix, self._leave, MAX_QUEUED_BYTES, from_revision)
        if from_revision <= self.floor:
            watch.resync(self.revision, f"revision {from_revision} is compacted away")
        else:
            for changes, _ in self._changes:
                if changes.revision >= from_revision:
                    watch.offer(changes)
        self._watches.append(watch)
        return watch

    def _leave(self, watch: QueueWatch) -> None:
        self._watches.remove(watch)
        if not self._watches and self._on_idle:
            self._on_idle()

    async def close(self) -> None:
        for watch in list(self._watches):
            await watch.close()


class Mirror:
    """A live copy of every record below a prefix: listed at a revision, then kept by a watch.

    `records` is the state at `revision`; it only moves forward. `on_change` is called for every change, after
    `records` was updated; after a gap the mirror lists again and reports the difference the same way, so a
    consumer sees every key's latest state and never needs to know about gaps. `resyncs` counts them.
    """

    def __init__(self, store: MetadataStore, prefix: str, on_change: Callable[[Event], None]) -> None:
        self._store = store
        self.prefix = prefix
        self._on_change = on_change
        self._records: dict[str, Record] = {}
        self.revision: Revision = 0
        self.resyncs = 0

    @property
    def records(self) -> Mapping[str, Record]:
        return self._records

    def forget(self, key: str) -> None:
        """Stop keeping `key`. It comes back as a change when it changes or is listed after a gap."""
        self._records.pop(key, None)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """List, then follow the prefix in a task until the block is left. The block is entered once the list is
        complete."""
        await self._list()
        task = in_background(self._follow(), f"mirror of {self.prefix}")
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _follow(self) -> None:
        async with self._store.watch(self.prefix, self.revision + 1) as watch:
            async for item in watch:
                if isinstance(item, Resync):
                    self.resyncs += 1
                    await self._list_until_answered()
                elif item.revision > self.revision:
                    for event in item.events:
                        self._take(event)
                    self.revision = item.revision

    async def _list_until_answered(self) -> None:
        """List again after a gap. The store may be away for a while, so this is retried until it answers."""
        backoff = Backoff(first_s=0.05, longest_s=2.0)
        while True:
            try:
                await self._list()
                return
            except StoreUnavailable:
                await backoff.pause()

    async def _list(self) -> None:
        listing = await self._store.scan(self.prefix)
        if listing.revision < self.revision:
            return
        now = {record.key for record in listing.records}
        for key in [key for key in self._records if key not in now]:
            self._take(Event(key, None))
        for record in listing.records:
            self._take(Event(record.key, record))
        self.revision = listing.revision

    def _take(self, event: Event) -> None:
        """Take only what is new: a watch that collapses changes may repeat what a listing after its `Resync` has
        shown."""
        known = self._records.get(event.key)
        if event.record is None:
            if known is None:
                return
            del self._records[event.key]
        elif known is None or known.version < event.record.version:
            self._records[event.key] = event.record
        else:
            return
        self._on_change(event)
