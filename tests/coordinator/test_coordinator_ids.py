"""Goal: the id of a transaction tells which coordinator began it (PIP-31), for no two live ones have the same one.

Method: announcements in one store that are made at the same moment, go, and come back. That no two transactions have
the same id does not rest on any of this (see `test_id_blocks`).
"""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from coordinator.presence import Presence
from coordinator.service import CoordinatorService
from metastore.api import Ephemeral
from metastore.backends.memory import MemoryStore
from metastore.errors import StoreUnavailable
from metastore.txn import paths
from metastore.txn.id_blocks import IdBlocks
from metastore.types import RangeResult
from metatxn.wire.coordinator import BeginRequest
from metatxn.wire.ids import COORDINATORS, TxnId
from tests.coordinator.conftest import id_of
from tests.coordinator.stores import FaultyStore, WrappedStore
from tests.coordinator.test_presence import becomes


async def present(truth: MemoryStore, name: str, chosen: int | None = None) -> Presence:
    presence = Presence(truth, name, chosen)
    await presence.start(f"http://{name}")
    return presence


async def test_each_has_the_lowest_that_is_free(truth: MemoryStore) -> None:
    first, second = await present(truth, "a"), await present(truth, "b")
    assert (first.coordinator_id, second.coordinator_id) == (0, 1)
    await first.stop()
    third, fourth = await present(truth, "c"), await present(truth, "d")
    assert (third.coordinator_id, fourth.coordinator_id) == (0, 2)
    for presence in (second, third, fourth):
        await presence.stop()


async def test_what_was_chosen_is_kept_and_left_free_by_others(truth: MemoryStore) -> None:
    """Also when it is chosen twice: that is safe, and a restart after a crash finds its own announcement there."""
    chosen = [await present(truth, name, COORDINATORS - 1) for name in ("a", "b")]
    assert [presence.coordinator_id for presence in chosen] == [COORDINATORS - 1] * 2
    zero = await present(truth, "c", 0)
    leased = await present(truth, "d")
    assert leased.coordinator_id == 1
    for presence in (*chosen, zero, leased):
        await presence.stop()


async def test_a_process_that_is_older_than_coordinator_ids_has_0(truth: MemoryStore) -> None:
    await truth.apply(truth.batch().put(paths.coordinator_process("old"), b'{"url":"http://old"}'))
    presence = await present(truth, "a")
    assert presence.coordinator_id == 1
    await presence.stop()


class Together(WrappedStore):
    """The first announcement waits until everybody has looked what is free."""

    def __init__(self, truth: MemoryStore, everybody: asyncio.Barrier) -> None:
        super().__init__(truth)
        self._everybody: asyncio.Barrier | None = everybody

    async def ephemeral(self, key: str, value: bytes, ttl_ms: int) -> Ephemeral:
        everybody, self._everybody = self._everybody, None
        if everybody:
            await everybody.wait()
        return await super().ephemeral(key, value, ttl_ms)


async def test_those_that_start_together_have_different_ones(truth: MemoryStore) -> None:
    everybody, told = asyncio.Barrier(5), dict[int, int]()
    presences = [
        Presence(Together(truth, everybody), f"p{number}", None, partial(told.__setitem__, number))
        for number in range(5)
    ]
    await asyncio.gather(*(presence.start("http://here") for presence in presences))
    assert sorted(told.values()) == sorted(presence.coordinator_id for presence in presences) == [0, 1, 2, 3, 4]
    await asyncio.gather(*(presence.stop() for presence in presences))


async def test_whoever_was_away_takes_another_one(truth: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen until its lease ended, and the id was given to another: it serves under its own one as soon as it is
    announced again, though the store does not answer at first."""
    store, told = FaultyStore(truth), list[int]()
    frozen = Presence(store, "a", None, told.append)
    await frozen.start("http://a")
    await becomes(lambda: told == [0, 0])  # looked at again when the watch has shown it
    own = await truth.get(paths.coordinator_process("a"))
    assert own is not None
    await truth.apply(truth.batch().delete(own.key))
    other = await present(truth, "b")
    assert other.coordinator_id == 0
    failed = asyncio.Event()

    async def once(*arguments: object, **options: object) -> RangeResult:
        monkeypatch.undo()
        failed.set()
        raise StoreUnavailable("by the test")

    monkeypatch.setattr(store, "range", once)
    await truth.apply(truth.batch().put(own.key, own.value))
    await becomes(lambda: told[2:] != [])
    assert failed.is_set()
    assert (told[2], frozen.coordinator_id, other.coordinator_id) == (1, 1, 0)
    await frozen.stop()
    await other.stop()
    assert (await truth.scan(paths.COORDINATORS)).records == []


async def test_ids_are_of_the_new_coordinator_id_at_once(store: FaultyStore) -> None:
    """Also when a block is on its way that was leased for the old one."""
    assert await IdBlocks(store, 5, block_size=10).next() == TxnId(5, 1)
    ids = IdBlocks(store, 0)
    assert await ids.next() == TxnId(0, 1)
    ids.serve_as(5)

    async def meanwhile() -> None:
        ids.serve_as(7)

    store.before_applies.append(meanwhile)
    assert [await ids.next(), await ids.next()] == [TxnId(7, 1), TxnId(7, 2)]
    ids.in_use([TxnId(0, 2), TxnId(5, 2)])
    assert await ids.next() == TxnId(7, 3), "the same numbers of other coordinators are no matter"
    ids.serve_as(7)
    assert await ids.next() == TxnId(7, 4)
    ids.serve_as(0)
    assert (await ids.next()).coordinator == 0


async def test_a_transaction_tells_where_it_began(truth: MemoryStore) -> None:
    services = [CoordinatorService(truth, port=0, coordinator_id=chosen) for chosen in (None, None, 0xABC)]
    for service in services:
        await service.start()
    begun = [id_of((await service.transactions.begin(BeginRequest())).txn) for service in services]
    assert [txn_id[:4] for txn_id in begun] == ["0000", "0001", "0abc"]
    for service in services:
        await service.stop()
