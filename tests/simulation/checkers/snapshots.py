"""A snapshot holds every transaction that was decided at its revision and none that was decided later, on all topics:
so the transfers of the bank sum up to zero in each."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import History, Outcome


def check(history: History) -> Iterable[str]:
    for pages in history.snapshots:
        (revision,) = {page.revision for page in pages}
        assert revision is not None
        client = pages[0].client
        seen = [frame for page in pages for frame in page.frames]
        total = sum(frame.amount for frame in seen)
        if total:
            yield f"{client} read a sum of {total} at {revision}"
        if not pages[0].floor <= revision <= pages[-1].at_revision:
            yield f"{client} asked at {pages[0].floor} and got a snapshot of {revision}"
        ids = {frame.id for frame in seen}
        for frame in seen:
            decision = history.decisions.get(frame.txn_id or "")
            if decision is None or decision.revision > revision or not decision.counts(frame.writer):
                yield f"{client} read {frame} at {revision}, and it was decided as {decision}"
        for write in history.writes:
            if write.outcome is not Outcome.OK or write.txn_id is None:
                continue
            decision = history.decisions.get(write.txn_id)
            if decision is None or decision.revision > revision or not decision.counts(write.writer):
                continue
            if write.id not in ids:
                yield f"{client} misses {write} at {revision}, decided at {decision.revision}"
