"""The broker's metrics, with the names of the public contract."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from participants.common.horizon_lags import HorizonLags
from participants.common.traffic import Traffic
from participants.common.transaction_work import RecentWork

_LATENCY_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class BrokerMetrics:
    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        count = partial(Counter, registry=registry)
        gauge = partial(Gauge, registry=registry)
        seconds = partial(Histogram, registry=registry, buckets=_LATENCY_SECONDS)
        self.traffic = Traffic(self.registry)
        self.work = RecentWork()
        self.op_writes = count("pulsar_txn_metadata_store_op_writes", "Operation records written.")
        self.decision_to_visible = seconds(
            "metatxn_decision_to_visible_seconds",
            "From the decision of a transaction to its effect on a segment's readers, by the two processes' clocks.",
        )
        self.horizon_lags = HorizonLags(self.registry)
        self.watch_resyncs = count("metatxn_watch_resyncs", "Times the header mirror had to list again.")
        self.reconcile_repairs = count(
            "metatxn_reconcile_repairs", "Decisions found by reconciling that no watch event had delivered."
        )
        self.group_commit_size = Histogram(
            "metatxn_group_commit_size",
            "Applies in one request to the metadata store.",
            registry=registry,
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
        )
        self.index_query = seconds(
            "pulsar_txn_metadata_store_index_query_seconds",
            "Operations of a segment or a subscription at its recovery, and of many, by pages, in each reconcile.",
        )
        self.append_seconds = seconds("metatxn_append_seconds", "From an append's position to its durability.")
        self.fsync_seconds = seconds("metatxn_fsync_seconds", "One shared sync of a ledger file.")
        self.storage_used = gauge("metatxn_storage_used_bytes", "Used bytes of the disk of the ledgers.")
        self.storage_capacity = gauge("metatxn_storage_capacity_bytes", "The size of that disk; 0 in an object store.")
        self.storage_refuses = gauge(
            "metatxn_storage_refuses_publishes",
            "1 while messages are refused because that disk is used up to the watermark.",
        )
        self.retention_ledgers = count("metatxn_retention_dropped_ledgers", "Ledgers dropped by the policy of a topic.")
        self.retention_bytes = count("metatxn_retention_dropped_bytes", "Bytes of the ledgers dropped by policies.")
        self.rewritten_ledgers = count("metatxn_rewritten_ledgers", "Ledgers replaced by a smaller form.")
        self.rewritten_bytes = count("metatxn_rewritten_freed_bytes", "Bytes that were left out of these ledgers.")
        self.damaged_ledgers = gauge(
            "metatxn_damaged_ledgers", "Ledgers that upkeep cannot read, of segments served here."
        )
        self.segments_opened = count(
            "metatxn_segments_opened", "Segments opened: new ones, and those taken over or opened again."
        )
        self.segments_lost = count(
            "metatxn_segments_lost",
            "Segments given up: moved to another broker, or to be opened again after a failure.",
        )
        self.held_publishes = count("metatxn_held_publishes", "Entries refused because of a backlog.")
        self.segments_removed = count("metatxn_removed_segments", "Sealed segments removed from their topic.")
