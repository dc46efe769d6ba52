"""The two ledgers of object storage: one that grows by an object per group of appends, one that never changes.

A few puts are under way at once, because each takes tens of milliseconds. They may land in any order; acknowledged are
they in the order of their names. So the first name that is free is where the ledger ends: whatever lies behind it was
acknowledged to nobody.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

from metatxn.wire.frames import RawFrame, finish
from participants.ledger.append_queue import GroupOutcome, LedgerMetrics, Pending, QueuedLedger
from participants.ledger.bucket import Bucket
from participants.ledger.objects import (
    START,
    NameTaken,
    ObjectExtent,
    ObjectHeader,
    ObjectIndex,
    ObjectKind,
    object_name,
    put_once,
)
from participants.ledger.reading import checked_frames, end_of_read
from participants.ledger.storage import (
    LedgerCorrupt,
    LedgerFenced,
    LedgerMissing,
    LedgerStopped,
    ReadableLedger,
    SealedLedger,
    StorageFailed,
)
from participants.ledger.workers import Workers

PUTS_AT_ONCE = 4
"""Of one ledger. Recovery looks no further behind the end of a ledger: never lower it."""
_OBJECTS_PER_READ = 16
_CACHED_OBJECT_BYTES = 1 << 20
_CACHE_BYTES = 64 << 20


class ObjectCache:
    """What was written or read last, of all ledgers of a storage. Only for speed: objects never change."""

    def __init__(self) -> None:
        self._objects: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def get(self, name: str) -> bytes | None:
        content = self._objects.get(name)
        if content is not None:
            self._objects.move_to_end(name)
        return content

    def put(self, name: str, content: bytes) -> None:
        """Large objects are not kept: they are read in parts."""
        if len(content) > _CACHED_OBJECT_BYTES or name in self._objects:
            return
        self._objects[name] = content
        self._bytes += len(content)
        while self._bytes > _CACHE_BYTES:
            self._bytes -= len(self._objects.popitem(last=False)[1])

    def forget(self, prefix: str) -> None:
        for name in [name for name in self._objects if name.startswith(prefix)]:
            self._bytes -= len(self._objects.pop(name))


class Reach:
    """What the ledgers of one storage share: its objects, its threads, its cache; nothing once it is closed."""

    def __init__(self, bucket: Bucket, workers: Workers) -> None:
        self.bucket = bucket
        self.workers = workers
        self.cache = ObjectCache()
        self.closed = False

    def check_open(self) -> None:
        if self.closed:
            raise LedgerStopped("this storage was closed")

    async def content(self, name: str, size: int, start: int, end: int) -> memoryview:
        """Bytes `start` up to `end` of an object of `size` bytes. Raises `FileNotFoundError`, `StorageFailed`."""
        cached = self.cache.get(name)
        if cached is None:
            if size > _CACHED_OBJECT_BYTES:
                return memoryview(await self.bucket.get_range(name, start, end))
            cached = await self.bucket.get(name)
            self.cache.put(name, cached)
        return memoryview(cached)[start:end]


class _ObjectLedger(ReadableLedger):
    def __init__(self, reach: Reach, segment: str, ledger: int) -> None:
        self.id = ledger
        self.segment = segment
        self._reach = reach

    @property
    @abstractmethod
    def _index(self) -> ObjectIndex:
        """Of what may be read."""

    @property
    def entries(self) -> int:
        return self._index.entries

    @property
    def size_bytes(self) -> int:
        return self._index.offsets[-1]

    async def read(self, first_entry: int, max_bytes: int, last_entry: int | None = None) -> list[RawFrame]:
        assert first_entry >= 0, first_entry
        self._reach.check_open()
        index = self._index
        if first_entry >= index.entries:
            return []
        end = end_of_read(index.offsets, first_entry, max_bytes, last_entry)
        # Everything is taken from the index before the first wait: that of an open ledger grows meanwhile.
        wanted = [
            (part, index.bounds(part), index.size(part.number))
            for part in islice(index.parts(first_entry, end), _OBJECTS_PER_READ)
        ]
        found = await asyncio.gather(*(self._frames_of(*each) for each in wanted))
        return [frame for frames in found for frame in frames]

    async def read_part(self, entry: int, start: int, end: int) -> memoryview:
        self._reach.check_open()
        (part,) = self._index.parts(entry, entry + 1)
        begin = self._index.bounds(part)[0]
        return await self._content(part, self._index.size(part.number), begin + start, begin + end)

    async def _frames_of(self, part: ObjectExtent, bounds: array[int], size: int) -> list[RawFrame]:
        content = await self._content(part, size, bounds[0], bounds[-1])
        return await self._reach.workers.run(checked_frames, content, self.id, part.first, bounds)

    async def _content(self, part: ObjectExtent, size: int, begin: int, end: int) -> memoryview:
        """Bytes of the object of `part`, which has `size`."""
        name = object_name(self.segment, self.id, part.number)
        try:
            return await self._reach.content(name, size, begin, end)
        except FileNotFoundError as error:
            raise await self._lost(name) from error

    async def _lost(self, name: str) -> LedgerCorrupt | LedgerMissing:
        try:
            await self._reach.bucket.get(object_name(self.segment, self.id, START))
        except FileNotFoundError:
            return LedgerMissing(f"ledger {self.id} of {self.segment} is not in this storage (any more)")
        return LedgerCorrupt(f"{name} is missing")


class ObjectSealedLedger(_ObjectLedger, SealedLedger):
    def __init__(self, reach: Reach, segment: str, ledger: int, index: ObjectIndex) -> None:
        super().__init__(reach, segment, ledger)
        self._final = index

    @property
    def _index(self) -> ObjectIndex:
        return self._final


class ObjectOpenLedger(_ObjectLedger, QueuedLedger):
    groups_at_once = PUTS_AT_ONCE

    def __init__(
        self,
        reach: Reach,
        segment: str,
        ledger: int,
        token: bytes,
        metrics: LedgerMetrics,
        seal: Callable[[ObjectIndex], Awaitable[ObjectIndex]],
        on_ended: Callable[[ObjectOpenLedger], None],
    ) -> None:
        """`seal` reads on behind what this ledger knows to be durable, and puts the fence."""
        _ObjectLedger.__init__(self, reach, segment, ledger)
        QueuedLedger.__init__(self, segment, ledger, metrics)
        self._token = token
        self._firsts = array("Q")
        self._last_number = START
        self._seal = seal
        self._on_ended = on_ended
        self._seal_lock = asyncio.Lock()
        self._sealed: ObjectSealedLedger | None = None

    @property
    def _index(self) -> ObjectIndex:
        return ObjectIndex(self.offsets, self._firsts)

    def write(self, group: list[Pending], durable: int) -> asyncio.Future[GroupOutcome]:
        self._last_number += 1
        first = durable + sum(len(ahead) for ahead, _ in self._groups)
        header = ObjectHeader(ObjectKind.FRAMES, self._token, first, durable)
        return asyncio.ensure_future(self._put(self._last_number, header, group))

    async def _put(self, number: int, header: ObjectHeader, group: Sequence[Pending]) -> GroupOutcome:
        name = object_name(self.segment, self.id, number)
        content = await self._reach.workers.run(_assemble, header, group)
        began = self.metrics.clock()
        try:
            await put_once(self._reach.bucket, name, content, self._token)
        except NameTaken as error:
            return GroupOutcome(LedgerFenced(f"ledger {self.id} of {self.segment} has another owner: {error}"))
        except StorageFailed as error:
            return GroupOutcome(error)
        self._reach.cache.put(name, content)
        return GroupOutcome(None, self.metrics.clock() - began)

    def landed(self, group: list[Pending]) -> None:
        self._firsts.append(self.entries)
        super().landed(group)

    async def seal(self) -> SealedLedger:
        self._reach.check_open()
        await self.no_more_appends()
        async with self._seal_lock:
            if self._sealed is None:
                index = await self._seal(self._index.copy())
                self._sealed = ObjectSealedLedger(self._reach, self.segment, self.id, index)
                self._on_ended(self)
        return self._sealed

    async def close(self) -> None:
        await self.no_more_appends()
        self._on_ended(self)


def _assemble(header: ObjectHeader, group: Sequence[Pending]) -> bytes:
    frames = [
        part for pending in group for part in (finish(pending.draft, pending.payload, header.durable), pending.payload)
    ]
    return b"".join([header.encode(), *frames])
