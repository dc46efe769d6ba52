"""Ids from leased blocks (DESIGN §4, scenarios A1, A2, K86)."""

from __future__ import annotations

import asyncio

import pytest

from metastore.errors import StoreUnavailable
from metastore.txn import id_blocks
from metastore.txn.id_blocks import BLOCK_SECONDS, BLOCK_SIZE, IdBlocks
from metatxn.wire.ids import TxnId
from tests.coordinator.stores import Fault, FaultyStore


async def test_concurrent_callers_share_one_lease(store: FaultyStore) -> None:
    ids = IdBlocks(store, 3, block_size=100)
    got = await asyncio.gather(*(ids.next() for _ in range(100)))
    assert sorted(got) == [TxnId(3, number) for number in range(1, 101)]
    assert len(store.sent) == 1
    assert await ids.next() == TxnId(3, 101)


async def test_two_processes_with_one_coordinator_id_never_collide(store: FaultyStore) -> None:
    """Sharing an id is safe; each process counts up by itself."""
    processes = [IdBlocks(store, 0, block_size=3) for _ in range(4)]
    got = await asyncio.gather(*(process.next() for process in processes for _ in range(20)))
    assert len(set(got)) == 80


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST])
async def test_a_block_whose_reply_was_lost_is_wasted(store: FaultyStore, fault: Fault) -> None:
    store.faults.append(fault)
    ids = IdBlocks(store, 0, block_size=10)
    assert await ids.next() == TxnId(0, 11 if fault is Fault.LOSE_REPLY else 1)


async def test_without_a_block_nothing_was_begun(store: FaultyStore) -> None:
    """So the error is definite, for all who wait; and the next caller tries again."""
    ids = IdBlocks(store, 0)
    store.faults.extend([Fault.LOSE_REPLY] * 3)
    failed = await asyncio.gather(ids.next(), ids.next(), return_exceptions=True)
    assert [type(error) for error in failed] == [StoreUnavailable, StoreUnavailable]
    assert (await ids.next()).sequence == 3 * BLOCK_SIZE + 1


async def test_a_caller_that_goes_away_takes_no_block_with_it(store: FaultyStore) -> None:
    ids = IdBlocks(store, 0)
    impatient, patient = asyncio.create_task(ids.next()), asyncio.create_task(ids.next())
    await asyncio.sleep(0)
    impatient.cancel()
    assert await patient == TxnId(0, 1)


async def test_who_is_never_the_first_at_a_new_block_is_refused_in_the_end(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was begun, so the error is definite; and the next one who asks is served."""
    monkeypatch.setattr(id_blocks, "_MOST_BLOCKS", 3)
    ids = IdBlocks(store, 0, block_size=1)
    greedy_ones: list[TxnId] = []

    async def be_greedy() -> None:
        while True:
            greedy_ones.extend(await ids.take(1))

    greedy, patient = asyncio.create_task(be_greedy()), asyncio.create_task(ids.take(1))
    with pytest.raises(StoreUnavailable, match="other requests took the transaction ids of every block") as refused:
        await patient
    greedy.cancel()
    assert refused.value.definite and greedy_ones == [TxnId(0, number) for number in (1, 2, 3)]
    assert (await ids.next()).sequence > 3


async def test_a_block_is_used_for_its_time_only(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a process that begins few transactions does not give out low ids for long while others lease later
    blocks under the same coordinator id: lists show transactions in the order of the ids."""
    loop = asyncio.get_running_loop()
    ahead = 0.0
    of_loop = loop.time
    monkeypatch.setattr(loop, "time", lambda: of_loop() + ahead)
    slow, fast = IdBlocks(store, 0, block_size=10), IdBlocks(store, 0, block_size=10)
    assert (await slow.next()).sequence == 1 and (await fast.next()).sequence == 11
    ahead = BLOCK_SECONDS - 1
    assert (await slow.next()).sequence == 2
    ahead = BLOCK_SECONDS + 1
    assert await slow.take(12) == [TxnId(0, number) for number in (*range(21, 31), 31, 32)]
    at_once = IdBlocks(store, 0, block_size=10, block_seconds=0)
    ahead += 0.1
    assert (await at_once.next()).sequence == 41, "a lease that takes longer than that is of use, too"
    ahead += 0.1
    assert (await at_once.next()).sequence == 51
