"""Sending a checked write until its outcome is known (DESIGN §5.11).

A lost reply is not a failure: the request may still arrive. So the records are read again; while they still allow the
batch, the *identical* batch is sent again. Its checks ensure that it takes effect at most once, whichever of the copies
arrives. Once a check no longer holds, no copy can take effect any more, because versions never come back; and the
records show which one did, if any.

Absence does come back: a record that was created may have ended and been collected before its creator, which was frozen
meanwhile, asks whether it exists, or before a second copy arrives. So a batch that checks nothing but absence is sent
once, and a retry creates other records (`Settling.create`).

No write is retried without end (`patience`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from metastore.api import MetadataStore
from metastore.clock import Clock
from metastore.errors import CheckFailed, MetastoreError, OutcomeUnknown, StoreUnavailable
from metastore.types import (
    Absent,
    Applied,
    Batch,
    Check,
    EmptyRange,
    Record,
    Version,
    holds,
)
from metatxn.service.patience import Patience, Pause

MakeBatch = Callable[[], Awaitable[Batch]]

log = structlog.get_logger()


class Overtaken(Exception):
    """A check of the batch no longer holds. Read again.

    `perhaps_ours` says that a reply was lost before, so the check may have failed because of this very batch. If it is
    false, the batch certainly had no effect, and `check` is the one that failed.
    """

    def __init__(self, check: Check | None, *, perhaps_ours: bool) -> None:
        super().__init__("the records have changed since they were read")
        self.check = check
        self.perhaps_ours = perhaps_ours


class Unanswered(OutcomeUnknown):
    """It is unknown whether the records of `batch`, which were to be created, exist."""

    def __init__(self, lost: OutcomeUnknown, batch: Batch) -> None:
        super().__init__(f"the store did not say whether the write took effect: {lost}")
        self.batch = batch


class Settling:
    """Applies batches to one store so that an unknown outcome is resolved before the caller gets an answer."""

    def __init__(self, store: MetadataStore, clock: Clock, *, pause: Pause = asyncio.sleep) -> None:
        self.store = store
        self._clock = clock
        self._pause = pause

    def patience(self) -> Patience:
        """The patience for one request."""
        return Patience(self._clock, self._pause)

    async def apply(self, batch: Batch) -> Applied:
        """Apply `batch`, which must check a version of every record it writes, or of another record that it also
        writes.

        Raises `Overtaken` (read again), `OutcomeUnknown` (the patience is over and the outcome is unknown), or the
        store's error for the first request if that request certainly had no effect.
        """
        try:
            return await self.store.apply(batch)
        except CheckFailed as failed:
            raise Overtaken(failed.check, perhaps_ours=False) from None
        except OutcomeUnknown as lost:
            _log_lost(lost)
            return await self._resolve(batch, lost)

    async def _resolve(self, batch: Batch, lost: OutcomeUnknown) -> Applied:
        patience = self.patience()
        while await patience.lasts():
            try:
                if not await self._may_still_apply(batch):
                    raise Overtaken(None, perhaps_ours=True)
                return await self.store.apply(batch)
            except CheckFailed:
                raise Overtaken(None, perhaps_ours=True) from None
            except MetastoreError as error:
                # Whatever this error says about the copy just sent, the first copy may still arrive.
                log.info("outcome still unknown", error=str(error))
        raise Unanswered(lost, batch) from lost

    async def create(self, make: MakeBatch, taken: Callable[[Batch], None]) -> tuple[Batch, Applied]:
        """Apply what `make` makes: records for which only their absence is checked, under names that were given to no
        other request. Returns the batch that took effect.

        After a lost reply, if the records are not found, `make` is called for other ones; should the first ones still
        arrive, no caller was told about them. It is also called if names are in use, after `taken` was called with
        them.

        Raises `Unanswered`. If certainly nothing was created, it raises the error of the store or of `make`, or
        `StoreUnavailable` if names were in use each time.
        """
        unsent: Batch | None = None
        lost: Unanswered | None = None
        patience = self.patience()
        while await patience.lasts():
            try:
                if lost and (applied := await self._found(lost.batch)):
                    return lost.batch, applied
                unsent = unsent or await make()
                return unsent, await self.store.apply(unsent)
            except CheckFailed:
                assert unsent is not None, "only an apply checks"
                taken(unsent)
                unsent = None
            except OutcomeUnknown as error:
                assert unsent is not None, "only an apply can end so"
                _log_lost(error)
                lost, unsent = Unanswered(error, unsent), None
            except MetastoreError:
                if lost is None:
                    raise
        raise lost or StoreUnavailable(
            "every name that the store gave out as new is in use: was it restored from a backup?"
        )

    async def _found(self, created: Batch) -> Applied | None:
        """Whether all records that were to be created exist, identical to the last byte: then they are ours. Records of
        another creator under these names are not taken for ours: only those that began in the same millisecond with the
        same timeout are equal."""
        names = [check.key for check in created.checks if isinstance(check, Absent)]
        assert len(names) == len(created.checks), "nothing but absence is checked"
        found = (await self.store.get_many(names)).records
        versions = {_version_as_created(found[name], created.puts[name]) for name in names}
        version = versions.pop()
        return None if versions or version is None else Applied(version)

    async def _may_still_apply(self, batch: Batch) -> bool:
        """Whether the batch may still apply, as far as can be told: the contents of ranges are not looked at."""
        checks = [check for check in batch.checks if not isinstance(check, EmptyRange)]
        seen = await self.store.get_many(list(dict.fromkeys(check.key for check in checks)))
        return all(holds(check, seen.records[check.key]) for check in checks)


def _version_as_created(record: Record | None, value: bytes) -> Version | None:
    return record.version if record is not None and record.first and record.value == value else None


def _log_lost(lost: OutcomeUnknown) -> None:
    log.info("reply lost, asking the store what happened", error=str(lost))
