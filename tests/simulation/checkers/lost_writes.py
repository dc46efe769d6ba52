"""What was acknowledged is there: every entry of a committed transaction that counts, where its client was told; in a
compacted topic, that entry or a later one of its key."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import History, Outcome


def check(history: History) -> Iterable[str]:
    visible = {
        seen.id: (seen.segment, seen.position) for read in history.final_reads_committed() for seen in read.frames
    }
    latest = history.latest_by_key()
    for write in history.writes:
        if write.outcome is not Outcome.OK:
            continue
        if write.txn_id is not None:
            decision = history.decisions.get(write.txn_id)
            if decision is None:
                yield f"{write} was acknowledged in a transaction that was never decided"
                continue
            if not decision.counts(write.writer):
                continue
        if write.topic not in history.layouts or history.is_trimmed(write.segment, write.position):
            continue  # somebody has deleted it
        found = visible.get(write.id)
        if found is None:
            if write.position is not None and latest.get((write.segment or "", write.key), (0, -1)) > write.position:
                continue  # it was replaced
            yield f"{write} was acknowledged and is lost"
        elif found != (write.segment or found[0], write.position or found[1]):
            yield f"{write} was acknowledged at one place and is at another: {found}"
