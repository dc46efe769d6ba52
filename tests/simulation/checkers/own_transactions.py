"""Anyone who begins a transaction is answered with its own, never with one that somebody else began: not even when ids
are given out again, as by a store that was restored from a backup. What the library begins ahead, it hands out once,
and only while it is open; but where a clock has jumped, the timeout may end any transaction at once."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import History


def check(history: History) -> Iterable[str]:
    for begun in history.answered_begins:
        if begun.by != begun.asked:
            yield f"{begun.asked} was answered with {begun.txn_id}, which {begun.by} began"
    handed_out = set()
    for each in history.handed_out:
        if each.txn_id in handed_out:
            yield f"{each.txn_id} was handed out twice"
        handed_out.add(each.txn_id)
        decision = history.decisions.get(each.txn_id)
        if decision is None or decision.header.expired_by == "timeout":
            continue
        if each.ahead and decision.revision <= each.at_revision:
            yield f"{each.txn_id} was handed out after it had ended"
