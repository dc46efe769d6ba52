"""Detecting that the store was restored from a backup.

A store that goes back in time breaks the assumptions of everything above it: versions are used again, ids are issued a
second time, and a decision that a broker has carried out may be open again. So a process serves one *incarnation* of
the store, and only as long as that moves forward:

    revision of a read < revision of an earlier read     the store was restored from a backup
    /cluster/incarnation names another one               it was restored, and has been recovered since

Both end in `MetadataStore.refuse`: this process does nothing more with the store. The first is also written into the
record, so that every other process stops, and none starts, before `metatxn store recover` has begun a new incarnation.
A process that has just started has read nothing yet, so a broker also remembers, beside its ledgers, how far it has
seen the store (see `participants.restored`).

This is a safety net. A restore must be done with everything stopped: after a restore under running processes, they act
on outdated knowledge until a look detects it.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import suppress

import structlog

from metastore.api import MetadataStore
from metastore.background import in_background
from metastore.clock import Clock
from metastore.errors import CheckFailed, MetastoreError, StoreWentBack
from metastore.txn import paths
from metastore.txn.laws.remedies import RECOVER
from metastore.txn.records.processes import Incarnation
from metastore.types import Record, Revision

INTERVAL_MS = 2_000

IDS_PER_MS = 1 << 20
"""More transaction ids than any coordinator gives out in a millisecond; of epochs, generations and numbers of segments
there is less than one per millisecond."""

log = structlog.get_logger()


async def first_number(store: MetadataStore, per_ms: int = 1) -> int:
    """The first number of a counter that the store does not know, and that never counts faster than `per_ms`: it is
    above all numbers that a counter of the same name may have given out before the store was restored. It is 0 in a
    store that was never restored.

    Raises the store's errors.
    """
    record = await store.get(paths.INCARNATION)
    recovered_ms = Incarnation.decode(record.value).recovered_ms if record is not None else None
    return (recovered_ms or 0) * per_ms


class IncarnationGuard:
    """Checks every `interval_ms` whether the store is still the one with which this process has started.

    `seen` returns the latest revision that this process has learned of otherwise, by a watch. `on_refusal` is called
    once, after the store was told to refuse.
    """

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        *,
        interval_ms: int = INTERVAL_MS,
        seen: Callable[[], Revision] = lambda: 0,
        on_refusal: Callable[[str], None] = lambda why: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._interval_s = interval_ms / 1000
        self._seen = seen
        self._on_refusal = on_refusal
        self._task: asyncio.Task[None] | None = None
        self.id = ""
        self._looked_at: Revision = 0

    @property
    def revision(self) -> Revision:
        """How far this process has seen the store: by the latest look, or according to `seen`."""
        return max(self._looked_at, self._seen())

    async def start(self) -> None:
        """Join the store's incarnation; a store without one begins its first.

        Raises `StoreWentBack` if the store waits for its recovery, and the store's errors.
        """
        record, self._looked_at = await self._read()
        if record is None:
            record = await self._begin()
        incarnation = Incarnation.decode(record.value)
        if waiting := _waits_for_recovery(incarnation):
            raise StoreWentBack(waiting)
        self.id = incarnation.id
        self._task = in_background(self._keep_looking(), "incarnation guard")

    async def stop(self) -> None:
        """Stop. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def look(self) -> None:
        """Look once. Raises the store's errors. A wrong store is not an error here, but makes it refuse every call."""
        known = self.revision
        record, revision = await self._read()
        if revision < known:
            await self.went_back(f"it was at revision {known}, and now it is at revision {revision}")
            return
        self._looked_at = revision
        incarnation = Incarnation.decode(record.value) if record else None
        if incarnation is None:
            self._refuse(f"the record {paths.INCARNATION} is gone. {RECOVER}")
        elif waiting := _waits_for_recovery(incarnation):
            self._refuse(waiting)
        elif incarnation.id != self.id:
            self._refuse("it was restored from a backup and has been recovered since. Restart this process.")

    async def went_back(self, how: str) -> str:
        """This process knows that the store was restored: tell all others, as far as the store accepts writes. Returns
        why the store is refused."""
        try:
            await self._mark(how)
        except MetastoreError as error:
            log.warning("the store cannot be marked as restored", error=str(error))
        why = f"the metadata store went back in time: {how}. {RECOVER}"
        self._refuse(why)
        return why

    async def _keep_looking(self) -> None:
        while self._store.refusal is None:
            await asyncio.sleep(self._interval_s)
            try:
                await self.look()
            except MetastoreError as error:
                log.debug("the incarnation of the store could not be read", error=str(error))

    async def _read(self) -> tuple[Record | None, Revision]:
        snapshot = await self._store.get_many([paths.INCARNATION])
        return snapshot.records[paths.INCARNATION], snapshot.revision

    async def _begin(self) -> Record:
        first = Incarnation(id=secrets.token_hex(16), begun_ms=self._clock()).encode()
        try:
            applied = await self._store.apply(self._store.batch().create(paths.INCARNATION, first))
        except CheckFailed as lost:
            if lost.current is None:
                raise
            return lost.current
        return Record(paths.INCARNATION, first, applied.revision, first=True)

    async def _mark(self, how: str) -> None:
        record, _ = await self._read()
        if record is None:
            return
        incarnation = Incarnation.decode(record.value)
        if incarnation.went_back is None:
            marked = incarnation.model_copy(update={"went_back": how}).encode()
            with suppress(CheckFailed):  # another process has marked it
                await self._store.apply(self._store.batch().replace(record, marked))

    def _refuse(self, why: str) -> None:
        if self._store.refusal is None:
            log.error("the metadata store is no longer served", reason=why)
        self._store.refuse(why)
        self._on_refusal(why)


def _waits_for_recovery(incarnation: Incarnation) -> str | None:
    if incarnation.recovering:
        return f"the metadata store is being recovered. {RECOVER}"
    if incarnation.went_back is not None:
        return f"the metadata store went back in time: {incarnation.went_back}. {RECOVER}"
    return None
