"""Nobody who reads committed entries ever gets one of an aborted transaction, or of a writer that does not count."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import History


def check(history: History) -> Iterable[str]:
    for read in history.committed_reads():
        for seen in read.frames:
            if seen.txn_id is None:
                continue
            decision = history.decisions.get(seen.txn_id)
            if decision is not None and not decision.counts(seen.writer):
                yield f"{read.client} read {seen} of a transaction that was decided as {decision.header}"
