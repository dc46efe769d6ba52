"""No call tries forever (issue 17, A4).

Goal: whatever rivals do, a verb ends, says truthfully whether anything happened, and has cost the store some dozens of
requests; and it ends at once when nobody waits for its answer any more. Method: a rival that changes, before each of
the verb's writes, a record which that write checks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from itertools import count

import pytest
from starlette.types import Message

from coordinator.transactions import Transactions
from metastore.backends.memory import MemoryStore
from metatxn.service.departure import ASKED
from metatxn.service.patience import MOST_ROUNDS
from metatxn.wire.coordinator import BeginRequest, ConnectRequest
from metatxn.wire.errors import ErrorCode
from metatxn.wire.ids import TxnId
from metatxn.wire.problems import problem_of
from tests.coordinator.conftest import FakeClock, id_of, refusal
from tests.coordinator.stores import Fault, FaultyStore

KEY = "k"
BEGIN = BeginRequest(transaction_key=KEY, epoch=0)
CONNECT = ConnectRequest(epoch=-1)

Verb = Callable[[Transactions, TxnId], Awaitable[object]]


def keep_alive(transactions: Transactions, txn_id: TxnId) -> Awaitable[object]:
    return transactions.keep_alive(txn_id, 90_000)


def add_writers(transactions: Transactions, txn_id: TxnId) -> Awaitable[object]:
    return transactions.add_writers(txn_id, [f"w{next(_NAMES)}"])


def connect(transactions: Transactions, _: TxnId) -> Awaitable[object]:
    return transactions.keys.connect(KEY, CONNECT)


def begin_again(transactions: Transactions, _: TxnId) -> Awaitable[object]:
    return transactions.begin(BEGIN)


_NAMES = count()

RIVALRIES: dict[str, tuple[Verb, Verb]] = {
    "commit": (lambda transactions, txn_id: transactions.commit(txn_id), keep_alive),
    "abort": (lambda transactions, txn_id: transactions.abort(txn_id), keep_alive),
    "prepare": (lambda transactions, txn_id: transactions.prepare(txn_id), keep_alive),
    "keep alive": (keep_alive, keep_alive),
    "remember writers": (add_writers, add_writers),
    "connect": (connect, connect),
    "delete a key": (lambda transactions, _: transactions.keys.delete(KEY), connect),
    "begin under a key": (begin_again, begin_again),
}
"""A verb, and what its rival does."""

IN_DOUBT = {"prepare", "keep alive", "remember writers", "connect", "delete a key"}
"""Verbs that never learn what became of a write whose reply was lost, once somebody else has written there."""


@pytest.fixture
async def txn_id(transactions: Transactions) -> TxnId:
    await transactions.keys.connect(KEY, CONNECT)
    return id_of((await transactions.begin(BEGIN)).txn)


@pytest.fixture
def rival(truth: MemoryStore, clock: FakeClock) -> Transactions:
    return Transactions(truth, clock)


@pytest.fixture
def gone() -> Iterator[None]:
    """The client of the request has closed its connection."""

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    token = ASKED.set(receive)
    yield
    ASKED.reset(token)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("name", RIVALRIES)
async def test_a_verb_that_is_always_overtaken_ends(
    transactions: Transactions, rival: Transactions, store: FaultyStore, txn_id: TxnId, name: str, lost: bool
) -> None:
    verb, its_rival = RIVALRIES[name]
    store.sent.clear()
    store.faults.extend([Fault.LOSE_REQUEST] * lost)
    store.before_applies.extend([lambda: its_rival(rival, txn_id)] * 100)
    unknown = lost and name in IN_DOUBT
    code = ErrorCode.OUTCOME_UNKNOWN if unknown else ErrorCode.STORE_UNAVAILABLE
    error = await refusal(verb(transactions, txn_id), code)
    assert problem_of(error).definite is not unknown
    assert "changed by others" in error.detail
    assert len(store.sent) <= MOST_ROUNDS


@pytest.mark.usefixtures("gone")
@pytest.mark.parametrize("name", RIVALRIES)
async def test_it_ends_at_once_when_its_caller_has_left(
    transactions: Transactions, rival: Transactions, store: FaultyStore, txn_id: TxnId, name: str
) -> None:
    verb, its_rival = RIVALRIES[name]
    store.sent.clear()
    store.before_applies.extend([lambda: its_rival(rival, txn_id)] * 100)
    await refusal(verb(transactions, txn_id), ErrorCode.STORE_UNAVAILABLE)
    assert len(store.sent) == 1
