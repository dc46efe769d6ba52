"""`metatxn store recover` repairs a cluster whose metadata store was restored from a backup.

All processes are stopped. The steps are done in this order. If the recovery is interrupted, it is started again, and no
step does harm if it is repeated:

    1. nothing is announced    announcements that the backup brought back expire by themselves
    2. a new incarnation       marked as recovering: processes that still run stop, and none can start
    3. counters leap           no number that was assigned since the backup is assigned again; merges are given up, and
                               read holds are over
    4. open transactions       are decided as the operator says
    5. ledgers, by segment     unknown ones are adopted or set aside; trimmed ones are left out; and before an adopted
                               one is recorded, its aborted entries are hidden
    6. the storages            remember the new incarnation, so that brokers serve them again
    7. the incarnation         is no longer marked

**A storage that was not available** is recovered later, by the same command: the incarnation of the store is newer than
the one that the storage remembers, and names it among its earlier ones. Until then brokers refuse the storage.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from metastore.api import MetadataStore
from metastore.check import dump
from metastore.errors import StoreTooNew, StoreWentBack
from metastore.incarnation import version_of, with_barrier
from metastore.txn import paths
from metastore.txn.laws.remedies import RESTORE_AGAIN
from metastore.txn.read_holds import end_holds
from metastore.txn.records.processes import Incarnation
from metastore.txn.states import TxnState
from metastore.types import Record
from metastore.versions import SPEAKS, too_new
from participants.ledger.directories import segment_directory
from participants.ledger.storage import LedgerStorage
from participants.restored.ledgers import FoundSegment, Ledgers, survey
from participants.restored.merges import give_up_merges
from participants.restored.seen_store import SeenStore
from participants.restored.sequences import leap
from participants.restored.transactions import FrameSurvey, RestoredTransactions

INCARNATIONS_KEPT = 64
SILENT_WITHIN_S = 30.0
"""The longest time that an announcement lives if its process is gone: that of a session of ZooKeeper or a lease of
etcd."""
_LOOK_EVERY_S = 0.5
LATE_MS = 1_000
"""The default of the maximum difference between the clocks of two processes."""

log = structlog.get_logger()


class StillServed(Exception):
    """A process of the cluster is still announced, and must be stopped first. Nothing was changed."""


class OtherCluster(Exception):
    """A storage has no segment that this store knows, and has seen another store. Nothing was changed."""


class Difference(NamedTuple):
    """One difference between the store and the storages, or one undecided transaction, and what is done about it."""

    what: str
    where: str
    then: str


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the operator wants. `undecided` is the decision of transactions whose decision is not known. `adopt` says
    whether to adopt unknown ledgers or to set them aside. With `accept_loss`, segments that have lost ledgers serve
    what is left."""

    undecided: TxnState = TxnState.ABORTED
    adopt: bool = True
    accept_loss: bool = False
    backup_ms: int | None = None
    max_clock_skew_ms: int = LATE_MS


@dataclass(slots=True)
class Recovered:
    incarnation: str = ""
    segments: int = 0
    ledgers: int = 0
    """The ledgers that contain what was written after the backup, and are served again."""
    unavailable: list[str] = field(default_factory=list)
    """The segments that have lost ledgers."""
    decided: int = 0
    prepared: int = 0
    hidden: int = 0
    """The numbers of transactions that were decided, that wait for an external coordinator, and that are hidden on a
    segment although they have no header."""


class StoreRecovery:
    """The recovery of one store, with the available storages."""

    def __init__(self, store: MetadataStore, storages: Sequence[LedgerStorage], clock: Callable[[], int]) -> None:
        self._store = store
        self._storages = storages
        self._clock = clock

    async def differences(self, wishes: Wishes) -> AsyncIterator[Difference]:
        """What `recover` would do, as far as this shows without reading ledgers. Changes nothing."""
        for storage in self._storages:
            found = await survey(self._store, storage)
            for segment in found.segments:
                for difference in _of_segment(segment, wishes):
                    yield difference
            for directory in found.unnamed:
                yield Difference("unknown segment, its directory does not tell its name", directory, "set aside")
        async for entry in dump(self._store, paths.DEADLINE_INDEX):
            txn_id = entry.key.rpartition("/")[2]
            prepared = await self._store.get(f"{paths.PREPARED}{txn_id}")
            then = "left as it is" if prepared else wishes.undecided.value
            yield Difference("prepared transaction" if prepared else "open transaction", txn_id, then)

    async def recover(self, wishes: Wishes, progress: Callable[[int], None] = lambda _: None) -> Recovered:
        """Recover the store. `progress` is told how many segments are done. Raises `StillServed`, `OtherCluster`,
        `StoreTooNew`, `BackupTimeNeeded`, and `StoreWentBack` while a backup is being restored. After `CheckFailed`
        (another process writes meanwhile) or an error of the store or the storages it can be repeated."""
        if (version := await version_of(self._store)) > SPEAKS:
            raise StoreTooNew(too_new(version))
        if (current := (await self._read())[1]) is not None and current.restoring is not None:
            raise StoreWentBack(f"the backup {current.restoring} is not restored completely. {RESTORE_AGAIN}")
        await self._until_nobody_is_announced()
        joined = await self._may_join()
        record, incarnation = await (self._reopened() if joined else self._begun())
        recovered = Recovered(incarnation.id)
        if not joined:
            await leap(self._store, incarnation.begun_ms)
            await give_up_merges(self._store)
            await end_holds(self._store, paths.READ_HOLDS)
        transactions = RestoredTransactions(self._store, self._clock(), wishes.max_clock_skew_ms, wishes.backup_ms)
        recovered.decided, recovered.prepared = await transactions.decide(wishes.undecided)
        for storage in self._storages:
            await self._recover_ledgers(storage, transactions, wishes, recovered, progress)
        revision = await self._store.current_revision()
        for storage in self._storages:
            await SeenStore(incarnation.id, revision).write(storage)
        served = incarnation.model_copy(update={"recovering": None})
        await self._store.apply(self._store.batch().replace(record, served.encode()))
        log.info("metadata store recovered", incarnation=incarnation.id)
        return recovered

    # -- who is there ------------------------------------------------------------------------------------------

    async def _until_nobody_is_announced(self) -> None:
        """Raises `StillServed`."""
        now = asyncio.get_running_loop().time
        deadline = now() + SILENT_WITHIN_S
        while announced := await self._announced():
            if now() >= deadline:
                raise StillServed(f"{', '.join(announced)} still run: stop every coordinator and broker first")
            await asyncio.sleep(_LOOK_EVERY_S)

    async def _announced(self) -> list[str]:
        return [
            record.key
            for prefix in (paths.COORDINATORS, paths.BROKERS, paths.PROCESSES)
            for record in (await self._store.scan(prefix)).records
        ]

    # -- incarnations ------------------------------------------------------------------------------------------

    async def _may_join(self) -> bool:
        """Whether the store is already recovered, and only these storages are not. Raises `OtherCluster`."""
        _, current = await self._read()
        seen = [await SeenStore.read(storage) for storage in self._storages]
        for storage, note in zip(self._storages, seen, strict=True):
            if note is not None and current is not None:
                await self._assert_of_this_cluster(storage, note, current)
        if current is None or current.restored_how is not None or current.recovering or not seen:
            return False
        return all(note is not None and note.incarnation in (current.earlier or ()) for note in seen)

    async def _assert_of_this_cluster(self, storage: LedgerStorage, note: SeenStore, current: Incarnation) -> None:
        """Raises `OtherCluster` for a storage of another cluster. It may have seen a later incarnation than the backup
        has, but then its segments are known."""
        if note.incarnation in (current.id, *(current.earlier or ())):
            return
        known = (await survey(self._store, storage)).segments
        if not any(segment.stored is not None for segment in known):
            raise OtherCluster(
                f"storage {storage.storage_id} has no segment that this store knows, "
                f"and has seen another store: {note.incarnation}"
            )

    async def _read(self) -> tuple[Record | None, Incarnation | None]:
        record = await self._store.get(paths.INCARNATION)
        return record, Incarnation.decode(record.value) if record is not None else None

    async def _begun(self) -> tuple[Record, Incarnation]:
        """A new incarnation, or that of the interrupted recovery."""
        record, current = await self._read()
        if record is not None and current is not None and current.recovering:
            return record, current
        earlier = (current.id, *(current.earlier or ())) if current is not None else ()
        for storage in self._storages:
            note = await SeenStore.read(storage)
            if note is not None and note.incarnation not in earlier:
                earlier = (note.incarnation, *earlier)
        now_ms = self._clock()
        new = with_barrier(
            Incarnation(
                id=secrets.token_hex(16),
                begun_ms=now_ms,
                earlier=earlier[:INCARNATIONS_KEPT],
                recovered_ms=now_ms,
                recovering=True,
            ),
            await version_of(self._store),
        )
        return await self._put(record, new), new

    async def _reopened(self) -> tuple[Record, Incarnation]:
        """The incarnation of a finished recovery, which another storage joins."""
        record, current = await self._read()
        assert record is not None and current is not None
        reopened = current.model_copy(update={"recovering": True})
        return await self._put(record, reopened), reopened

    async def _put(self, record: Record | None, incarnation: Incarnation) -> Record:
        value = incarnation.encode()
        batch = self._store.batch()
        applied = await self._store.apply(
            batch.replace(record, value) if record is not None else batch.create(paths.INCARNATION, value)
        )
        return Record(paths.INCARNATION, value, applied.revision, first=False)

    # -- ledgers -----------------------------------------------------------------------------------------------

    async def _recover_ledgers(
        self,
        storage: LedgerStorage,
        transactions: RestoredTransactions,
        wishes: Wishes,
        recovered: Recovered,
        progress: Callable[[int], None],
    ) -> None:
        ledgers = Ledgers(self._store, storage, recovered.incarnation, self._clock())
        surveyed = await survey(self._store, storage)
        for directory in surveyed.unnamed:
            await ledgers.set_aside(directory, await storage.numbers(directory))
        for segment in surveyed.segments:
            if not wishes.adopt:
                await ledgers.set_aside(segment_directory(segment.id), segment.unknown)
                segment.unknown = []
            if segment.lost and not wishes.accept_loss:
                recovered.unavailable.append(segment.id)
                continue
            sealed = await ledgers.sealed(segment)
            found = FrameSurvey(segment.id)
            for ledger in sealed:
                await found.read(ledger)
            recovered.hidden += await transactions.hide(found, wishes.undecided)
            await ledgers.adopt(segment, sealed)
            recovered.ledgers += len(segment.unknown)
            recovered.segments += 1
            progress(recovered.segments)


def _of_segment(segment: FoundSegment, wishes: Wishes) -> list[Difference]:
    unknown = "unknown ledger" if segment.stored is not None else "ledger of an unknown segment"
    missing = "lost ledger" if segment.lost else "trimmed ledger"
    stays = segment.lost and not wishes.accept_loss
    return [
        *(
            _of_ledger(unknown, segment, number, "adopted" if wishes.adopt else "set aside")
            for number in segment.unknown
        ),
        *(
            _of_ledger(
                "dropped ledger" if number in segment.dropped else missing,
                segment,
                number,
                "the segment stays unavailable" if stays else "left out",
            )
            for number in segment.missing
        ),
    ]


def _of_ledger(what: str, segment: FoundSegment, number: int, then: str) -> Difference:
    return Difference(what, f"{segment.id} {number}", then)
