"""Taking a backup of a cluster that serves: the store and the ledgers at one revision (DESIGN §13).

    1  read the revision, and copy the ledgers as far as they go, which may take long
    2  read all records of the store, at one revision: that of the backup
    3  wait until brokers have cleaned up after what was committed by then, and copy what the records name and is not
       copied yet
    4  look whether it is still true: nothing was collected that was decided after step 1, and no ledger was replaced
    5  write what the backup has; it counts from then on

If step 4 says no, the steps are repeated. That is short, because what was copied stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count

import structlog

from metastore.api import MetadataStore
from metastore.background import Backoff
from metastore.check import EVERYTHING, dump
from metastore.clock import Clock
from metastore.errors import StoreTooNew, StoreWentBack
from metastore.keys import prefix_end, unescape
from metastore.txn import paths
from metastore.txn.records.processes import Incarnation, VersionRecord
from metastore.txn.records.segments import LedgerRecord, SegmentRecord
from metastore.txn.records.transactions import GcHorizon, Header
from metastore.txn.states import TxnState
from metastore.types import RangeResult, Record
from metastore.versions import FIRST, SPEAKS, too_new
from metatxn.wire.frames import FrameError, check_crcs
from metatxn.wire.ids import TxnId
from participants.backup.manifest import Chunk, LedgerCopy, Manifest, RecordPage, sum_of
from participants.backup.place import BackupPlace, NoSuchBackup
from participants.backup.records import pages
from participants.ledger.form import Form
from participants.ledger.storage import LedgerCorrupt, LedgerError, LedgerStorage, SealedLedger, StorageFailed

CHUNK_BYTES = 8 << 20
_AT_ONCE = 4
"""The number of ledgers that are copied at the same time."""
_ATTEMPTS = 5
LONGEST_MS = 23 * 3_600_000
"""A backup that takes longer is not completed, because a prune may take it for interrupted (`pruning.GRACE_MS`). Where
no other one is complete, nothing is pruned, and it may take as long as it wants."""
WAIT_SECONDS = 30
"""A broker that has not cleaned up after a committed transaction by then does not run, or cannot open the segment."""
_READS = 3
_SHOWN = 3

Key = tuple[str, str, int]
"""A ledger, by its storage, segment and number."""

log = structlog.get_logger()


class NotCovered(Exception):
    """A segment lies on a storage that was not named. There is no new backup."""


class BackupOvertaken(Exception):
    """While the backup was taken, transactions were collected or ledgers replaced each time, or it took too long. There
    is no new one."""


class _AgainError(Exception):
    """What was read does not belong to one revision."""


class BackupTaker:
    """`progress` is told how many bytes of ledgers were read, some of them twice, and 0, because it is not known how
    many there are."""

    def __init__(
        self,
        store: MetadataStore,
        storages: Sequence[LedgerStorage],
        place: BackupPlace,
        clock: Clock,
        release: str,
        progress: Callable[[int, int], None] = lambda done, total: None,
        longest_ms: int = LONGEST_MS,
    ) -> None:
        self._store = store
        self._storages = {storage.storage_id: storage for storage in storages}
        self._place = place
        self._clock = clock
        self._release = release
        self._progress = progress
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._longest_ms = longest_ms
        self._read_bytes = 0
        self._id = ""
        self._put: list[str] = []
        self._begun_ms, self._begun_s = 0, 0.0

    async def take(self) -> Manifest:
        """Raises `NotCovered`, `BackupOvertaken`, `BackupDamaged` and `BackupTooNew` of the latest backup,
        `StoreTooNew`, `StoreWentBack`, and the errors of the store and the storages. Then it deletes what it has
        copied, as far as it can; a prune deletes the rest."""
        self._begun_ms, self._begun_s = self._clock(), asyncio.get_running_loop().time()
        self._id = await self._begun(self._begun_ms)
        try:
            manifest = await self._copied()
            await self._check_in_time()
        except (Exception, asyncio.CancelledError):
            with suppress(StorageFailed):
                await self._place.delete(self._put)
            raise
        await self._place.complete(manifest)
        try:
            await self._check_in_time()
        except BackupOvertaken:  # it was overtaken while the manifest was on its way
            await self._place.withdraw(self._id)
            raise
        return manifest

    async def _check_in_time(self) -> None:
        """Raises `BackupOvertaken` if a prune may have deleted what this backup has copied or builds upon."""
        took_s = asyncio.get_running_loop().time() - self._begun_s  # goes on while a clock is set back
        took_ms = max(self._clock() - self._begun_ms, took_s * 1000)
        if took_ms > self._longest_ms and set(await self._place.ids()) - {self._id}:
            hours = self._longest_ms / 3_600_000
            raise BackupOvertaken(f"it takes longer than {hours:.0f} hours, so a prune may have removed what it needs")

    async def _copied(self) -> Manifest:
        """Copy everything to the place. Returns the manifest."""
        latest = await self._latest()
        known = dict(latest)
        for _ in range(_ATTEMPTS):
            before = await self._store.current_revision()
            known |= await self._copied_so_far(known)
            found = await self._store.range(EVERYTHING, prefix_end(EVERYTHING))
            await self._until_drained(found.records)
            try:
                ledgers = await self._named_by(found, known, before)
            except _AgainError as why:
                log.info("the backup begins again", reason=str(why))
                continue
            return await self._written(found, ledgers, _new_bytes(ledgers, latest))
        raise BackupOvertaken("transactions were collected or ledgers replaced each time: try again later")

    async def _latest(self) -> dict[Key, LedgerCopy]:
        try:
            latest = await self._place.manifest()
        except NoSuchBackup:
            return {}
        return {_key(ledger): ledger for ledger in latest.ledgers}

    # -- the ledgers ---------------------------------------------------------------------------------------------

    async def _copied_so_far(self, known: Mapping[Key, LedgerCopy]) -> dict[Key, LedgerCopy]:
        """Copy everything that is there now, without a cut: what disappears meanwhile is left out."""
        named = [each async for each in self._segments()]

        async def copied(segment: str, record: LedgerRecord) -> LedgerCopy | None:
            try:
                return await self._copy(segment, record, known)
            except LedgerError:
                if await self._is_named(segment, record):
                    raise
                return None

        copies = await asyncio.gather(*(copied(segment, record) for segment, record in _ledgers(named)))
        return {_key(copy): copy for copy in copies if copy is not None}

    async def _segments(self) -> AsyncIterator[tuple[str, SegmentRecord]]:
        async for record in dump(self._store, paths.SEGMENTS):
            yield _segment(record)

    async def _until_drained(self, records: Sequence[Record]) -> None:
        """Wait until no append is under way any more that belongs to a transaction which these records commit: brokers
        delete its operations on a segment only after that (§5.5)."""
        left = _not_cleaned_up(records)
        backoff, time = Backoff(), asyncio.get_running_loop().time
        until = time() + WAIT_SECONDS
        while left:
            found = await self._store.get_each(left)
            left = [key for key in left if found[key] is not None]
            if left and time() > until:
                log.warning("the backup does not wait longer for brokers to clean up", operations=left[:_SHOWN])
                return
            if left:
                await backoff.pause()

    async def _named_by(self, found: RangeResult, seen: Mapping[Key, LedgerCopy], before: int) -> list[LedgerCopy]:
        """The ledgers of the records, of which `seen` was there before they were read. Raises `_AgainError` if what
        they say cannot be told any more."""
        horizon = next((record for record in found.records if record.key == paths.GC_HORIZON), None)
        if horizon is not None and GcHorizon.decode(horizon.value).revision > before:
            raise _AgainError("a transaction was collected that was decided meanwhile")
        named = [_segment(record) for record in found.records if record.key.startswith(paths.SEGMENTS)]

        async def copied(segment: str, record: LedgerRecord) -> LedgerCopy:
            try:
                copy = await self._copy(segment, record, seen)
            except LedgerError:
                if await self._is_named(segment, record):
                    raise
                raise _AgainError(f"ledger {record.id} of {segment} is gone") from None
            if record.entries is not None:
                return copy
            if not await self._is_named(segment, record):  # it may have been deleted while it was read
                raise _AgainError(f"ledger {record.id} of {segment} was replaced")
            before_cut = seen.get(_key(copy))
            return copy.model_copy(update={"judged_from": before_cut.entries if before_cut is not None else 0})

        return list(await asyncio.gather(*(copied(segment, record) for segment, record in _ledgers(named))))

    async def _is_named(self, segment: str, ledger: LedgerRecord) -> bool:
        """Whether the record of the segment still names this ledger, in this form."""
        stored = await self._store.get(paths.segment(segment))
        if stored is None:
            return False
        record = SegmentRecord.decode(stored.value)
        return record.state != "deleted" and any(
            (each.id, each.form) == (ledger.id, ledger.form) for each in record.ledgers
        )

    async def _copy(self, segment: str, record: LedgerRecord, known: Mapping[Key, LedgerCopy]) -> LedgerCopy:
        """Copy a ledger as far as it is there now, except what `known` has of it."""
        storage = self._storages.get(record.storage)
        if storage is None:
            raise NotCovered(
                f"segment {segment} lies on the storage {record.storage}: name its --data-dir or --storage, too"
            )
        earlier = known.get((record.storage, segment, record.id))
        if earlier is not None and earlier.form != record.form:
            earlier = None
        async with self._turns:
            if record.entries is None:
                looked = await storage.look(segment, record.id)
                ledger, settled = looked.ledger, looked.settled
            elif earlier is not None and earlier.entries == earlier.settled == record.entries:
                sealed = earlier.model_copy(update={"judged_from": record.entries})
                return await self._with_hidden(storage, sealed, record)
            else:
                form = Form(*record.form) if record.form is not None else None
                ledger = await storage.open_sealed(segment, record.id, record.entries, form)
                settled = record.entries
            copy = LedgerCopy(
                storage=record.storage,
                segment=segment,
                ledger=record.id,
                form=record.form,
                entries=ledger.entries,
                settled=settled,
                judged_from=ledger.entries,
            )
            copy = await self._with_chunks(copy, ledger, earlier)
            return await self._with_hidden(storage, copy, record)

    async def _with_chunks(self, copy: LedgerCopy, ledger: SealedLedger, earlier: LedgerCopy | None) -> LedgerCopy:
        """The chunks of an earlier copy count as far as they could no longer change."""
        old = earlier.chunks if earlier is not None else ()
        chunks = [chunk for chunk in old if earlier is not None and chunk.end <= earlier.settled]
        at = chunks[-1].end if chunks else 0
        while at < copy.entries:
            end = _end_of_chunk(ledger, at, copy.settled if at < copy.settled else copy.entries)
            content = await _read(ledger, at, end - 1)
            chunk = Chunk(first=at, end=end, bytes=len(content), crc32=sum_of(content), backup=self._id)
            self._put.append(await self._place.put_chunk(copy, chunk, content))
            chunks.append(chunk)
            self._read_bytes += len(content)
            self._progress(self._read_bytes, 0)
            at = end
        return copy.model_copy(update={"chunks": tuple(chunks)})

    async def _with_hidden(self, storage: LedgerStorage, copy: LedgerCopy, record: LedgerRecord) -> LedgerCopy:
        if copy.hidden == record.hidden:
            return copy
        copy = copy.model_copy(update={"hidden": record.hidden, "hidden_crc32": None, "hidden_backup": self._id})
        if not record.hidden:
            return copy
        index = await storage.read_index(copy.segment, copy.ledger, record.hidden, copy.entries)
        content = index.encode()
        self._put.append(await self._place.put_hidden(copy, content))
        return copy.model_copy(update={"hidden_crc32": sum_of(content)})

    # -- the end -------------------------------------------------------------------------------------------------

    async def _written(self, found: RangeResult, ledgers: list[LedgerCopy], copied_bytes: int) -> Manifest:
        """Write the records. The backup counts when its manifest is written, too."""
        incarnation, version = _cluster(found.records)
        written = []
        for number, (records, content) in enumerate(pages(found.records)):
            self._put.append(await self._place.put_page(self._id, number, content))
            written.append(RecordPage(records=records, bytes=len(content), crc32=sum_of(content)))
        return Manifest(
            id=self._id,
            incarnation=incarnation,
            revision=found.revision,
            version=version,
            release=self._release,
            begun_ms=self._begun_ms,
            finished_ms=self._clock(),
            copied_bytes=copied_bytes,
            pages=tuple(written),
            ledgers=tuple(ledgers),
        )

    async def _begun(self, begun_ms: int) -> str:
        """The name of the backup: when it was begun, or the next millisecond that no other backup was begun in."""
        for at_ms in count(begun_ms):
            name = datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S") + f"{at_ms % 1000:03}Z"
            if await self._place.begin(name):
                return name
        raise AssertionError("there is always a next millisecond")


def _cluster(records: Iterable[Record]) -> tuple[str, int]:
    """The incarnation and the cluster version. Raises `StoreTooNew`, and `StoreWentBack` for a store that no process
    may serve."""
    found = {record.key: record.value for record in records if record.key in (paths.INCARNATION, paths.VERSION)}
    if paths.INCARNATION not in found:
        raise StoreWentBack("no process has ever served this store, so there is nothing to back up")
    incarnation = Incarnation.decode(found[paths.INCARNATION])
    if incarnation.recovering or incarnation.restored_how is not None:
        raise StoreWentBack("the store waits for its recovery: what it holds now must not be backed up")
    version = VersionRecord.decode(found[paths.VERSION]).version if paths.VERSION in found else FIRST
    if version > SPEAKS:
        raise StoreTooNew(too_new(version))
    return incarnation.id, version


def _segment(record: Record) -> tuple[str, SegmentRecord]:
    return unescape(record.key.removeprefix(paths.SEGMENTS)), SegmentRecord.decode(record.value)


def _ledgers(segments: Iterable[tuple[str, SegmentRecord]]) -> list[tuple[str, LedgerRecord]]:
    return [(segment, ledger) for segment, record in segments if record.state != "deleted" for ledger in record.ledgers]


def _not_cleaned_up(records: Sequence[Record]) -> list[str]:
    """The write operations of committed transactions on segments that have an open ledger."""
    named = [_segment(record) for record in records if record.key.startswith(paths.SEGMENTS)]
    growing = {segment for segment, ledger in _ledgers(named) if ledger.entries is None}
    headers = {record.key: record.value for record in records if record.key.startswith(paths.HEADERS)}

    def is_committed(txn_id: TxnId) -> bool:
        header = headers.get(paths.header(txn_id))
        return header is not None and Header.decode(header).state is TxnState.COMMITTED

    writes = (record.key for record in records if record.key.startswith(paths.OPS) and paths.write_entry(record.key))
    return [
        key
        for key in writes
        if paths.participant_of_op(key)[0] in growing and is_committed(TxnId.parse(paths.op_key_parts(key)[0]))
    ]


def _key(copy: LedgerCopy) -> Key:
    return copy.storage, copy.segment, copy.ledger


def _new_bytes(ledgers: Iterable[LedgerCopy], latest: Mapping[Key, LedgerCopy]) -> int:
    """The size of what the latest backup did not have."""
    size = 0
    for copy in ledgers:
        before = latest.get(_key(copy))
        known = set(before.chunks) if before is not None and before.form == copy.form else set()
        size += sum(chunk.bytes for chunk in copy.chunks if chunk not in known)
    return size


async def _read(ledger: SealedLedger, first: int, last: int) -> memoryview:
    """The frames of these entries. What was damaged on its way from the device is read again. Raises `LedgerCorrupt`,
    and the errors of `raw_bytes`."""
    for _ in range(_READS):
        content = await ledger.raw_bytes(first, last)
        try:
            check_crcs(content)
            return content
        except FrameError as error:
            found = error
    raise LedgerCorrupt(f"ledger {ledger.id} is damaged between the entries {first} and {last}: {found}")


def _end_of_chunk(ledger: SealedLedger, first: int, last: int) -> int:
    """The entry before which a chunk from `first` on ends: at `last`, or when it is full."""
    low, high = first + 1, last
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if ledger.bytes_of(first, middle - 1) <= CHUNK_BYTES else (low, middle - 1)
    return low
