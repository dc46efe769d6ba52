"""Ends are idempotent: whoever was told that a transaction has ended was told what the store decided, also when it
asked again, and asking for the opposite is refused."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import History, Outcome

_DECIDED_OTHERWISE = {"INVALID_TXN_STATE", "EXPIRED_TRANSACTION"}


def check(history: History) -> Iterable[str]:
    for end in history.ends:
        decision = history.decisions.get(end.txn_id)
        if end.outcome is Outcome.OK:
            if decision is None:
                yield f"{end} was answered, and nothing was decided"
            elif decision.committed != end.commit:
                yield f"{end} was answered, and the decision was {decision.header}"
            elif end.commit and end.writers is not None and decision.header.writers != tuple(sorted(end.writers)):
                yield f"{end} was answered, and other writers count: {decision.header}"
        elif end.code in _DECIDED_OTHERWISE and decision is not None and decision.committed == end.commit:
            yield f"{end} was refused as decided otherwise, and the decision was {decision.header}"
