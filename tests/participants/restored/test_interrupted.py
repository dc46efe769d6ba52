"""A recovery that dies behind any of its steps, and is begun again, ends as one that was not interrupted.

A step is an apply of the store, or a write to the disk or the bucket (see `tests.participants.prefixes.steps`).
"""

from __future__ import annotations

import json
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from metastore.check import StoreCheck, dump
from metastore.errors import MetastoreError, OutcomeUnknown, StoreUnavailable
from metastore.txn.states import TxnState
from metastore.types import Applied, Batch
from metastore.urls import open_store
from participants.ledger.local import LocalStorage
from participants.ledger.storage import LedgerError
from participants.restored.recovery import StoreRecovery, Wishes
from tests.coordinator.stores import WrappedStore
from tests.extent import usually
from tests.participants.prefixes.steps import InPlace, MortalDisk, Steps
from tests.participants.restored.backups import SqliteFile
from tests.participants.restored.test_recovery import Cluster, restored

NOW_MS = 2_000_000_000_000
MOST_STEPS = 300
GIVEN_ANEW = {"id", "earlier"}
"""What differs between two recoveries that do the same."""


class MortalStore(WrappedStore):
    def __init__(self, truth: Any, steps: Steps) -> None:
        super().__init__(truth)
        self._steps = steps

    async def apply(self, batch: Batch) -> Applied:
        if self._steps.dead:
            raise StoreUnavailable("the process is dead")
        applied = await super().apply(batch)
        if batch.written() and not self._steps.done(f"apply {' '.join(batch.written())}"):
            raise OutcomeUnknown("the process is dead")
        return applied


async def recover(directory: Path, steps: Steps, wishes: Wishes) -> None:
    async with AsyncExitStack() as stack:
        store = await open_store(f"sqlite:///{directory}/metadata.db")
        stack.push_async_callback(store.close)
        storage = LocalStorage.open(directory / "data", disk=MortalDisk(steps), executor=InPlace())
        await stack.enter_async_context(storage)
        await StoreRecovery(MortalStore(store, steps), [storage], lambda: NOW_MS).recover(wishes)


async def picture(directory: Path) -> dict[str, Any]:
    """All records, without what is given anew, and the files; nothing that contradicts itself."""
    store = await open_store(f"sqlite:///{directory}/metadata.db")
    try:
        assert [finding async for finding in StoreCheck(store).findings()] == []
        records = {record.key: _settled(record.value) async for record in dump(store)}
    finally:
        await store.close()
    names = sorted(path.relative_to(directory).parts for path in (directory / "data").rglob("*.ledger"))
    return records | {"files": [[part for part in parts if not _is_id(part)] for parts in names]}


def _settled(value: bytes) -> Any:
    found = json.loads(value) if value else None
    if not isinstance(found, dict):
        return found
    return {name: field for name, field in found.items() if name not in GIVEN_ANEW}


def _is_id(part: str) -> bool:
    return len(part) == 32


@pytest.mark.parametrize(
    "wishes",
    [Wishes(undecided=TxnState.ABORTED), Wishes(undecided=TxnState.COMMITTED, adopt=False)],
    ids=["adopt", "set aside"],
)
async def test_every_interrupted_prefix_of_a_recovery_ends_as_the_whole(wishes: Wishes, tmp_path: Path) -> None:
    cluster = Cluster(SqliteFile(tmp_path / "cluster"), tmp_path / "cluster", files=True)
    await restored(cluster)
    shutil.copytree(tmp_path / "cluster", tmp_path / "whole")
    await recover(tmp_path / "whole", Steps(), wishes)
    expected = await picture(tmp_path / "whole")
    for last in range(1, MOST_STEPS, usually(3, 1)):
        directory, steps = tmp_path / str(last), Steps()
        shutil.copytree(tmp_path / "cluster", directory)
        steps.arm(last)
        try:
            await recover(directory, steps, wishes)
        except (MetastoreError, LedgerError, OSError):
            assert steps.dead
        if steps.dead:
            await recover(directory, Steps(), wishes)
        assert await picture(directory) == expected, f"dead behind step {last}: {', '.join(steps.trace)}"
        shutil.rmtree(directory)
        if not steps.dead:
            assert last > 10, "there are more steps than that"
            return
    raise AssertionError(f"more than {MOST_STEPS} steps")
