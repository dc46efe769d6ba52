"""A store whose calls are measured, and which tells a request whether it has changed anything."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from metastore.api import Ephemeral, MetadataStore
from metastore.errors import MetastoreError, StoreWentBack
from metastore.types import Applied, Batch, RangeResult, Record, Revision, Snapshot, Watch

T = TypeVar("T")
Observe = Callable[[str, float, MetastoreError | None], None]
"""Called on the event loop after each call: its name, its seconds, and how it failed. A cancelled call is not told."""


@dataclass(slots=True)
class Effects:
    """Whether an apply has taken effect."""

    any: bool = False


EFFECTS: ContextVar[Effects | None] = ContextVar("effects", default=None)
"""The effects of the applies in this context and in the tasks that were begun in it."""


def _took_effect() -> None:
    if (effects := EFFECTS.get()) is not None:
        effects.any = True


def took_back() -> None:
    """Everything that was applied in this context is undone."""
    if (effects := EFFECTS.get()) is not None:
        effects.any = False


class MeasuredStore(MetadataStore):
    """The same store as `store`, with the same rules: every call is passed on. Closing either closes both."""

    def __init__(self, store: MetadataStore, observe: Observe, clock: Callable[[], float] = time.perf_counter) -> None:
        self._store = store
        self._observe = observe
        self._clock = clock
        self.indexes = store.indexes
        self.group_listeners = store.group_listeners
        self.kind = store.kind
        self.max_batch_bytes = store.max_batch_bytes
        self.poll_interval_ms = store.poll_interval_ms

    @property
    def refusal(self) -> str | None:  # type: ignore[override]
        return self._store.refusal

    @property
    def lost_writes(self) -> str | None:  # type: ignore[override]
        return self._store.lost_writes

    def refuse(self, why: str, kind: type[MetastoreError] = StoreWentBack) -> None:
        self._store.refuse(why, kind)

    def command_for(self, key: str) -> str | None:
        return self._store.command_for(key)

    def batch(self) -> Batch:
        return self._store.batch()

    def refuse_unfit(self, batch: Batch) -> None:
        self._store.refuse_unfit(batch)

    async def _measured(self, name: str, call: Awaitable[T]) -> T:
        began = self._clock()
        try:
            answer = await call
        except MetastoreError as error:
            self._observe(name, self._clock() - began, error)
            raise
        self._observe(name, self._clock() - began, None)
        return answer

    async def apply(self, batch: Batch) -> Applied:
        applied = await self._measured("apply", self._store.apply(batch))
        _took_effect()
        return applied

    async def lease_ids(self, key: str, count: int, *, first: int = 1) -> range:
        return await self._measured("lease_ids", self._store.lease_ids(key, count, first=first))

    async def put_sequential(self, prefix: str, value: bytes) -> Record:
        record = await self._measured("put_sequential", self._store.put_sequential(prefix, value))
        _took_effect()
        return record

    async def get_many(self, wanted: Sequence[str]) -> Snapshot:
        return await self._measured("get_many", self._store.get_many(wanted))

    async def range(
        self, start: str, end: str, *, limit: int = 0, reverse: bool = False, keys_only: bool = False
    ) -> RangeResult:
        call = self._store.range(start, end, limit=limit, reverse=reverse, keys_only=keys_only)
        return await self._measured("range", call)

    async def query_index(
        self, name: str, start: str = "", end: str | None = None, *, limit: int = 0, reverse: bool = False
    ) -> list[str]:
        call = self._store.query_index(name, start, end, limit=limit, reverse=reverse)
        return await self._measured("query_index", call)

    async def size_bytes(self) -> int | None:
        return await self._store.size_bytes()

    async def why_full(self) -> str | None:
        return await self._store.why_full()

    def watch(self, prefix: str, from_revision: Revision) -> Watch:
        return self._store.watch(prefix, from_revision)

    async def ephemeral(self, key: str, value: bytes, ttl_ms: int) -> Ephemeral:
        return await self._measured("ephemeral", self._store.ephemeral(key, value, ttl_ms))

    async def close(self) -> None:
        await self._store.close()
