"""Goal: what is remembered of the transactions of a key is told by epoch, the latest first.

Method: headers that are made up. The commands are run against a server in `test_cli_keys`.
"""

from __future__ import annotations

from typing import Any

from metatxn.key_history import KeyEpoch, epochs_of
from metatxn.wire.coordinator import TransactionHeader, TransactionKeyInfo

KEY = TransactionKeyInfo(key="nightly", epoch=7, updated_ms=1)


def header(txn_id: str, epoch: int | None, created_ms: int, **more: Any) -> TransactionHeader:
    found = {"txn_id": txn_id, "epoch": epoch, "created_ms": created_ms, "transaction_key": "nightly"}
    return TransactionHeader.model_validate(found | {"state": "ABORTED"} | more)


def test_each_epoch_tells_what_was_begun_in_it() -> None:
    found = epochs_of(
        KEY,
        [
            header("a", 3, 100, state="COMMITTED"),
            header("b", 3, 50, expired_by="fencing"),
            header("c", 5, 200, expired_by="timeout"),
            header("d", 5, 300, state="OPEN"),
            header("of another key", 4, 1, transaction_key="hourly"),
            header("of another owner", 4, 1, owner="ada"),
            header("without a key", None, 1),
        ],
    )
    assert found == [
        KeyEpoch(7),
        KeyEpoch(5, begun=2, first_ms=200, last_ms=300, open="d"),
        KeyEpoch(3, begun=2, committed=1, first_ms=50, last_ms=100, fenced=["b"]),
    ]
