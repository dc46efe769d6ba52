"""How many durable entries readers may not see yet, of each segment that a broker serves.

Segments write it to a plain table, and a scrape reads that. The number of series is bounded: the segments whose readers
are furthest behind have series of their own, and all others share one, with the sum of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nlargest

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from participants.common.traffic import OTHERS

MAX_SEGMENT_SERIES = 1_000
"""The most segments with series of their own."""


class HorizonLags(Collector):
    """The lags by segment. Registers itself."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._entries: dict[str, int] = {}
        registry.register(self)

    def tell(self, segment: str, entries: int) -> None:
        """Readers of the segment may not see this many entries, from now on."""
        self._entries[segment] = entries

    def forget(self, segment: str) -> None:
        """The segment is not served here any more."""
        self._entries.pop(segment, None)

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "metatxn_horizon_lag_entries",
            "Durable entries that readers may not see yet, of each segment that is served here.",
            labels=["segment"],
        )
        shown = nlargest(MAX_SEGMENT_SERIES, self._entries.items(), key=lambda lag: lag[1])
        for segment, entries in shown:
            family.add_metric([segment], entries)
        if len(shown) < len(self._entries):
            family.add_metric([OTHERS], sum(self._entries.values()) - sum(entries for _, entries in shown))
        yield family
