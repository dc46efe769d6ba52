"""The metrics of the whole store: open transactions and their age, remaining operation records, and keys in use.

A scrape never reads the store. A survey does so every quarter of a minute, in pages and up to a bound for each range,
and its result is shown until the next one.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.core import GaugeMetricFamily, Metric, SummaryMetricFamily
from prometheus_client.registry import Collector

from coordinator.ages import MAX_COUNTED, PAGE, OpenAges
from coordinator.metrics import CoordinatorMetrics
from coordinator.periodic import PeriodicSweep
from metastore.api import MetadataStore
from metastore.clock import Clock
from metastore.keys import prefix_end
from metastore.txn import key_records, paths
from metastore.txn.key_records import KeyRecord
from metatxn.wire.models import OpenTransactions

DEFAULT_INTERVAL_MS = 15_000
MAX_LABELLED_KEYS = 100
"""The most keys with a time series of their own; otherwise there would be one for each job that ever ran."""


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
        self,
        store: MetadataStore,
        clock: Clock,
        metrics: CoordinatorMetrics,
        ages: OpenAges,
        *,
        interval_ms: int = DEFAULT_INTERVAL_MS,
    ) -> None:
        super().__init__("survey", interval_ms)
        self._store = store
        self._clock = clock
        self._ages = ages
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
        await self._ages.look(lambda: self.stopping)
        oldest_ms = self._ages.oldest_ms
        operations = await self._count(paths.OPS)
        keys = [self._use(key) async for key in self._live_keys()]
        self._found = SurveyResult(
            open=self._ages.count,
            oldest_open_s=(self._clock() - oldest_ms) / 1000 if oldest_ms is not None else 0.0,
            operations=operations,
            keys=len(keys),
            last_used=heapq.nsmallest(MAX_LABELLED_KEYS, keys, key=lambda use: use.age_s),
            longest_unused=heapq.nlargest(MAX_LABELLED_KEYS, keys, key=lambda use: use.age_s),
        )

    async def _count(self, prefix: str) -> int:
        count, start = 0, prefix
        while count < MAX_COUNTED and not self.stopping:
            found = await self._store.range(start, prefix_end(prefix), limit=PAGE, keys_only=True)
            count += len(found.records)
            if not found.more:
                break
            start = found.records[-1].key + "\0"
        return count

    async def _live_keys(self) -> AsyncIterator[KeyRecord]:
        seen, after, more = 0, "", True
        while more and seen < MAX_COUNTED and not self.stopping:
            found, more = await key_records.list_keys(self._store, None, after=after, limit=PAGE)
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
