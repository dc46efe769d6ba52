"""How long the calls of the metadata store take, and how they fail, in metrics and traces."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from metatxn.service.durations import Durations
from metatxn.service.tracing import trace_store_call


class StoreMetrics(Collector):
    """The metrics of the store. Registers itself. `observe` is for `MeasuredStore`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._durations: dict[str, Durations] = {}
        self._errors: dict[tuple[str, str], int] = {}
        registry.register(self)

    def observe(self, operation: str, seconds: float, error: Exception | None) -> None:
        found = self._durations.get(operation)
        if found is None:
            found = self._durations[operation] = Durations()
        found.add(seconds, trace_store_call(operation, seconds, error))
        if error is not None:
            key = (operation, type(error).__name__)
            self._errors[key] = self._errors.get(key, 0) + 1

    def collect(self) -> Iterator[Metric]:
        durations = HistogramMetricFamily(
            "metatxn_store_seconds", "One call of the metadata store, with its wait in a group.", labels=["operation"]
        )
        for operation, found in self._durations.items():
            found.show(durations, [operation])
        yield durations
        failed = CounterMetricFamily(
            "metatxn_store_errors", "Calls of the metadata store that failed.", labels=["operation", "error"]
        )
        for key, count in self._errors.items():
            failed.add_metric(key, count)
        yield failed
