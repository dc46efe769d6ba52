"""Forgetting transaction keys that nobody uses any more (DESIGN §5.26).

A program that uses a new key each time, as Flink's sink for Kafka does for each checkpoint, would leave a record for
each of them. A key is forgotten when it holds no transaction, remembers no committed version, and has not been used for
the retention time. Two concurrent sweeps are safe, because every step is checked.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from coordinator.periodic import PeriodicSweep
from metastore.api import MetadataStore
from metastore.clock import Clock
from metastore.errors import CheckFailed
from metastore.txn.forgetting import Counter, forget
from metastore.txn.key_records import KeyRecord, list_keys, position
from metastore.versions import ClusterVersion, Feature

DEFAULT_RETENTION_MS = 604_800_000
INTERVAL_MS = 3_600_000
SLICE = 1_000
TOGETHER = 25
PAUSE_MS = 10
"""Between two slices."""

log = structlog.get_logger()


class KeySweep(PeriodicSweep):
    """Use `start` and `stop` for the loop, or call `forget_once`."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        version: ClusterVersion,
        *,
        retention_ms: int = DEFAULT_RETENTION_MS,
    ) -> None:
        super().__init__("key sweep", min(INTERVAL_MS, retention_ms))
        self._store = store
        self._clock = clock
        self._version = version
        self._retention_ms = retention_ms

    async def sweep(self) -> bool:
        await self.forget_once()
        return True

    async def forget_once(self) -> int:
        """Forget, in slices, every key that is due, and return their number. Raises the store's errors; the next call
        begins again."""
        if not self._version.allows(Feature.FORGETTING):
            return 0
        until_ms = self._clock() - self._retention_ms
        forgotten, after, more = 0, "", True
        while more and not self.stopping:
            keys, more = await list_keys(self._store, None, after=after, limit=SLICE)
            due = [key for key in keys if _is_due(key, until_ms)]
            for first in range(0, len(due), TOGETHER):
                forgotten += await self._forget(due[first : first + TOGETHER])
            if more:
                after = position(keys[-1])
                await self.stopped_within(PAUSE_MS)
        if forgotten:
            log.info("transaction keys forgotten", keys=forgotten)
        return forgotten

    async def _forget(self, keys: Sequence[KeyRecord]) -> int:
        """Forget them in one apply, or each separately if one of them is used again. Returns how many are gone."""
        counters = [Counter(key.record, key.value.epoch) for key in keys if key.record and key.value]
        try:
            await forget(self._store, counters)
        except CheckFailed:
            return sum([await self._forget([key]) for key in keys]) if len(keys) > 1 else 0
        return len(keys)


def _is_due(key: KeyRecord, until_ms: int) -> bool:
    value = key.value
    if value is None or value.txn_id is not None or value.last_version is not None:
        return False
    return value.updated_ms <= until_ms
