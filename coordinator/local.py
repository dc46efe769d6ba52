"""Transactions in a process that is no coordinator: a broker, which commits what comes with the last entries, and
whose listeners begin and end transactions for the clients of other systems.

Every process with access to the store can decide a transaction (DESIGN §5.17), because the decision is one
compare-and-set. Such a process runs no sweeps, and it has no coordinator id of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from coordinator.metrics import CoordinatorMetrics
from coordinator.transactions import Transactions
from metastore.api import MetadataStore
from metastore.clock import Clock
from metatxn.service.security.principal import ANYONE, Principal
from metatxn.wire.coordinator import TransactionHeader
from metatxn.wire.ids import TxnId

SHOWN = {
    "metatxn_transactions_created",
    "pulsar_txn_metadata_store_header_cas",
    "metatxn_transactions_ended",
    "metatxn_transaction_duration_seconds",
}
"""The metrics of a coordinator that tell what became of transactions."""


class _Shown(Collector):
    def __init__(self, metrics: CoordinatorMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return (metric for metric in self._metrics.registry.collect() if metric.name in SHOWN)


@dataclass(frozen=True, slots=True)
class LocalCommits:
    """Commits in this process. `counts` returns counters of them, by the names of a sample of the throughput, unless a
    coordinator in this process counts them."""

    transactions: Transactions
    counts: Callable[[], Mapping[str, int]] = dict

    async def commit(
        self, txn_id: TxnId, writers: Iterable[str] | None = None, *, caller: Principal = ANYONE
    ) -> TransactionHeader:
        """See `Transactions.commit`."""
        return TransactionHeader(**await self.transactions.commit(txn_id, writers, caller=caller))


def local_commits(store: MetadataStore, clock: Clock, registry: CollectorRegistry) -> LocalCommits:
    """Commits of the transactions of `store`. `registry` shows what begins and ends here."""
    metrics = CoordinatorMetrics()
    registry.register(_Shown(metrics))
    return LocalCommits(Transactions(store, clock, metrics=metrics), metrics.counts)
