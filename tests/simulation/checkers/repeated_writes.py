"""Nothing is there twice, and nothing that nobody has written or that was certainly refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tests.simulation.history import History, Outcome


def check(history: History) -> Iterable[str]:
    writes = {write.id: write for write in history.writes}
    for isolation in ("read_committed", "read_uncommitted"):
        reads = [read for read in history.final_reads if read.isolation == isolation]
        counted = Counter(seen.id for read in reads for seen in read.frames)
        for name, times in counted.items():
            if times > 1:
                yield f"{writes.get(name)} is there {times} times ({isolation})"
            if name not in writes:
                yield f"nobody has written {name} ({isolation})"
    for read in (*history.reads, *history.final_reads_committed()):
        for seen in read.frames:
            write = writes.get(seen.id)
            if write is not None and write.outcome is Outcome.FAILED:
                yield f"{write} was certainly refused, and {read.client} read it"
            if write is not None and (write.key, write.amount, write.txn_id) != (seen.key, seen.amount, seen.txn_id):
                yield f"{write} was read by {read.client} as {seen}"
