"""A transaction belongs to the principal that began it (scenarios B13–B16); so does a transaction key."""

from __future__ import annotations

from typing import TypeVar

from coordinator import answers
from metastore.txn.store import TransactionRecords
from metatxn.service.security.principal import Principal
from metatxn.wire import errors
from metatxn.wire.coordinator import BeginRequest, ConnectRequest

_ACTION = "Use the token of the principal that owns it, or of an administrator."

Owned = TypeVar("Owned", BeginRequest, ConnectRequest)


def owned(request: Owned, caller: Principal) -> Owned:
    """The request with the caller as the owner. Raises NOT_ALLOWED if it names another one.

    While authentication is off, the owner is whatever the request says: a name without protection.
    """
    if caller.name is None or request.owner == caller.name:
        return request
    if request.owner is not None:
        raise answers.not_allowed(
            f"owner: {request.owner!r} is not the caller, {caller.name!r}",
            action="Leave owner out; the caller is the owner.",
            field="owner",
        )
    return request.model_copy(update={"owner": caller.name})


def require_owner(records: TransactionRecords, caller: Principal) -> None:
    """Raises NOT_ALLOWED."""
    if not caller.owns(records.header.owner):
        raise other_owner(f"transaction {records.txn_id}", caller, txn_id=str(records.txn_id))


def visible_owner(wanted: str | None, caller: Principal) -> str | None:
    """The owner whose items a list may show: all for an administrator, or else only the caller's. Raises
    NOT_ALLOWED."""
    if caller.superuser:
        return wanted
    if wanted not in (None, caller.name):
        raise other_owner(f"everything of owner {wanted!r}", caller)
    return caller.name


def require_force(records: TransactionRecords, caller: Principal) -> None:
    """An administrator must set `force` to abort another owner's prepared transaction, because the other half of that
    external commit may be done. Raises NOT_ALLOWED."""
    if records.prepared_record and caller.name is not None and records.header.owner not in (None, caller.name):
        raise answers.not_allowed(
            f"transaction {records.txn_id} is prepared, and its owner {records.header.owner!r} is not {caller.name!r}",
            action="Let its owner decide it, or send force=true to abort it anyway.",
            txn_id=str(records.txn_id),
        )


def other_owner(what: str, caller: Principal, **members: str) -> errors.MetatxnError:
    return answers.not_allowed(f"{what} belongs to a principal other than {caller.name!r}", action=_ACTION, **members)
