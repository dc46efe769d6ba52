"""The recovery for the command line, which opens the storages and closes them again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from metastore.api import MetadataStore
from metastore.txn.states import TxnState
from participants.ledger.bucket import Bucket
from participants.ledger.local import LocalStorage
from participants.ledger.object_storage import ObjectStorage
from participants.restored.recovery import Difference, StoreRecovery, Wishes


class OpenRecovery:
    def __init__(self, recovery: StoreRecovery, wishes: Wishes, opened: AsyncExitStack) -> None:
        self._recovery = recovery
        self._wishes = wishes
        self._opened = opened

    def differences(self) -> AsyncIterator[Difference]:
        return self._recovery.differences(self._wishes)

    async def recover(self, recovered: Callable[[int], None]) -> dict[str, Any]:
        """Recover a store. Returns what was done, keyed by the names under which it is shown. `recovered` is told how
        many segments are done."""
        done = await self._recovery.recover(self._wishes, recovered)
        return {
            "incarnation": done.incarnation,
            "transactions decided": done.decided,
            "transactions hidden": done.hidden,
            "transactions prepared": done.prepared,
            "ledgers adopted": done.ledgers,
            "segments unavailable": done.unavailable,
        }

    async def close(self) -> None:
        await self._opened.aclose()


async def open_recovery(
    store: MetadataStore, data_dirs: Sequence[Path], urls: Sequence[str], wishes: Mapping[str, Any]
) -> OpenRecovery:
    """Open the storages. `wishes` are the fields of `Wishes`, with `commit` instead of `undecided`. Raises
    `LedgerError`."""
    undecided = TxnState.COMMITTED if wishes["commit"] else TxnState.ABORTED
    others = {name: value for name, value in wishes.items() if name != "commit"}
    async with AsyncExitStack() as stack:
        storages = [
            *[await stack.enter_async_context(await asyncio.to_thread(LocalStorage.open, path)) for path in data_dirs],
            *[await stack.enter_async_context(await ObjectStorage.open(Bucket.open(url))) for url in urls],
        ]
        recovery = StoreRecovery(store, storages, lambda: time.time_ns() // 1_000_000)
        return OpenRecovery(recovery, Wishes(undecided=undecided, **others), stack.pop_all())
