"""Transaction ids from leased blocks (DESIGN §4): one store request per block, and no id twice.

Two processes may serve under one coordinator id, because their blocks come from the same record. A block that a process
had not used up when it died is lost, and is never given out again.

No process issues an id of a block that was leased long ago. So under one coordinator id the order of the ids is that of
the begins, within the time that a block is used, even if several processes serve under it.

A store that was restored from a backup does give out blocks again, while processes that survived the restore may still
use them. A process that then finds an id in use discards the whole block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice

import structlog

from metastore.api import MetadataStore
from metastore.errors import OutcomeUnknown, StoreUnavailable
from metastore.incarnation import IDS_PER_MS, first_number
from metastore.txn import paths
from metatxn.wire.ids import TxnId

BLOCK_SIZE = 10_000
"""Enough for ten of the largest batches. All requests wait while a block is leased."""
BLOCK_SECONDS = 60
"""The time for which a block is used."""
_LEASE_ATTEMPTS = 3
_MOST_BLOCKS = 1_000
"""One caller waits for no more blocks than these: other waiting callers may be faster at the ids of every new block."""

log = structlog.get_logger()


class IdBlocks:
    """The ids of one coordinator, strictly increasing within this process as long as its coordinator id is the same. A
    block is used for `block_seconds` and has `block_size` ids; the rest of it is lost."""

    def __init__(
        self,
        store: MetadataStore,
        coordinator_id: int,
        block_size: int = BLOCK_SIZE,
        block_seconds: float = BLOCK_SECONDS,
    ) -> None:
        assert block_size > 0 and block_seconds >= 0
        TxnId(coordinator_id, 1)  # Asserts the range of the id.
        self._store = store
        self._coordinator_id = coordinator_id
        self._block_size = block_size
        self._block_seconds = block_seconds
        self._leased_at = 0.0
        # That of the last lease. To look for the running one is a system call, and not made for every id.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._block = range(0)
        self._free: Iterator[int] = iter(self._block)
        self._lease: asyncio.Task[None] | None = None

    def serve_as(self, coordinator_id: int) -> None:
        """Give out ids of this coordinator id from now on; the rest of a block of another one is lost."""
        if coordinator_id != self._coordinator_id:
            self._coordinator_id = coordinator_id
            self._take_from(range(0))

    async def next(self) -> TxnId:
        """The next id. Raises the errors of `take`."""
        if not self._is_old():
            for sequence in self._free:
                return TxnId(self._coordinator_id, sequence)
        return (await self.take(1))[0]

    async def take(self, count: int) -> list[TxnId]:
        """The next `count` ids, perhaps of several blocks. Raises `StoreUnavailable` and similar errors if a block is
        needed and cannot be leased.

        Callers that find the block empty at the same time wait for one lease together.
        """
        taken: list[TxnId] = []
        if self._is_old():
            self._take_from(range(0))
        for _ in range(_MOST_BLOCKS):
            taken += (TxnId(self._coordinator_id, sequence) for sequence in islice(self._free, count - len(taken)))
            if len(taken) == count:
                return taken
            if self._lease is None:
                self._lease = asyncio.create_task(self._lease_block(), name="lease transaction ids")
                self._lease.add_done_callback(self._lease_ended)
            # Shielded, because a caller that disconnects must not cancel the lease for others that wait for it.
            await asyncio.shield(self._lease)
        raise StoreUnavailable("other requests took the transaction ids of every block that was leased")

    def in_use(self, txn_ids: Iterable[TxnId]) -> None:
        """Some of these ids were given out before, so the rest of their block is not used."""
        if any(txn_id.coordinator == self._coordinator_id and txn_id.sequence in self._block for txn_id in txn_ids):
            log.warning(
                "transaction ids are in use that the store gave out as new: was it restored from a backup?",
                coordinator_id=self._coordinator_id,
                first=self._block.start,
                last=self._block.stop - 1,
            )
            self._take_from(range(0))

    def _is_old(self) -> bool:
        """Whether the block was leased too long ago to be used."""
        return self._loop is not None and self._loop.time() - self._leased_at > self._block_seconds

    def _take_from(self, block: range) -> None:
        self._block, self._free = block, iter(block)

    async def _lease_block(self) -> None:
        for _ in range(_LEASE_ATTEMPTS):
            self._loop = asyncio.get_running_loop()
            coordinator_id, began_at = self._coordinator_id, self._loop.time()
            try:
                first = 1 + await first_number(self._store, IDS_PER_MS)
                key = paths.id_sequence(coordinator_id)
                block = await self._store.lease_ids(key, self._block_size, first=first)
            except OutcomeUnknown:
                continue  # Perhaps a block is wasted, but no id of it was given out.
            if coordinator_id == self._coordinator_id:
                self._take_from(block)
                self._leased_at = began_at
                return
        # Nothing was begun, so for the waiting callers this is definite.
        raise StoreUnavailable("the store did not answer when a block of transaction ids was leased")

    def _lease_ended(self, lease: asyncio.Task[None]) -> None:
        self._lease = None
        if not lease.cancelled():
            lease.exception()  # The waiting callers get it; if all of them have gone, it is not needed.
