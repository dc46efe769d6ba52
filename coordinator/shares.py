"""How the coordinators of one store divide the work of their sweeps.

Each has the transactions whose number, divided by how many coordinators are announced, leaves its own place among them.
What nobody has done some time after it was due is everybody's, so a coordinator that died, hangs or counts differently
delays its share and leaves nothing behind. Two that do the same work are harmless: every step is checked (DESIGN
§5.17). This only saves work, so the announcements, which prove nothing, are good enough for it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from metastore.api import MetadataStore
from metastore.keys import prefix_end
from metastore.txn import paths
from metastore.txn.ids import TxnId

Share = Callable[[TxnId], bool]
"""Whether a transaction is this process's to sweep."""

ReadShare = Callable[[], Awaitable[Share]]


async def everything() -> Share:
    """The share of a process that is alone."""
    return lambda txn_id: True


class AnnouncedShare:
    """The share of the coordinator that is announced as `process_id`, as things are now."""

    def __init__(self, store: MetadataStore, process_id: str) -> None:
        self._store = store
        self._own = paths.coordinator_process(process_id)

    async def __call__(self) -> Share:
        """One request. Everything, while this process is not announced. Raises the store's errors."""
        found = await self._store.range(paths.COORDINATORS, prefix_end(paths.COORDINATORS), keys_only=True)
        announced = [record.key for record in found.records]
        if self._own not in announced:
            return await everything()
        place, of = announced.index(self._own), len(announced)
        return lambda txn_id: txn_id.sequence % of == place
