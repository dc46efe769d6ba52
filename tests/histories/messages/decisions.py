"""Nobody is ever told that a transaction was committed, and somebody else that the same one was aborted."""

from __future__ import annotations

from collections.abc import Iterable

from tests.histories.messages.history import History


def broken(history: History) -> Iterable[str]:
    for txn in history.ends:
        committed, aborted = history.committed(txn), history.aborted(txn)
        if committed and aborted:
            yield f"transaction {txn} was committed and aborted: {committed[0]}; {aborted[0]}"
