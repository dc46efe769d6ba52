"""Ends are idempotent: anyone who was told that a transaction has ended was told what the store decided, also when it
asked again, and asking for the opposite, or for other writers, is refused. What was certainly refused is not done."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import Decision, End, History, Outcome

_DECIDED_OTHERWISE = {"INVALID_TXN_STATE", "EXPIRED_TRANSACTION"}


def check(history: History) -> Iterable[str]:
    for end in history.ends:
        decision = history.decisions.get(end.txn_id)
        if end.outcome is Outcome.OK:
            yield from _answered(end, decision)
        elif end.code in _DECIDED_OTHERWISE and decision is not None and _wanted(end, decision):
            yield f"{end} was refused as decided otherwise, and the decision was {decision.header}"
    commits: dict[str, list[End]] = {}
    for end in history.ends:
        if end.commit:
            commits.setdefault(end.txn_id, []).append(end)
    for txn_id, asked in commits.items():
        decision = history.decisions.get(txn_id)
        if decision is not None and decision.committed and all(end.outcome is Outcome.FAILED for end in asked):
            yield f"{txn_id} was committed, although each of these was certainly refused: {asked}"


def _answered(end: End, decision: Decision | None) -> Iterable[str]:
    counted = end.remembered if end.writers is None else end.writers
    if decision is None:
        yield f"{end} was answered, and nothing was decided"
    elif decision.committed != end.commit:
        yield f"{end} was answered, and the decision was {decision.header}"
    elif end.commit and counted is not None and decision.header.writers != tuple(sorted(counted)):
        yield f"{end} was answered, and other writers count: {decision.header}"


def _wanted(end: End, decision: Decision) -> bool:
    """The decision is what `end` asked for."""
    if not end.commit or not decision.committed:
        return end.commit == decision.committed
    counted = end.remembered if end.writers is None else end.writers
    return counted is None or decision.header.writers == tuple(sorted(counted))
