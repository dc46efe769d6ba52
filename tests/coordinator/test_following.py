"""Goal: transactions that follow each other under one key: a late copy of a begin ends or replaces nothing, and the key
tells whether its holder knows how the last one ended.

Method: the coordinator's verbs, which the gateways call. DESIGN §5.22.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from coordinator.answers import Members
from coordinator.ends import Abort, Commit
from coordinator.transaction_keys import Follows, TransactionKeys
from coordinator.transactions import Transactions
from metastore.backends.memory import MemoryStore
from metastore.txn.key_records import read_key
from metastore.txn.records.transactions import TransactionKey
from metastore.types import AtVersion, Batch, Check, Snapshot
from metatxn.wire.coordinator import BeginRequest, ConnectRequest
from metatxn.wire.errors import ErrorCode
from metatxn.wire.ids import TxnId
from tests.coordinator.conftest import FakeClock, id_of, refusal
from tests.coordinator.stores import Fault, FaultyStore

KEY = "kafka:x"


async def begin(transactions: Transactions, after: TxnId | None) -> Members:
    request = BeginRequest(transaction_key=KEY, epoch=0)
    return (await transactions.begin(request, follows=Follows(after))).txn


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
        assert (again["txn_id"], again["state"]) == (first["txn_id"], "OPEN")


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
        await other.commit(id_of(begun.txn))

    store.before_applies.append(used)
    assert (await transactions.end(Commit(first, as_holder=True)))["state"] == "COMMITTED"
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
    await transactions.commit(id_of(begun.txn))
    key = await held(transactions)
    assert key.last_txn_id is None and key.ended_by_holder is None


# -- presumed, and with intents --------------------------------------------------------------------------------------


class Intents:
    """Intents of a segment: one record under a guard, as of its owner."""

    def __init__(self, guard: Check | None = None) -> None:
        self.guard = guard
        self.added: list[TxnId] = []
        self.told: list[TxnId] = []

    def add_to(self, batch: Batch, txn_id: TxnId) -> None:
        self.added.append(txn_id)
        if self.guard is not None:
            batch.check(self.guard)
        batch.create(f"/other/{txn_id}", b"intent")

    def stored(self, txn_id: TxnId) -> None:
        self.told.append(txn_id)


async def begin_with(transactions: Transactions, after: TxnId | None, intents: Intents) -> TxnId:
    request = BeginRequest(transaction_key=KEY, epoch=0)
    return id_of((await transactions.begin(request, follows=Follows(after, intents))).txn)


async def is_stored(transactions: Transactions, txn_id: TxnId) -> bool:
    return await transactions.store.get(f"/other/{txn_id}") is not None


async def test_a_begin_behind_an_end_of_the_holder_reads_nothing(
    transactions: Transactions, store: FaultyStore
) -> None:
    first = id_of(await begin(transactions, None))
    await transactions.end(Commit(first, as_holder=True))
    reads = count_reads(store)
    second = id_of(await begin(transactions, first))
    assert reads == []
    await transactions.end(Abort(second, as_holder=True))
    assert len(reads) > 0
    reads.clear()
    await begin(transactions, second)
    assert reads == []


def count_reads(store: FaultyStore) -> list[str]:
    reads: list[str] = []
    read = store.get_many

    async def counted(wanted: Sequence[str]) -> Snapshot:
        reads.extend(wanted)
        return await read(wanted)

    store.get_many = counted  # type: ignore[method-assign]
    return reads


async def test_what_another_coordinator_has_done_to_the_key_since_is_read(
    transactions: Transactions, truth: MemoryStore, clock: FakeClock
) -> None:
    other = Transactions(truth, clock)
    first = id_of(await begin(transactions, None))
    await transactions.end(Commit(first, as_holder=True))
    second = id_of(await begin(other, first))
    assert id_of(await begin(transactions, first)) == second, "it is joined"
    await transactions.end(Commit(second, as_holder=True))
    await other.keys.connect(KEY, ConnectRequest(epoch=-1))
    await refusal(begin(transactions, second), ErrorCode.NOT_ALLOWED)


async def test_what_is_presumed_refuses_nothing(
    transactions: Transactions, truth: MemoryStore, clock: FakeClock
) -> None:
    """Not even a begin behind another transaction, which was begun and ended elsewhere."""
    other = Transactions(truth, clock)
    first = id_of(await begin(transactions, None))
    await transactions.end(Commit(first, as_holder=True))
    second = id_of(await begin(other, first))
    await other.end(Commit(second, as_holder=True))
    assert (await begin(transactions, second))["state"] == "OPEN"


async def test_a_begin_at_another_epoch_is_refused_by_what_is_read(transactions: Transactions) -> None:
    first = id_of(await begin(transactions, None))
    await transactions.end(Commit(first, as_holder=True))
    request = BeginRequest(transaction_key=KEY, epoch=7)
    await refusal(transactions.begin(request, follows=Follows(first)), ErrorCode.NOT_ALLOWED)


async def test_a_key_is_presumed_once(transactions: Transactions, store: FaultyStore) -> None:
    """A late copy of the begin that it served is refused by what is read, and nothing is sent for it."""
    first = id_of(await begin(transactions, None))
    await transactions.end(Commit(first, as_holder=True))
    second = id_of(await begin(transactions, first))
    sent = len(store.sent)
    assert id_of(await begin(transactions, first)) == second
    assert len(store.sent) == sent


async def test_keys_are_presumed_within_bounds(
    transactions: Transactions, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    presumed = transactions._decisions.presumed
    for name, bound in (("REMEMBERED_KEYS", 0), ("KEY_BYTES", 10)):
        with monkeypatch.context() as patch:
            patch.setattr(f"coordinator.presumed.{name}", bound)
            key = await held(transactions)
            begun = await begin(transactions, None if key.last_txn_id is None else TxnId.parse(key.last_txn_id))
            await transactions.end(Commit(id_of(begun), as_holder=True))
            assert not presumed._written


async def test_a_begin_stores_its_intents(transactions: Transactions) -> None:
    intents = Intents()
    first = await begin_with(transactions, None, intents)
    assert intents.added == intents.told == [first] and await is_stored(transactions, first)
    assert await begin_with(transactions, None, intents) == first
    assert intents.told == [first], "it was joined"


async def test_a_begin_whose_intents_are_refused_begins_without_them(transactions: Transactions) -> None:
    """The segment has another owner now."""
    intents = Intents(AtVersion("/nobody", 7))
    first = await begin_with(transactions, None, intents)
    assert intents.added == [first] and intents.told == [] and not await is_stored(transactions, first)


async def test_a_key_that_was_written_meanwhile_does_not_cost_the_intents(
    transactions: Transactions, truth: MemoryStore, clock: FakeClock
) -> None:
    first, other = id_of(await begin(transactions, None)), Transactions(truth, clock)
    await transactions.end(Commit(first, as_holder=True))
    await other.commit(id_of((await other.begin(BeginRequest(transaction_key=KEY, epoch=0))).txn))
    intents = Intents()
    second = await begin_with(transactions, first, intents)
    assert intents.told == [second] and await is_stored(transactions, second)


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST])
async def test_a_begin_whose_answer_was_lost_tells_of_what_is_stored(
    transactions: Transactions, store: FaultyStore, fault: Fault
) -> None:
    await begin(transactions, None)
    await transactions.end(Commit(id_of(await begin(transactions, None)), as_holder=True))
    store.faults.append(fault)
    intents, last = Intents(), (await held(transactions)).last_txn_id
    second = await begin_with(transactions, None if last is None else TxnId.parse(last), intents)
    assert intents.told == [second] and await is_stored(transactions, second)
