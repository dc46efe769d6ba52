"""No cycle of transactions that read from each other: what a transaction has read was decided before it was.

An edge leads from the writer of an entry to the committed transaction that went by it. In a history of committed reads
each of them was decided before the next one; two that saw each other have seen what was not decided yet (G1c).
"""

from __future__ import annotations

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

from tests.simulation.history import History


def check(history: History) -> Iterable[str]:
    read_from: dict[str, set[str]] = {}
    for read in history.reads:
        decision = history.decisions.get(read.txn_id or "")
        if read.txn_id is None or decision is None or not decision.committed:
            continue
        writers = {seen.txn_id for seen in read.frames if seen.txn_id is not None}
        read_from.setdefault(read.txn_id, set()).update(writers - {read.txn_id})
    try:
        TopologicalSorter(read_from).prepare()
    except CycleError as error:
        yield f"these have read from each other: {error.args[1]}"
