"""What this process still knows of the cluster while the metadata store does not answer: the services that were
announced, and when the store answered last. It helps people who look for what is wrong; nothing is decided by it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from metastore.api import MetadataStore
from metastore.incarnation import IncarnationGuard
from metastore.txn import paths
from metastore.types import Record
from metastore.watches import Mirror

WITHIN_SECONDS = 3.0
"""How long a request waits for the store."""
AWAY_WITHIN_SECONDS = 1.0
"""The same, while the looks of this process have found no store for `AWAY_AFTER_MS`: waiting longer changes nothing."""
AWAY_AFTER_MS = 5_000


class KnownCluster:
    """What is known of the cluster: a watch follows the announcements, and `guard` looks at the store every two
    seconds."""

    def __init__(self, store: MetadataStore, guard: IncarnationGuard) -> None:
        self._guard = guard
        self._mirror = Mirror(store, paths.CLUSTER, lambda _: None)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Raises the store's errors."""
        async with self._mirror.running():
            yield

    def announced(self, prefix: str) -> Iterable[Record]:
        """The announcements below `prefix`, in the order of their keys, as they were when the watch last showed any."""
        return [record for key, record in sorted(self._mirror.records.items()) if key.startswith(prefix)]

    @property
    def answered_ms(self) -> int | None:
        """When the store last answered a look, if it has."""
        return self._guard.answered_ms

    @property
    def silence(self) -> str:
        """Why the store has not answered a request that waited."""
        return self._guard.silence or f"no answer within {self.patience_s:g} s"

    @property
    def patience_s(self) -> float:
        """How long a request may wait for the store."""
        unanswered_ms = self._guard.unanswered_ms
        return WITHIN_SECONDS if unanswered_ms is None or unanswered_ms <= AWAY_AFTER_MS else AWAY_WITHIN_SECONDS
