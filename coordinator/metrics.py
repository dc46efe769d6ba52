"""The coordinator's metrics, with the names of the public contract. Each one is measured where it occurs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from metastore.txn.records.transactions import Header
from metastore.txn.states import ExpiredBy, TxnState
from metatxn.service.tracing import exemplar


class _Counted(Collector):
    """A counter whose value is counted elsewhere."""

    def __init__(self, name: str, documentation: str, count: Callable[[], int]) -> None:
        self._name = name
        self._documentation = documentation
        self._count = count

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(self._name, self._documentation, self._count())


class CoordinatorMetrics:
    """The activity of one process. Nothing here is read from the store; `survey` adds the metrics of the store."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        header_cas = Counter(
            "pulsar_txn_metadata_store_header_cas",
            "Decisions of transactions: applied (ok), overtaken by another write (conflict), or refused because the "
            "transaction is decided another way (reject).",
            ["result"],
            registry=self.registry,
        )
        ended = Counter(
            "metatxn_transactions_ended",
            "Transactions that this process decided.",
            ["result"],
            registry=self.registry,
        )
        self.created = Counter(
            "metatxn_transactions_created",
            "Transactions that this process began.",
            registry=self.registry,
        )
        duration = Histogram(
            "metatxn_transaction_duration_seconds",
            "From the begin of a transaction to its decision, by the clocks of the two processes.",
            ["result"],
            registry=self.registry,
            buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3_600, 86_400),
        )
        self.sweep_errors = Counter(
            "metatxn_timeout_sweep_errors",
            "Transactions past their deadline that a sweep failed to abort, and sweeps that could not read what is "
            "due; the next sweep tries again.",
            registry=self.registry,
        )
        self.gc_backlog = Gauge(
            "metatxn_gc_backlog_headers",
            "Headers past retention that the last sweep had to keep, because operation records are left.",
            registry=self.registry,
        )
        self.index_query = Histogram(
            "pulsar_txn_metadata_store_index_query_seconds",
            "One page of an index: by deadline and by decision for the sweeps, and also by segment for the lists.",
            registry=self.registry,
            buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
        )
        self.group_commit_size = Histogram(
            "metatxn_group_commit_size",
            "Applies in one request to the metadata store.",
            registry=self.registry,
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
        )
        self._cas_results = {result: header_cas.labels(result) for result in ("ok", "conflict", "reject")}
        results = ("committed", "aborted", "timed_out", "fenced")
        self._ends = {result: ended.labels(result) for result in results}
        self._durations = {result: duration.labels(result) for result in results}

    def show_resyncs(self, resyncs: Callable[[], int]) -> None:
        """`resyncs` is called at every scrape and returns the number of gaps in the process's watch."""
        self.registry.register(
            _Counted("metatxn_watch_resyncs", "The number of times that a watch had to list everything again.", resyncs)
        )

    def counts(self) -> dict[str, int]:
        """The transactions that began and ended here, by the names of a sample of the throughput."""
        ended = {result: _value(counter) for result, counter in self._ends.items()}
        committed = ended.pop("committed")
        return {
            "transactions_begun": _value(self.created),
            "transactions_committed": committed,
            "transactions_aborted": sum(ended.values()),
        }

    def decided(self, final: Header, count: int) -> None:
        """This many transactions have become `final`."""
        assert final.finalized_ms is not None
        self._cas_results["ok"].inc(count)
        result = _ended_result(final)
        self._ends[result].inc(count)
        seconds = max(0, final.finalized_ms - final.created_ms) / 1000
        found = exemplar()
        for _ in range(count):
            self._durations[result].observe(seconds, found)

    def overtaken(self) -> None:
        self._cas_results["conflict"].inc()

    def refused(self) -> None:
        self._cas_results["reject"].inc()


def _value(counter: Counter) -> int:
    (metric,) = counter.collect()
    return int(metric.samples[0].value)


def _ended_result(final: Header) -> str:
    match final.expired_by:
        case ExpiredBy.TIMEOUT:
            return "timed_out"
        case ExpiredBy.FENCING:
            return "fenced"
    return "committed" if final.state is TxnState.COMMITTED else "aborted"
