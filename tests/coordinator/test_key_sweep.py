"""Transaction keys that nobody uses are forgotten, and their epochs never repeat (DESIGN §5.26).

Method: a clock that is moved, and a store that fails where it must.
"""

from __future__ import annotations

import pytest

from coordinator.key_sweep import TOGETHER, KeySweep
from coordinator.transaction_keys import TransactionKeys
from coordinator.transactions import Transactions
from metastore.backends.memory import MemoryStore
from metastore.txn import paths
from metastore.versions import FIRST, ClusterVersion
from metatxn.wire.coordinator import ConnectRequest
from metatxn.wire.errors import ErrorCode
from tests.coordinator.conftest import FakeClock, id_of, refusal, under_key
from tests.coordinator.stores import FaultyStore

RETENTION_MS = 60_000
OWNER = "ada"
NEW = ConnectRequest(epoch=-1, owner=OWNER)


@pytest.fixture
def keys(transactions: Transactions) -> TransactionKeys:
    return transactions.keys


@pytest.fixture
def sweep(store: FaultyStore, clock: FakeClock) -> KeySweep:
    return KeySweep(store, clock, ClusterVersion(), retention_ms=RETENTION_MS)


async def left(truth: MemoryStore) -> list[str]:
    records = (await truth.scan(paths.TRANSACTION_KEYS)).records
    return [paths.parse_transaction_key(record.key)[1] for record in records]


async def test_an_unused_key_goes_after_its_retention_and_its_epochs_go_on(
    keys: TransactionKeys, sweep: KeySweep, clock: FakeClock, truth: MemoryStore
) -> None:
    for _ in range(3):
        last = await keys.connect("k", NEW)
    assert last.epoch == 2
    clock.now_ms += RETENTION_MS - 1
    assert await sweep.forget_once() == 0
    clock.now_ms += 1
    assert await sweep.forget_once() == 1
    assert await left(truth) == []
    await refusal(keys.get("k", OWNER), ErrorCode.NOT_FOUND)
    assert (await keys.connect("k", NEW)).epoch == 3
    assert (await keys.connect("another", NEW)).epoch == 3, "a number counts for all of them"


async def test_a_process_that_was_idle_for_so_long_connects_again(
    transactions: Transactions, keys: TransactionKeys, sweep: KeySweep, clock: FakeClock
) -> None:
    epoch = (await keys.connect("k", NEW)).epoch
    clock.now_ms += RETENTION_MS
    await sweep.forget_once()
    await refusal(under_key(transactions, epoch=epoch, owner=OWNER), ErrorCode.NOT_ALLOWED)
    await refusal(keys.connect("k", ConnectRequest(epoch=epoch, owner=OWNER)), ErrorCode.NOT_ALLOWED)
    successor = (await keys.connect("k", NEW)).epoch
    assert successor > epoch
    await refusal(under_key(transactions, epoch=epoch, owner=OWNER), ErrorCode.NOT_ALLOWED)
    await under_key(transactions, epoch=successor, owner=OWNER)


@pytest.mark.parametrize("prepared", [False, True])
async def test_a_key_that_holds_a_transaction_stays(
    transactions: Transactions,
    keys: TransactionKeys,
    sweep: KeySweep,
    clock: FakeClock,
    truth: MemoryStore,
    prepared: bool,
) -> None:
    txn_id = id_of((await under_key(transactions, owner=OWNER)).txn)
    if prepared:
        await transactions.prepare(txn_id)
    clock.now_ms += 100 * RETENTION_MS
    assert await sweep.forget_once() == 0
    await transactions.abort(txn_id)
    assert await sweep.forget_once() == 0, "it was used just now"
    clock.now_ms += RETENTION_MS
    assert await sweep.forget_once() == 1
    assert await left(truth) == []


@pytest.mark.parametrize("deleted", [False, True])
async def test_a_committed_version_is_never_forgotten(
    transactions: Transactions, keys: TransactionKeys, sweep: KeySweep, clock: FakeClock, deleted: bool
) -> None:
    """Otherwise a job that repeats its last batch after a pause would write it twice."""
    await transactions.commit(id_of((await under_key(transactions, owner=OWNER, version=7)).txn))
    if deleted:
        await keys.delete("k", OWNER)
    clock.now_ms += 100 * RETENTION_MS
    assert await sweep.forget_once() == 0
    assert (await keys.connect("k", NEW)).last_version == 7


async def test_a_deleted_key_goes_after_its_retention(
    keys: TransactionKeys, sweep: KeySweep, clock: FakeClock, truth: MemoryStore
) -> None:
    await keys.connect("k", NEW)
    await keys.delete("k", OWNER)
    clock.now_ms += RETENTION_MS - 1
    assert await sweep.forget_once() == 0
    assert (await keys.delete("k", OWNER)).epoch == 0
    clock.now_ms += 1
    assert await sweep.forget_once() == 1
    assert await left(truth) == []
    assert (await keys.connect("k", NEW)).epoch == 1


async def test_one_that_is_used_again_stays_and_the_others_of_its_group_go(
    keys: TransactionKeys, sweep: KeySweep, clock: FakeClock, truth: MemoryStore, store: FaultyStore
) -> None:
    names = [f"k{number:03}" for number in range(2 * TOGETHER + 1)]
    for name in names:
        await keys.connect(name, NEW)
    clock.now_ms += RETENTION_MS
    used: list[int] = []

    async def use() -> None:
        used.append((await keys.connect(names[3], NEW)).epoch)

    store.before_applies.append(use)
    assert await sweep.forget_once() == len(names) - 1
    assert used == [1] and await left(truth) == [names[3]]


async def test_nothing_is_forgotten_while_there_are_earlier_releases(
    keys: TransactionKeys, store: FaultyStore, clock: FakeClock, truth: MemoryStore
) -> None:
    """Those would begin at 0 again."""
    await keys.connect("k", NEW)
    clock.now_ms += RETENTION_MS
    assert await KeySweep(store, clock, ClusterVersion(FIRST), retention_ms=RETENTION_MS).forget_once() == 0
    assert await left(truth) == ["k"]


async def test_a_connection_is_above_what_was_forgotten_meanwhile(
    keys: TransactionKeys, sweep: KeySweep, clock: FakeClock, store: FaultyStore
) -> None:
    """The key lived and went between the reads of one that connects and its write."""
    others: list[int] = []

    async def live() -> None:
        others.append((await keys.connect("k", NEW)).epoch)
        clock.now_ms += RETENTION_MS
        assert await sweep.forget_once() == 1

    store.before_applies.append(live)
    assert (await keys.connect("k", NEW)).epoch > others[0]
