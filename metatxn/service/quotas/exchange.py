"""What the processes of a cluster tell each other about the use of quotas.

Each has one record, which it changes about once a second while principals with a quota use something, and only if that
makes a difference. All have all records by a watch. A record that was not changed for a while is one of a process that
has ended, or is cut off from the store: it no longer counts, and is then deleted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import structlog

from metastore.api import MetadataStore
from metastore.errors import CheckFailed, MetastoreError
from metastore.txn import paths
from metastore.txn.records.quotas import PrincipalUse, QuotaUseRecord
from metastore.types import Event, Record
from metastore.watches import Mirror

REFRESH_S = 10.0
"""A record that is not empty is written again at least this often."""
SILENT_S = 30.0
"""What a process told longer ago than this no longer counts."""
FORGOTTEN_S = 60.0
DIFFERENCE = 0.05
"""A rate is told again when it has changed by this part."""
log = structlog.get_logger()


@dataclass(slots=True)
class Heard:
    uses: Mapping[str, PrincipalUse]
    heard_s: float
    record: Record


class Exchange:
    def __init__(
        self, store: MetadataStore, process: str, clock: Callable[[], float], changed: Callable[[], None]
    ) -> None:
        """`changed` is called when another process has told something."""
        self._store = store
        self._own = paths.quota_use(process)
        self._clock = clock
        self._changed = changed
        self._mirror = Mirror(store, paths.QUOTA_USES, self._heard)
        self._others: dict[str, Heard] = {}
        self._record: Record | None = None
        self._told: Mapping[str, PrincipalUse] = {}
        self._told_s = clock()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Exchange inside this block. Raises the store's errors. At the end the own record is deleted, if the store
        answers."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._mirror.running())
            stack.push_async_callback(self._withdraw)
            yield

    @property
    def cut_off(self) -> bool:
        """Whether the others no longer know what this process uses."""
        return self._clock() - self._told_s > SILENT_S

    def others(self) -> list[Mapping[str, PrincipalUse]]:
        """What the other processes have told lately."""
        now = self._clock()
        return [told.uses for told in self._others.values() if now - told.heard_s <= SILENT_S]

    def _heard(self, event: Event) -> None:
        if event.key == self._own:
            self._record = event.record
            return
        if event.record is None:
            self._others.pop(event.key, None)
        else:
            uses = QuotaUseRecord.decode(event.record.value).uses
            self._others[event.key] = Heard(uses, self._clock(), event.record)
        self._changed()

    async def tell(self, uses: Mapping[str, PrincipalUse]) -> None:
        """Tell the others, if it makes a difference. Failures are logged: the next call does it."""
        now = self._clock()
        try:
            if uses and now - self._told_s < REFRESH_S and not _differ(self._told, uses):
                return
            if uses or self._record is not None:
                await self._put(QuotaUseRecord(uses=dict(uses)) if uses else None)
            self._told, self._told_s = uses, now
            await self._forget()
        except MetastoreError as error:
            log.info("the use of quotas could not be told", error=str(error))

    async def _put(self, record: QuotaUseRecord | None) -> None:
        """Write the record; None deletes it. It is written only here, but may have been deleted as one of an ended
        process."""
        for _ in range(2):
            batch = self._store.batch()
            if self._record is None and record is not None:
                batch.create(self._own, record.encode())
            elif self._record is not None and record is not None:
                batch.replace(self._record, record.encode())
            elif self._record is not None:
                batch.remove(self._record)
            try:
                await self._store.apply(batch)
                return
            except CheckFailed:
                self._record = await self._store.get(self._own)

    async def _forget(self) -> None:
        now = self._clock()
        for key, told in list(self._others.items()):
            if now - told.heard_s > FORGOTTEN_S:
                try:
                    await self._store.apply(self._store.batch().remove(told.record))
                except CheckFailed:
                    log.debug("a process was only silent", key=key)

    async def _withdraw(self) -> None:
        try:
            await self._put(None)
        except MetastoreError as error:
            log.info("what was told of quotas stays for a minute", error=str(error))


def _differ(told: Mapping[str, PrincipalUse], uses: Mapping[str, PrincipalUse]) -> bool:
    if told.keys() != uses.keys():
        return True
    return any(_differs(told[principal], use) for principal, use in uses.items())


def _differs(told: PrincipalUse, use: PrincipalUse) -> bool:
    if told.limited != use.limited or told.rates.keys() != use.rates.keys():
        return True
    return any(
        abs(rate - told.rates[name]) > DIFFERENCE * max(rate, told.rates[name]) for name, rate in use.rates.items()
    )
