"""Each snapshot of the bank sums up to zero, and holds every transfer that was known to be committed before it."""

from __future__ import annotations

from collections.abc import Iterable

from tests.histories.messages.history import History


def broken(history: History) -> Iterable[str]:
    known = sorted(
        (min(call.returned for call in calls), txn) for txn in history.ends if (calls := history.committed(txn))
    )
    transactions = history.transactions()
    for snapshot in history.snapshots:
        where = f"the snapshot of {snapshot.call.client} at {snapshot.call.invoked}"
        total = sum(history.writes[message].amount for message in snapshot.ids if message in history.writes)
        if total:
            yield f"{where} sums up to {total}"
        seen = set(snapshot.ids)
        for moment, txn in known:
            if moment >= snapshot.call.invoked:
                break
            missing = [w.id for w in transactions.get(txn, []) if w.topic in snapshot.topics and w.id not in seen]
            if missing:
                yield f"{where} misses {missing} of transaction {txn}, which was committed by {moment}"
