"""Which read holds are in force (DESIGN §5.24).

A hold is in force as long as its record is there. A process that meets one that is over removes it before going on, so
its holder cannot prolong it after that. Every request that drops or collects reads the holds *after* the record that
his apply checks: who takes a hold writes that record again, so a hold that this read does not show makes the apply
fail.
"""

from __future__ import annotations

import structlog

from metastore.api import MetadataStore
from metastore.errors import CheckFailed
from metastore.txn import paths
from metastore.txn.records.topics import ReadHoldRecord
from metastore.types import Record, Revision

log = structlog.get_logger()


async def holds_in_force(store: MetadataStore, prefix: str, now_ms: int) -> list[Record]:
    """The holds with keys below `prefix`. Those that are over are gone when this returns. Raises the store's errors."""
    found = []
    for stored in (await store.scan(prefix)).records:
        left: Record | None = stored
        while left is not None and ReadHoldRecord.decode(left.value).is_over(now_ms):
            left = await _removed(store, left)
        if left is not None:
            found.append(left)
    return found


async def _removed(store: MetadataStore, stored: Record) -> Record | None:
    """None, or the record as another process has written it meanwhile."""
    try:
        await store.apply(store.batch().remove(stored))
    except CheckFailed as lost:
        return lost.current
    log.info("a read hold has ended", key=stored.key)
    return None


async def end_holds(store: MetadataStore, prefix: str) -> None:
    """End the holds with keys below `prefix`, where none can be taken any more. Raises the store's errors."""
    while held := (await store.scan(prefix)).records:
        for stored in held:
            await _removed(store, stored)


async def lowest_held(store: MetadataStore, now_ms: int) -> Revision | None:
    """The lowest revision that is held, of all topics. Raises the store's errors."""
    held = await holds_in_force(store, paths.READ_HOLDS, now_ms)
    return min((ReadHoldRecord.decode(each.value).revision for each in held), default=None)
