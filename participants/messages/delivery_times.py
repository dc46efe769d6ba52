"""When those messages of an entry that have a delivery time are delivered. Only shared subscriptions ask."""

from __future__ import annotations

import json
from collections.abc import Sequence

from metatxn.wire.batches import has_delivery_times, unpack_batch
from metatxn.wire.frames import Frame, PayloadKind
from metatxn.wire.pulsar_entries import delivery_time_of


def delivery_times(frame: Frame) -> Sequence[int | None] | None:
    """The time of each message, or None if no message has one. Most entries have none, so this must be quick."""
    match frame.kind:
        case PayloadKind.BATCH:
            return unpack_batch(frame.payload, frame.count).deliver_at_ms if has_delivery_times(frame.payload) else None
        case PayloadKind.MESSAGES:
            payload = bytes(frame.payload)
            return (
                [body.get("deliver_at_ms") for body in json.loads(payload)] if b'"deliver_at_ms"' in payload else None
            )
        case PayloadKind.PULSAR:
            time_ms = delivery_time_of(frame.payload)
            return None if time_ms is None else [time_ms] * frame.count
        case _:
            return None
