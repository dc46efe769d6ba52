"""The store in memory: the reference model that every other backend is compared with.

Nothing is awaited inside `apply`, so every apply is atomic and takes effect in the order of the calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sortedcontainers import SortedDict

from metastore.api import Ephemeral, OwnRecord, StoredIndexes
from metastore.errors import CheckFailed, StoreClosed
from metastore.types import (
    Applied,
    Batch,
    Changes,
    Check,
    EmptyRange,
    Event,
    IndexDefinition,
    RangeResult,
    Record,
    Revision,
    Snapshot,
    Watch,
    holds,
)
from metastore.watches import ChangeLog


@dataclass(slots=True)
class _Slot:
    value: bytes
    version: int
    writes: int

    def record(self, key: str, keys_only: bool = False) -> Record:
        return Record(key, b"" if keys_only else self.value, self.version, self.writes == 1)


class MemoryStore(StoredIndexes):
    """A store in memory: one copy of the records, which ends with the process."""

    def __init__(self, indexes: Iterable[IndexDefinition] = ()) -> None:
        super().__init__(indexes)
        self._slots: SortedDict[str, _Slot] = SortedDict()
        self._revision: Revision = 1
        self._log = ChangeLog(self._revision)
        self._closed = False

    async def apply(self, batch: Batch) -> Applied:
        self._assert_open()
        self.refuse_unfit(batch)
        self.group_sent(1)
        for check in batch.checks:
            self._evaluate(check)
        deletes = {key for key in batch.deletes if key in self._slots}
        for start, end in batch.range_deletes:
            deletes.update(self._slots.irange(start, end, inclusive=(True, False)))
        deletes -= batch.puts.keys()
        if not batch.puts and not deletes:
            return Applied(self._revision)
        self._revision += 1
        events = []
        for key in sorted(deletes):
            del self._slots[key]
            events.append(Event(key, None))
        for key, value in batch.puts.items():
            known = self._slots.get(key)
            slot = _Slot(value, self._revision, known.writes + 1 if known else 1)
            self._slots[key] = slot
            events.append(Event(key, slot.record(key)))
        self._log.publish(Changes(self._revision, tuple(events)))
        return Applied(self._revision)

    async def get_many(self, wanted: Sequence[str]) -> Snapshot:
        self._assert_open()
        return Snapshot({key: self._get(key) for key in wanted}, self._revision)

    async def range(
        self, start: str, end: str, *, limit: int = 0, reverse: bool = False, keys_only: bool = False
    ) -> RangeResult:
        self._assert_open()
        records: list[Record] = []
        for key in self._slots.irange(start, end, inclusive=(True, False), reverse=reverse):
            if limit and len(records) == limit:
                return RangeResult(records, self._revision, more=True)
            records.append(self._slots[key].record(key, keys_only))
        return RangeResult(records, self._revision)

    def watch(self, prefix: str, from_revision: Revision) -> Watch:
        self._assert_open()
        return self._log.watch(prefix, from_revision)

    async def ephemeral(self, key: str, value: bytes, ttl_ms: int) -> Ephemeral:
        applied = await self.apply(self.batch().put(key, value))
        return OwnRecord(self, key, applied.revision)

    async def compact(self) -> None:
        """Forget all history up to now, so that watches from before it start with a `Resync` (for tests)."""
        self._log.compact(self._revision)

    async def close(self) -> None:
        self._closed = True
        await self._log.close()

    def _get(self, key: str) -> Record | None:
        slot = self._slots.get(key)
        return slot.record(key) if slot else None

    def _evaluate(self, check: Check) -> None:
        current = self._first(check) if isinstance(check, EmptyRange) else self._get(check.key)
        if not holds(check, current):
            raise CheckFailed(check, current, self._revision)

    def _first(self, within: EmptyRange) -> Record | None:
        key = next(iter(self._slots.irange(within.start, within.end, inclusive=(True, False))), None)
        return self._get(key) if key is not None else None

    def _assert_open(self) -> None:
        super()._assert_open()
        if self._closed:
            raise StoreClosed("this store is closed")
