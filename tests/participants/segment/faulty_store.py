"""A metadata store with faults, driven by events and never by time.

On: an apply that is held before or after its effect, refused, or whose reply is lost before or after its effect;
reads that are held; watch events that are withheld, dropped, or replaced by a gap. Off: wrong answers; a store that
lies is nobody's fault model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from metastore.api import Ephemeral, MetadataStore, StoredIndexes
from metastore.backends.memory import MemoryStore
from metastore.errors import MetastoreError
from metastore.txn import paths
from metastore.txn.store import INDEXES
from metastore.types import Applied, Batch, Changes, RangeResult, Revision, Snapshot, Watch, WatchItem

Matches = Callable[[Batch], bool]


def puts(prefix: str) -> Matches:
    return lambda batch: any(key.startswith(prefix) for key in batch.puts)


def deletes(prefix: str) -> Matches:
    return lambda batch: any(key.startswith(prefix) for key in batch.deletes)


INTENT = puts(paths.OPS)
CLEANUP = deletes(paths.OPS)


@dataclass(eq=False)
class Fault:
    """What happens to the next apply that matches. `reached` is set once it is held, `go` lets it go on."""

    matches: Matches
    before: MetastoreError | None = None
    after: MetastoreError | None = None
    hold_before: bool = False
    hold_after: bool = False
    times: int = 1
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)

    async def stop_here(self) -> None:
        self.reached.set()
        await self.go.wait()


@dataclass(eq=False)
class HeldRead:
    wanted: Callable[[Sequence[str]], bool]
    unread: bool = False
    error: MetastoreError | None = None
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    go: asyncio.Event = field(default_factory=asyncio.Event)


class FaultyStore(StoredIndexes):
    def __init__(self, inner: MetadataStore | None = None) -> None:
        """With `inner` one process's view of a store that others have, too: its faults are its own."""
        super().__init__(INDEXES)
        self.inner = inner or MemoryStore(INDEXES)
        self.max_batch_bytes = self.inner.max_batch_bytes
        self.applied: list[Batch] = []
        self.ranged: list[str] = []
        """Where each range that was read began."""
        self.away: MetastoreError | None = None
        """When set, every read and write fails with it."""
        self.events_flow = asyncio.Event()
        self.events_flow.set()
        self.dropping = False
        self._faults: list[Fault] = []
        self._reads: list[HeldRead] = []
        self._ranges: list[HeldRead] = []

    def fault(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def hold_read(self, wanted: Callable[[Sequence[str]], bool], *, unread: bool = False) -> HeldRead:
        """Hold the *answer* of the next `get_many` that matches: it was read, and what follows is not in it. With
        `unread` the request is held instead: what follows is in its answer."""
        held = HeldRead(wanted, unread)
        self._reads.append(held)
        return held

    def hold_range(self, prefix: str, *, unread: bool = False) -> HeldRead:
        """Hold the answer of the next range that begins with `prefix`, or with `unread` its request."""
        held = HeldRead(lambda keys: keys[0].startswith(prefix), unread)
        self._ranges.append(held)
        return held

    def cut_watches(self) -> None:
        """Every watch loses its backlog and delivers a gap, as after a compaction or an expired session."""
        assert isinstance(self.inner, MemoryStore), "a real store cuts its watches itself"
        self.inner._log.resync(self.inner._revision, "cut")

    async def apply(self, batch: Batch) -> Applied:
        self._assert_near()
        fault = next((fault for fault in self._faults if fault.matches(batch)), None)
        if fault is None:
            return await self._apply(batch)
        fault.times -= 1
        if not fault.times:
            self._faults.remove(fault)
        if fault.hold_before:
            await fault.stop_here()
        if fault.before is not None:
            raise fault.before
        applied = await self._apply(batch)
        if fault.hold_after:
            await fault.stop_here()
        if fault.after is not None:
            raise fault.after
        return applied

    async def _apply(self, batch: Batch) -> Applied:
        applied = await self.inner.apply(batch)
        self.applied.append(batch)
        return applied

    async def get_many(self, wanted: Sequence[str]) -> Snapshot:
        self._assert_near()
        held = next((held for held in self._reads if held.wanted(wanted)), None)
        if held is None:
            return await self.inner.get_many(wanted)
        self._reads.remove(held)
        found = await self.inner.get_many(wanted)
        held.reached.set()
        await held.go.wait()
        if held.error is not None:
            raise held.error
        return await self.inner.get_many(wanted) if held.unread else found

    async def range(
        self, start: str, end: str, *, limit: int = 0, reverse: bool = False, keys_only: bool = False
    ) -> RangeResult:
        self._assert_near()
        self.ranged.append(start)
        found = await self.inner.range(start, end, limit=limit, reverse=reverse, keys_only=keys_only)
        held = next((held for held in self._ranges if held.wanted([start])), None)
        if held is not None:
            self._ranges.remove(held)
            held.reached.set()
            await held.go.wait()
            if held.error is not None:
                raise held.error
            if held.unread:
                return await self.inner.range(start, end, limit=limit, reverse=reverse, keys_only=keys_only)
        return found

    def watch(self, prefix: str, from_revision: Revision) -> Watch:
        return _FaultyWatch(self, self.inner.watch(prefix, from_revision))

    async def ephemeral(self, key: str, value: bytes, ttl_ms: int) -> Ephemeral:
        return await self.inner.ephemeral(key, value, ttl_ms)

    async def close(self) -> None:
        await self.inner.close()

    def _assert_open(self) -> None:
        self.inner._assert_open()

    def _assert_near(self) -> None:
        if self.away is not None:
            raise self.away


class _FaultyWatch(Watch):
    def __init__(self, store: FaultyStore, inner: Watch) -> None:
        self._store = store
        self._inner = inner

    async def __anext__(self) -> WatchItem:
        while True:
            item = await anext(self._inner)
            await self._store.events_flow.wait()
            if not (self._store.dropping and isinstance(item, Changes)):
                return item

    async def close(self) -> None:
        await self._inner.close()
