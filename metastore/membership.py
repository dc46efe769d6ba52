"""The announcement of this process, with its release, for the process that raises the cluster version (see
`metastore.upgrade`).

    announce this process ─▶ read the cluster version, and write it again as it was ─▶ serve

Announced first, a process is either seen before the version is raised, or it reads the raised one. It is announced as
what it does, a coordinator or a broker, only later, when it serves.
"""

from __future__ import annotations

from contextlib import suppress

from metastore.api import Ephemeral, MetadataStore
from metastore.errors import MetastoreError
from metastore.txn import paths
from metastore.txn.records.processes import ProcessRecord
from metastore.versions import SPEAKS

TTL_MS = 10_000


class Membership:
    def __init__(self, store: MetadataStore, service: str, release: str, speaks: int = SPEAKS) -> None:
        self._store = store
        self._service = service
        self._release = release
        self._speaks = speaks
        self._record: Ephemeral | None = None

    async def announce(self, process_id: str, url: str) -> None:
        """Raises the store's errors."""
        value = ProcessRecord(service=self._service, url=url, release=self._release, speaks=self._speaks).encode()
        self._record = await self._store.ephemeral(paths.process(process_id), value, TTL_MS)

    async def withdraw(self) -> None:
        """Idempotent. If the store does not answer, the announcement expires."""
        record, self._record = self._record, None
        if record is not None:
            with suppress(MetastoreError):
                await record.close()
