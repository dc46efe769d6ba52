"""Aborting what nobody ended (DESIGN §5.16).

A transaction is aborted once this process's clock is past its deadline in force by more than `max_clock_skew_ms`: never
early while no two clocks differ by more than that, and about one sweep interval late beyond it. The deadline by itself
refuses nothing; only the final header does.

The deadline index alone is read, in slices, so a sweep costs what is due and not what is open. Two sweepers at once are
safe (every abort is checked against the records that hold the deadline) and only share the work.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from coordinator.transactions import Transactions
from metastore.errors import MetastoreError
from metastore.txn import listing
from metastore.txn.ids import TxnId

DEFAULT_INTERVAL_MS = 1_000
DEFAULT_MAX_CLOCK_SKEW_MS = 500
"""NTP keeps the clocks of one site within some milliseconds; this leaves room for a bad day and costs half a second."""

SLICE = 100
_LONGEST_BACKOFF_MS = 10_000

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Swept:
    aborted: int
    failed: int


class TimeoutSweep:
    """`start` and `stop` the loop, or call `sweep_once`."""

    def __init__(
        self,
        transactions: Transactions,
        *,
        interval_ms: int = DEFAULT_INTERVAL_MS,
        max_clock_skew_ms: int = DEFAULT_MAX_CLOCK_SKEW_MS,
    ) -> None:
        self._transactions = transactions
        self._interval_ms = interval_ms
        self._max_clock_skew_ms = max_clock_skew_ms
        self._stopping = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    async def sweep_once(self) -> Swept:
        """Abort everything that is due now. A transaction that cannot be aborted is counted and passed over.

        Raises the store's error when the index itself cannot be read.
        """
        until_ms = self._transactions.clock() - self._max_clock_skew_ms
        aborted = failed = 0
        after = ""
        while until_ms >= 0 and not self._stopping.is_set():
            rows = await listing.open_by_deadline(self._transactions.store, after=after, until_ms=until_ms, limit=SLICE)
            # At once, so that the store can put them into one request.
            ended = await asyncio.gather(*(self._expire(row.txn_id) for row in rows))
            aborted += ended.count(True)
            failed += ended.count(None)
            if len(rows) < SLICE:
                break
            after = rows[-1].position
        return Swept(aborted, failed)

    async def _expire(self, txn_id: TxnId) -> bool | None:
        """True: aborted; False: nothing to do; None: failed, and the next sweep will find it again."""
        try:
            return await self._transactions.expire(txn_id, self._max_clock_skew_ms)
        except MetastoreError as error:
            self._transactions.metrics.sweep_errors.inc()
            log.warning("timed out transaction not aborted yet", txn_id=str(txn_id), error=str(error))
            return None

    def start(self) -> None:
        assert self._loop is None, "the sweep is running"
        self._stopping.clear()
        self._loop = asyncio.create_task(self._run(), name="timeout sweep")

    async def stop(self) -> None:
        """Finish the slice under way."""
        self._stopping.set()
        if self._loop:
            await self._loop
            self._loop = None

    async def _run(self) -> None:
        wait_ms = self._interval_ms
        while not await self._stopped_within(wait_ms):
            if await self._sweep_and_survive():
                wait_ms = self._interval_ms
            else:
                wait_ms = max(self._interval_ms, min(wait_ms * 2, _LONGEST_BACKOFF_MS))

    async def _sweep_and_survive(self) -> bool:
        try:
            return (await self.sweep_once()).failed == 0
        except MetastoreError as error:
            log.warning("timeout sweep could not read the store", error=str(error))
        except Exception:
            # Whatever it was, the next sweep must come: a dead sweep would leave readers waiting for ever.
            log.exception("timeout sweep failed")
        return False

    async def _stopped_within(self, wait_ms: int) -> bool:
        try:
            await asyncio.wait_for(self._stopping.wait(), wait_ms / 1000)
        except TimeoutError:
            return False
        return True
