"""The announcement of this coordinator in the store, its coordinator id, and the other coordinators.

The announcements are listed and watched before this process makes its own. So once it sees its own announcement, the
store accepts writes, keeps the lease and delivers changes: that is what being ready means here. A process that was
frozen until its lease ended sees that its announcement is gone, and is not ready until it is announced again. A watch
can also fail later without a sign, so the readiness check compares what the watch shows with what is in the store. All
this is for liveness only: no correctness depends on it.

**The coordinator id** is the high part of the ids of transactions that begin here, so that they show where they began.
Unless it was chosen, it is the lowest one that no other process is announced with. If two processes announce the same
id, the first one keeps it: each lists the others after its own announcement, so the second has seen the first, and
announces another id. A process whose announcement was gone and came back counts as the second one, too. If two
processes share an id anyway (because it was chosen, or until the frozen one has looked), no two transactions do: see
`IdBlocks`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack

import structlog

from coordinator.shares import Share, share_of
from metastore.api import Ephemeral, MetadataStore
from metastore.background import Backoff, in_background
from metastore.errors import MetastoreError, StoreUnavailable
from metastore.keys import prefix_end
from metastore.txn import paths
from metastore.txn.records.processes import CoordinatorRecord
from metastore.types import Event, Record, Revision, Version
from metastore.watches import Mirror
from metatxn.wire.ids import COORDINATORS

TTL_MS = 10_000
_CLAIMS = 100
"""The number of coordinators that may start at the same moment: in each round at least one of them gets its id."""
_SEEN_WITHIN_SECONDS = 5
_CAUGHT_UP_WITHIN_SECONDS = 2

log = structlog.get_logger()


class Presence:
    """Use `start` and `stop`. `chosen` is the coordinator id that was requested; `serve_as` is called with the actual
    one, once no other process has it."""

    def __init__(
        self,
        store: MetadataStore,
        process_id: str,
        chosen: int | None = None,
        serve_as: Callable[[int], None] = lambda coordinator_id: None,
        listeners: Mapping[str, str] | None = None,
    ) -> None:
        assert chosen is None or 0 <= chosen < COORDINATORS, chosen
        self._store = store
        self._chosen = chosen
        self._serve_as = serve_as
        self._listeners = dict(listeners or {})
        self._url = ""
        self._record: Ephemeral | None = None
        self.coordinator_id = chosen or 0
        self._own = paths.coordinator_process(process_id)
        self._mirror = Mirror(store, paths.COORDINATORS, self._changed)
        self._seen = asyncio.Event()
        self._back = asyncio.Event()
        self._news = asyncio.Event()
        self._running = AsyncExitStack()

    async def start(self, url: str) -> None:
        """Returns once the announcement is seen, or after some seconds without it. Raises the store's errors."""
        self._url = url
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._mirror.running())
            stack.push_async_callback(self._withdraw)
            await self._announce()
            keeper = in_background(self._keep_id(), "coordinator id")
            stack.push_async_callback(asyncio.wait, [keeper])
            stack.callback(keeper.cancel)
            self._running = stack.pop_all()
        try:
            await asyncio.wait_for(self._seen.wait(), _SEEN_WITHIN_SECONDS)
        except TimeoutError:
            log.warning("the watch does not show this coordinator")

    async def stop(self) -> None:
        """Stop. Idempotent."""
        await self._running.aclose()

    @property
    def waiting_for(self) -> dict[str, str]:
        """What `/readyz` waits for: empty while the watch shows that this process is announced."""
        if self._seen.is_set():
            return {}
        return {"watch": "it does not show that this coordinator is announced"}

    async def behind(self) -> dict[str, str]:
        """What `/readyz` reports: empty if the watch shows all announcements that are in the store, or does so soon.
        Raises the store's errors."""
        there = await self._store.range(paths.COORDINATORS, prefix_end(paths.COORDINATORS))
        versions = {record.key: record.version for record in there.records}
        try:
            async with asyncio.timeout(_CAUGHT_UP_WITHIN_SECONDS):
                while self._mirror.revision < there.revision and self._shown_versions() != versions:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return {"watch": "it does not show the latest changes in the store"}
        return {}

    @property
    def revision(self) -> Revision:
        """The revision up to which the watch shows the announcements."""
        return self._mirror.revision

    @property
    def resyncs(self) -> int:
        """The number of gaps in the watch."""
        return self._mirror.resyncs

    def share(self) -> Share:
        """This process's share of the sweeps' work, as of now."""
        return share_of(self._own, self._mirror.records)

    def _shown_versions(self) -> dict[str, Version]:
        return {record.key: record.version for record in self._mirror.records.values()}

    def _changed(self, event: Event) -> None:
        self._news.set()
        if event.key != self._own:
            return
        if event.record is None:
            self._seen.clear()
        else:
            self._seen.set()
            self._back.set()

    # -- the coordinator id ------------------------------------------------------------------------------------------

    async def _announce(self) -> None:
        """Announce this process unless it is announced, under another id if another process has this one. Raises the
        store's errors."""
        announced = await self._announced()
        for _ in range(_CLAIMS):
            if self._record and not self._is_anothers(announced):
                self._serve_as(self.coordinator_id)
                return
            await self._withdraw()
            self.coordinator_id = self._lowest_free(announced) if self._chosen is None else self._chosen
            record = CoordinatorRecord(
                url=self._url, coordinator_id=self.coordinator_id, listeners=self._listeners or None
            )
            self._record = await self._store.ephemeral(self._own, record.encode(), TTL_MS)
            announced = await self._announced()
        raise StoreUnavailable("other coordinators have announced every coordinator id that this one has tried")

    async def _announced(self) -> Mapping[str, Record]:
        found = await self._store.scan(paths.COORDINATORS)
        return {record.key: record for record in found.records}

    def _is_anothers(self, announced: Mapping[str, Record]) -> bool:
        """Whether another process was announced with the id earlier. A chosen id is then shared, which is logged."""
        own = announced.get(self._own)
        others = (record for key, record in announced.items() if key != self._own and not (own and _first(own, record)))
        if all(_coordinator_id(record) != self.coordinator_id for record in others):
            return False
        if self._chosen is not None:
            log.warning("another coordinator has the same coordinator id", coordinator_id=self.coordinator_id)
        return self._chosen is None

    def _lowest_free(self, announced: Mapping[str, Record]) -> int:
        taken = {_coordinator_id(record) for key, record in announced.items() if key != self._own}
        return next((number for number in range(COORDINATORS) if number not in taken), 0)

    async def _keep_id(self) -> None:
        """Check again whenever the announcement is back: it may have been gone, and the id given to another process."""
        backoff = Backoff()
        while True:
            await self._back.wait()
            self._back.clear()
            try:
                await self._announce()
            except MetastoreError as error:
                log.info("coordinator id not confirmed", error=str(error))
                self._back.set()
                await backoff.pause()
            else:
                backoff.reset()

    async def _withdraw(self) -> None:
        record, self._record = self._record, None
        if record is None:
            return
        try:
            await record.close()
        except MetastoreError as error:  # The store deletes the announcement by itself after the time to live.
            log.warning("coordinator still announced", error=str(error))


def _first(own: Record, other: Record) -> bool:
    return own.version < other.version


def _coordinator_id(record: Record) -> int:
    return CoordinatorRecord.decode(record.value).coordinator_id
