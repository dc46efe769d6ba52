"""The errors for a transaction that accepts no more operations."""

from __future__ import annotations

from metastore.txn.records.transactions import Header
from metatxn.wire import errors
from metatxn.wire.ids import TxnId


def refusal(txn_id: TxnId, header: Header | None) -> errors.MetatxnError:
    """The error for a transaction with this final header, or for an unknown one if `header` is None."""
    if header is None:
        return errors.TransactionNotFound(f"transaction {txn_id} is not known", txn_id=str(txn_id))
    if header.expired_by is not None:
        return errors.ExpiredTransaction(
            f"transaction {txn_id} was aborted by {header.expired_by} at {header.finalized_ms}",
            txn_id=str(txn_id),
        )
    return errors.TransactionConflict(
        f"transaction {txn_id} was {header.state} at {header.finalized_ms} and takes no more operations",
        txn_id=str(txn_id),
    )


def prepared_refusal(txn_id: TxnId) -> errors.MetatxnError:
    return errors.TransactionConflict(
        f"transaction {txn_id} is prepared and takes no more operations", txn_id=str(txn_id)
    )
