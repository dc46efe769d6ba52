"""How much a topic has, and what goes through it, on all of its active segments together: for the command line and the
console."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from metatxn.wire.broker import SegmentDetail, TopicInfo, TrafficRates


@dataclass(frozen=True, slots=True)
class TopicTotals:
    """A topic with `active` segments. `details` are those of them that are known."""

    topic: TopicInfo
    active: int
    details: Sequence[SegmentDetail]

    @property
    def missing(self) -> int:
        return self.active - len(self.details)

    def total(self, name: str) -> int | None:
        """Of those segments that are known; None if none is."""
        return sum(getattr(each, name) for each in self.details) if self.details or not self.active else None

    @property
    def rates(self) -> TrafficRates | None:
        return None if self.missing else total_rates(self.details)

    @property
    def held(self) -> int:
        """The segments whose readers are held back."""
        return sum(each.pinned_by is not None for each in self.details)


def active_segments(topic: TopicInfo) -> list[str]:
    return [each.segment for each in topic.segments if each.state == "active"]


def total_rates(details: Iterable[SegmentDetail]) -> TrafficRates | None:
    """What goes through these segments together; None if one of them does not know it yet, or there is none."""
    found = [each.rates for each in details]
    known = [each for each in found if each is not None]
    if not known or len(known) < len(found):
        return None
    names = TrafficRates.model_fields
    return TrafficRates(**{name: sum(getattr(each, name) for each in known) for name in names})
