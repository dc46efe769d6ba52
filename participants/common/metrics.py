"""The broker's metrics, with the names of the public contract."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from participants.common.traffic import Traffic
from participants.common.transaction_work import RecentWork

_LATENCY_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class BrokerMetrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.traffic = Traffic(self.registry)
        self.work = RecentWork()
        self.op_writes = Counter(
            "pulsar_txn_metadata_store_op_writes",
            "Operation records written.",
            registry=self.registry,
        )
        self.decision_to_visible = Histogram(
            "metatxn_decision_to_visible_seconds",
            "From the decision of a transaction to its effect on a segment's readers, by the two processes' clocks.",
            registry=self.registry,
            buckets=_LATENCY_SECONDS,
        )
        self.horizon_lag = Gauge(
            "metatxn_horizon_lag_entries",
            "Durable entries that readers may not see yet, of each segment that is served here.",
            ["segment"],
            registry=self.registry,
        )
        self.watch_resyncs = Counter(
            "metatxn_watch_resyncs", "Times the header mirror had to list again.", registry=self.registry
        )
        self.reconcile_repairs = Counter(
            "metatxn_reconcile_repairs",
            "Decisions found by reconciling that no watch event had delivered.",
            registry=self.registry,
        )
        self.group_commit_size = Histogram(
            "metatxn_group_commit_size",
            "Applies in one request to the metadata store.",
            registry=self.registry,
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
        )
        self.index_query = Histogram(
            "pulsar_txn_metadata_store_index_query_seconds",
            "All operations of a segment, or of one of its subscriptions: at its recovery, and in each reconcile.",
            registry=self.registry,
            buckets=_LATENCY_SECONDS,
        )
        self.append_seconds = Histogram(
            "metatxn_append_seconds",
            "From an append's position to its durability.",
            registry=self.registry,
            buckets=_LATENCY_SECONDS,
        )
        self.fsync_seconds = Histogram(
            "metatxn_fsync_seconds",
            "One shared sync of a ledger file.",
            registry=self.registry,
            buckets=_LATENCY_SECONDS,
        )
        self.storage_used = Gauge(
            "metatxn_storage_used_bytes", "Used bytes of the disk of the ledgers.", registry=self.registry
        )
        self.storage_capacity = Gauge(
            "metatxn_storage_capacity_bytes", "The size of that disk; 0 in an object store.", registry=self.registry
        )
        self.storage_refuses = Gauge(
            "metatxn_storage_refuses_publishes",
            "1 while messages are refused because that disk is used up to the watermark.",
            registry=self.registry,
        )
        self.retention_ledgers = Counter(
            "metatxn_retention_dropped_ledgers", "Ledgers dropped by the policy of a topic.", registry=self.registry
        )
        self.retention_bytes = Counter(
            "metatxn_retention_dropped_bytes", "Bytes of the ledgers dropped by policies.", registry=self.registry
        )
        self.rewritten_ledgers = Counter(
            "metatxn_rewritten_ledgers", "Ledgers replaced by a smaller form.", registry=self.registry
        )
        self.rewritten_bytes = Counter(
            "metatxn_rewritten_freed_bytes", "Bytes that were left out of these ledgers.", registry=self.registry
        )
        self.damaged_ledgers = Gauge(
            "metatxn_damaged_ledgers",
            "Ledgers that upkeep cannot read, of segments served here.",
            registry=self.registry,
        )
        self.segments_opened = Counter(
            "metatxn_segments_opened",
            "Segments opened: new ones, and those taken over or opened again.",
            registry=self.registry,
        )
        self.segments_lost = Counter(
            "metatxn_segments_lost",
            "Segments given up: moved to another broker, or to be opened again after a failure.",
            registry=self.registry,
        )
        self.held_publishes = Counter(
            "metatxn_held_publishes", "Entries refused because of a backlog.", registry=self.registry
        )
        self.segments_removed = Counter(
            "metatxn_removed_segments", "Sealed segments removed from their topic.", registry=self.registry
        )
