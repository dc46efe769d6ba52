"""Decisions that an operator makes where no coordinator is asked: for transactions that stand in the way of what the
operator wants to do."""

from __future__ import annotations

from metastore.api import MetadataStore
from metastore.txn.key_records import read_key
from metastore.txn.states import TxnState
from metastore.txn.store import TransactionRecords, finalize


async def decide_for_operator(
    store: MetadataStore, records: TransactionRecords, decision: TxnState, now_ms: int, reason: str
) -> None:
    """Decide as the coordinator does, in one apply that also changes the transaction's key: a transaction that its key
    no longer holds cannot be committed, and is aborted.

    Raises `CheckFailed` if the transaction has changed since it was read, and the store's errors.
    """
    header = records.header
    batch = store.batch()
    if header.key is not None:
        key = await read_key(store, header.owner, header.key)
        if key.value is None or key.value.txn_id != records.txn_id:
            decision = TxnState.ABORTED
        else:
            committed = decision is TxnState.COMMITTED and header.version is not None
            last_version = header.version if committed else key.value.last_version
            key.write(batch, key.value.model_copy(update={"txn_id": None, "last_version": last_version}))
    writers = records.remembered_writers if decision is TxnState.COMMITTED else None
    final = {"state": decision, "finalized_ms": now_ms, "writers": writers, "reason": reason}
    await store.apply(finalize(batch, [records], header.model_copy(update=final)))
