"""Nothing of a transaction that cannot have been committed, and nothing that was refused, is seen by anybody, ever."""

from __future__ import annotations

from collections.abc import Iterable

from tests.histories.calls import Outcome
from tests.histories.messages.history import History


def broken(history: History) -> Iterable[str]:
    for where, message in history.sightings():
        write = history.writes.get(message)
        if write is None:
            yield f"{message} is seen {where}, and nobody has sent it"
        elif write.txn is not None and history.cannot_be_committed(write.txn):
            yield f"{message} is seen {where}, and transaction {write.txn} was not committed: {history.ends[write.txn]}"
        elif write.call.outcome is Outcome.FAILED:
            yield f"{message} is seen {where}, and was refused: {write.call}"
