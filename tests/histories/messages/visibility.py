"""A transaction is seen whole, on all topics, or not at all: in the end, and in every snapshot."""

from __future__ import annotations

from collections.abc import Iterable

from tests.histories.messages.history import History, Write


def broken(history: History) -> Iterable[str]:
    transactions = history.transactions()
    yield from _torn("in the end", transactions, history.visible(), history.final.keys())
    for snapshot in history.snapshots:
        where = f"in the snapshot of {snapshot.call.client} at {snapshot.call.invoked}"
        yield from _torn(where, transactions, set(snapshot.ids), snapshot.topics.keys())


def _torn(where: str, transactions: dict[str, list[Write]], visible: set[str], topics: Iterable[str]) -> Iterable[str]:
    """Only writes to `topics` can be seen; one without an answer need not be there."""
    looked_at = set(topics)
    for txn, writes in transactions.items():
        there = [write for write in writes if write.topic in looked_at]
        seen = [write.id for write in there if write.id in visible]
        missing = [write.id for write in there if write.id not in visible and write.acknowledged]
        if seen and missing:
            yield f"{where} {seen} of transaction {txn} are seen, and {missing} are not"
