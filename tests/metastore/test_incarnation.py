"""A process serves one incarnation of the store, and only as long as the store goes forward.

The store in memory goes back to what it was when it was copied, under its clients, as a server that is restored from a
backup does.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest

from metastore.api import MetadataStore
from metastore.backends.memory import MemoryStore
from metastore.check import StoreCheck
from metastore.errors import StoreUnavailable, StoreWentBack
from metastore.incarnation import IncarnationGuard
from metastore.txn import paths
from metastore.txn.records.processes import Incarnation
from metastore.types import Snapshot
from metastore.watches import ChangeLog
from tests.coordinator.stores import WrappedStore

LATER_MS = 10**9


class Backup:
    """A copy of all that a store in memory holds."""

    def __init__(self, store: MemoryStore) -> None:
        self._slots, self._revision = copy.deepcopy(store._slots), store._revision

    def restore(self, store: MemoryStore) -> None:
        store._slots, store._revision = copy.deepcopy(self._slots), self._revision
        store._log = ChangeLog(self._revision)


class Process:
    """With its own way to the store, as each process has."""

    def __init__(self, truth: MemoryStore, **options: Any) -> None:
        self.store = Client(truth)
        self.said: list[str] = []
        self.guard = IncarnationGuard(
            self.store, lambda: 1, interval_ms=LATER_MS, on_refusal=self.said.append, **options
        )

    async def start(self) -> Process:
        await self.guard.start()
        return self


class Client(WrappedStore):
    """Refuses what it is told to by itself: the store behind it serves others, too."""

    away = False

    async def get_many(self, wanted: Sequence[str]) -> Snapshot:
        MetadataStore._assert_open(self)
        if self.away:
            raise StoreUnavailable("it is away")
        return await super().get_many(wanted)


@pytest.fixture
def truth() -> MemoryStore:
    return MemoryStore()


async def record_of(store: MemoryStore) -> Incarnation:
    record = await store.get(paths.INCARNATION)
    assert record is not None
    return Incarnation.decode(record.value)


async def recovered(store: MemoryStore, **update: Any) -> None:
    record = await store.get(paths.INCARNATION)
    assert record is not None
    value = Incarnation.decode(record.value).model_copy(update=update).encode()
    await store.apply(store.batch().replace(record, value))


async def write(store: MemoryStore, times: int = 1) -> None:
    for number in range(times):
        await store.apply(store.batch().put("/gc/horizon", b"%d" % number))


async def test_the_first_process_begins_an_incarnation_and_the_others_join_it(truth: MemoryStore) -> None:
    processes = [await Process(truth).start() for _ in range(3)]
    assert {process.guard.id for process in processes} == {(await record_of(truth)).id}
    for process in processes:
        await write(truth)
        await process.guard.look()
        assert process.store.refusal is None
        await process.guard.stop()


async def test_a_store_that_went_back_is_refused_by_everybody(truth: MemoryStore) -> None:
    saw, other = await Process(truth).start(), await Process(truth).start()
    backup = Backup(truth)
    await write(truth, 3)
    await saw.guard.look()
    backup.restore(truth)
    await saw.guard.look()
    assert saw.store.refusal is not None and "went back in time: it was at revision 6" in saw.store.refusal
    assert saw.said == [saw.store.refusal]
    with pytest.raises(StoreWentBack, match="metatxn store recover"):
        await saw.store.get("/anything")
    assert (await record_of(truth)).went_back is not None

    await other.guard.look()  # it has read nothing of what is gone, and hears of it
    assert other.store.refusal is not None and "went back in time" in other.store.refusal
    with pytest.raises(StoreWentBack, match="went back in time"):
        await Process(truth).start()
    assert [finding.key async for finding in StoreCheck(truth).findings()] == [paths.INCARNATION]


async def test_a_store_that_lost_what_it_had_acknowledged_is_refused_by_everybody(truth: MemoryStore) -> None:
    wrote, other = await Process(truth).start(), await Process(truth).start()
    wrote.store.lost_writes = "a log is older than it was"
    await wrote.guard.look()
    await other.guard.look()
    for process in (wrote, other):
        assert process.store.refusal is not None and "went back in time: a log is older" in process.store.refusal


async def test_what_a_watch_has_told_counts_as_seen(truth: MemoryStore) -> None:
    process = await Process(truth, seen=lambda: 9).start()
    await process.guard.look()
    assert process.store.refusal is not None and "it was at revision 9" in process.store.refusal


async def test_a_store_that_was_recovered_is_another_one(truth: MemoryStore) -> None:
    process = await Process(truth).start()
    await recovered(truth, id="f" * 32)
    await process.guard.look()
    assert process.store.refusal is not None and "Restart this process" in process.store.refusal
    assert await Process(truth).start()


async def test_a_store_is_not_served_while_it_is_recovered(truth: MemoryStore) -> None:
    process = await Process(truth).start()
    await recovered(truth, recovering=True)
    await process.guard.look()
    assert process.store.refusal is not None
    with pytest.raises(StoreWentBack, match="being recovered"):
        await Process(truth).start()


async def test_a_store_that_was_emptied_is_refused(truth: MemoryStore) -> None:
    process = await Process(truth).start()
    await truth.apply(truth.batch().delete(paths.INCARNATION))
    await process.guard.look()
    assert process.store.refusal is not None and "is gone" in process.store.refusal


async def test_a_store_that_does_not_answer_is_no_other_store(truth: MemoryStore) -> None:
    process = await Process(truth).start()
    process.store.away = True
    with pytest.raises(StoreUnavailable):
        await process.guard.look()
    assert process.store.refusal is None
