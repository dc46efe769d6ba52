"""Beginning a transaction by hand, in which messages can be produced from the console."""

from __future__ import annotations

import metatxn
from metatxn.console.pages.producing import properties_of_form
from metatxn.console.visit import MadeChange, SentForm, Visit
from metatxn.words import parsed_duration, short_id

DEFAULT_TIME = "10m"
PATH = "/console/transactions"


async def begin_transaction(visit: Visit, form: SentForm) -> MadeChange:
    """Begin a transaction of the caller. It stays open until somebody ends it, or its time is over."""
    timeout_ms, properties = _time(form), properties_of_form(form)
    about: dict[str, str] = {}
    with visit.recording("transaction.begin", about, timeout_ms=timeout_ms):
        txn = await visit.client.begin(timeout_ms, properties=properties or None)
        txn.leave_open()
        about["txn_id"] = txn.id
    said = f"Transaction {short_id(txn.id)} has begun. Messages can be produced inside it, on the pages of topics."
    return MadeChange(said, f"{PATH}/{txn.id}")


def _time(form: SentForm) -> int:
    text = form.get("timeout_ms", "").strip() or DEFAULT_TIME
    try:
        return int(text) if text.isdigit() and text.isascii() else parsed_duration(text)
    except ValueError as error:
        raise metatxn.InvalidArgument(f"timeout_ms: {error}", field="timeout_ms") from None
