"""The metrics of the listener for Pulsar's clients. There are as many series as supported commands."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from metatxn.service.durations import Durations


class PulsarMetrics(Collector):
    """Used only on the event loop of the broker. `connections` counts what there is now."""

    def __init__(self, connections: Callable[[], int]) -> None:
        self._connections = connections
        self._durations: defaultdict[str, Durations] = defaultdict(Durations)
        self._closed: Counter[str] = Counter({"malformed": 0, "not_authenticated": 0, "too_many": 0})
        self.producers = 0
        self.consumers = 0
        """The readers and subscribers."""

    def register(self, registry: CollectorRegistry) -> None:
        registry.register(self)

    def answered(self, command: str, seconds: float) -> None:
        self._durations[command].add(seconds)

    def connection_closed(self, reason: str) -> None:
        """A connection was closed from here."""
        self._closed[reason] += 1

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("metatxn_pulsar_connections", "Connections of Pulsar's clients.", self._connections())
        yield GaugeMetricFamily("metatxn_pulsar_producers", "Producers of Pulsar's clients.", self.producers)
        yield GaugeMetricFamily("metatxn_pulsar_consumers", "Consumers of Pulsar's clients.", self.consumers)
        closed = CounterMetricFamily(
            "metatxn_pulsar_connections_closed",
            "Connections of Pulsar's clients that were closed from here.",
            labels=["reason"],
        )
        for reason, count in self._closed.items():
            closed.add_metric([reason], count)
        yield closed
        durations = HistogramMetricFamily(
            "metatxn_pulsar_command_seconds",
            "From a command of Pulsar's clients to its answer, with the time that it has waited for a quota.",
            labels=["command"],
        )
        for command, known in self._durations.items():
            known.show(durations, [command])
        yield durations
