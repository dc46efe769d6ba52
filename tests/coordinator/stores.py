"""Stores that misbehave on purpose, around a `MemoryStore` that keeps the truth.

    FaultyStore     loses replies and requests where a test says so
    ShuffledStore   lets other tasks run before and after every call, in an order that a seed decides

Neither reorders the effects of one task, and neither breaks a check: what they do, a network does too.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum, auto

from metastore.api import Ephemeral, MetadataStore, StoredIndexes
from metastore.errors import CheckFailed, OutcomeUnknown, StoreUnavailable
from metastore.types import Applied, Batch, RangeResult, Revision, Snapshot, Watch


class Fault(Enum):
    """What becomes of one apply."""

    NONE = auto()
    LOSE_REPLY = auto()  # it took effect, and nobody says so
    LOSE_REQUEST = auto()  # it never arrives, and nobody says so
    DELAY = auto()  # it is still on its way; `deliver` lets it arrive
    UNAVAILABLE = auto()  # it certainly did not happen


class WrappedStore(StoredIndexes):
    def __init__(self, truth: MetadataStore) -> None:
        super().__init__(truth.indexes)
        self.truth = truth
        self.max_batch_bytes = truth.max_batch_bytes

    async def apply(self, batch: Batch) -> Applied:
        return await self.truth.apply(batch)

    async def get_many(self, wanted: Sequence[str]) -> Snapshot:
        return await self.truth.get_many(wanted)

    async def range(
        self, start: str, end: str, *, limit: int = 0, reverse: bool = False, keys_only: bool = False
    ) -> RangeResult:
        return await self.truth.range(start, end, limit=limit, reverse=reverse, keys_only=keys_only)

    def watch(self, prefix: str, from_revision: Revision) -> Watch:
        return self.truth.watch(prefix, from_revision)

    async def ephemeral(self, key: str, value: bytes, ttl_ms: int) -> Ephemeral:
        return await self.truth.ephemeral(key, value, ttl_ms)

    async def close(self) -> None:
        await self.truth.close()

    def _assert_open(self) -> None:
        self.truth._assert_open()


Meanwhile = Callable[[], Awaitable[object]]
"""What happens while a request is on its way; an error it raises is what the request ends in."""


class FaultyStore(WrappedStore):
    """`faults` are taken one per apply, `before_…` one per request; after the last one everything works."""

    def __init__(self, truth: MetadataStore) -> None:
        super().__init__(truth)
        self.faults: deque[Fault] = deque()
        self.before_reads: deque[Meanwhile | None] = deque()
        self.before_applies: deque[Meanwhile | None] = deque()
        self.sent: list[Batch] = []
        self.requests = 0
        self._delayed: list[Batch] = []

    async def apply(self, batch: Batch) -> Applied:
        self.sent.append(batch)
        self.requests += 1
        await _take(self.before_applies)
        fault = self.faults.popleft() if self.faults else Fault.NONE
        match fault:
            case Fault.NONE:
                return await self.truth.apply(batch)
            case Fault.LOSE_REPLY:
                await self._arrive(batch)
            case Fault.DELAY:
                self._delayed.append(batch)
            case Fault.UNAVAILABLE:
                await unavailable()
        raise OutcomeUnknown("the connection broke")

    async def get_many(self, wanted: Sequence[str]) -> Snapshot:
        self.requests += 1
        await _take(self.before_reads)
        return await self.truth.get_many(wanted)

    async def deliver(self) -> None:
        """Let everything delayed arrive now."""
        delayed, self._delayed = self._delayed, []
        for batch in delayed:
            await self._arrive(batch)

    async def _arrive(self, batch: Batch) -> None:
        try:
            await self.truth.apply(batch)
        except CheckFailed:
            return  # Nobody hears of it.


async def _take(waiting: deque[Meanwhile | None]) -> None:
    if waiting and (meanwhile := waiting.popleft()):
        await meanwhile()


async def unavailable() -> None:
    """As a `Meanwhile`: the request does not reach the store."""
    raise StoreUnavailable("nobody listens")


class ShuffledStore(WrappedStore):
    def __init__(self, truth: MetadataStore, seed: int) -> None:
        super().__init__(truth)
        self._random = random.Random(seed)

    async def _let_others_run(self) -> None:
        for _ in range(self._random.randrange(4)):
            await asyncio.sleep(0)

    async def apply(self, batch: Batch) -> Applied:
        await self._let_others_run()
        try:
            return await self.truth.apply(batch)
        finally:
            await self._let_others_run()

    async def get_many(self, wanted: Sequence[str]) -> Snapshot:
        await self._let_others_run()
        found = await self.truth.get_many(wanted)
        await self._let_others_run()
        return found
