"""Nothing after the decision: once anybody was told that a transaction has ended, or is prepared, nothing that is sent
from then on is taken."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import History, Outcome


def check(history: History) -> Iterable[str]:
    for write in history.writes:
        closed = history.closed.get(write.txn_id or "")
        if closed is not None and write.begun >= closed and write.outcome is Outcome.OK:
            yield f"{write} was taken, and its transaction was closed at {closed}"
