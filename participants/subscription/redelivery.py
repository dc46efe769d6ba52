"""When a message is redelivered, and how often, by the settings of its subscription. Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from metastore.txn.records.subscriptions import SubscriptionRecord


@dataclass(frozen=True, slots=True)
class Redelivery:
    """The redelivery of messages. `ack_timeout_s` after it was delivered, a message returns by itself. One that returns
    so, or by a negative acknowledgement, waits for `delay_s`, doubled for each further return, up to `max_delay_s`."""

    max_redeliveries: int | None = None
    ack_timeout_s: float | None = None
    delay_s: float = 0
    max_delay_s: float = 0

    @classmethod
    def of(cls, record: SubscriptionRecord) -> Self:
        delay_ms = record.redelivery_delay_ms or 0
        return cls(
            record.max_redeliveries,
            None if record.ack_timeout_ms is None else record.ack_timeout_ms / 1000,
            delay_ms / 1000,
            max(delay_ms, record.max_redelivery_delay_ms or 0) / 1000,
        )

    def returns_at(self, now_s: float) -> float | None:
        """When a message that is delivered now returns by itself."""
        return None if self.ack_timeout_s is None else now_s + self.ack_timeout_s

    def due_at(self, now_s: float, returns: int) -> float | None:
        """When a message that returns now, the `returns`-th time, may be delivered again. None means at once."""
        delay_s = min(self.max_delay_s, self.delay_s * 2.0 ** min(max(returns - 1, 0), 64))
        return now_s + delay_s if delay_s else None
