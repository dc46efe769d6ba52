"""Detecting that the store was restored from a backup.

A store that goes back in time breaks the assumptions of everything above it: versions are used again, ids are issued a
second time, and a decision that a broker has carried out may be open again. So a process serves one *incarnation* of
the store, and only as long as that moves forward:

    revision of a read < revision of an earlier read     the store was restored from a backup
    `MetadataStore.lost_writes`                          it has lost writes that it had acknowledged: its backend knows
    /cluster/incarnation names another one               it was restored, and has been recovered since

All end in `MetadataStore.refuse`: this process does nothing more with the store. The first two are also written into
the record, so that every other process stops, and none starts, before `metatxn store recover` has begun a new
incarnation.
A process that has just started has read nothing yet, so a broker also remembers, beside its ledgers, how far it has
seen the store (see `participants.restored`).

This is a safety net. A restore must be done with everything stopped: after a restore under running processes, they act
on outdated knowledge until a look detects it.

The same looks read the cluster version (see `metastore.versions`). A process that does not speak it does not start, and
one that runs refuses the store.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress

import structlog

from metastore.api import MetadataStore, behind, telling_others
from metastore.background import in_background
from metastore.clock import Clock
from metastore.errors import CheckFailed, MetastoreError, OutcomeUnknown, StoreTooNew, StoreUnavailable, StoreWentBack
from metastore.keys import prefix_end
from metastore.txn import paths
from metastore.txn.laws.remedies import RECOVER, RESTORE_AGAIN
from metastore.txn.records.processes import Incarnation, VersionRecord
from metastore.types import Batch, Record, Revision, Snapshot
from metastore.versions import FIRST, SPEAKS, ClusterVersion, too_new

INTERVAL_MS = 2_000

IDS_PER_MS = 1 << 20
"""More transaction ids than any coordinator gives out in a millisecond; of epochs, generations and numbers of segments
there is less than one per millisecond."""

UNFINISHED = "a backup is being restored into this store, or that was interrupted"
_JOINS = 100
"""The number of processes that may start at the same moment: in each round at least one of them has joined."""
BARRIER = (
    "it has not, but the cluster was upgraded, and this release is too old for it. Start the release that the other "
    "processes run, and ignore what follows here"
)
"""What a process of release 0.2.0 reads when it starts late. It says in front of it that the store went back in time,
and behind it that it must be recovered."""

log = structlog.get_logger()


async def first_number(store: MetadataStore, per_ms: int) -> int:
    """The first number of a counter that the store does not know, and that never counts faster than `per_ms`: it is
    above all numbers that a counter of the same name may have given out before the store was restored. It is 0 in a
    store that was never restored.

    Raises the store's errors.
    """
    return recovered_ms(await store.get(paths.INCARNATION)) * per_ms


def recovered_ms(incarnation: Record | None) -> int:
    """When the store was restored last, by its record of the incarnation; 0 if it never was."""
    return (Incarnation.decode(incarnation.value).recovered_ms or 0) if incarnation is not None else 0


async def version_of(store: MetadataStore) -> int:
    """The cluster version. Raises the store's errors."""
    record = await store.get(paths.VERSION)
    return VersionRecord.decode(record.value).version if record is not None else FIRST


class IncarnationGuard:
    """Checks every `interval_ms` whether the store is still the one with which this process has started.

    `seen` returns the latest revision that this process has learned of otherwise, by a watch. `on_refusal` is called
    once, after the store was told to refuse. `version` learns the cluster version, of which the process `speaks` the
    highest.
    """

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        *,
        interval_ms: int = INTERVAL_MS,
        seen: Callable[[], Revision] = lambda: 0,
        on_refusal: Callable[[str], None] = lambda why: None,
        version: ClusterVersion | None = None,
        speaks: int = SPEAKS,
    ) -> None:
        self._store = store
        self._clock = clock
        self._interval_s = interval_ms / 1000
        self._seen = seen
        self._on_refusal = on_refusal
        self.version = version or ClusterVersion(FIRST)
        self._speaks = speaks
        self._task: asyncio.Task[None] | None = None
        self.id = ""
        self._looked_at: Revision = 0
        self.answered_ms: int | None = None
        """When the store answered a look last."""
        self.silence: str | None = None
        """Why it has not answered the latest look."""

    @property
    def unanswered_ms(self) -> int | None:
        """How long ago the store answered a look last."""
        return None if self.answered_ms is None else self._clock() - self.answered_ms

    @property
    def revision(self) -> Revision:
        """How far this process has seen the store: by the latest look, or according to `seen`."""
        return max(self._looked_at, self._seen())

    async def start(self) -> None:
        """Join the store's incarnation, after this process was announced; a store without one begins its first.

        Raises `StoreWentBack` if the store waits for its recovery, `StoreTooNew`, and the store's errors.
        """
        for _ in range(_JOINS):
            snapshot = await self._read()
            self._looked_at = snapshot.revision
            try:
                incarnation = await self._join(snapshot)
            except (CheckFailed, OutcomeUnknown):  # another process has started, or the version was raised: look again
                continue
            self.id = incarnation.id
            self._task = in_background(self._keep_looking(), "incarnation guard")
            return
        raise StoreUnavailable("other processes changed the cluster version each time that this one joined the cluster")

    async def stop(self) -> None:
        """Stop. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def look(self) -> None:
        """Look once. Raises the store's errors. A wrong store is not an error here, but makes it refuse every call."""
        if self._store.lost_writes is not None:
            await self.went_back(self._store.lost_writes)
            return
        known = self.revision
        snapshot = await self._read()
        if snapshot.revision < known:
            await self.went_back(f"it was at revision {known}, and now it is at revision {snapshot.revision}")
            return
        self._looked_at = snapshot.revision
        incarnation, version = _decoded(snapshot)
        if incarnation is None:
            self._refuse(f"the record {paths.INCARNATION} is gone. {RECOVER}")
        elif waiting := _waits_for_recovery(incarnation):
            self._refuse(waiting)
        elif incarnation.id != self.id:
            self._refuse("it was restored from a backup and has been recovered since. Restart this process.")
        elif version > self._speaks:
            self._refuse(too_new(version, self._speaks), StoreTooNew)
        else:
            self.version.learn(version)

    async def went_back(self, how: str) -> str:
        """This process knows that the store went back in time: tell all others, as far as the store accepts writes.
        Returns why the store is refused."""
        try:
            with telling_others():
                await self._mark(how)
        except MetastoreError as error:
            log.warning("the store cannot be marked as restored", error=str(error))
        why = f"{behind(how)}. {RECOVER}"
        self._refuse(why)
        return why

    async def _keep_looking(self) -> None:
        while self._store.refusal is None:
            await asyncio.sleep(self._interval_s)
            try:
                await self.look()
            except MetastoreError as error:
                log.debug("the incarnation of the store could not be read", error=str(error))

    async def _read(self) -> Snapshot:
        try:
            found = await self._store.get_many([paths.INCARNATION, paths.VERSION])
        except MetastoreError as error:
            self.silence = str(error)
            raise
        self.answered_ms, self.silence = self._clock(), None
        return found

    async def _join(self, snapshot: Snapshot) -> Incarnation:
        """Write the cluster version again as it was read, so that no process raises it without having seen that this
        process is announced. Changes nothing if it must not join."""
        incarnation, version = _decoded(snapshot)
        if incarnation is not None and (waiting := _waits_for_recovery(incarnation)):
            raise StoreWentBack(waiting)
        if version > self._speaks:
            raise StoreTooNew(too_new(version, self._speaks))
        batch = self._store.batch()
        stored = snapshot.records[paths.VERSION]
        if stored is not None:
            batch.replace(stored, stored.value)
        else:
            version = await self._first_version(incarnation)
            batch.create(paths.VERSION, VersionRecord(version=version).encode())
        if incarnation is None:
            incarnation = self._begin(batch, version)
        self._looked_at = (await self._store.apply(batch)).revision
        self.version.learn(version)
        return incarnation

    async def _first_version(self, incarnation: Incarnation | None) -> int:
        """A new store begins with the version of this release. One without a record of it was served by release 0.2.0,
        or an earlier one."""
        if incarnation is not None:
            return FIRST
        for prefix in (paths.TOPICS, paths.ID_SEQUENCES):
            if (await self._store.range(prefix, prefix_end(prefix), limit=1)).records:
                return FIRST
        return self._speaks

    def _begin(self, batch: Batch, version: int) -> Incarnation:
        first = with_barrier(Incarnation(id=secrets.token_hex(16), begun_ms=self._clock()), version)
        batch.create(paths.INCARNATION, first.encode())
        return first

    async def _mark(self, how: str) -> None:
        snapshot = await self._read()
        record = snapshot.records[paths.INCARNATION]
        if record is None:
            return
        incarnation = Incarnation.decode(record.value)
        if incarnation.restored_how is None:
            marked = incarnation.model_copy(update={"went_back": how, "barrier": None}).encode()
            with suppress(CheckFailed):  # another process has marked it
                await self._store.apply(self._store.batch().replace(record, marked))

    def _refuse(self, why: str, kind: type[MetastoreError] = StoreWentBack) -> None:
        if self._store.refusal is None:
            log.error("the metadata store is no longer served", reason=why)
        self._store.refuse(why, kind)
        self._on_refusal(why)


def with_barrier(incarnation: Incarnation, version: int) -> Incarnation:
    """The record as it is to be stored at this cluster version: above the first one, no process of release 0.2.0 may
    serve the store, which looks at this record alone."""
    if version == FIRST or incarnation.went_back is not None:
        return incarnation
    return incarnation.model_copy(update={"went_back": BARRIER, "barrier": True})


def _decoded(snapshot: Snapshot) -> tuple[Incarnation | None, int]:
    incarnation, version = snapshot.records[paths.INCARNATION], snapshot.records[paths.VERSION]
    return (
        Incarnation.decode(incarnation.value) if incarnation is not None else None,
        VersionRecord.decode(version.value).version if version is not None else FIRST,
    )


def _waits_for_recovery(incarnation: Incarnation) -> str | None:
    if incarnation.restoring is not None:
        return f"{UNFINISHED}: {incarnation.restoring}. {RESTORE_AGAIN}"
    if incarnation.recovering:
        return f"the metadata store is being recovered. {RECOVER}"
    if incarnation.restored_how is not None:
        return f"the metadata store went back in time: {incarnation.restored_how}. {RECOVER}"
    return None
