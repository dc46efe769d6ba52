"""Goal: transactions that follow each other under one key: a late copy of a begin ends or replaces nothing, and the key
tells whether its holder knows how the last one ended.

Method: the coordinator's verbs, which the gateways call. DESIGN §5.22.
"""

from __future__ import annotations

import pytest

from coordinator.ends import Abort, Commit
from coordinator.transaction_keys import Follows, TransactionKeys
from coordinator.transactions import Transactions
from metastore.backends.memory import MemoryStore
from metastore.txn.key_records import read_key
from metastore.txn.records.transactions import TransactionKey
from metatxn.wire.coordinator import BeginRequest, ConnectRequest, TransactionHeader
from metatxn.wire.errors import ErrorCode
from metatxn.wire.ids import TxnId
from tests.coordinator.conftest import FakeClock, id_of, refusal
from tests.coordinator.stores import FaultyStore

KEY = "kafka:x"


async def begin(transactions: Transactions, after: TxnId | None) -> TransactionHeader:
    request = BeginRequest(transaction_key=KEY, epoch=0)
    return (await transactions.begin(request, follows=Follows(after))).header


async def held(transactions: Transactions) -> TransactionKey:
    found = (await read_key(transactions.store, None, KEY)).live
    assert found is not None
    return found


@pytest.fixture(autouse=True)
async def connected(keys: TransactionKeys) -> None:
    await keys.connect(KEY, ConnectRequest(epoch=-1))


async def test_an_open_transaction_is_returned_and_not_aborted(transactions: Transactions) -> None:
    first = await begin(transactions, None)
    for after in (None, TxnId(9, 9)):
        again = await begin(transactions, after)
        assert (again.txn_id, again.state) == (first.txn_id, "OPEN")


async def test_a_begin_that_is_late_begins_nothing(transactions: Transactions) -> None:
    first = id_of(await begin(transactions, None))
    await transactions.end(Commit(first, as_holder=True))
    await refusal(begin(transactions, None), ErrorCode.NOT_ALLOWED)
    second = id_of(await begin(transactions, first))
    await transactions.end(Abort(second, as_holder=True))
    await refusal(begin(transactions, first), ErrorCode.NOT_ALLOWED)
    assert (await held(transactions)).txn_id is None


async def test_a_prepared_one_is_not_joined(transactions: Transactions) -> None:
    first = id_of(await begin(transactions, None))
    await transactions.prepare(first, 60_000)
    await refusal(begin(transactions, None), ErrorCode.TXN_CONFLICT)


@pytest.mark.parametrize("commit", [True, False])
async def test_the_key_tells_who_has_ended_the_last_one(transactions: Transactions, commit: bool) -> None:
    first = id_of(await begin(transactions, None))
    await (transactions.commit if commit else transactions.abort)(first)
    key = await held(transactions)
    assert (key.txn_id, key.last_txn_id, key.ended_by_holder) == (None, str(first), None)
    end = Commit(first, as_holder=True) if commit else Abort(first, as_holder=True)
    for _ in range(2):
        await transactions.end(end)
        assert (await held(transactions)).ended_by_holder, "it knows now"
    second = id_of(await begin(transactions, first))
    key = await held(transactions)
    assert (key.txn_id, key.last_txn_id, key.ended_by_holder) == (str(second), str(second), None)
    await transactions.end(end)
    assert await held(transactions) == key, "it was about the first"
    await transactions.end(Commit(second, as_holder=True))
    assert (await held(transactions)).ended_by_holder


async def test_the_key_tells_it_though_somebody_else_writes_the_key_at_that_moment(
    transactions: Transactions, store: FaultyStore, truth: MemoryStore, clock: FakeClock
) -> None:
    first = id_of(await begin(transactions, None))
    await transactions.commit(first)
    other = Transactions(truth, clock)

    async def used() -> None:
        begun = await other.begin(BeginRequest(transaction_key=KEY, epoch=0))
        await other.commit(id_of(begun.header))

    store.before_applies.append(used)
    assert (await transactions.end(Commit(first, as_holder=True))).state == "COMMITTED"
    assert not store.before_applies
    key = await held(transactions)
    assert (key.txn_id, key.last_txn_id, key.ended_by_holder) == (None, str(first), True)


async def test_a_new_connection_knows_of_none(transactions: Transactions, keys: TransactionKeys) -> None:
    await begin(transactions, None)
    await keys.connect(KEY, ConnectRequest(epoch=-1))
    key = await held(transactions)
    assert (key.txn_id, key.last_txn_id, key.ended_by_holder) == (None, None, None)
    await refusal(begin(transactions, None), ErrorCode.NOT_ALLOWED)


async def test_other_users_of_keys_leave_no_trace_of_it(transactions: Transactions, store: MemoryStore) -> None:
    begun = await transactions.begin(BeginRequest(transaction_key=KEY, epoch=0))
    await transactions.commit(id_of(begun.header))
    key = await held(transactions)
    assert key.last_txn_id is None and key.ended_by_holder is None
