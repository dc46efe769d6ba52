"""What the transactions of a key say about its epochs: who held it when, and what was aborted by its successor.

No record lists the takeovers of a key. But each transaction names the epoch that it was begun in, and is remembered for
a while after its end. So an epoch without a remembered one is missing here, except for the current one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from metatxn.wire.coordinator import TransactionHeader, TransactionKeyInfo


@dataclass(slots=True)
class KeyEpoch:
    """One epoch of a key. `first_ms` and `last_ms` are when the first and the last of its remembered transactions
    began, of which there are `begun`. `fenced` are the ids of those that a later connection, or a later transaction of
    the same connection, has aborted; `open` is the id of the one that is open."""

    epoch: int
    begun: int = 0
    committed: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    open: str | None = None
    fenced: list[str] = field(default_factory=list)


def epochs_of(key: TransactionKeyInfo, transactions: Iterable[TransactionHeader]) -> list[KeyEpoch]:
    """The epochs of a key, latest first, from transactions in any order."""
    found = {key.epoch: KeyEpoch(key.epoch)}
    for txn in transactions:
        if txn.epoch is None or (txn.transaction_key, txn.owner) != (key.key, key.owner):
            continue
        at = found.setdefault(txn.epoch, KeyEpoch(txn.epoch))
        at.begun += 1
        at.committed += txn.state == "COMMITTED"
        if txn.created_ms is not None:
            at.first_ms = min(at.first_ms or txn.created_ms, txn.created_ms)
            at.last_ms = max(at.last_ms or txn.created_ms, txn.created_ms)
        if txn.state == "OPEN":
            at.open = txn.txn_id
        if txn.expired_by == "fencing" and txn.txn_id is not None:
            at.fenced.append(txn.txn_id)
    return sorted(found.values(), key=lambda each: -each.epoch)
