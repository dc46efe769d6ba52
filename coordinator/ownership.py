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
    """The request with the caller as the owner. Raises NOT_ALLOWED when it names another one.

    While nobody is authenticated the owner is whatever the request says: a name, and no protection.
    """
    if caller.name is None or request.owner == caller.name:
        return request
    if request.owner is not None:
        raise answers.not_allowed(
            f"owner: {request.owner!r} is not the caller, {caller.name!r}",
            action="Leave owner out: it is the caller.",
            field="owner",
        )
    return request.model_copy(update={"owner": caller.name})


def require_owner(records: TransactionRecords, caller: Principal) -> None:
    """Raises NOT_ALLOWED."""
    if not caller.owns(records.header.owner):
        raise other_owner(f"transaction {records.txn_id}", caller, txn_id=str(records.txn_id))


def visible_owner(wanted: str | None, caller: Principal) -> str | None:
    """Whose things a list may show: everybody's to a superuser, else the caller's. Raises NOT_ALLOWED."""
    if caller.superuser:
        return wanted
    if wanted not in (None, caller.name):
        raise other_owner(f"what owner {wanted!r} has", caller)
    return caller.name


def require_force(records: TransactionRecords, caller: Principal) -> None:
    """An administrator aborts somebody else's prepared transaction only by saying so: the other half of that external
    commit may be done. Raises NOT_ALLOWED."""
    if records.prepared_record and caller.name is not None and records.header.owner not in (None, caller.name):
        raise answers.not_allowed(
            f"transaction {records.txn_id} is prepared, and its owner {records.header.owner!r} is not {caller.name!r}",
            action="Let its owner decide it, or send force=true to abort it all the same.",
            txn_id=str(records.txn_id),
        )


def other_owner(what: str, caller: Principal, **members: str) -> errors.MetatxnError:
    return answers.not_allowed(f"{what} belongs to another principal than {caller.name!r}", action=_ACTION, **members)
