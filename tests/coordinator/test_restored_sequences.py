"""A store whose id sequence has gone back, as one that was restored from a backup (DESIGN §4: ids are never reused).

Goal: anyone who is given an id that somebody else is using notices, and takes another one: nobody is answered with a
transaction that somebody else began, and nobody tries forever. Method: a coordinator that has survived the restore
begins with the ids of its old block, and the store gives the same block to a second one.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.batches import Done, run_batch
from coordinator.settling import Settling
from coordinator.transactions import Transactions
from metastore.backends.memory import MemoryStore
from metastore.errors import StoreUnavailable
from metastore.txn import paths
from metastore.types import Applied, Batch
from metatxn.service.patience import MOST_ROUNDS
from metatxn.wire.coordinator import BeginItem, BeginRequest, ConnectRequest
from metatxn.wire.errors import ErrorCode
from metatxn.wire.ids import TxnId
from metatxn.wire.problems import problem_of
from tests.coordinator.conftest import FakeClock, id_of, refusal
from tests.coordinator.stores import Fault, FaultyStore

BLOCK = 1_000
THEIRS_MS, OURS_MS = 70_000, 50_000
"""Timeouts, to tell whose a transaction is: the clock stands still."""

Coordinate = Callable[..., Transactions]


async def go_back(truth: MemoryStore) -> None:
    """The next block is the first one again."""
    record = await truth.get(paths.id_sequence(0))
    assert record is not None
    await truth.apply(truth.batch().replace(record, b"1"))


@pytest.fixture
async def survivor(coordinate: Coordinate, truth: MemoryStore) -> Transactions:
    """A coordinator that has begun the first id of a block which the store will give out again."""
    survivor = coordinate(id_block_size=BLOCK)
    await survivor.begin(BeginRequest(timeout_ms=THEIRS_MS))
    await go_back(truth)
    return survivor


@pytest.fixture
def newcomer(survivor: Transactions, coordinate: Coordinate) -> Transactions:
    """It will be given the block of `survivor`."""
    return coordinate(id_block_size=BLOCK)


OURS = BeginRequest(timeout_ms=OURS_MS)
FIRST = TxnId(0, 1)


async def test_a_begin_never_answers_with_the_transaction_of_somebody_else(
    survivor: Transactions, newcomer: Transactions
) -> None:
    theirs = await survivor.get(FIRST)
    begun = [id_of((await newcomer.begin(OURS)).txn) for _ in range(3)]
    assert [txn_id.sequence for txn_id in begun] == [BLOCK + 1, BLOCK + 2, BLOCK + 3], "ids of another block"
    assert await survivor.get(FIRST) == theirs


async def test_nor_does_a_batch(survivor: Transactions, newcomer: Transactions) -> None:
    theirs = await survivor.get(FIRST)
    answers = await run_batch(newcomer, [BeginItem(op="begin", timeout_ms=OURS_MS + number) for number in range(3)])
    begun = [answer.txn for answer in answers if isinstance(answer, Done) and answer.created]
    assert [TxnId.parse(txn["txn_id"]).sequence for txn in begun] == [BLOCK + 1, BLOCK + 2, BLOCK + 3]
    assert [txn["deadline_ms"] - txn["created_ms"] for txn in begun] == [OURS_MS, OURS_MS + 1, OURS_MS + 2]
    assert await survivor.get(FIRST) == theirs


async def test_nor_does_a_begin_under_a_key(survivor: Transactions, newcomer: Transactions) -> None:
    theirs = await survivor.get(FIRST)
    epoch = (await newcomer.keys.connect("k", ConnectRequest(epoch=-1))).epoch
    begun = await newcomer.begin(BeginRequest(transaction_key="k", epoch=epoch))
    assert begun.created and id_of(begun.txn).sequence == BLOCK + 1
    assert (await newcomer.keys.get("k")).txn_id == begun.txn_id
    assert await survivor.get(FIRST) == theirs


async def test_the_predecessor_under_the_key_may_have_the_id_that_is_given_out_again(
    survivor: Transactions, newcomer: Transactions, coordinate: Coordinate, truth: MemoryStore
) -> None:
    """It is fenced as any other, and its successor has another id."""
    epoch = (await survivor.keys.connect("k", ConnectRequest(epoch=-1))).epoch
    request = BeginRequest(transaction_key="k", epoch=epoch)
    before = id_of((await newcomer.begin(request)).txn)
    await truth.apply(truth.batch().put(paths.id_sequence(0), str(before.sequence).encode()))
    after = id_of((await coordinate(id_block_size=BLOCK).begin(request)).txn)
    assert after != before
    assert (await survivor.get(before))["expired_by"] == "fencing"
    assert (await survivor.get(after))["state"] == "OPEN"


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_lost_reply_makes_nobody_elses_transaction_ours(
    survivor: Transactions, newcomer: Transactions, store: FaultyStore, truth: MemoryStore, key: str | None
) -> None:
    """The request was lost, and what is there under its id somebody else has begun meanwhile."""
    epoch = (await newcomer.keys.connect("k", ConnectRequest(epoch=-1))).epoch if key else None
    request = BeginRequest(transaction_key=key, epoch=epoch, timeout_ms=OURS_MS)
    mine = id_of((await newcomer.begin(request)).txn)
    theirs = TxnId(0, mine.sequence + 1)
    clock = survivor.clock

    async def somebody_else_begins() -> None:
        await truth.apply(truth.batch().put(paths.id_sequence(0), str(theirs.sequence).encode()))
        begun = await Transactions(truth, clock, id_block_size=1).begin(BeginRequest(timeout_ms=THEIRS_MS))
        assert begun.txn_id == theirs

    store.faults.append(Fault.LOSE_REQUEST)
    store.before_reads.extend([*([None] * 2 if key else []), somebody_else_begins])
    begun = await newcomer.begin(request)
    assert not store.before_reads
    assert begun.created and begun.txn_id != theirs
    assert begun.txn["deadline_ms"] == clock() + OURS_MS
    assert (await survivor.get(theirs))["deadline_ms"] == clock() + THEIRS_MS


class EveryIdInUse(FaultyStore):
    """Somebody else begins with each id a moment before."""

    async def apply(self, batch: Batch) -> Applied:
        for key in [key for key in batch.puts if key.startswith(paths.HEADERS)]:
            if await self.truth.get(key) is None:
                theirs = self.truth.batch().create(key, batch.puts[key])
                await self.truth.apply(theirs)
        return await super().apply(batch)


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_begin_ends_when_every_id_is_in_use(truth: MemoryStore, clock: FakeClock, key: str | None) -> None:
    """With the truth: nothing was begun, and it may go well later. It has cost the store some dozens of requests."""
    store = EveryIdInUse(MemoryStore(truth.indexes))
    transactions = Transactions(store, clock, settling=Settling(store, clock, pause=clock.pause))
    epoch = (await transactions.keys.connect("k", ConnectRequest(epoch=-1))).epoch if key else None
    begin = transactions.begin(BeginRequest(transaction_key=key, epoch=epoch))
    if key:
        error = await refusal(begin, ErrorCode.STORE_UNAVAILABLE)
        assert problem_of(error).definite and problem_of(error).retriable
    else:
        with pytest.raises(StoreUnavailable, match="in use"):
            await begin
    assert len(store.sent) < 3 * MOST_ROUNDS
