"""Keeps a cursor durable, and beside it the counts of deliveries, where they are stored. There is one write at a time,
and everything that is acknowledged or counted meanwhile goes into the next one.

Every write checks the ownership of the segment and the incarnation of the subscription, and each record its own
version.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import structlog

from metastore.api import MetadataStore
from metastore.errors import CheckFailed, MetastoreError, OutcomeUnknown
from metastore.slices import slices
from metastore.txn import paths
from metastore.txn.records.subscriptions import AckedBucket, DeliveryCountsRecord, MarkDelete
from metastore.types import AtVersion, Batch, Record
from metatxn.service.retry import until_it_succeeds
from participants.subscription.cursor import Cursor, CursorChanges
from participants.subscription.definitions import Definition
from participants.subscription.delivery_counts import DeliveryCounts
from participants.subscription.places import Place, Span

log = structlog.get_logger()
RECORDS_PER_APPLY = 30
"""The most records in an apply. Each has at most 16 KiB, and one of them 32 KiB, so an apply stays below half of the
megabyte that a store accepts."""

Write = tuple[str, bytes | None]

"""A key and its new content; None deletes it."""


def _add(batch: Batch, write: Write) -> None:
    key, value = write
    batch.create(key, value or b"")


class CursorStore:
    """The store of a cursor. `lost` is called with a check that did not hold: that of the ownership, or of the
    incarnation."""

    def __init__(
        self,
        store: MetadataStore,
        segment: str,
        owner: AtVersion,
        definition: Definition,
        cursor: Cursor,
        counts: DeliveryCounts,
        versions: dict[str, int],
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
        lost: Callable[[CheckFailed], None],
    ) -> None:
        self._store = store
        self._cursor = cursor
        self._counts = counts
        self._versions = versions
        self._guards = (owner, definition.check)
        self._key = (segment, definition.name, definition.record.incarnation)
        self._spawn = spawn
        self._lost = lost
        self._durable = self._changes
        self._writer: asyncio.Task[None] | None = None
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    @classmethod
    async def load(
        cls, store: MetadataStore, segment: str, definition: Definition
    ) -> tuple[Cursor, DeliveryCounts, dict[str, int]]:
        """The stored cursor, the stored counts and the versions of their records."""
        key = (segment, definition.name, definition.record.incarnation)
        found = await store.scan(paths.cursor(*key))
        mark, buckets, counts = definition.start_on(segment), [], DeliveryCounts()
        for record in found.records:
            if record.key == paths.cursor_mark(*key):
                mark = Place.parse(MarkDelete.decode(record.value).before)
            elif record.key == paths.delivery_counts(*key):
                counts = DeliveryCounts.decode(record.value)
            else:
                spans = [Span(Place.parse(a), Place.parse(b)) for a, b in AckedBucket.decode(record.value).ranges]
                buckets.append((Place.parse(record.key.rpartition("/")[2]), spans))
        cursor = Cursor(mark, buckets)
        for span in definition.acked_on(segment):
            cursor.add(span)  # they are durable there, and go into the cursor's records with the next write
        return cursor, counts, {record.key: record.version for record in found.records}

    @property
    def _changes(self) -> int:
        """The number of changes that must be stored."""
        return self._cursor.changes + self._counts.changes

    async def persist(self) -> None:
        """Wait until what is acknowledged and counted now is durable. Raises the store's error of a failed attempt; the
        write is nevertheless repeated in the background."""
        if self._changes == self._durable:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((self._changes, done))
        if self._writer is None or self._writer.done():
            self._writer = self._spawn(self._write_all())
        try:
            await asyncio.shield(done)
        finally:
            done.cancel()

    async def _write_all(self) -> None:
        try:
            while self._changes > self._durable:
                await until_it_succeeds(self._write_once, MetastoreError, self._failed)
        except _GuardLostError as guard:
            self._lost(guard.lost)
        finally:
            self._answer(OutcomeUnknown("the segment was closed before the acknowledgement was stored"))

    async def _write_once(self) -> None:
        target, changes, counts = self._changes, self._cursor.take_changes(), self._counts.take_changes()
        try:
            for some in slices(self._store, list(self._writes(changes, counts)), RECORDS_PER_APPLY, _add):
                await self._apply(some)
        except BaseException:
            self._cursor.untake(changes)
            self._counts.untake(counts)
            raise
        self._counts.stored(counts)
        self._durable = target
        self._answer(None)

    def _writes(self, changes: CursorChanges, counts: DeliveryCountsRecord | None) -> Iterator[Write]:
        if counts is not None:
            yield paths.delivery_counts(*self._key), counts.encode()
        for name, spans in changes.in_order():
            if name is None:
                yield paths.cursor_mark(*self._key), MarkDelete(before=str(changes.mark_delete)).encode()
            elif spans is None:
                yield paths.cursor_bucket(*self._key, name), None
            else:
                ranges = tuple((str(start), str(end)) for start, end in spans)
                yield paths.cursor_bucket(*self._key, name), AckedBucket(ranges=ranges).encode()

    async def _apply(self, writes: Sequence[Write]) -> None:
        """Apply the writes. Only this object writes these records, so one at another version was written by an earlier
        request whose answer was lost, and contains less than what is written now."""
        while True:
            batch = self._store.batch().check(*self._guards)
            for key, value in writes:
                version = self._versions.get(key)
                if version is None and value is not None:
                    batch.create(key, value)
                elif version is not None:
                    known = Record(key, b"", version, first=False)
                    batch.replace(known, value) if value is not None else batch.remove(known)
            try:
                applied = await self._store.apply(batch)
                break
            except CheckFailed as lost:
                if lost.check in self._guards:
                    raise _GuardLostError(lost) from lost
                await self._learn_versions([key for key, _ in writes])
        for key, value in writes:
            if value is not None:
                self._versions[key] = applied.revision
            else:
                self._versions.pop(key, None)

    async def _learn_versions(self, keys: list[str]) -> None:
        for key, record in (await self._store.get_many(keys)).records.items():
            if record is not None:
                self._versions[key] = record.version
            else:
                self._versions.pop(key, None)

    def _failed(self, error: Exception) -> None:
        assert isinstance(error, MetastoreError)
        log.warning("a cursor is not stored yet", segment=self._key[0], subscription=self._key[1], error=str(error))
        self._answer(error)

    def _answer(self, error: MetastoreError | None) -> None:
        """Answer those whose change is durable now, or all if there is an error."""
        waiting, self._waiting = self._waiting, []
        for target, done in waiting:
            if done.done():
                continue
            if error is not None:
                done.set_exception(error)
            elif target <= self._durable:
                done.set_result(None)
            else:
                self._waiting.append((target, done))


class _GuardLostError(Exception):
    """A check did not hold, so the write must not be repeated."""

    def __init__(self, lost: CheckFailed) -> None:
        super().__init__(str(lost))
        self.lost = lost
