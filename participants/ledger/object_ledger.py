"""The two ledgers of object storage: one that grows by an object per group of appends, and one that never changes.

A few puts are in flight at once, because each takes tens of milliseconds. They may land in any order, but they are
acknowledged in the order of their names. So the ledger ends at the first name that is free: nothing after it was
acknowledged.
"""

from __future__ import annotations

import asyncio
import re
from abc import abstractmethod
from array import array
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

from metatxn.wire.frames import RawFrame, finish
from participants.ledger.append_queue import GroupOutcome, LedgerMetrics, Pending, QueuedLedger
from participants.ledger.bucket import Bucket
from participants.ledger.form import Form, first_kept, last_kept
from participants.ledger.objects import (
    START,
    NameTaken,
    ObjectExtent,
    ObjectHeader,
    ObjectIndex,
    ObjectKind,
    form_part_name,
    ledger_prefix,
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
"""The most puts of one ledger in flight. Recovery looks no further beyond the end of a ledger, so never lower it."""
_OBJECTS_PER_READ = 16
_CACHED_OBJECT_BYTES = 1 << 20
_CACHE_BYTES = 64 << 20
_FORM = re.compile(r"form\.(\d+\.\d+)(\.\d+)?")


class ObjectCache:
    """The objects that were last written or read, of all ledgers of a storage. They are kept only for speed: objects
    never change."""

    def __init__(self) -> None:
        self._objects: OrderedDict[str, bytes] = OrderedDict()
        self._bytes = 0

    def get(self, name: str) -> bytes | None:
        content = self._objects.get(name)
        if content is not None:
            self._objects.move_to_end(name)
        return content

    def put(self, name: str, content: bytes) -> None:
        """Keep an object, unless it is large: large ones are read in parts."""
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
    """What the ledgers of one storage share: its objects, its threads and its cache. Once it is closed, it raises
    `LedgerStopped`."""

    def __init__(self, bucket: Bucket, workers: Workers) -> None:
        self.bucket = bucket
        self.workers = workers
        self.cache = ObjectCache()
        self.closed = False

    def check_open(self) -> None:
        if self.closed:
            raise LedgerStopped("this storage was closed")

    async def forms(self, segment: str, ledger: int) -> list[Form]:
        """The complete forms of a ledger, in order. Raises `StorageFailed`."""
        names = await self.bucket.sizes(ledger_prefix(segment, ledger))
        found = (_FORM.fullmatch(name.rpartition("/")[2]) for name in names)
        return sorted(Form.parse(each[1]) for each in found if each is not None and each[2] is None)

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
        """The index of the readable entries."""

    @property
    def entries(self) -> int:
        return self._index.entries

    @property
    def size_bytes(self) -> int:
        return self._index.offsets[-1]

    def bytes_of(self, first_entry: int, last_entry: int) -> int:
        offsets = self._index.offsets
        return offsets[last_entry + 1] - offsets[first_entry]

    def first_kept(self, entry: int) -> int:
        return first_kept(self._index.offsets, entry)

    @property
    def last_kept(self) -> int:
        return last_kept(self._index.offsets)

    def object_of(self, number: int) -> str:
        """The name of an object with frames."""
        return object_name(self.segment, self.id, number)

    async def read(self, first_entry: int, max_bytes: int, last_entry: int | None = None) -> list[RawFrame]:
        assert first_entry >= 0, first_entry
        self._reach.check_open()
        index = self._index
        if first_entry >= index.entries:
            return []
        end = end_of_read(index.offsets, first_entry, max_bytes, last_entry)
        # Everything is read from the index before the first wait, because that of an open ledger grows meanwhile.
        wanted = [
            (part, index.bounds(part), index.size(part.number))
            for part in islice(index.parts(first_entry, end), _OBJECTS_PER_READ)
        ]
        found = await asyncio.gather(*(self._frames_of(*each) for each in wanted))
        return [frame for frames in found for frame in frames]

    async def raw_bytes(self, first_entry: int, last_entry: int) -> memoryview:
        self._reach.check_open()
        index = self._index
        parts = [(part, index.bounds(part)) for part in index.parts(first_entry, last_entry + 1)]
        content = await asyncio.gather(
            *(self._content(part, index.size(part.number), bounds[0], bounds[-1]) for part, bounds in parts)
        )
        joined = memoryview(b"".join(content))
        if len(joined) != self.bytes_of(first_entry, last_entry):
            raise LedgerCorrupt(f"the objects of ledger {self.id} of {self.segment} have become shorter")
        return joined

    async def read_part(self, entry: int, start: int, end: int) -> memoryview:
        self._reach.check_open()
        (part,) = self._index.parts(entry, entry + 1)
        begin = self._index.bounds(part)[0]
        return await self._content(part, self._index.size(part.number), begin + start, begin + end)

    async def _frames_of(self, part: ObjectExtent, bounds: array[int], size: int) -> list[RawFrame]:
        content = await self._content(part, size, bounds[0], bounds[-1])
        return await self._reach.workers.run(checked_frames, content, self.id, part.first, bounds)

    async def _content(self, part: ObjectExtent, size: int, begin: int, end: int) -> memoryview:
        """The bytes of the object of `part`, which has `size` bytes."""
        name = self.object_of(part.number)
        try:
            return await self._reach.content(name, size, begin, end)
        except FileNotFoundError as error:
            raise await self._lost(name) from error

    async def _lost(self, name: str) -> LedgerCorrupt | LedgerMissing:
        try:
            await self._reach.bucket.get(object_name(self.segment, self.id, START))
        except FileNotFoundError:
            return LedgerMissing(f"ledger {self.id} of {self.segment} is not, or no longer, in this storage")
        if await self._reach.forms(self.segment, self.id):
            return LedgerMissing(f"ledger {self.id} of {self.segment} has another form by now")
        return LedgerCorrupt(f"{name} is missing")


class ObjectSealedLedger(_ObjectLedger, SealedLedger):
    def __init__(self, reach: Reach, segment: str, ledger: int, index: ObjectIndex, form: Form | None = None) -> None:
        super().__init__(reach, segment, ledger)
        self._final = index
        self.form = form

    def object_of(self, number: int) -> str:
        if self.form is None:
            return super().object_of(number)
        return form_part_name(self.segment, self.id, self.form, number)

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
        """An open ledger. `seal` reads the objects after the known durable ones, and creates the fence."""
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
