"""Restoring a backup into an empty cluster, of any kind of store and storage (DESIGN §13).

    1  the incarnation      marked as being restored: no process serves the store before step 7
    2  the ledgers          as forms, which leave out what is newer than the backup
    3  the records          with the storages and ledgers that are here, and without what processes say of themselves
    4  counters leap        no number that was given out since the backup is given out again; merges are given up
    5  open transactions    are aborted, or stay open until their deadline
    6  the storages         remember the incarnation, so that brokers serve them
    7  the incarnation      is no longer marked

If it is interrupted, the same call begins again: it empties what it has filled.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from metastore.api import MetadataStore
from metastore.check import EVERYTHING, dump
from metastore.clock import Clock
from metastore.errors import StoreTooNew
from metastore.incarnation import with_barrier
from metastore.keys import prefix_end, unescape
from metastore.txn import paths
from metastore.txn.records.processes import Incarnation, VersionRecord
from metastore.txn.records.segments import OwnerRecord, SegmentRecord
from metastore.txn.records.transactions import GcHorizon
from metastore.txn.states import TxnState
from metastore.types import Record
from metastore.versions import SPEAKS, too_new
from participants.backup.copies import CopiedLedger, read_hidden, read_records
from participants.backup.cut import Cut
from participants.backup.loading import Pair, load_records
from participants.backup.manifest import LedgerCopy, Manifest
from participants.backup.place import BackupPlace
from participants.ledger.directories import segment_directory
from participants.ledger.form import Form
from participants.ledger.offsets import end_offset
from participants.ledger.storage import LedgerStorage, SealedLedger
from participants.restored.merges import give_up_merges
from participants.restored.seen_store import SeenStore
from participants.restored.sequences import leap
from participants.restored.transactions import RestoredTransactions

FORM = Form(0, 1)
"""The form that a restored ledger has, below all that its owners will write."""
_OF_PROCESSES = (
    paths.COORDINATORS,
    paths.BROKERS,
    paths.PROCESSES,
    paths.DRAINS,
    paths.QUOTA_USES,
    paths.READ_HOLDS,
    paths.GROUP_COMMIT_MARKERS,
)
"""The records of what processes said about themselves, and of what readers held. These are gone."""
_OWN = (paths.INCARNATION, paths.VERSION, paths.GC_HORIZON)
"""The records that are made anew here."""

log = structlog.get_logger()


class NotEmpty(Exception):
    """The store or a storage has something already. Nothing was changed."""


class ClockBehind(Exception):
    """The clock of this machine is behind the time of the backup, from which new numbers begin. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did. `left_out` is how many entries were newer than the backup."""

    incarnation: str
    records: int
    ledgers: int
    left_out: int
    aborted: int
    prepared: int


async def is_begun(
    manifest: Manifest, store: MetadataStore | None, storages: Iterable[LedgerStorage], now_ms: int
) -> bool:
    """Whether a restore of this backup into these places was begun and interrupted. Nothing is changed. A place that is
    not made yet is left out. Raises `NotEmpty`, `ClockBehind` and `StoreTooNew` if it cannot be restored there."""
    if manifest.version > SPEAKS:
        raise StoreTooNew(too_new(manifest.version))
    if now_ms <= manifest.finished_ms:
        raise ClockBehind("the clock of this machine is behind the time of the backup: set it, and try again")
    found = await store.get(paths.INCARNATION) if store is not None else None
    begun = found is not None and Incarnation.decode(found.value).restoring == manifest.id
    if store is not None and not begun and (await store.range(EVERYTHING, prefix_end(EVERYTHING), limit=1)).records:
        raise NotEmpty("the store is not empty: give the --store of a new cluster")
    ours = {segment_directory(copy.segment) for copy in manifest.ledgers} if begun else set()
    for storage in storages:
        if set(await storage.directories()) - ours:
            raise NotEmpty(f"the storage {storage.storage_id} has ledgers already: give a new one")
    return begun


class BackupRestorer:
    """Restore into `store` and `storages`, over which the segments of the former storages are divided. `progress` is
    told how many bytes of ledgers and records were written, and how many there are."""

    def __init__(
        self,
        store: MetadataStore,
        storages: Sequence[LedgerStorage],
        place: BackupPlace,
        clock: Clock,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        self._store = store
        self._storages = list(storages)
        self._place = place
        self._clock = clock
        self._progress = progress
        self._written = self._total = 0
        self._left_out = 0

    async def restore(self, manifest: Manifest, *, keep_open: bool = False) -> Restored:
        """Raises `NotEmpty`, `ClockBehind`, `StoreTooNew`, `BackupDamaged`, and the errors of the store and the
        storages, after which the call can be repeated."""
        now_ms = self._clock()
        if await is_begun(manifest, self._store, self._storages, now_ms):
            await self._empty(manifest)
        records = [each async for each in read_records(self._place, manifest)]
        self._total = manifest.ledger_bytes + sum(len(key) + len(value) for key, value in records)
        marked, incarnation = await self._begin(manifest, records, now_ms)
        to = {old: self._storages[n % len(self._storages)] for n, old in enumerate(_storages_of(records))}
        here = await self._ledgers(manifest, Cut(records), to)
        changed = [
            await _as_here(key, value, here, to) for key, value in records if not key.startswith(_OF_PROCESSES + _OWN)
        ]
        await load_records(self._store, changed, self._wrote)
        await leap(self._store, now_ms)
        await give_up_merges(self._store)
        decided = await self._end_open_transactions(now_ms, keep_open)
        await self._finish(marked, incarnation, _horizon_ms(records))
        log.info("backup restored", backup=manifest.id, incarnation=incarnation.id)
        return Restored(incarnation.id, len(records), len(here), self._left_out, *decided)

    # -- empty places --------------------------------------------------------------------------------------------

    async def _empty(self, manifest: Manifest) -> None:
        """Empty what an interrupted call has filled."""
        for storage in self._storages:
            for copy in manifest.ledgers:
                await storage.drop(copy.segment)
        indexes = tuple(index.root for index in self._store.indexes)
        async for record in dump(self._store):
            if record.key != paths.INCARNATION and not record.key.startswith(indexes):
                await self._store.apply(self._store.batch().remove(record))

    async def _begin(self, manifest: Manifest, records: Iterable[Pair], now_ms: int) -> tuple[Record, Incarnation]:
        before = next(Incarnation.decode(value) for key, value in records if key == paths.INCARNATION)
        incarnation = Incarnation(
            id=secrets.token_hex(16),
            begun_ms=now_ms,
            earlier=(before.id, *(before.earlier or ())),
            recovered_ms=now_ms,
            recovering=True,
            restoring=manifest.id,
        )
        found = await self._store.get(paths.INCARNATION)
        batch, value = self._store.batch(), incarnation.encode()
        if found is not None:
            batch.replace(found, value)
        else:
            batch.create(paths.INCARNATION, value)
        applied = await self._store.apply(batch)
        return Record(paths.INCARNATION, value, applied.revision, first=found is None), incarnation

    # -- ledgers -------------------------------------------------------------------------------------------------

    async def _ledgers(
        self, manifest: Manifest, cut: Cut, to: Mapping[str, LedgerStorage]
    ) -> dict[tuple[str, int], SealedLedger]:
        """The ledgers as they are here, by segment and number."""
        found = {}
        for copy in manifest.ledgers:
            found[copy.segment, copy.ledger] = await self._ledger(copy, cut, to[copy.storage])
        return found

    async def _ledger(self, copy: LedgerCopy, cut: Cut, storage: LedgerStorage) -> SealedLedger:
        source = await CopiedLedger.open(self._place, copy, lambda frame: cut.holds(copy.segment, frame))
        self._left_out += source.there - len(source.kept)
        created = await storage.create(copy.segment, copy.ledger)
        await created.close()
        written = await storage.write_form(copy.segment, source, FORM, source.kept, self._pace)
        index = await read_hidden(self._place, copy)
        if index is not None and copy.hidden:
            await storage.write_hidden(copy.segment, copy.hidden, index)
        await storage.delete_forms_before(copy.segment, copy.ledger, FORM)
        return written

    async def _pace(self, size: int) -> None:
        self._wrote(size)

    def _wrote(self, size: int) -> None:
        self._written += size
        self._progress(self._written, self._total)

    # -- the end -------------------------------------------------------------------------------------------------

    async def _end_open_transactions(self, now_ms: int, keep_open: bool) -> tuple[int, int]:
        if keep_open:
            return 0, 0
        return await RestoredTransactions(self._store, now_ms, 0, None).decide(TxnState.ABORTED)

    async def _finish(self, marked: Record, incarnation: Incarnation, collected_ms: int) -> None:
        """Refuse earlier snapshots, because revisions begin anew. The release that restores is the one that
        serves."""
        revision = await self._store.current_revision()
        batch = self._store.batch()
        batch.create(paths.GC_HORIZON, GcHorizon(revision=revision, finalized_ms=collected_ms).encode())
        batch.create(paths.VERSION, VersionRecord(version=SPEAKS, finalized_ms=self._clock()).encode())
        await self._store.apply(batch)
        revision = await self._store.current_revision()
        for storage in self._storages:
            await SeenStore(incarnation.id, revision).write(storage)
        served = with_barrier(incarnation.model_copy(update={"recovering": None, "restoring": None}), SPEAKS)
        await self._store.apply(self._store.batch().replace(marked, served.encode()))


def _storages_of(records: Iterable[Pair]) -> list[str]:
    """The storages that had segments or ledgers."""
    segments = [SegmentRecord.decode(value) for key, value in records if key.startswith(paths.SEGMENTS)]
    ledgers = [ledger.storage for record in segments for ledger in record.ledgers]
    return sorted({*ledgers, *(record.storage for record in segments)})


def _horizon_ms(records: Iterable[Pair]) -> int:
    """When the latest collected decision was made; 0 if none is collected."""
    found = [GcHorizon.decode(value).finalized_ms for key, value in records if key == paths.GC_HORIZON]
    return next((ms for ms in found if ms is not None), 0)


Here = Mapping[tuple[str, int], SealedLedger]


async def _as_here(key: str, value: bytes, here: Here, to: Mapping[str, LedgerStorage]) -> Pair:
    if key.startswith(paths.SEGMENTS):
        segment = unescape(key.removeprefix(paths.SEGMENTS))
        return key, (await _segment_here(segment, SegmentRecord.decode(value), here, to)).encode()
    if key.startswith(paths.SEGMENT_OWNERS):
        return key, OwnerRecord.decode(value).model_copy(update={"listeners": None}).encode()
    return key, value


async def _segment_here(
    segment: str, record: SegmentRecord, here: Here, to: Mapping[str, LedgerStorage]
) -> SegmentRecord:
    """The segment with all ledgers sealed; where messages have offsets, those of a ledger that was open follow the
    others."""
    ledgers, next_offset = [], record.next_offset
    for ledger in record.ledgers if record.state != "deleted" else ():
        written = here[segment, ledger.id]
        facts = {"storage": to[ledger.storage].storage_id, "entries": written.entries, "form": tuple(FORM)}
        if ledger.entries is None and next_offset is not None:
            facts["first_offset"] = next_offset
            next_offset = await end_offset(written, next_offset)
        unknown = dict.fromkeys(("former", "bytes", "hidden_bytes"))
        ledgers.append(ledger.model_copy(update=facts | unknown))
    compaction = record.compaction
    return record.model_copy(
        update={
            "storage": to[record.storage].storage_id,
            "ledgers": tuple(ledgers),
            "trimmed": (),
            "planned": None,
            "next_offset": next_offset,
            "compaction": compaction.model_copy(update={"revision": 0}) if compaction is not None else None,
        }
    )
