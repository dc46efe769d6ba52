"""Transactions that a broker begins and decides itself, for what it has to do to several segments at once.

The broker does with the store what a coordinator does, by the same applies, so it needs no coordinator (DESIGN §5.17).
A transaction whose broker dies is aborted by its timeout, like any other.
"""

from __future__ import annotations

from collections.abc import Callable

from metastore.api import MetadataStore
from metastore.clock import Clock
from metastore.errors import CheckFailed, StoreUnavailable
from metastore.txn import store as txn_records
from metastore.txn.id_blocks import IdBlocks
from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metastore.txn.store import read_transaction
from metatxn.service.patience import Patience
from metatxn.wire.ids import TxnId
from participants.txn.refusals import refusal

COORDINATOR = 0
"""The coordinator id of the ids that brokers issue."""
IDS_AT_ONCE = 100
IDS_FOR_SECONDS = 1
"""The size of a block of ids, small because others issue ids under the same coordinator id, in whose order transactions
are listed."""
TIMEOUT_MS = 30_000


class OwnTransactions:
    def __init__(self, store: MetadataStore, clock: Clock, owner: Callable[[], str | None]) -> None:
        """`owner` is the principal as which this broker asks others."""
        self._store = store
        self._clock = clock
        self._owner = owner
        self._ids = IdBlocks(store, COORDINATOR, IDS_AT_ONCE, IDS_FOR_SECONDS)

    async def begin(self, purpose: str) -> TxnId:
        """Begin a transaction; `purpose` is shown to operators. Raises the store's errors.

        The apply checks only absence, so it is sent once (DESIGN §5.11): if its answer is lost, no one has the id, and
        the timeout ends what it may have begun. An id that is in use was given out again by a store that was restored.
        """
        now_ms = self._clock()
        header = Header(
            state=TxnState.OPEN,
            timeout_ms=now_ms + TIMEOUT_MS,
            created_ms=now_ms,
            owner=self._owner(),
            properties={"purpose": purpose},
        )
        txn_id = await self._ids.next()
        try:
            await self._store.apply(txn_records.begin(self._store.batch(), txn_id, header))
        except CheckFailed:
            self._ids.in_use([txn_id])
            raise
        return txn_id

    async def commit(self, txn_id: TxnId) -> None:
        """Commit. After an error of the store it must be repeated, because it may have been done. Raises
        EXPIRED_TRANSACTION or TXN_CONFLICT if the transaction is aborted."""
        header = await self._decide(txn_id, TxnState.COMMITTED)
        if header is None or header.state is not TxnState.COMMITTED:
            raise refusal(txn_id, header)

    async def abort(self, txn_id: TxnId) -> None:
        """Abort, unless it is decided. Raises the store's errors."""
        await self._decide(txn_id, TxnState.ABORTED)

    async def _decide(self, txn_id: TxnId, decision: TxnState) -> Header | None:
        """The final header, or None if it is deleted."""
        patience = Patience()
        while await patience.lasts():
            records = await read_transaction(self._store, txn_id)
            if records is None or records.header.state.final:
                return records and records.header
            final = records.header.model_copy(update={"state": decision, "finalized_ms": self._clock()})
            try:
                await self._store.apply(txn_records.finalize(self._store.batch(), [records], final))
            except CheckFailed:
                continue
            return final
        raise StoreUnavailable(f"transaction {txn_id} was changed by others each time")
