"""The metrics of subscriptions: how far they are behind, what their consumers hold, and how many these are.

They are taken from memory by each scrape, as far as the segments are served here: of a topic on several brokers,
add them up. Counting messages would mean reading them, so what is behind is counted in entries and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from participants.broker.broker import Broker
from participants.common.traffic import OTHERS
from participants.subscription.segment_subscription import SegmentSubscription
from participants.subscription.segment_subscriptions import subscriptions_of

MAX_SUBSCRIPTIONS = 1_000
"""The most subscriptions with series of their own; all others share one."""


@dataclass(slots=True)
class SubscriptionLag:
    """The subscription on the segments of this broker."""

    entries: int = 0
    size_bytes: int = 0
    unacked: int = 0
    consumers: int = 0

    def add(self, part: SegmentSubscription) -> None:
        ledgers = part.segment.ledgers
        after = max(part.cursor.mark_delete.last_before, ledgers.start)
        up_to = part.dispatch.end
        if after < up_to:
            self.entries += ledgers.entries_between(after, up_to)
        self.size_bytes += part.dispatch.backlog_bytes
        self.unacked += sum(map(part.deliveries.number_held, part.deliveries.consumers))


_GAUGES = {
    "metatxn_subscription_backlog_entries": ("entries", "Readable entries after the mark-delete position."),
    "metatxn_subscription_backlog_bytes": ("size_bytes", "Bytes of these entries."),
    "metatxn_subscription_unacked_messages": ("unacked", "Messages that consumers hold."),
    "metatxn_subscription_consumers": ("consumers", "Connected consumers, as the home of the subscription knows."),
}


class SubscriptionMetrics(Collector):
    """Registers itself. `broker` returns None until there is one."""

    def __init__(self, registry: CollectorRegistry, broker: Callable[[], Broker | None]) -> None:
        self._broker = broker
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        broker = self._broker()
        found = lags(broker) if broker is not None else {}
        for name, (attribute, documentation) in _GAUGES.items():
            family = GaugeMetricFamily(name, documentation, labels=["topic", "subscription"])
            for key, lag in found.items():
                family.add_metric(key, getattr(lag, attribute))
            yield family


def lags(broker: Broker) -> dict[tuple[str, str], SubscriptionLag]:
    """The numbers by topic and subscription."""
    found: dict[tuple[str, str], SubscriptionLag] = {}
    for segment in broker.serving_now():
        subscriptions = subscriptions_of(segment)
        for part in subscriptions:
            key = (segment.record.topic, part.definition.name)
            if key not in found and len(found) >= MAX_SUBSCRIPTIONS:
                key = (OTHERS, OTHERS)
            lag = found.setdefault(key, SubscriptionLag())
            lag.add(part)
            if (consumers := subscriptions.consumers.get(part.definition.name)) is not None:
                lag.consumers += consumers()
    return found
