"""The answers about a transaction, and the refusals of a decided or prepared one.

code                  when (docs/contract.md, error table)
EXPIRED_TRANSACTION   aborted by timeout or fencing; takes precedence over the two below
INVALID_TXN_STATE     decided the other way; the detail names the state and its time
TXN_CONFLICT          prepared: only its decision may still change it
TXN_NOT_FOUND         never began, or its header was collected
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from metastore.txn.records.transactions import Header
from metastore.txn.store import TransactionRecords
from metastore.types import Revision
from metatxn.wire import errors
from metatxn.wire.coordinator import TransactionHeader
from metatxn.wire.ids import TxnId

Members = dict[str, Any]
"""A `TransactionHeader` as its JSON members, without those that have no value: building the model, and dumping it,
would cost several times as much, for each answer."""


def members(
    txn_id: TxnId, header: Header, revision: Revision, *, deadline_ms: int | None = None, prepared: bool = False
) -> Members:
    """The public form of a header. `deadline_ms` is the one in force, for an open transaction that has moved it.

    A final header has none: a keep-alive may have moved the deadline, and its record is deleted by the decision.
    """
    if header.state.final:
        deadline_ms = None
    elif deadline_ms is None:
        deadline_ms = header.timeout_ms
    described = {
        "txn_id": txn_id,
        "state": header.state.value,
        "created_ms": header.created_ms,
        "deadline_ms": deadline_ms,
        "finalized_ms": header.finalized_ms,
        "owner": header.owner,
        "transaction_key": header.key,
        "epoch": header.epoch,
        "version": header.version,
        "writers": None if header.writers is None else list(header.writers),
        "reason": header.reason,
        "expired_by": header.expired_by.value if header.expired_by else None,
        "ended_by": header.ended_by,
        "renewed_ms": header.renewed_ms,
        "renewals": header.renewals,
        "prepared": True if prepared else None,
        "revision": revision,
        "properties": header.properties,
    }
    return {name: value for name, value in described.items() if value is not None}


def members_alike(txn_ids: Sequence[TxnId], header: Header, revision: Revision) -> list[Members]:
    """The `members` of transactions with equal headers at one revision."""
    alike = members(txn_ids[0], header, revision)
    return [{**alike, "txn_id": txn_id} for txn_id in txn_ids]


def members_as_read(records: TransactionRecords, *, deadline_ms: int | None = None, prepared: bool = False) -> Members:
    """The `members` of a transaction as it was read, except for a deadline or a prepare that was just applied to it."""
    return members(
        records.txn_id,
        records.header,
        records.header_record.version,
        deadline_ms=records.deadline_ms if deadline_ms is None else deadline_ms,
        prepared=prepared or records.prepared_record is not None,
    )


def as_model(records: TransactionRecords) -> TransactionHeader:
    """A transaction as it was read."""
    return TransactionHeader(**members_as_read(records))


def unknown_transaction(txn_id: TxnId) -> errors.MetatxnError:
    return errors.TransactionNotFound(
        f"transaction {txn_id} is unknown: it never began, or it ended long ago",
        txn_id=str(txn_id),
    )


def collected_or_never_begun(txn_id: TxnId) -> errors.MetatxnError:
    """The refusal for either case: no record tells the two apart."""
    return errors.TransactionNotFound(
        f"transaction {txn_id} was collected after its end, or never began: its id was given out, and has no record",
        action="A finished transaction is forgotten after the retention time: --gc-retention-ms of the coordinators.",
        txn_id=str(txn_id),
    )


def never_begun(txn_id: TxnId) -> errors.MetatxnError:
    return errors.TransactionNotFound(
        f"transaction {txn_id} is unknown: it never began, because no coordinator was given its id",
        action="Check the id, and whether this is its cluster.",
        txn_id=str(txn_id),
    )


def already_decided(txn_id: TxnId, header: Header) -> errors.MetatxnError:
    """Why a final transaction refuses a request other than its own end."""
    assert header.state.final
    if header.expired_by:
        return errors.ExpiredTransaction(
            f"transaction {txn_id} was aborted by {header.expired_by} at {header.finalized_ms}: {header.reason}",
            txn_id=str(txn_id),
            state=header.state.value,
            finalized_ms=header.finalized_ms,
            expired_by=header.expired_by.value,
        )
    return errors.InvalidTransactionState(
        f"transaction {txn_id} was {header.state} at {header.finalized_ms}",
        txn_id=str(txn_id),
        state=header.state.value,
        finalized_ms=header.finalized_ms,
    )


def other_writers(txn_id: TxnId, header: Header) -> errors.MetatxnError:
    """The refusal to commit a transaction again with another list of writers: the first list has decided."""
    counted = "all" if header.writers is None else f"{len(header.writers)} named"
    return errors.InvalidTransactionState(
        f"transaction {txn_id} was COMMITTED at {header.finalized_ms} with other writers ({counted} writers count)",
        txn_id=str(txn_id),
        state=header.state.value,
        finalized_ms=header.finalized_ms,
    )


def is_prepared(txn_id: TxnId) -> errors.MetatxnError:
    return errors.TransactionConflict(
        f"transaction {txn_id} is prepared: only its commit or abort may follow",
        action="Commit or abort the prepared transaction.",
        txn_id=str(txn_id),
    )


def not_allowed(detail: str, *, action: str | None = None, **members: Any) -> errors.MetatxnError:
    return errors.NotAllowed(detail, action=action, **members)
