"""Ledgers in an object store: any broker that can reach the store can take over any segment.

    <prefix of the URL>/
        storage.json            the storage id (see `storage_id`), created once
        <note>.json             a note of the brokers, replaced atomically
        aside/<name>/…          ledgers that were set aside
        ledgers/…               see `objects`

Nothing is locked here. The metadata store decides who owns a segment. The former owner, who may not know it yet, is
kept from appending by the names of the objects: `seal` creates an object, the fence, under the first name that is free,
and the next put of the former owner finds its name taken. The object store decides which of the two is first. What was
acknowledged to the former owner is before the fence, because a put under a later name is never acknowledged before
those under all earlier names.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from metastore import keys
from metatxn.wire.frames import RawFrame
from participants.ledger import storage_id
from participants.ledger.append_queue import LedgerMetrics
from participants.ledger.bucket import Bucket
from participants.ledger.form import Form, FormHeader
from participants.ledger.hidden_index import HiddenIndex, HiddenRanges
from participants.ledger.object_ledger import PUTS_AT_ONCE, ObjectOpenLedger, ObjectSealedLedger, Reach
from participants.ledger.objects import (
    HEADER_BYTES,
    LEDGERS,
    START,
    NameTaken,
    ObjectHeader,
    ObjectIndex,
    ObjectKind,
    form_name,
    form_part_name,
    frame_ends,
    hidden_name,
    index_name,
    ledger_prefix,
    object_name,
    put_once,
    segment_prefix,
)
from participants.ledger.reading import checked_form, checked_hidden, kept_frames
from participants.ledger.storage import (
    FrameSource,
    GrowingLedger,
    LedgerCorrupt,
    LedgerExists,
    LedgerMissing,
    LedgerStorage,
    OpenLedger,
    SealedLedger,
    StorageFailed,
    StorageRefused,
)
from participants.ledger.workers import Workers

_THREADS = 4
_GETS_AT_ONCE = 4
FORM_PART_BYTES = 4 << 20
"""An object of a form is full at this size."""


def _random_token() -> bytes:
    return uuid.uuid4().bytes


class ObjectStorage(LedgerStorage):
    """See the module docstring. Made by `open`."""

    exclusive = False

    def __init__(
        self, name: str, bucket: Bucket, metrics: LedgerMetrics, token: Callable[[], bytes], executor: Executor | None
    ) -> None:
        self.storage_id = name
        self._reach = Reach(bucket, Workers(executor, _THREADS))
        self._bucket = bucket
        self._metrics = metrics
        self._token = token
        self._open: dict[tuple[str, int], ObjectOpenLedger] = {}

    @classmethod
    async def open(
        cls,
        bucket: Bucket,
        *,
        metrics: LedgerMetrics | None = None,
        token: Callable[[], bytes] = _random_token,
        executor: Executor | None = None,
    ) -> Self:
        """Open the storage at this place, and create it if there is none. Raises `StorageRefused`, `StorageFailed`."""
        return cls(await _storage_id(bucket), bucket, metrics or LedgerMetrics(), token, executor)

    @classmethod
    async def open_to_read(cls, bucket: Bucket, *, executor: Executor | None = None) -> Self:
        """A storage that exists, through which nothing is changed. Raises `StorageRefused`, `StorageFailed`."""
        try:
            name = storage_id.parse(storage_id.FILE_NAME, await bucket.get(storage_id.FILE_NAME))
        except FileNotFoundError:
            raise StorageRefused(f"there are no ledgers: there is no {storage_id.FILE_NAME}") from None
        return cls(name, bucket, LedgerMetrics(), _random_token, executor)

    async def create(self, segment: str, ledger: int) -> OpenLedger:
        self._reach.check_open()
        token = self._token()
        start = ObjectHeader(ObjectKind.START, token).encode()
        try:
            await put_once(self._bucket, object_name(segment, ledger, START), start, token)
        except NameTaken as error:
            raise LedgerExists(f"ledger {ledger} of {segment} exists") from error

        async def seal(known: ObjectIndex) -> ObjectIndex:
            return await self._seal(segment, ledger, known)

        created = ObjectOpenLedger(self._reach, segment, ledger, token, self._metrics, seal, self._ended)
        self._open[segment, ledger] = created
        return created

    def _ended(self, ledger: ObjectOpenLedger) -> None:
        self._open.pop((ledger.segment, ledger.id), None)

    async def seal(self, segment: str, ledger: int) -> SealedLedger:
        self._reach.check_open()
        mine = self._open.get((segment, ledger))
        if mine is not None:
            return await mine.seal()
        index = await self._stored_index(segment, ledger)
        if index is None and (forms := await self._reach.forms(segment, ledger)):
            return await self._open_form(segment, ledger, None, forms[-1])
        return await self._checked(segment, ledger, index or await self._seal(segment, ledger, ObjectIndex()))

    async def open_sealed(self, segment: str, ledger: int, entries: int, form: Form | None = None) -> SealedLedger:
        self._reach.check_open()
        if form is not None:
            return await self._open_form(segment, ledger, entries, form)
        index = await self._stored_index(segment, ledger)
        if index is None:
            index = ObjectIndex()
            await self._read_on(segment, ledger, index)
            if index.entries < entries and await self._reach.forms(segment, ledger):
                raise LedgerMissing(f"ledger {ledger} of {segment} has another form by now")
        if index.entries != entries:
            raise LedgerCorrupt(f"ledger {ledger} of {segment} has {index.entries} entries, but {entries} are recorded")
        return await self._checked(segment, ledger, index)

    async def look(self, segment: str, ledger: int) -> GrowingLedger:
        """The entries of a ledger now. An object never changes, so neither does an entry that is there."""
        self._reach.check_open()
        index = await self._stored_index(segment, ledger)
        if index is None:
            index = ObjectIndex()
            await self._read_on(segment, ledger, index)
        return GrowingLedger(await self._checked(segment, ledger, index), index.entries)

    async def _open_form(self, segment: str, ledger: int, entries: int | None, form: Form) -> SealedLedger:
        name = form_name(segment, ledger, form)
        try:
            content = await self._bucket.get(name)
        except FileNotFoundError as error:
            raise LedgerMissing(f"{name} does not exist in this storage") from error
        header = await self._reach.workers.run(checked_form, content, ledger, entries)
        index = ObjectIndex(header.offsets(), header.firsts)
        return await self._checked(segment, ledger, index, form)

    async def write_form(
        self,
        segment: str,
        ledger: FrameSource,
        form: Form,
        kept: Sequence[int],
        pace: Callable[[int], Awaitable[None]],
    ) -> SealedLedger:
        """Write a form. A ledger that is deleted meanwhile may leave these objects behind, which do not count as a
        ledger."""
        self._reach.check_open()
        token = await self._start(segment, ledger.id)
        header, part = FormHeader(ledger.id, ledger.entries), _Part()

        async def put() -> None:
            header.firsts.append(part.first)
            head = ObjectHeader(ObjectKind.FRAMES, token, part.first).encode()
            await self._bucket.put(
                form_part_name(segment, ledger.id, form, len(header.firsts)), b"".join([head, *part.frames])
            )

        async for frames in kept_frames(ledger, kept, pace):
            for frame in frames:
                if part.size >= FORM_PART_BYTES:
                    await put()
                    part = _Part()
                part.add(frame)
                header.add(frame)
        if part.frames:
            await put()
        await self._bucket.put(form_name(segment, ledger.id, form), await self._reach.workers.run(header.encode))
        return await self._open_form(segment, ledger.id, ledger.entries, form)

    async def forms(self, segment: str, ledger: int) -> list[Form]:
        self._reach.check_open()
        return await self._reach.forms(segment, ledger)

    async def delete_forms_before(self, segment: str, ledger: int, form: Form) -> None:
        self._reach.check_open()
        names = await self._bucket.sizes(ledger_prefix(segment, ledger))
        old = [name for name in names if _is_of_form_before(name, names[name], form)]
        # The index comes first: with it the ledger would count as complete.
        old.sort(key=lambda name: name != index_name(segment, ledger))
        for name in old:
            self._reach.cache.forget(name)
        await self._bucket.delete(old)

    async def write_hidden(self, segment: str, generation: int, index: HiddenIndex) -> None:
        """Write an index. A ledger that is deleted meanwhile may leave this object behind, which does not count as a
        ledger."""
        self._reach.check_open()
        await self._start(segment, index.ledger)
        content = await self._reach.workers.run(index.encode)
        await self._bucket.put(hidden_name(segment, index.ledger, generation), content)

    async def read_hidden(self, segment: str, ledger: int, generation: int, entries: int) -> HiddenRanges:
        return (await self.read_index(segment, ledger, generation, entries)).ranges

    async def read_index(self, segment: str, ledger: int, generation: int, entries: int) -> HiddenIndex:
        self._reach.check_open()
        name = hidden_name(segment, ledger, generation)
        try:
            content = await self._bucket.get(name)
        except FileNotFoundError as error:
            raise LedgerMissing(f"{name} does not exist in this storage") from error
        return await self._reach.workers.run(checked_hidden, content, ledger, entries)

    async def delete(self, segment: str, ledger: int) -> None:
        """Delete all objects except the fence. A ledger without a fence gets one first."""
        self._reach.check_open()
        mine = self._open.get((segment, ledger))
        if mine is not None:
            await mine.close()
        self._reach.cache.forget(ledger_prefix(segment, ledger))
        sizes = await self._bucket.sizes(ledger_prefix(segment, ledger))
        start = object_name(segment, ledger, START)
        if start in sizes and not any(map(_is_fence, sizes, sizes.values())):
            await self._seal(segment, ledger, ObjectIndex())
        # The start comes last: as long as it exists, a repeated deletion finds the rest.
        removed = [name for name, size in sizes.items() if name != start and not _is_fence(name, size)]
        await self._bucket.delete([*removed, index_name(segment, ledger), start])

    async def let_go(self, segment: str) -> None:
        await asyncio.gather(*(mine.close() for (name, _), mine in list(self._open.items()) if name == segment))

    async def drop(self, segment: str) -> None:
        self._reach.check_open()
        await self.let_go(segment)
        self._reach.cache.forget(segment_prefix(segment))
        await self._bucket.delete(list(await self._bucket.sizes(segment_prefix(segment))))

    async def directories(self) -> list[str]:
        self._reach.check_open()
        return await self._bucket.directories(LEDGERS)

    async def numbers(self, directory: str, above: int = -1) -> list[int]:
        self._reach.check_open()
        found = sorted(map(int, await self._bucket.directories(f"{LEDGERS}/{directory}")))
        return [number for number in found if number > above and await self._is_there(directory, number)]

    async def _is_there(self, directory: str, ledger: int) -> bool:
        try:
            await self._bucket.get_range(f"{LEDGERS}/{directory}/{keys.number(ledger)}/{keys.number(START)}", 0, 1)
        except FileNotFoundError:
            return False
        return True

    async def set_aside(self, directory: str, ledger: int, name: str) -> None:
        self._reach.check_open()
        prefix = f"{LEDGERS}/{directory}/{keys.number(ledger)}"
        sizes = await self._bucket.sizes(prefix)
        # The start comes last: as long as it exists, this is repeated. The fence stays, as in `delete`.
        for object_ in sorted(sizes, reverse=True):
            if not _is_fence(object_, sizes[object_]):
                with suppress(FileNotFoundError):
                    await self._bucket.move(object_, f"aside/{name}/{object_.removeprefix(f'{LEDGERS}/')}")

    async def space(self) -> None:
        """No disk usage: a bucket has no end."""

    async def read_note(self, name: str) -> bytes | None:
        self._reach.check_open()
        try:
            return await self._bucket.get(name)
        except FileNotFoundError:
            return None

    async def write_note(self, name: str, content: bytes) -> None:
        self._reach.check_open()
        await self._bucket.put(name, content)

    async def close(self) -> None:
        self._reach.closed = True
        await asyncio.gather(*(ledger.close() for ledger in list(self._open.values())))
        await self._reach.workers.close()

    # -- reading a ledger through -------------------------------------------------------------------------------

    async def _seal(self, segment: str, ledger: int, known: ObjectIndex) -> ObjectIndex:
        """Read the objects after `known`, and end the ledger after them. Idempotent; two concurrent calls have the same
        result."""
        index = known
        while not await self._read_on(segment, ledger, index, check_behind=True):
            token = self._token()
            fence = ObjectHeader(ObjectKind.FENCE, token, index.entries, index.entries).encode()
            try:
                await put_once(self._bucket, object_name(segment, ledger, len(index.firsts) + 1), fence, token)
                break
            except NameTaken:
                continue  # a put of the former owner was faster, and counts; or it is another fence
        await self._store_index(segment, ledger, index)
        return index

    async def _read_on(self, segment: str, ledger: int, index: ObjectIndex, *, check_behind: bool = False) -> bool:
        """Add to `index` the objects after it, up to the fence (returns True), or up to the first free name (returns
        False).

        Raises `LedgerMissing`, `LedgerCorrupt`, `StorageFailed`.
        """
        token = await self._start(segment, ledger)
        sizes = await self._bucket.sizes(ledger_prefix(segment, ledger))
        while True:
            number = len(index.firsts) + 1
            names = [object_name(segment, ledger, number + ahead) for ahead in range(_GETS_AT_ONCE)]
            listed = [name for name in names[1:] if name in sizes]
            for name, content in zip([names[0], *listed], await self._get_all([names[0], *listed]), strict=True):
                if name != object_name(segment, ledger, len(index.firsts) + 1):
                    break  # an earlier name is free
                if content is None:
                    if check_behind:
                        await self._refuse_a_hole(segment, ledger, index, token, sizes)
                    return False
                header = ObjectHeader.decode(content, name)
                if header.kind is ObjectKind.FENCE:
                    return True
                if (header.kind, header.token, header.first) != (ObjectKind.FRAMES, token, index.entries):
                    raise LedgerCorrupt(f"{name} does not follow entry {index.entries - 1} of its ledger")
                ends = await self._reach.workers.run(frame_ends, content, ledger, index.entries, name)
                index.add(ends)

    async def _start(self, segment: str, ledger: int) -> bytes:
        """The token of the creator of the ledger."""
        name = object_name(segment, ledger, START)
        try:
            return ObjectHeader.decode(await self._bucket.get(name), name).token
        except FileNotFoundError as error:
            raise LedgerMissing(f"ledger {ledger} of {segment} does not exist in this storage") from error

    async def _get_all(self, names: list[str]) -> list[bytes | None]:
        async def get(name: str) -> bytes | None:
            try:
                return await self._bucket.get(name)
            except FileNotFoundError:
                return None

        return await asyncio.gather(*map(get, names))

    async def _refuse_a_hole(
        self, segment: str, ledger: int, index: ObjectIndex, token: bytes, sizes: dict[str, int]
    ) -> None:
        """Raises `LedgerCorrupt` if an object after the end says that more entries were durable: then one was lost.

        `sizes` was listed before the end was found free, so each object in it was put after everything that it says.
        """
        end = len(index.firsts) + 1
        numbered = [name for name in sizes if _is_numbered(name)]
        behind = [name for name in numbered if name > object_name(segment, ledger, end)]
        for name in behind:
            header = ObjectHeader.decode(await self._bucket.get_range(name, 0, HEADER_BYTES), name)
            if header.token == token and header.durable > index.entries:
                raise LedgerCorrupt(
                    f"{object_name(segment, ledger, end)} is missing: {name} says that {header.durable} were durable"
                )
        assert len(behind) < PUTS_AT_ONCE, behind

    # -- the index ----------------------------------------------------------------------------------------------

    async def _stored_index(self, segment: str, ledger: int) -> ObjectIndex | None:
        try:
            return ObjectIndex.decode(await self._bucket.get(index_name(segment, ledger)))
        except FileNotFoundError:
            return None

    async def _store_index(self, segment: str, ledger: int, index: ObjectIndex) -> None:
        """Store the index, if possible: it only saves reading the whole ledger again. Every broker would write the same
        content."""
        try:
            await self._bucket.create(index_name(segment, ledger), index.encode())
        except (FileExistsError, StorageFailed):
            return

    async def _checked(
        self, segment: str, ledger: int, index: ObjectIndex, form: Form | None = None
    ) -> ObjectSealedLedger:
        """Open a ledger by its index, which may outlive its objects. A ledger that lost its end is recognised here, and
        one with a hole by reads."""
        await self._start(segment, ledger)
        opened = ObjectSealedLedger(self._reach, segment, ledger, index, form)
        if index.firsts:
            name, size = opened.object_of(len(index.firsts)), index.size(len(index.firsts))
            try:
                last = await self._bucket.get_range(name, size - 1, size + 1)
            except FileNotFoundError as error:
                raise LedgerCorrupt(f"{name} is missing") from error
            if len(last) != 1:
                raise LedgerCorrupt(f"{name} does not have {size} bytes")
        return opened


def _is_fence(name: str, size: int) -> bool:
    """Whether an object of a listing is a fence. A fence has a number and no frames. The start also has no frames, but
    is not a fence."""
    return size == HEADER_BYTES and _is_numbered(name) and int(name.rpartition("/")[2]) != START


def _is_of_form_before(name: str, size: int, form: Form) -> bool:
    """Whether an object holds frames, or their index, of the ledger as it was sealed or of a lower form."""
    kind, *number = name.rpartition("/")[2].split(".")
    if kind == "form":
        return Form(*map(int, number[:2])) < form
    return kind == "index" or (kind.isdigit() and size > HEADER_BYTES)


@dataclass(slots=True)
class _Part:
    """The frames of an object of a form."""

    frames: list[memoryview] = field(default_factory=list)
    first: int = 0
    size: int = 0

    def add(self, frame: RawFrame) -> None:
        if not self.frames:
            self.first = frame.position.entry
        self.frames.append(frame.data)
        self.size += len(frame.data)


def _is_numbered(name: str) -> bool:
    """Whether an object holds frames, or is the start or the fence. The indexes have names of another kind."""
    return name.rpartition("/")[2].isdigit()


async def _storage_id(bucket: Bucket) -> str:
    """Read or create the storage id. Raises `StorageRefused` for a store that overwrites an object that was to be
    created, because nothing could be fenced there."""
    content = await _described(bucket)
    try:
        await bucket.create(storage_id.FILE_NAME, content)
    except FileExistsError:
        return storage_id.parse(storage_id.FILE_NAME, content)
    raise StorageRefused("this object store ignores the condition of a put (If-None-Match), so nothing can be fenced")


async def _described(bucket: Bucket) -> bytes:
    try:
        return await bucket.get(storage_id.FILE_NAME)
    except FileNotFoundError:
        if await bucket.sizes(LEDGERS):
            raise storage_id.lost(storage_id.FILE_NAME) from None
    with suppress(FileExistsError):
        await bucket.create(storage_id.FILE_NAME, storage_id.describe_new())
    return await bucket.get(storage_id.FILE_NAME)
