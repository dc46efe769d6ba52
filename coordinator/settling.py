"""Sending a checked write until it is known what became of it (DESIGN §5.11).

A lost reply is not a failure: the request may still be on its way. So the records are read again; while they still
allow the batch, the *identical* batch is sent again. Its checks see to it that it takes effect at most once, whichever
of the copies arrives. Once a check no longer holds no copy can take effect any more, because versions never come back,
and the records say which one did, if any.

Absence does come back: a record that was created may have ended and been collected, before its creator, frozen since,
asks whether it is there, or before a second copy arrives. So what checks nothing but absence is sent once, and what
follows it creates other records (`Settling.create`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import assert_never

import structlog

from metastore.api import MetadataStore
from metastore.errors import CheckFailed, MetastoreError, OutcomeUnknown
from metastore.types import Absent, Applied, AtVersion, Batch, Check, EmptyRange, FirstVersion, Snapshot

Clock = Callable[[], int]
"""Now, in epoch milliseconds."""

Pause = Callable[[float], Awaitable[None]]
"""Wait for some seconds."""

MakeBatch = Callable[[], Awaitable[Batch]]

PATIENCE_MS = 10_000
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
_MAX_ATTEMPTS = 30  # Bounds the wait when the clock is set back.

log = structlog.get_logger()


class Overtaken(Exception):
    """A check of the batch no longer holds. Read again.

    `perhaps_ours` tells that a reply was lost before, so that what made the check fail may be this very batch.
    """

    def __init__(self, perhaps_ours: bool) -> None:
        super().__init__("the records have changed since they were read")
        self.perhaps_ours = perhaps_ours


class Settling:
    """Applies batches to one store so that an unknown outcome is resolved before the caller hears of it."""

    def __init__(
        self, store: MetadataStore, clock: Clock, *, pause: Pause = asyncio.sleep, patience_ms: int = PATIENCE_MS
    ) -> None:
        self.store = store
        self._clock = clock
        self._pause = pause
        self._patience_ms = patience_ms

    async def apply(self, batch: Batch) -> Applied:
        """Apply `batch`, which must check a version of every record it writes, or of another one that it writes too.

        Raises `Overtaken` (read again), `OutcomeUnknown` (patience is over and nobody knows), or what the store
        raised for the first request when that request certainly did nothing.
        """
        return await self._settle(batch, None)

    async def create(self, make: MakeBatch) -> Applied:
        """Apply what `make` makes: new records under names that nobody has used. It makes others when the first ones
        are not to be found after a lost reply; should those still arrive, nobody has been told of them.

        Raises as `apply`, of the last ones that were made.
        """
        return await self._settle(await make(), make)

    async def _settle(self, batch: Batch, make: MakeBatch | None) -> Applied:
        try:
            return await self.store.apply(batch)
        except CheckFailed:
            raise Overtaken(perhaps_ours=False) from None
        except OutcomeUnknown as lost:
            log.info("reply lost, asking the store what happened", error=str(lost))
            return await self._resolve(batch, make, lost)

    async def _resolve(self, batch: Batch, make: MakeBatch | None, lost: MetastoreError) -> Applied:
        deadline_ms = self._clock() + self._patience_ms
        pause_s = _FIRST_PAUSE_S
        for _ in range(_MAX_ATTEMPTS):
            try:
                if not await self._may_still_apply(batch):
                    raise Overtaken(perhaps_ours=True)
                batch = await make() if make is not None else batch
                return await self.store.apply(batch)
            except CheckFailed:
                raise Overtaken(perhaps_ours=True) from None
            except MetastoreError as error:
                # Whatever this one says about the copy just sent, the first copy may still be on its way.
                log.info("outcome still unknown", error=str(error))
            if self._clock() >= deadline_ms:
                break
            await self._pause(pause_s)
            pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
        raise OutcomeUnknown(f"the store did not say whether the write took effect: {lost}") from lost

    async def _may_still_apply(self, batch: Batch) -> bool:
        wanted = [check.key for check in batch.checks if not isinstance(check, EmptyRange)]
        seen = await self.store.get_many(list(dict.fromkeys(wanted)))
        return all(_holds(check, seen) for check in batch.checks)


def _holds(check: Check, seen: Snapshot) -> bool:
    match check:
        case Absent(key):
            return seen.records[key] is None
        case AtVersion(key, version):
            record = seen.records[key]
            return record is not None and record.version == version
        case FirstVersion(key):
            record = seen.records[key]
            return record is not None and record.first
        case EmptyRange():
            return True
    assert_never(check)
