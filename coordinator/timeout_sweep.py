"""The timeout sweep: it aborts transactions past their deadline (DESIGN §5.16).

A transaction is aborted once this process's clock is past its deadline in force by more than `max_clock_skew_ms`: never
early while no two clocks differ by more than that, and about one sweep interval late beyond it. The deadline by itself
refuses nothing; only the final header does.

Only the deadline index is read, in slices, so the cost of a sweep depends on what is due and not on what is open. Two
concurrent sweeps are safe, because every abort is checked against the records that hold the deadline. To divide the
work, each begins with its own share (`shares`), and takes what is left of another's share once that is overdue.

Thousands may become due together, when the process that began them has died. Those without a key whose deadline was
never moved are aborted `TOGETHER` in one apply; if one of them is not as it was read, the apply has no effect, and each
is aborted separately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import structlog

from coordinator.periodic import PeriodicSweep
from coordinator.settling import Overtaken
from coordinator.shares import Share, everything
from coordinator.transactions import Transactions
from metastore.errors import InvalidBatch, MetastoreError
from metastore.txn import listing
from metastore.txn.listing import Row
from metastore.txn.store import TransactionRecords, read_plain
from metatxn.wire.ids import TxnId

DEFAULT_INTERVAL_MS = 1_000
DEFAULT_MAX_CLOCK_SKEW_MS = 500
"""NTP keeps the clocks of one site within some milliseconds. This allows for exceptions, and delays timeouts by half a
second."""

SLICE = 100
TOGETHER = 25
"""The number of aborts in one apply: they check a hundred keys, which every store accepts in one apply."""

OVERDUE_INTERVALS = 2
"""The number of sweeps after which any process may abort a transaction that is due."""

Ended = bool | None
"""The outcome. True: aborted; False: nothing to do; None: failed, and the next sweep will find it again."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Swept:
    aborted: int
    failed: int


class TimeoutSweep(PeriodicSweep):
    """Use `start` and `stop` for the loop, or call `sweep_once`."""

    def __init__(
        self,
        transactions: Transactions,
        *,
        interval_ms: int = DEFAULT_INTERVAL_MS,
        max_clock_skew_ms: int = DEFAULT_MAX_CLOCK_SKEW_MS,
        share: Callable[[], Share] = everything,
    ) -> None:
        super().__init__("timeout sweep", interval_ms)
        self._share = share
        self._overdue_ms = OVERDUE_INTERVALS * interval_ms
        self._transactions = transactions
        self._max_clock_skew_ms = max_clock_skew_ms

    async def sweep(self) -> bool:
        try:
            return (await self.sweep_once()).failed == 0
        except MetastoreError:
            self._transactions.metrics.sweep_errors.inc()
            raise

    async def sweep_once(self) -> Swept:
        """Abort the transactions that are due now and are in this process's share, or overdue. One that cannot be
        aborted is counted and skipped.

        Raises the store's error if the index, or a slice of headers, cannot be read.
        """
        until_ms = self._transactions.clock() - self._max_clock_skew_ms
        overdue_ms = until_ms - self._overdue_ms
        share = self._share()
        aborted = failed = 0
        after = ""
        while until_ms >= 0 and not self.stopping:
            with self._transactions.metrics.index_query.time():
                rows = await listing.open_by_deadline(
                    self._transactions.store, after=after, until_ms=until_ms, limit=SLICE
                )
            due = [row for row in rows if row.at_ms <= overdue_ms or share(row.txn_id)]
            ended = await self._expire_slice(due)
            aborted += ended.count(True)
            failed += ended.count(None)
            if len(rows) < SLICE:
                break
            after = rows[-1].position
        return Swept(aborted, failed)

    async def _expire_slice(self, due: Sequence[Row]) -> list[Ended]:
        known = await read_plain(self._transactions.store, [row.txn_id for row in due])
        plain = [known[row.txn_id] for row in due if _is_plain(row, known.get(row.txn_id))]
        shared = {records.txn_id for records in plain}
        alone = [row.txn_id for row in due if row.txn_id not in shared]
        parts = [plain[first : first + TOGETHER] for first in range(0, len(plain), TOGETHER)]
        # Concurrently, so that the store can put them into one request.
        ended = await asyncio.gather(*map(self._expire_together, parts), self._expire_each(alone))
        return list(chain.from_iterable(ended))

    async def _expire_together(self, part: Sequence[TransactionRecords]) -> Sequence[Ended]:
        try:
            await self._transactions.expire_together(part)
        except (Overtaken, InvalidBatch):
            return await self._expire_each([records.txn_id for records in part])
        except MetastoreError as error:
            self._transactions.metrics.sweep_errors.inc(len(part))
            txn_ids = [records.txn_id for records in part]
            log.warning("timed out transactions not aborted yet", txn_ids=txn_ids, error=str(error))
            return [None] * len(part)
        return [True] * len(part)

    async def _expire_each(self, txn_ids: Sequence[TxnId]) -> Sequence[Ended]:
        return await asyncio.gather(*map(self._expire, txn_ids))

    async def _expire(self, txn_id: TxnId) -> Ended:
        try:
            return await self._transactions.expire(txn_id, self._max_clock_skew_ms)
        except MetastoreError as error:
            self._transactions.metrics.sweep_errors.inc()
            log.warning("timed out transaction not aborted yet", txn_id=str(txn_id), error=str(error))
            return None


def _is_plain(row: Row, records: TransactionRecords | None) -> bool:
    """Whether its abort can only fail by a check: no key holds it, and its deadline is the one of its begin, so that a
    lease or a prepared record is unlikely."""
    if records is None or records.header.state.final:
        return False
    return records.header.key is None and records.header.timeout_ms == row.at_ms
