"""Transactions in a process that is no coordinator: a broker, which commits what comes with the last entries.

Every process with access to the store can decide a transaction (DESIGN §5.17), because the decision is one
compare-and-set. Such a process begins none, so it has no coordinator id, and it runs no sweeps.
"""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from coordinator.metrics import CoordinatorMetrics
from coordinator.transactions import Transactions
from metastore.api import MetadataStore
from metastore.clock import Clock

SHOWN = {
    "pulsar_txn_metadata_store_header_cas",
    "metatxn_transactions_ended",
    "metatxn_transaction_duration_seconds",
}
"""The metrics of a coordinator that tell of decisions."""


class _Decisions(Collector):
    def __init__(self, metrics: CoordinatorMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return (metric for metric in self._metrics.registry.collect() if metric.name in SHOWN)


def local_transactions(store: MetadataStore, clock: Clock, registry: CollectorRegistry) -> Transactions:
    """The transactions of `store`. `registry` shows what is decided here."""
    metrics = CoordinatorMetrics()
    registry.register(_Decisions(metrics))
    return Transactions(store, clock, metrics=metrics)
