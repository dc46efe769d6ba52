"""How far a subscription is behind, on all of its segments together: for the command line and the console."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from metatxn.wire.broker import SubscriptionSegment


@dataclass(frozen=True, slots=True)
class SubscriptionTotals:
    """The messages that can be read and are not acknowledged, and when the first of them was published; and how many of
    all messages are held by consumers, were delivered more than once, are to be delivered later, or are acknowledged in
    an open transaction."""

    messages: int
    size_bytes: int
    oldest_ms: int | None
    held: int
    redelivered: int
    delayed: int
    pending: int

    @classmethod
    def of(cls, segments: Iterable[SubscriptionSegment]) -> SubscriptionTotals:
        found = list(segments)
        return cls(
            sum(each.backlog for each in found),
            sum(each.backlog_bytes for each in found),
            min((each.oldest_ms for each in found if each.oldest_ms is not None), default=None),
            sum(sum(each.held.values()) + sum(each.attached.values()) for each in found),
            sum(each.redelivered for each in found),
            sum(each.delayed for each in found),
            sum(sum(each.pending_acks.values()) for each in found),
        )
