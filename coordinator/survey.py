"""The metrics of the whole store: open transactions and their age, remaining operation records, and keys in use.

A scrape never reads the store. A survey does so every quarter of a minute, in pages and up to a bound for each range,
and its result is shown until the next one. A header's `created_ms` never changes, so it is read once for each
transaction that several surveys find open; only metrics depend on what is remembered here.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from coordinator.metrics import CoordinatorMetrics
from coordinator.periodic import PeriodicSweep
from metastore.api import MetadataStore
from metastore.clock import Clock
from metastore.keys import prefix_end
from metastore.txn import key_records, listing, paths
from metastore.txn.key_records import KeyRecord
from metastore.txn.store import read_plain
from metatxn.wire.ids import TxnId
from metatxn.wire.models import OpenTransactions

DEFAULT_INTERVAL_MS = 15_000
MAX_COUNTED = 100_000
"""Where counting ends: this number means "at least this many"."""

MAX_LABELLED_KEYS = 100
"""The most keys with a time series of their own; otherwise there would be one for each job that ever ran."""
_PAGE = 1_000


@dataclass(frozen=True, slots=True)
class KeyUse:
    owner: str
    key: str
    epoch: int
    age_s: float


@dataclass(frozen=True, slots=True)
class SurveyResult:
    """The result of one survey. `last_used` and `longest_unused` have at most `MAX_LABELLED_KEYS` each."""

    open: int
    oldest_open_s: float
    operations: int
    keys: int
    last_used: Sequence[KeyUse]
    longest_unused: Sequence[KeyUse]


class Survey(PeriodicSweep, Collector):
    """Use `start` and `stop` for the loop, or call `look_once`. Before the first survey there is nothing to collect."""

    def __init__(
        self, store: MetadataStore, clock: Clock, metrics: CoordinatorMetrics, *, interval_ms: int = DEFAULT_INTERVAL_MS
    ) -> None:
        super().__init__("survey", interval_ms)
        self._store = store
        self._clock = clock
        self._created_ms: dict[TxnId, int] = {}
        self._found: SurveyResult | None = None
        metrics.registry.register(self)

    @property
    def open_transactions(self) -> OpenTransactions | None:
        """The open transactions of the last survey, if there was one."""
        if self._found is None:
            return None
        return OpenTransactions(count=self._found.open, oldest_ms=int(self._found.oldest_open_s * 1000))

    async def sweep(self) -> bool:
        await self.look_once()
        return True

    async def look_once(self) -> None:
        """Make one survey. Raises the store's errors; the previous result then remains."""
        open_, oldest_ms = await self._open_transactions()
        operations = await self._count(paths.OPS)
        keys = [self._use(key) async for key in self._live_keys()]
        self._found = SurveyResult(
            open=open_,
            oldest_open_s=(self._clock() - oldest_ms) / 1000 if oldest_ms is not None else 0.0,
            operations=operations,
            keys=len(keys),
            last_used=heapq.nsmallest(MAX_LABELLED_KEYS, keys, key=lambda use: use.age_s),
            longest_unused=heapq.nlargest(MAX_LABELLED_KEYS, keys, key=lambda use: use.age_s),
        )

    async def _open_transactions(self) -> tuple[int, int | None]:
        """The number of open transactions, and when the oldest of them began."""
        known: dict[TxnId, int] = {}
        count, after = 0, ""
        while count < MAX_COUNTED and not self.stopping:
            rows = await listing.open_by_deadline(self._store, after=after, limit=_PAGE)
            count += len(rows)
            known |= await self._when_created([row.txn_id for row in rows])
            if len(rows) < _PAGE:
                break
            after = rows[-1].position
        self._created_ms = known
        return count, min(known.values(), default=None)

    async def _when_created(self, txn_ids: Iterable[TxnId]) -> dict[TxnId, int]:
        created = {txn_id: self._created_ms.get(txn_id) for txn_id in txn_ids}
        read = await read_plain(self._store, [txn_id for txn_id, ms in created.items() if ms is None])
        # A transaction that is missing now was decided and collected meanwhile.
        return {txn_id: ms for txn_id, ms in created.items() if ms is not None} | {
            txn_id: records.header.created_ms for txn_id, records in read.items()
        }

    async def _count(self, prefix: str) -> int:
        count, start = 0, prefix
        while count < MAX_COUNTED and not self.stopping:
            found = await self._store.range(start, prefix_end(prefix), limit=_PAGE, keys_only=True)
            count += len(found.records)
            if not found.more:
                break
            start = found.records[-1].key + "\0"
        return count

    async def _live_keys(self) -> AsyncIterator[KeyRecord]:
        seen, after, more = 0, "", True
        while more and seen < MAX_COUNTED and not self.stopping:
            found, more = await key_records.list_keys(self._store, None, after=after, limit=_PAGE)
            seen += len(found)
            for key in found:
                if key.live:
                    yield key
            after = key_records.position(found[-1]) if found else ""

    def _use(self, key: KeyRecord) -> KeyUse:
        assert key.live is not None
        age_s = (self._clock() - key.live.updated_ms) / 1000
        return KeyUse(key.owner or "", key.key, key.live.epoch, max(0.0, age_s))

    def collect(self) -> Iterator[Metric]:
        found = self._found
        if found is None:
            return
        yield GaugeMetricFamily(
            "metatxn_transactions_open", f"Open transactions, counted up to {MAX_COUNTED:,}.", found.open
        )
        yield GaugeMetricFamily(
            "metatxn_oldest_open_transaction_seconds",
            "Age of the oldest open transaction, 0 without one.",
            found.oldest_open_s,
        )
        yield GaugeMetricFamily(
            "pulsar_txn_metadata_store_outstanding_op_records",
            f"Operation records that no broker has cleaned up yet, counted up to {MAX_COUNTED:,}.",
            found.operations,
        )
        yield GaugeMetricFamily("pulsar_txn_transaction_key_count", "Transaction keys in use.", found.keys)
        epochs = GaugeMetricFamily(
            "pulsar_txn_transaction_key_epoch",
            f"Epoch of a transaction key, of the {MAX_LABELLED_KEYS} used last.",
            labels=["owner", "transaction_key"],
        )
        for use in found.last_used:
            epochs.add_metric([use.owner, use.key], use.epoch)
        yield epochs
        ages = SummaryMetricFamily(
            "pulsar_txn_transaction_key_age",
            f"Seconds since a transaction key was used, of the {MAX_LABELLED_KEYS} unused for longest.",
            labels=["owner", "transaction_key"],
        )
        for use in found.longest_unused:
            ages.add_metric([use.owner, use.key], count_value=1, sum_value=use.age_s)
        yield ages
