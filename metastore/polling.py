"""A watch for stores that have none: it looks repeatedly, and reports what is different.

The changes are pulled, not pushed: it looks while the consumer waits for the next item, so nothing is queued for a slow
consumer, and it keeps only one version per key. A look reads the keys below the prefix; only if one of them has changed
are the values read too, at one revision.

    the look before (P)          this look (R)           told
    any, or none yet             R < from_revision       nothing: it is too early
    P + 1 < from_revision        R >= from_revision      `Resync`: what came before from_revision is not told apart
    P + 1 >= from_revision       R >= from_revision      `Changes` with the difference, if there is one

So a watch after a listing is exact if nothing was applied between the two, and begins with a `Resync` otherwise.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Protocol

from metastore.errors import StoreClosed, StoreUnavailable
from metastore.types import Changes, Event, RangeResult, Resync, Revision, Version, Watch, WatchItem


class Polled(Protocol):
    """What such a watch needs of a store."""

    poll_interval_ms: int

    async def scan(self, prefix: str, *, keys_only: bool = False) -> RangeResult: ...


class PollingWatch(Watch):
    """A watch by polling; see the module's docstring. It ends when it or its store is closed."""

    def __init__(self, store: Polled, prefix: str, from_revision: Revision) -> None:
        self._store = store
        self._prefix = prefix
        self._from_revision = max(from_revision, 1)  # no state has revision 0, so the first look is never its successor
        self._seen: Revision = -1
        self._versions: dict[str, Version] = {}
        self._closed = asyncio.Event()

    async def __anext__(self) -> WatchItem:
        while not self._closed.is_set():
            try:
                item = await self._look()
            except StoreClosed:
                break
            except StoreUnavailable:
                item = None
            if item is not None:
                return item
            with suppress(TimeoutError):
                async with asyncio.timeout(self._store.poll_interval_ms / 1000):
                    await self._closed.wait()
        raise StopAsyncIteration

    async def close(self) -> None:
        self._closed.set()

    async def _look(self) -> WatchItem | None:
        look = await self._store.scan(self._prefix, keys_only=True)
        if _versions(look) != self._versions:
            look = await self._store.scan(self._prefix)
        # Nothing is awaited from here on, so a cancelled consumer either has not looked or gets the result.
        seen, self._seen = self._seen, look.revision
        before, self._versions = self._versions, _versions(look)
        if look.revision < self._from_revision:
            return None
        if seen + 1 < self._from_revision:
            return Resync(look.revision, f"what was applied before revision {self._from_revision} was not observed")
        changed = [record for record in look.records if before.get(record.key) != record.version]
        events = [Event(key, None) for key in before if key not in self._versions]
        events += (Event(record.key, record) for record in sorted(changed, key=lambda record: record.version))
        return Changes(look.revision, tuple(events)) if events else None


def _versions(look: RangeResult) -> dict[str, Version]:
    return {record.key: record.version for record in look.records}
