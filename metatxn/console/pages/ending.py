"""Ending transactions that others have left open."""

from __future__ import annotations

import asyncio

import metatxn
from metatxn.console.visit import MadeChange, SentForm, Visit
from metatxn.wire.coordinator import TransactionHeader
from metatxn.words import short_id

MOST_CHOSEN = 100
PATH = "/console/transactions"


def may_end(visit: Visit, txn: TransactionHeader) -> bool:
    """Whether the caller is offered to end it: its owner, or an administrator. What has no owner belongs to all."""
    allowed = visit.access.admin or txn.owner in (None, visit.access.principal)
    return txn.state == "OPEN" and allowed and not visit.site.read_only


def needs_force(visit: Visit, txn: TransactionHeader) -> bool:
    """Whether an abort needs force: a prepared transaction of another owner may be half of a commit elsewhere."""
    caller = visit.access.principal
    return txn.prepared is True and caller is not None and txn.owner not in (None, caller)


async def commit_transaction(visit: Visit, form: SentForm) -> MadeChange:
    txn_id = _id_of(visit)
    if form.get("complete") != "yes":
        raise metatxn.InvalidArgument("complete: confirm that everything is written", field="complete")
    with visit.recording("transaction.commit", {"txn_id": txn_id}):
        await visit.client.attach(txn_id).commit()
    return MadeChange(f"Transaction {short_id(txn_id)} is committed.", f"{PATH}/{txn_id}")


async def abort_transaction(visit: Visit, form: SentForm) -> MadeChange:
    """Abort a transaction. The page that asked for it shows the outcome: that of the transaction, or a list."""
    txn_id = _id_of(visit)
    await _abort(visit, txn_id, _reason(form), force=form.get("force") == "yes")
    return MadeChange(f"Transaction {short_id(txn_id)} is aborted.", visit.here)


async def abort_chosen(visit: Visit, form: SentForm) -> MadeChange:
    """Abort the chosen transactions, each separately: one that cannot be aborted does not stop the others."""
    chosen = list(dict.fromkeys(form.every("txn")))
    if not 0 < len(chosen) <= MOST_CHOSEN:
        raise metatxn.InvalidArgument(f"txn: choose between 1 and {MOST_CHOSEN} transactions", field="txn")
    reason = _reason(form)
    results = await asyncio.gather(*(_result(visit, txn_id, reason) for txn_id in chosen))
    failed = [error for error in results if error is not None]
    if len(failed) == len(chosen):
        raise failed[0]
    number = len(chosen) - len(failed)
    said = f"{number} {'transaction is' if number == 1 else 'transactions are'} aborted."
    if failed:
        said += f" {len(failed)} could not be: {failed[0].detail}"
    return MadeChange(said, visit.here)


async def _result(visit: Visit, txn_id: str, reason: str) -> metatxn.MetatxnError | None:
    try:
        await _abort(visit, txn_id, reason, force=False)
    except metatxn.MetatxnError as error:
        return error
    return None


async def _abort(visit: Visit, txn_id: str, reason: str, *, force: bool) -> None:
    with visit.recording("transaction.abort", {"txn_id": txn_id}, force=force):
        await visit.client.attach(txn_id).abort(reason, force=force)


def _reason(form: SentForm) -> str:
    """The reason, which everyone who wonders why it was aborted will read."""
    return form.get("reason", "").strip() or "aborted in the console"


def _id_of(visit: Visit) -> str:
    return visit.part("txn_id").rjust(32, "0")
