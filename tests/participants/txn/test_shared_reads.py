"""Goal: everybody who asks hears of a read that began afterwards, and as few reads as possible are made.

Method: the store holds the answer to one read while others ask (DESIGN §5.1).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from metastore.errors import StoreClosed, StoreUnavailable
from metastore.txn import paths
from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metastore.types import Snapshot
from metatxn.wire.ids import TxnId
from participants.txn.shared_reads import TRANSACTIONS_PER_READ, SharedReads
from tests.participants.segment.faulty_store import FaultyStore

HEADER = Header(state=TxnState.OPEN, timeout_ms=1, created_ms=1)


class Counting(FaultyStore):
    def __init__(self) -> None:
        super().__init__()
        self.read: list[int] = []

    async def get_many(self, wanted: Sequence[str]) -> Snapshot:
        self.read.append(len(wanted))
        return await super().get_many(wanted)


async def put_header(store: FaultyStore, txn_id: TxnId) -> None:
    await store.apply(store.batch().create(paths.header(txn_id), HEADER.encode()))


async def test_all_who_ask_during_a_read_share_the_next_one() -> None:
    store = Counting()
    reads, txn_id = SharedReads(store), TxnId(1, 1)
    held = store.hold_read(lambda keys: True)
    first = asyncio.ensure_future(reads.ask(txn_id))
    await held.reached.wait()
    await put_header(store, txn_id)
    others = [asyncio.ensure_future(reads.ask(TxnId(1, 1 + number % 2))) for number in range(100)]
    await asyncio.sleep(0)
    held.go.set()
    assert (await first).header is None, "it was read before"
    found = await asyncio.gather(*others)
    assert {standing.header is not None for standing in found[::2]} == {True}
    assert store.read == [2, 4]


async def test_a_read_asks_for_no_more_than_the_store_reads_at_one_revision() -> None:
    store = Counting()
    reads = SharedReads(store)
    await asyncio.gather(*(reads.ask(TxnId(1, number)) for number in range(2 * TRANSACTIONS_PER_READ + 1)))
    assert store.read == [100, 100, 2]


async def test_an_error_is_told_to_those_who_waited_for_that_read_alone() -> None:
    store = Counting()
    reads, txn_id = SharedReads(store), TxnId(1, 1)
    held = store.hold_read(lambda keys: True)
    held.error = StoreUnavailable("gone")
    waiting = [asyncio.ensure_future(reads.ask(txn_id)) for _ in range(2)]
    await held.reached.wait()
    later = asyncio.ensure_future(reads.ask(txn_id))
    await asyncio.sleep(0)
    held.go.set()
    assert [type(answer) for answer in await asyncio.gather(*waiting, return_exceptions=True)] == [StoreUnavailable] * 2
    assert (await later).header is None


async def test_one_who_goes_away_takes_the_answer_from_nobody() -> None:
    store = Counting()
    reads, txn_id = SharedReads(store), TxnId(1, 1)
    held = store.hold_read(lambda keys: True)
    leaving, staying = (asyncio.ensure_future(reads.ask(txn_id)) for _ in range(2))
    await held.reached.wait()
    leaving.cancel()
    held.go.set()
    assert (await staying).header is None


async def test_nobody_waits_for_what_is_closed() -> None:
    store = Counting()
    reads, txn_id = SharedReads(store), TxnId(1, 1)
    held = store.hold_read(lambda keys: True)
    waiting = asyncio.ensure_future(reads.ask(txn_id))
    await held.reached.wait()
    behind = asyncio.ensure_future(reads.ask(TxnId(1, 2)))
    await asyncio.sleep(0)
    await reads.close()
    for each in (waiting, behind):
        with pytest.raises(StoreClosed):
            await each
