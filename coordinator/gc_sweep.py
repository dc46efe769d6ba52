"""Garbage collection (DESIGN §5.7): it deletes the headers of decided transactions once they are no longer needed.

A header is deleted when its decision is older than the retention time *and* the store proves, in the apply that deletes
it, that no operation record of the transaction is left. Operation records are never deleted here: a broker that was
down for a month still finds them, and the header that says what to do.

Before any header of a slice is deleted, `/gc/horizon` is moved to the highest decision revision in the slice, so that a
snapshot read that would miss one of them is refused. It is not moved beyond a revision that a reader holds (DESIGN
§5.24): headers of later decisions stay. Two concurrent sweeps are safe, because every step is checked. Each begins with
its own share (`shares`), and takes what is left of another's share once that is overdue.

A hundred thousand headers may become due together. They are deleted a few at a time, each time followed by a pause at
least as long as the deletion took, so that commits are not delayed. Only overdue headers are deleted without pauses,
because a sweep that is slower than new headers become due would never end. A slice is read from a window of time that
is about as long as needed, because etcd counts all keys of a range that is read, whatever the limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from coordinator.metrics import CoordinatorMetrics
from coordinator.periodic import PeriodicSweep
from coordinator.shares import Share, everything
from metastore.api import MetadataStore
from metastore.clock import Clock
from metastore.errors import CheckFailed, StoreUnavailable
from metastore.keys import prefix_end
from metastore.txn import listing, paths
from metastore.txn.read_holds import lowest_held
from metastore.txn.records.transactions import GcHorizon
from metastore.txn.states import TxnState
from metastore.types import EmptyRange, Record
from metatxn.service.lifecycle import Lifecycle, tell
from metatxn.wire.ids import TxnId

DEFAULT_INTERVAL_MS = 60_000
DEFAULT_RETENTION_MS = 3_600_000
SLICE = 100
TOGETHER = 25
"""The number of headers in one apply; each adds a check of its own that no operation record is left."""
PAUSE_MS = 10
"""The shortest pause between two applies."""
FIRST_WINDOW_MS = 1_000

_MOST_RIVALS = 30
"""The number of other sweeps that may move the horizon while one tries to; after that, the next sweep continues."""

OVERDUE_INTERVALS = 2
"""The number of sweeps after which any process may delete a header that is due."""

_Headers = Sequence[tuple[listing.Row, Record]]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Collected:
    """The result of one sweep; `kept` are headers past the retention time that still have operation records."""

    deleted: int
    kept: int


class GcSweep(PeriodicSweep):
    """Use `start` and `stop` for the loop, or call `collect_once`."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        metrics: CoordinatorMetrics,
        *,
        interval_ms: int = DEFAULT_INTERVAL_MS,
        retention_ms: int = DEFAULT_RETENTION_MS,
        share: Callable[[], Share] = everything,
    ) -> None:
        super().__init__("gc sweep", interval_ms)
        self._share = share
        self._overdue_ms = OVERDUE_INTERVALS * interval_ms
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._retention_ms = retention_ms
        self.kept: int | None = None
        """The headers that the last sweep kept, if there was one."""

    async def sweep(self) -> bool:
        collected = await self.collect_once()
        self.kept = collected.kept
        self._metrics.gc_backlog.set(collected.kept)
        return True

    async def collect_once(self) -> Collected:
        """Delete, in slices, every header that is due and is in this process's share or overdue.

        Raises the store's errors; the next call continues.
        """
        until_ms = self._clock() - self._retention_ms
        overdue_ms = until_ms - self._overdue_ms
        deleted = kept = 0
        share = self._share()
        for state in (TxnState.COMMITTED, TxnState.ABORTED):
            after, reach_ms, window_ms = "", until_ms, FIRST_WINDOW_MS
            while until_ms >= 0 and not self.stopping:
                with self._metrics.index_query.time():
                    rows = await listing.decided_by_time(
                        self._store, state, after=after, until_ms=reach_ms, limit=SLICE
                    )
                due = [row for row in rows if row.at_ms <= overdue_ms or share(row.txn_id)]
                gone, stayed, held = await self._collect(due, overdue_ms)
                deleted += gone
                kept += stayed
                if due and held == len(due):
                    break  # what follows was decided later, and is held, too
                if rows:
                    after = rows[-1].position
                if len(rows) == SLICE:
                    reach_ms = rows[-1].at_ms
                    window_ms = max(1, reach_ms - rows[0].at_ms) * 2
                elif reach_ms == until_ms:
                    break
                else:
                    window_ms *= 4
                reach_ms = min(reach_ms + window_ms, until_ms)
        if deleted:
            tell(Lifecycle.HEADERS_COLLECTED, deleted=deleted, kept=kept)
        return Collected(deleted, kept)

    async def _collect(self, due: Sequence[listing.Row], overdue_ms: int) -> tuple[int, int, int]:
        """The numbers of headers of one slice that were deleted, that still have operation records, and that stay
        because of a read hold. A stop leaves the rest alone."""
        if not due:
            return 0, 0, 0
        snapshot = await self._store.get_many([paths.header(row.txn_id) for row in due])
        headers = [(row, record) for row in due if (record := snapshot.records[paths.header(row.txn_id)])]
        if not headers:
            return 0, 0, 0
        free = await self._below_horizon(headers)
        deleted, kept, held = 0, 0, len(headers) - len(free)
        seconds = asyncio.get_running_loop().time
        for first in range(0, len(free), TOGETHER):
            part = free[first : first + TOGETHER]
            start = seconds()
            gone = await self._delete([(row.txn_id, record) for row, record in part])
            deleted += gone
            kept += len(part) - gone
            overdue = part[0][0].at_ms <= overdue_ms
            if await self.stopped_within(0 if overdue else max(PAUSE_MS, int((seconds() - start) * 1000))):
                break
        return deleted, kept, held

    async def _below_horizon(self, headers: _Headers) -> _Headers:
        """Move the horizon as far as these headers need it and no held revision forbids. Returns those below it, which
        may go. It never moves backwards: a sweep that is behind another one leaves it where it is."""
        record = await self._store.get(paths.GC_HORIZON)
        for _ in range(_MOST_RIVALS):
            # Behind the read of the horizon, which anyone who takes a hold writes again.
            lowest = await lowest_held(self._store, self._clock())
            free = [each for each in headers if lowest is None or each[1].version <= lowest]
            if not free:
                return free
            reached = GcHorizon(
                revision=max(record.version for _, record in free), finalized_ms=max(row.at_ms for row, _ in free)
            )
            known = GcHorizon.decode(record.value) if record else None
            wanted = known.joined(reached) if known else reached
            if wanted == known:
                return free
            batch = self._store.batch()
            if record is None:
                batch.create(paths.GC_HORIZON, wanted.encode())
            else:
                batch.replace(record, wanted.encode())
            try:
                await self._store.apply(batch)
            except CheckFailed as lost:
                record = lost.current
            else:
                return free
        raise StoreUnavailable("other sweeps moved the horizon each time that this one tried to")

    async def _delete(self, headers: Sequence[tuple[TxnId, Record]]) -> int:
        """Delete headers, and return their number: all in one apply, or each separately if one of them cannot be
        deleted."""
        batch = self._store.batch()
        for txn_id, record in headers:
            operations = paths.ops_of_transaction(txn_id)
            batch.remove(record).check(EmptyRange(operations, prefix_end(operations)))
        try:
            await self._store.apply(batch)
        except CheckFailed as lost:
            if len(headers) > 1:
                return sum(await asyncio.gather(*(self._delete([header]) for header in headers)))
            # Operation records are left, which their brokers will delete; or another sweep was faster.
            return int(lost.current is None)
        for txn_id, _ in headers:
            log.debug("header collected", txn_id=str(txn_id))
        return len(headers)
