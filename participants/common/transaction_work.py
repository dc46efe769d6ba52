"""What this broker has done for transactions lately, for people who look at one: how much it wrote and acknowledged
where, and since when readers see it.

The records in the store say only where a transaction has written, and they are gone soon after the decision. This is in
memory, belongs to no promise, and is bounded: the transactions that were seen first are forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from metatxn.wire.ids import TxnId

MAX_REMEMBERED = 10_000
"""The most pairs of a transaction and a segment."""


@dataclass(slots=True)
class SegmentWork:
    """The work of one transaction on one segment. `effective_ms` is when its decision took effect for readers there."""

    entries: int = 0
    messages: int = 0
    size_bytes: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    effective_ms: int | None = None
    acks: dict[str, int] = field(default_factory=dict)
    """The number of acknowledgements, by subscription."""
    acks_effective_ms: dict[str, int] = field(default_factory=dict)
    """When the decision took effect for these, by subscription."""


class RecentWork:
    """The work of transactions at this broker. Used on its event loop."""

    def __init__(self) -> None:
        self._work: OrderedDict[TxnId, dict[str, SegmentWork]] = OrderedDict()
        self._pairs = 0

    def wrote(self, txn_id: TxnId, segment: str, messages: int, size_bytes: int, now_ms: int) -> None:
        """One entry is durable."""
        work = self._at(txn_id, segment)
        work.entries += 1
        work.messages += messages
        work.size_bytes += size_bytes
        self._seen(work, now_ms)

    def acknowledged(self, txn_id: TxnId, segment: str, subscription: str, number: int, now_ms: int) -> None:
        """This many acknowledgements are stored, and take effect with the commit."""
        work = self._at(txn_id, segment)
        work.acks[subscription] = work.acks.get(subscription, 0) + number
        self._seen(work, now_ms)

    def took_effect(self, txn_id: TxnId, segment: str, now_ms: int) -> None:
        """Readers of the segment see the transaction, or know that they must skip it."""
        work = self._work.get(txn_id, {}).get(segment)
        if work is not None and work.effective_ms is None:
            work.effective_ms = now_ms

    def acks_took_effect(self, txn_id: TxnId, segment: str, subscription: str, now_ms: int) -> None:
        """The decision took effect: what was acknowledged is behind the subscription, or is delivered again."""
        work = self._work.get(txn_id, {}).get(segment)
        if work is not None and subscription in work.acks:
            work.acks_effective_ms.setdefault(subscription, now_ms)

    def of(self, txn_id: TxnId) -> dict[str, SegmentWork]:
        """The work of a transaction, by segment."""
        return self._work.get(txn_id, {})

    def _seen(self, work: SegmentWork, now_ms: int) -> None:
        work.first_ms = now_ms if work.first_ms is None else work.first_ms
        work.last_ms = now_ms

    def _at(self, txn_id: TxnId, segment: str) -> SegmentWork:
        segments = self._work.setdefault(txn_id, {})
        work = segments.get(segment)
        if work is None:
            work = segments[segment] = SegmentWork()
            self._pairs += 1
            while self._pairs > MAX_REMEMBERED and len(self._work) > 1:
                _, forgotten = self._work.popitem(last=False)
                self._pairs -= len(forgotten)
        return work
