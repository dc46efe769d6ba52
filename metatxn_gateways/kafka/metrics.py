"""The metrics of the listener for Kafka's clients. There are as many series as supported requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from metatxn.service.durations import Durations
from metatxn_gateways.kafka.requests import KafkaRequest


class KafkaMetrics(Collector):
    """Used only on the event loop of the broker. `connections` and `groups` count what there is now."""

    def __init__(self, connections: Callable[[], int], groups: Callable[[], int]) -> None:
        self._connections = connections
        self._groups = groups
        self._durations = {request: Durations() for request in KafkaRequest}
        self._closed: Counter[str] = Counter({"malformed": 0, "not_authenticated": 0, "too_many": 0})

    def register(self, registry: CollectorRegistry) -> None:
        registry.register(self)

    def answered(self, api_key: int, seconds: float) -> None:
        self._durations[KafkaRequest(api_key)].add(seconds)

    def closed(self, reason: str) -> None:
        """A connection was closed from here."""
        self._closed[reason] += 1

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("metatxn_kafka_connections", "Connections of Kafka's clients.", self._connections())
        yield GaugeMetricFamily(
            "metatxn_kafka_groups", "Consumer groups with members that this broker coordinates.", self._groups()
        )
        closed = CounterMetricFamily(
            "metatxn_kafka_connections_closed",
            "Connections of Kafka's clients that were closed from here.",
            labels=["reason"],
        )
        for reason, count in self._closed.items():
            closed.add_metric([reason], count)
        yield closed
        durations = HistogramMetricFamily(
            "metatxn_kafka_request_seconds",
            "From a request of Kafka's clients to its answer, with the time that it has asked to wait.",
            labels=["request"],
        )
        for request, known in self._durations.items():
            if known.count:
                known.show(durations, [request.label])
        yield durations
