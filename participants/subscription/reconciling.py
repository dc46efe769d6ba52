"""The reconcile of the subscriptions of many segments together: it finds dropped subscriptions, decisions that no watch
event has reported, and operations that are missing in memory (DESIGN §5.8).

As for segments, what is stored of all is read together, in parts, and each header after the operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from metastore.api import MetadataStore
from metastore.txn.entries import with_operations
from participants.common.metrics import BrokerMetrics
from participants.segment import reconciling
from participants.subscription.segment_subscription import ACK_INDEX, SegmentSubscription, UndecidedAcks
from participants.subscription.segment_subscriptions import SegmentSubscriptions
from participants.txn.header_mirror import HeaderMirror


async def reconcile_subscriptions(
    segments: Iterable[SegmentSubscriptions], store: MetadataStore, mirror: HeaderMirror, metrics: BrokerMetrics
) -> None:
    """Reconcile the subscriptions of these segments once. Raises the store's errors; what was found until then
    counts."""
    known = list(segments)
    await _find_dropped(known, store)
    of = {each.operations: each for segment in known for each in segment if not each.is_gone}
    waiting: list[UndecidedAcks] = []
    async for subscription, txn_ids in with_operations(store, ACK_INDEX, of, metrics.index_query.time):
        if not subscription.is_gone:
            await subscription.adopt(txn_ids)
        waiting += subscription.undecided()
        if len(waiting) >= reconciling.HEADERS_PER_READ:
            await _look_at(waiting, mirror)
            waiting = []
    await _look_at(waiting, mirror)


async def _find_dropped(segments: Sequence[SegmentSubscriptions], store: MetadataStore) -> None:
    """Each record is read once, for all segments of its topic that are served here."""
    of: dict[str, list[tuple[SegmentSubscriptions, SegmentSubscription]]] = {}
    for segment in segments:
        for each in segment:
            of.setdefault(each.definition.check.key, []).append((segment, each))
    async for key, stored in store.each(of):
        for segment, each in of[key]:
            await segment.look_at(each, stored)


async def _look_at(undecided: Sequence[UndecidedAcks], mirror: HeaderMirror) -> None:
    headers = await mirror.read(dict.fromkeys(each.txn_id for each in undecided))
    for each in undecided:
        each.subscription.found(each, headers[each.txn_id])
