"""The reconcile of many segments together: it finds the decisions that no watch event has reported, and operations that
are missing in memory (DESIGN §5.8).

The operations of all segments are read together, and the headers of what is undecided on several segments, in parts.
Each header is read after the operations of its segment, and after its transaction was found to have no intent under
way there.
"""

from __future__ import annotations

from collections.abc import Iterable

from metastore.api import MetadataStore
from metastore.txn.entries import with_operations
from participants.common.metrics import BrokerMetrics
from participants.segment.segment import Segment, UndecidedWrites
from participants.txn.header_mirror import HeaderMirror

HEADERS_PER_READ = 100


async def reconcile_segments(
    segments: Iterable[Segment], store: MetadataStore, mirror: HeaderMirror, metrics: BrokerMetrics
) -> None:
    """Reconcile these segments once. Raises the store's errors; what was found until then counts."""
    of = {segment.operations: segment for segment in segments}
    waiting: list[UndecidedWrites] = []
    async for segment, txn_ids in with_operations(store, "writes-by-segment", of, metrics.index_query.time):
        segment.adopt(txn_ids)
        waiting += segment.undecided()
        if len(waiting) >= HEADERS_PER_READ:
            await _look_at(waiting, mirror)
            waiting = []
    await _look_at(waiting, mirror)


async def _look_at(undecided: list[UndecidedWrites], mirror: HeaderMirror) -> None:
    headers = await mirror.read(dict.fromkeys(each.transaction.txn_id for each in undecided))
    for each in undecided:
        each.segment.found(each, headers[each.transaction.txn_id])
