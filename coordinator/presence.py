"""That this coordinator serves, for all to see, and who else does.

The announcements are listed and watched before this process makes its own. So once the own one is seen, the store takes
writes, keeps the lease and delivers what changes: that is what being ready means here. A process that was frozen until
its lease ended sees that it is gone, and is not ready until it is announced again. A watch can die later, too, and says
nothing of it: whoever asks whether this process is ready has what it shows compared with what is there. Liveness only:
nothing that must be true rests on it.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import structlog

from coordinator.shares import Share, share_of
from metastore.api import Ephemeral, MetadataStore
from metastore.errors import MetastoreError
from metastore.keys import prefix_end
from metastore.txn import paths
from metastore.txn.records import JsonRecord
from metastore.types import Event, Revision, Version
from metastore.watches import Mirror

TTL_MS = 10_000
_SEEN_WITHIN_SECONDS = 5
_CAUGHT_UP_WITHIN_SECONDS = 2

log = structlog.get_logger()


class ProcessRecord(JsonRecord):
    """`/cluster/coordinator/<id>`: an ephemeral record, liveness only."""

    url: str


class Presence:
    """`start` and `stop`."""

    def __init__(self, store: MetadataStore, process_id: str) -> None:
        self._store = store
        self._own = paths.coordinator_process(process_id)
        self._mirror = Mirror(store, paths.COORDINATORS, self._changed)
        self._seen = asyncio.Event()
        self._news = asyncio.Event()
        self._running = AsyncExitStack()

    async def start(self, url: str) -> None:
        """Returns once the announcement is seen, or after some seconds without. Raises the store's errors."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._mirror.running())
            record = await self._store.ephemeral(self._own, ProcessRecord(url=url).encode(), TTL_MS)
            stack.push_async_callback(self._withdraw, record)
            self._running = stack.pop_all()
        try:
            await asyncio.wait_for(self._seen.wait(), _SEEN_WITHIN_SECONDS)
        except TimeoutError:
            log.warning("the watch does not show this coordinator")

    async def stop(self) -> None:
        """Idempotent."""
        await self._running.aclose()

    @property
    def waiting_for(self) -> dict[str, str]:
        """For `/readyz`: empty while the watch shows that this process is announced."""
        if self._seen.is_set():
            return {}
        return {"watch": "it does not show that this coordinator is announced"}

    async def behind(self) -> dict[str, str]:
        """For `/readyz`: empty when the watch shows all announcements that the store has, or does so soon. Raises the
        store's errors."""
        there = await self._store.range(paths.COORDINATORS, prefix_end(paths.COORDINATORS))
        versions = {record.key: record.version for record in there.records}
        try:
            async with asyncio.timeout(_CAUGHT_UP_WITHIN_SECONDS):
                while self._mirror.revision < there.revision and self._shown_versions() != versions:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return {"watch": "it does not show what has changed in the store"}
        return {}

    @property
    def revision(self) -> Revision:
        """As of which the watch shows the announcements."""
        return self._mirror.revision

    @property
    def resyncs(self) -> int:
        """Gaps that the watch has had."""
        return self._mirror.resyncs

    def share(self) -> Share:
        """Of the sweeps' work, as things are now."""
        return share_of(self._own, self._mirror.records)

    def _shown_versions(self) -> dict[str, Version]:
        return {record.key: record.version for record in self._mirror.records.values()}

    def _changed(self, event: Event) -> None:
        self._news.set()
        if event.key == self._own:
            (self._seen.clear if event.record is None else self._seen.set)()

    async def _withdraw(self, record: Ephemeral) -> None:
        try:
            await record.close()
        except MetastoreError as error:  # The store forgets by itself after the time to live.
            log.warning("coordinator still announced", error=str(error))
