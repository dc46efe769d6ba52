"""A reconcile of one segment, as a broker makes one of all of its segments."""

from __future__ import annotations

from participants.segment.reconciling import reconcile_segments
from participants.segment.segment import Segment
from participants.subscription.reconciling import reconcile_subscriptions
from participants.subscription.segment_subscriptions import subscriptions_of


async def reconcile(segment: Segment) -> None:
    """Without its subscriptions. Raises the store's errors."""
    await reconcile_segments([segment], segment.store, segment.mirror, segment._metrics)


async def reconcile_subscribed(segment: Segment) -> None:
    """Of its subscriptions. Raises the store's errors."""
    await reconcile_subscriptions([subscriptions_of(segment)], segment.store, segment.mirror, segment._metrics)
