"""Why a transaction takes no more operations."""

from __future__ import annotations

from metastore.txn.records import Header
from metatxn.wire.ids import TxnId
from metatxn.wire.problems import ErrorCode, ServiceError


def refusal(txn_id: TxnId, header: Header | None) -> ServiceError:
    """From its final header, or None when it is unknown."""
    if header is None:
        return ServiceError(ErrorCode.TXN_NOT_FOUND, f"transaction {txn_id} is not known", txn_id=str(txn_id))
    if header.expired_by is not None:
        return ServiceError(
            ErrorCode.EXPIRED_TRANSACTION,
            f"transaction {txn_id} was aborted by {header.expired_by} at {header.finalized_ms}",
            txn_id=str(txn_id),
        )
    return ServiceError(
        ErrorCode.TXN_CONFLICT,
        f"transaction {txn_id} was {header.state} at {header.finalized_ms} and takes no more operations",
        txn_id=str(txn_id),
    )


def prepared(txn_id: TxnId) -> ServiceError:
    return ServiceError(
        ErrorCode.TXN_CONFLICT, f"transaction {txn_id} is prepared and takes no more operations", txn_id=str(txn_id)
    )
