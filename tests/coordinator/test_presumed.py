"""Goal: who ends a transaction where it began reads nothing, and is never wrong for it (DESIGN §5.17).

Method: between the begin and the end somebody else does something, or replies are lost; the answer is that of a
coordinator which has presumed nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from coordinator.batches import run_batch
from coordinator.transactions import Transactions, answered
from metastore.backends.memory import MemoryStore
from metastore.txn.store import read_plain, read_transaction
from metatxn.service.security.principal import Grants, Principal
from metatxn.wire import errors
from metatxn.wire.errors import ErrorCode
from metatxn.wire.ids import TxnId
from tests.coordinator.conftest import FakeClock, id_of, refusal
from tests.coordinator.stores import Fault, FaultyStore
from tests.coordinator.test_batches import commits, done, parsed
from tests.coordinator.test_transactions import another, begin

Meanwhile = Callable[[Transactions, TxnId], Awaitable[object]]

MEANWHILE: dict[str, Meanwhile] = {
    "kept alive": lambda other, txn_id: other.keep_alive(txn_id, 90_000),
    "with writers": lambda other, txn_id: other.add_writers(txn_id, ["w"]),
    "prepared": lambda other, txn_id: other.prepare(txn_id),
    "committed": lambda other, txn_id: other.commit(txn_id),
    "committed with a list": lambda other, txn_id: other.commit(txn_id, ["w"]),
    "aborted": lambda other, txn_id: other.abort(txn_id, "by another"),
    "expired": lambda other, txn_id: other.expire(txn_id, 0),
}


async def test_the_end_of_what_began_here_reads_nothing(transactions: Transactions, store: FaultyStore) -> None:
    for end in (transactions.commit, transactions.abort):
        txn_id = await begin(transactions)
        store.requests = 0
        ended = await end(txn_id)
        assert store.requests == 1, "one apply"
        assert await another(transactions).get(txn_id) == ended


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize("verb", ["commit", "abort"])
async def test_what_another_coordinator_did_meanwhile_counts(
    transactions: Transactions, clock: FakeClock, verb: str, meanwhile: str, together: bool
) -> None:
    """The same answer, and the same records, as if the transaction had been read."""
    presumed, read = await begin(transactions, timeout_ms=1), await begin(another(transactions), timeout_ms=1)
    clock.now_ms += 10
    found = []
    for txn_id in (presumed, read):
        await MEANWHILE[meanwhile](another(transactions), txn_id)
        if together:
            (answer,) = await run_batch(transactions, parsed([{"op": verb, "txn_id": txn_id}]))
            told = answer if isinstance(answer, Exception) else done([answer])[0]
        else:
            told = await answered(getattr(transactions, verb)(txn_id))
        left = await transactions.get(txn_id)
        found.append((_without_id(told, txn_id), _without_id(left, txn_id)))
    assert found[0] == found[1]


def _without_id(told: object, txn_id: TxnId) -> object:
    if isinstance(told, errors.MetatxnError):
        return told.code, str(told).replace(txn_id, "")
    assert isinstance(told, dict)
    return told | {"txn_id": "", "revision": 0}


@pytest.mark.parametrize("change", ["keep_alive", "add_writers", "prepare"])
async def test_what_changes_here_is_read(transactions: Transactions, store: FaultyStore, change: str) -> None:
    """Otherwise the first apply would be in vain."""
    txn_id = await begin(transactions)
    await getattr(transactions, change)(txn_id, ["w"] if change == "add_writers" else 90_000)
    store.sent.clear()
    await transactions.commit(txn_id)
    assert len(store.sent) == 1


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.DELAY])
async def test_a_rival_may_decide_while_a_reply_is_lost(
    transactions: Transactions, store: FaultyStore, truth: MemoryStore, clock: FakeClock, fault: Fault
) -> None:
    """Scenario X112, with an end that has read nothing."""
    txn_id = await begin(transactions)
    other = Transactions(truth, clock)
    store.faults.append(fault)
    store.before_reads.append(lambda: answered(other.abort(txn_id)))
    if fault is Fault.LOSE_REPLY:
        assert (await transactions.commit(txn_id))["state"] == "COMMITTED"
    else:
        await refusal(transactions.commit(txn_id), ErrorCode.INVALID_TXN_STATE)
    await store.deliver()
    assert (await other.get(txn_id))["state"] == ("COMMITTED" if fault is Fault.LOSE_REPLY else "ABORTED")


async def test_what_began_together_is_not_read_either(transactions: Transactions, store: FaultyStore) -> None:
    """As the client does: it begins several, and commits each when it is done."""
    begun = done(await run_batch(transactions, parsed([{"op": "begin"}] * 3)))
    store.requests = 0
    for header in begun:
        await transactions.commit(id_of(header))
    assert store.requests == 3


async def test_a_stranger_gets_the_answer_of_any_coordinator(
    transactions: Transactions, store: FaultyStore, truth: MemoryStore
) -> None:
    """A refusal is never presumed: the transaction may be gone. And the owner's end reads nothing all the same."""
    alice, mallory = (Principal(name, Grants(admin=False, topics={})) for name in ("alice", "mallory"))
    codes = []
    for coordinator in (transactions, another(transactions)):
        txn_id = id_of((await coordinator.begin(caller=alice)).txn)
        await another(transactions).abort(txn_id, caller=alice)
        records = await read_transaction(truth, txn_id)
        assert records is not None
        await truth.apply(truth.batch().remove(records.header_record))
        answer = await answered(coordinator.commit(txn_id, caller=mallory))
        assert isinstance(answer, errors.MetatxnError)
        codes.append(answer.code)
    assert codes == [ErrorCode.TXN_NOT_FOUND] * 2
    txn_id = id_of((await transactions.begin(caller=alice)).txn)
    await refusal(transactions.commit(txn_id, caller=mallory), ErrorCode.NOT_ALLOWED)
    store.requests = 0
    await transactions.commit(txn_id, caller=alice)
    assert store.requests == 1


@pytest.mark.parametrize("together", [False, True])
async def test_what_has_expired_here_is_read(
    transactions: Transactions, store: FaultyStore, clock: FakeClock, together: bool
) -> None:
    txn_ids = [await begin(transactions, timeout_ms=1) for _ in range(2)]
    clock.now_ms += 10
    if together:
        await transactions.expire_together(list((await read_plain(store, txn_ids)).values()))
    else:
        assert [await transactions.expire(txn_id, 0) for txn_id in txn_ids] == [True, True]
    store.sent.clear()
    for txn_id in txn_ids:
        await refusal(transactions.commit(txn_id), ErrorCode.EXPIRED_TRANSACTION)
    assert store.sent == []


@pytest.mark.parametrize("together", [False, True])
async def test_who_ends_it_again_reads_it(transactions: Transactions, store: FaultyStore, together: bool) -> None:
    txn_ids = [await begin(transactions) for _ in range(3)]
    if together:
        first = done(await run_batch(transactions, commits(txn_ids)))
    else:
        first = [await transactions.commit(txn_id) for txn_id in txn_ids]
    store.sent.clear()
    assert [await transactions.commit(txn_id) for txn_id in txn_ids] == first
    assert store.sent == [], "nothing is changed"


async def test_what_is_remembered_is_bounded(
    transactions: Transactions, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.presumed.REMEMBERED", 2)
    txn_ids = [await begin(transactions) for _ in range(3)]
    for txn_id, requests in zip(txn_ids, (2, 1, 1), strict=True):
        store.requests = 0
        await transactions.commit(txn_id)
        assert store.requests == requests, "the first one is read"


async def test_long_headers_are_not_remembered(transactions: Transactions, store: FaultyStore) -> None:
    """What is remembered is bounded in bytes, too."""
    txn_id = await begin(transactions, properties={f"name-{number}": "x" * 1_000 for number in range(3)})
    store.requests = 0
    await transactions.commit(txn_id)
    assert store.requests == 2
