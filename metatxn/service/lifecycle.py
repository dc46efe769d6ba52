"""The lines of the log that say what happens to a service, to its segments, and to old transactions.

    {"event": "segment acquired", "segment": "segment://public/default/orders/0000-ffff-0", "generation": 3,
     "former": null, "seconds": 0.012, "level": "info", "timestamp": "2026-03-02T09:04:00.000000Z"}

Programs may rely on them: `ops/log.schema.json` says which members each event has. What was planned is logged at
`info`, and what was not, at `warning`. All other lines of the log are for people.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import structlog


class Lifecycle(StrEnum):
    """The events. Their members are in the schema."""

    SERVICE_READY = "service ready"
    SERVICE_STOPPING = "service stopping"
    SERVICE_STOPPED = "service stopped"
    DRAIN_BEGUN = "drain begun"
    DRAIN_ENDED = "drain ended"
    BROKER_DRAINED = "broker drained"
    SEGMENT_ACQUIRED = "segment acquired"
    SEGMENT_TAKEN_OVER = "segment taken over"
    SEGMENT_HANDED_OVER = "segment handed over"
    SEGMENT_LOST = "segment lost"
    SEGMENT_SEALED = "segment sealed"
    SEGMENT_SPLIT = "segment split"
    SEGMENTS_MERGED = "segments merged"
    SEGMENT_REMOVED = "segment removed"
    HEADERS_COLLECTED = "headers collected"
    SLOW_REQUEST = "slow request"


UNPLANNED = frozenset({Lifecycle.SEGMENT_TAKEN_OVER, Lifecycle.SEGMENT_LOST, Lifecycle.SLOW_REQUEST})

log = structlog.get_logger()


def tell(event: Lifecycle, **members: Any) -> None:
    """Write a line."""
    write = log.warning if event in UNPLANNED else log.info
    write(event.value, **members)
