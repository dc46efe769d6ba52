"""Rivals on one store: exactly one wins, and everyone is told the same (DESIGN §5.17).

Method: several coordinators, each on a store that lets the others run around every call, in an order given by a seed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from coordinator.settling import Settling
from coordinator.timeout_sweep import TimeoutSweep
from coordinator.transactions import Transactions
from metastore.backends.memory import MemoryStore
from metatxn.wire import errors
from metatxn.wire.coordinator import BeginRequest, ConnectRequest
from metatxn.wire.errors import ErrorCode
from tests.coordinator.conftest import FakeClock, epoch_of, id_of, under_key
from tests.coordinator.stores import ShuffledStore
from tests.extent import usually

SEEDS = range(usually(10, 25))
Rival = Callable[[], Transactions]


@pytest.fixture(params=SEEDS)
def rival(request: pytest.FixtureRequest, truth: MemoryStore, clock: FakeClock) -> Rival:
    """Makes coordinators; each has an order of its own."""
    made = 0

    def make() -> Transactions:
        nonlocal made
        made += 1
        store = ShuffledStore(truth, seed=1_000 * request.param + made)
        return Transactions(store, clock, settling=Settling(store, clock, pause=turns))

    return make


async def turns(seconds: float) -> None:
    """A pause in which the others go on: a turn of the loop for each millisecond."""
    for _ in range(int(seconds * 1000)):
        await asyncio.sleep(0)


def outcome(result: object) -> object:
    """A header's state, or the code of a refusal."""
    if isinstance(result, errors.MetatxnError):
        return result.code
    assert not isinstance(result, BaseException), result
    return result["state"] if isinstance(result, dict) else result


async def test_commit_and_abort(rival: Rival) -> None:
    """A5, A7: one decision, and it is the one that was answered."""
    txn_id = id_of((await rival().begin()).txn)
    results = await asyncio.gather(
        *(rival().commit(txn_id) for _ in range(3)), *(rival().abort(txn_id) for _ in range(3)), return_exceptions=True
    )
    state = (await rival().get(txn_id))["state"]
    other = ErrorCode.INVALID_TXN_STATE
    expected = [state if state == "COMMITTED" else other] * 3 + [state if state == "ABORTED" else other] * 3
    assert [outcome(result) for result in results] == expected


async def test_commit_and_sweep(rival: Rival, clock: FakeClock) -> None:
    """E43: at the deadline both try; the commit either holds or has expired."""
    txn_id = id_of((await rival().begin(BeginRequest(timeout_ms=1))).txn)
    clock.now_ms += 10_000
    commit, _, swept = await asyncio.gather(
        rival().commit(txn_id),
        TimeoutSweep(rival()).sweep_once(),
        TimeoutSweep(rival()).sweep_once(),
        return_exceptions=True,
    )
    state = (await rival().get(txn_id))["state"]
    assert outcome(commit) == ("COMMITTED" if state == "COMMITTED" else ErrorCode.EXPIRED_TRANSACTION)
    assert not isinstance(swept, BaseException)


async def test_keep_alive_and_sweep(rival: Rival, clock: FakeClock) -> None:
    """DESIGN §5.16: a keep-alive that was answered has moved the deadline before the sweep could decide."""
    txn_id = id_of((await rival().begin(BeginRequest(timeout_ms=1))).txn)
    clock.now_ms += 10_000
    kept, _ = await asyncio.gather(
        rival().keep_alive(txn_id, 60_000), TimeoutSweep(rival()).sweep_once(), return_exceptions=True
    )
    state = (await rival().get(txn_id))["state"]
    assert outcome(kept) == ("OPEN" if state == "OPEN" else ErrorCode.EXPIRED_TRANSACTION)


async def test_connect_and_commit(rival: Rival) -> None:
    """DESIGN §5.15: either the commit was first and its version counts, or it was fenced and its version does not."""
    connection = rival()
    begun = await under_key(connection, version=4)
    commit, connect = await asyncio.gather(
        rival().commit(id_of(begun.txn)),
        rival().keys.connect("k", ConnectRequest(epoch=-1)),
        return_exceptions=True,
    )
    assert not isinstance(connect, BaseException)
    if outcome(commit) == "COMMITTED":
        assert (connect.aborted_txn_id, connect.last_version) == (None, 4)
    else:
        assert outcome(commit) == ErrorCode.EXPIRED_TRANSACTION
        assert (connect.aborted_txn_id, connect.last_version) == (begun.txn_id, None)


async def test_fifty_connections_have_dense_epochs(rival: Rival) -> None:
    """PIP: at any time one connection; each has an epoch of its own, and none is left out."""
    answers = await asyncio.gather(*(rival().keys.connect("k", ConnectRequest(epoch=-1)) for _ in range(50)))
    assert sorted(answer.epoch for answer in answers) == list(range(50))


async def test_a_current_epoch_is_taken_once(rival: Rival) -> None:
    """Of those who show the same epoch, one gets the next."""
    await rival().keys.connect("k", ConnectRequest(epoch=-1))
    results = await asyncio.gather(
        *(rival().keys.connect("k", ConnectRequest(epoch=0)) for _ in range(5)), return_exceptions=True
    )
    refused = [result for result in results if isinstance(result, errors.MetatxnError)]
    assert len(refused) == 4 and {error.code for error in refused} == {ErrorCode.NOT_ALLOWED}


async def test_one_session_connecting_many_times(rival: Rival) -> None:
    """Retries of one lost connect never fence each other."""
    request = ConnectRequest(epoch=-1, session="run")
    answers = await asyncio.gather(*(rival().keys.connect("k", request) for _ in range(5)))
    assert {answer.epoch for answer in answers} == {0}


async def test_begins_under_one_key(rival: Rival) -> None:
    """With a version all find the same transaction; without one the last of them is the only one open."""
    for key in "vk":
        assert await epoch_of(rival(), key) == 0
    once = BeginRequest(transaction_key="v", epoch=0, version=1)
    same = await asyncio.gather(*(rival().begin(once) for _ in range(5)))
    assert len({begun.txn_id for begun in same}) == 1
    assert [begun.created for begun in same].count(True) == 1
    several = await asyncio.gather(*(rival().begin(BeginRequest(transaction_key="k", epoch=0)) for _ in range(5)))
    states = [(await rival().get(id_of(begun.txn)))["state"] for begun in several]
    assert sorted(states) == ["ABORTED"] * 4 + ["OPEN"]


async def test_prepare_and_connect(rival: Rival) -> None:
    """Prepared first: returned. Connected first: fenced."""
    header = (await under_key(rival())).txn
    prepare, connect = await asyncio.gather(
        rival().prepare(id_of(header)), rival().keys.connect("k", ConnectRequest(epoch=-1)), return_exceptions=True
    )
    assert not isinstance(connect, BaseException)
    if outcome(prepare) == "OPEN":
        assert (connect.prepared_txn_id, connect.aborted_txn_id) == (header["txn_id"], None)
    else:
        assert outcome(prepare) == ErrorCode.EXPIRED_TRANSACTION
        assert (connect.prepared_txn_id, connect.aborted_txn_id) == (None, header["txn_id"])


async def test_delete_against_everyone(rival: Rival) -> None:
    """Epochs stay unique no matter who comes between (the fixture checks what the key holds)."""
    keys = rival().keys
    await keys.connect("k", ConnectRequest(epoch=-1))
    results = await asyncio.gather(
        *(rival().keys.connect("k", ConnectRequest(epoch=-1)) for _ in range(4)),
        *(rival().keys.delete("k") for _ in range(2)),
        *(rival().begin(BeginRequest(transaction_key="k", epoch=epoch)) for epoch in (0, 2)),
        return_exceptions=True,
    )
    epochs = [result.epoch for result in results[:4] if hasattr(result, "epoch")]
    assert len(set(epochs)) == 4 and 0 not in epochs


async def test_writers_remembered_at_once_are_all_remembered(rival: Rival) -> None:
    txn_id = id_of((await rival().begin()).txn)
    await asyncio.gather(*(rival().add_writers(txn_id, [f"w{number}"]) for number in range(5)))
    assert (await rival().commit(txn_id))["writers"] == [f"w{number}" for number in range(5)]
