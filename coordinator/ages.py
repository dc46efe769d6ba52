"""How long the open transactions have been open. The store lists them by deadline, which every keep-alive moves, so the
oldest ones may be the last there.

The begin of a transaction never changes, so its header is read once, however often one looks. What is remembered is
what the last look has found: lists begin with it and read the records of what they show.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Iterable

from metastore.api import MetadataStore
from metastore.clock import Clock
from metastore.keys import number
from metastore.txn import listing
from metastore.txn.listing import Row
from metastore.txn.store import read_plain
from metatxn.wire.ids import TxnId

MAX_COUNTED = 100_000
"""Where counting ends: this number means "at least this many"."""
PAGE = 1_000


class OpenAges:
    """The ages of the `MAX_COUNTED` open transactions with the earliest deadlines."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._created_ms: dict[TxnId, int] = {}
        self._sorted: list[tuple[int, TxnId]] | None = None
        self._looked_ms = -1
        self._looking = asyncio.Lock()
        self.count = 0

    @property
    def oldest_ms(self) -> int | None:
        """When the oldest one began."""
        return min(self._created_ms.values(), default=None)

    async def look(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """Look at the open transactions. Raises the store's errors; what was found before then remains."""
        async with self._looking:
            await self._look(stopping)

    async def _look(self, stopping: Callable[[], bool] = lambda: False) -> None:
        known: dict[TxnId, int] = {}
        count, after, began_ms = 0, "", self._clock()
        while count < MAX_COUNTED and not stopping():
            rows = await listing.open_by_deadline(self._store, after=after, limit=PAGE)
            count += len(rows)
            known |= await self._when_created([row.txn_id for row in rows])
            if len(rows) < PAGE:
                break
            after = rows[-1].position
        self._created_ms, self._sorted, self._looked_ms, self.count = known, None, began_ms, count

    async def _when_created(self, txn_ids: Iterable[TxnId]) -> dict[TxnId, int]:
        created = {txn_id: self._created_ms.get(txn_id) for txn_id in txn_ids}
        read = await read_plain(self._store, [txn_id for txn_id, ms in created.items() if ms is None])
        # A transaction that is missing now was decided and collected meanwhile.
        return {txn_id: ms for txn_id, ms in created.items() if ms is not None} | {
            txn_id: records.header.created_ms for txn_id, records in read.items()
        }

    async def oldest_first(self, until_ms: int, after: str, limit: int) -> list[Row]:
        """The transactions that began at or before `until_ms`, after the position `after`; fewer than `limit` are all.
        The last look is enough if it was later than that; some of them may have been decided since."""
        if self._looked_ms <= until_ms:
            async with self._looking:
                if self._looked_ms <= until_ms:
                    await self._look()
        if self._sorted is None:
            self._sorted = sorted((ms, txn_id) for txn_id, ms in self._created_ms.items())
        began, _, last = after.partition("/")
        start = bisect_right(self._sorted, (int(began), last)) if after else 0
        found = self._sorted[start : start + limit]
        return [Row(txn_id, f"{number(ms)}/{txn_id}") for ms, txn_id in found if ms <= until_ms]
