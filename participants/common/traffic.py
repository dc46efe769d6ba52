"""What goes through the topics of a broker, counted for each topic, and for each segment that is served.

The broker counts in plain attributes, which costs a fraction of a microsecond for each entry, and a scrape reads them.
The number of series is bounded: the first topics that have traffic get series of their own, and all others share one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from metatxn.service.throughput import LOOK_EVERY_MS
from metatxn.wire.broker import TrafficRates

MAX_TOPICS = 1_000
"""The most topics with series of their own."""
OTHERS = "others"
"""The label of all other topics. A topic cannot have this name: those have two slashes."""
MINUTE_IN_LOOKS = 60_000 // LOOK_EVERY_MS


class TopicTraffic:
    """The counts of one topic since the broker started."""

    __slots__ = (
        *("bytes_in", "bytes_out", "dead_letters", "entries_in", "entries_out"),
        *("messages_in", "messages_out", "redeliveries"),
    )

    def __init__(self) -> None:
        self.entries_in = self.messages_in = self.bytes_in = 0
        self.entries_out = self.messages_out = self.bytes_out = 0
        self.redeliveries = self.dead_letters = 0

    def came_in(self, messages: int, size_bytes: int) -> None:
        """One entry is durable."""
        self.entries_in += 1
        self.messages_in += messages
        self.bytes_in += size_bytes

    def went_out(self, messages: int, size_bytes: int, entries: int = 1) -> None:
        """Entries, or some messages of one, go to a reader or a consumer."""
        self.entries_out += entries
        self.messages_out += messages
        self.bytes_out += size_bytes


class SegmentTraffic(TopicTraffic):
    """The counts of one segment as long as it is served here. All that it counts is counted for its topic, too."""

    __slots__ = ("_looks", "_topic")

    def __init__(self, topic: TopicTraffic) -> None:
        super().__init__()
        self._topic = topic
        self._looks: deque[tuple[int, ...]] = deque(maxlen=MINUTE_IN_LOOKS + 1)

    def came_in(self, messages: int, size_bytes: int) -> None:
        super().came_in(messages, size_bytes)
        self._topic.came_in(messages, size_bytes)

    def went_out(self, messages: int, size_bytes: int, entries: int = 1) -> None:
        super().went_out(messages, size_bytes, entries)
        self._topic.went_out(messages, size_bytes, entries)

    def redelivered(self, messages: int) -> None:
        """This many messages were given to a consumer again."""
        self.redeliveries += messages
        self._topic.redeliveries += messages

    def became_dead_letters(self, messages: int) -> None:
        self.dead_letters += messages
        self._topic.dead_letters += messages

    def look(self) -> None:
        """Remember what was counted up to now, `MINUTE_IN_LOOKS` times a minute."""
        self._looks.append((self.messages_in, self.bytes_in, self.messages_out, self.bytes_out))

    def rates(self) -> TrafficRates | None:
        """What went through in a second of the last minute, or of as much of it as was looked at; None before that."""
        if len(self._looks) < 2:
            return None
        seconds = (len(self._looks) - 1) * 60 / MINUTE_IN_LOOKS
        first, last = self._looks[0], self._looks[-1]
        messages_in, bytes_in, messages_out, bytes_out = (
            (after - before) / seconds for before, after in zip(first, last, strict=True)
        )
        return TrafficRates(messages_in=messages_in, bytes_in=bytes_in, messages_out=messages_out, bytes_out=bytes_out)


_COUNTERS = {
    "metatxn_topic_messages_in": ("messages_in", "Messages that became durable."),
    "metatxn_topic_bytes_in": ("bytes_in", "Bytes of their payloads."),
    "metatxn_topic_entries_in": ("entries_in", "Entries that they came in."),
    "metatxn_topic_messages_out": ("messages_out", "Messages given to readers and consumers."),
    "metatxn_topic_bytes_out": ("bytes_out", "Bytes of these messages, with their share of the entry's head."),
    "metatxn_topic_entries_out": ("entries_out", "Entries that they were taken from, each time."),
    "metatxn_redeliveries": ("redeliveries", "Messages given to a consumer that had been given before."),
    "metatxn_dead_letters": ("dead_letters", "Messages that went to a dead-letter topic."),
}


class Traffic(Collector):
    """The counts of all topics. Registers itself."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._topics: dict[str, TopicTraffic] = {}
        registry.register(self)

    def of(self, topic: str) -> TopicTraffic:
        """The counts of this topic, from now on."""
        found = self._topics.get(topic)
        if found is None:
            name = topic if len(self._topics) < MAX_TOPICS else OTHERS
            found = self._topics.setdefault(name, TopicTraffic())
        return found

    def counts(self) -> dict[str, int]:
        """The counts of all topics together, by the names of a sample of the throughput."""
        names = ("messages_in", "bytes_in", "messages_out", "bytes_out")
        return {name: sum(getattr(traffic, name) for traffic in self._topics.values()) for name in names}

    def collect(self) -> Iterator[Metric]:
        for name, (attribute, documentation) in _COUNTERS.items():
            family = CounterMetricFamily(name, documentation, labels=["topic"])
            for topic, traffic in self._topics.items():
                family.add_metric([topic], getattr(traffic, attribute))
            yield family
