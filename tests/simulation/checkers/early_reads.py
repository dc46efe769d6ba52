"""Nobody who reads committed entries gets one before its transaction was decided."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import History


def check(history: History) -> Iterable[str]:
    for read in history.committed_reads():
        for seen in read.frames:
            if seen.txn_id is None:
                continue
            decision = history.decisions.get(seen.txn_id)
            if decision is None:
                yield f"{read.client} read {seen} of a transaction that nobody has decided"
            elif decision.revision > read.at_revision:
                yield f"{read.client} read {seen} at {read.at_revision}, it was decided at {decision.revision}"
