"""Epochs, versions and sessions of transaction keys (DESIGN §5.15, the transaction-key PIP, scenario X116)."""

from __future__ import annotations

import json

import pytest

from coordinator.answers import Members
from coordinator.transaction_keys import FENCED_SESSIONS_KEPT, Begun, TransactionKeys
from coordinator.transactions import Transactions
from metastore.backends.memory import MemoryStore
from metastore.txn import paths
from metastore.txn.key_records import read_key
from metatxn.wire.coordinator import BeginRequest, ConnectAnswer, ConnectRequest
from metatxn.wire.errors import ErrorCode
from metatxn.wire.problems import problem_of
from tests.coordinator.conftest import FakeClock, id_of, refusal, under_key
from tests.coordinator.stores import FaultyStore

KEY = "jobs/night"


async def connect(keys: TransactionKeys, epoch: int = -1, **fields: object) -> ConnectAnswer:
    return await keys.connect(KEY, ConnectRequest.model_validate({"epoch": epoch, **fields}))


async def begin(transactions: Transactions, **fields: object) -> Begun:
    """At the key's epoch, unless `fields` have another one."""
    return await under_key(transactions, KEY, **fields)


async def opened(transactions: Transactions, **fields: object) -> Members:
    begun = await begin(transactions, **fields)
    assert begun.created
    return begun.txn


# -- connect


async def test_the_first_epoch_is_0_and_each_connection_has_its_own(keys: TransactionKeys) -> None:
    """PIP: initialised at -1 and bumped by every connection, taking over or not."""
    assert [(await connect(keys, epoch)).epoch for epoch in (-1, -1, 1, 2)] == [0, 1, 2, 3]


@pytest.mark.parametrize("stale", [0, 5])
async def test_connecting_with_another_epoch_is_not_allowed(keys: TransactionKeys, stale: int) -> None:
    await connect(keys)
    await connect(keys)
    error = await refusal(connect(keys, stale), ErrorCode.NOT_ALLOWED)
    assert error.members["current_epoch"] == 1
    assert (await keys.get(KEY)).epoch == 1


async def test_an_epoch_of_a_key_that_was_never_used_is_not_allowed(
    transactions: Transactions, keys: TransactionKeys
) -> None:
    await refusal(connect(keys, 0), ErrorCode.NOT_ALLOWED)
    await refusal(begin(transactions, epoch=0), ErrorCode.NOT_ALLOWED)
    await refusal(keys.get(KEY), ErrorCode.NOT_FOUND)


async def test_a_connection_aborts_what_the_one_before_had_open(
    transactions: Transactions, keys: TransactionKeys, store: FaultyStore
) -> None:
    """PIP: in one apply, and its user is told that it expired; aborting it again succeeds (CONTRACT)."""
    await connect(keys)
    old = await opened(transactions, epoch=0)
    store.sent.clear()
    answer = await connect(keys)
    assert (answer.epoch, answer.aborted_txn_id, answer.prepared_txn_id) == (1, old["txn_id"], None)
    assert len(store.sent) == 1, "epoch and abort must be one apply"
    fenced = await transactions.get(id_of(old))
    assert (fenced["state"], fenced["expired_by"]) == ("ABORTED", "fencing")
    await refusal(transactions.commit(id_of(old)), ErrorCode.EXPIRED_TRANSACTION)
    await refusal(transactions.keep_alive(id_of(old), 1), ErrorCode.EXPIRED_TRANSACTION)
    await refusal(transactions.prepare(id_of(old)), ErrorCode.EXPIRED_TRANSACTION)
    assert await transactions.abort(id_of(old)) == fenced
    assert (await keys.get(KEY)).txn_id is None


async def test_the_loser_cannot_begin(transactions: Transactions, keys: TransactionKeys) -> None:
    await connect(keys)
    await connect(keys)
    await refusal(begin(transactions, epoch=0), ErrorCode.NOT_ALLOWED)
    assert (await opened(transactions, epoch=1))["epoch"] == 1


async def test_a_prepared_predecessor_is_returned_and_must_be_ended_first(
    transactions: Transactions, keys: TransactionKeys
) -> None:
    """DESIGN §5.15: the new connection decides it, although it began under an older epoch."""
    await connect(keys)
    old = await opened(transactions, epoch=0, version=3)
    await transactions.prepare(id_of(old))
    for epoch in (1, 2):
        answer = await connect(keys)
        assert (answer.epoch, answer.aborted_txn_id, answer.prepared_txn_id) == (epoch, None, old["txn_id"])
    for version in (3, 4):
        error = await refusal(begin(transactions, epoch=2, version=version), ErrorCode.TXN_CONFLICT)
        assert error.members["prepared_txn_id"] == old["txn_id"]
    assert (await transactions.commit(id_of(old)))["state"] == "COMMITTED"
    assert (await connect(keys)).last_version == 3
    assert (await begin(transactions, version=3)).txn["already_committed"]
    assert (await opened(transactions, epoch=3, version=4))["version"] == 4


# -- begin


async def test_a_key_holds_what_began_under_it(transactions: Transactions, keys: TransactionKeys) -> None:
    for epoch in (0, 1):
        assert (await connect(keys)).epoch == epoch
        header = await opened(transactions, epoch=epoch)
        assert (header["epoch"], header["transaction_key"]) == (epoch, KEY)
        assert (await keys.get(KEY)).txn_id == header["txn_id"]


@pytest.mark.parametrize("version", [None, 1])
@pytest.mark.parametrize("used", [False, True])
async def test_nobody_begins_without_the_epoch(
    transactions: Transactions, keys: TransactionKeys, store: FaultyStore, used: bool, version: int | None
) -> None:
    """CONTRACT's corrections, the seed: anyone who has not connected fences nobody, and takes no key that is free."""
    if used:
        await connect(keys)
        running = await opened(transactions, epoch=0)
    revision = await store.current_revision()
    request = BeginRequest(transaction_key=KEY, version=version)
    error = await refusal(transactions.begin(request), ErrorCode.INVALID_ARGUMENT)
    assert error.members["field"] == "epoch" and "connect" in problem_of(error).action
    assert await store.current_revision() == revision
    assert not used or (await transactions.get(id_of(running)))["state"] == "OPEN"


async def test_only_one_transaction_of_a_key_is_open(transactions: Transactions, store: FaultyStore) -> None:
    """X116: begin aborts the predecessor in the same apply, also one of the same epoch."""
    first = await opened(transactions)
    store.sent.clear()
    second = await opened(transactions)
    assert len(store.sent) == 1, "abort and begin must be one apply"
    assert (await transactions.get(id_of(first)))["expired_by"] == "fencing"
    assert (await transactions.get(id_of(second)))["state"] == "OPEN"


async def test_begin_with_a_version_is_idempotent(transactions: Transactions, keys: TransactionKeys) -> None:
    """CONTRACT: same key, epoch and version still open: that transaction; also once it is prepared."""
    first = await opened(transactions, version=7)
    for _ in range(2):
        again = await begin(transactions, version=7)
        assert (again.created, again.txn) == (False, first)
    await transactions.prepare(id_of(first))
    assert (await begin(transactions, version=7)).txn_id == first["txn_id"]
    await transactions.abort(id_of(first))
    assert (await opened(transactions, version=7))["txn_id"] != first["txn_id"]


async def test_the_same_version_under_a_newer_epoch_is_another_transaction(
    transactions: Transactions, keys: TransactionKeys
) -> None:
    first = await opened(transactions, version=7)
    await connect(keys)
    second = await opened(transactions, version=7)
    assert second["txn_id"] != first["txn_id"] and second["epoch"] == 1


async def test_another_version_aborts_the_predecessor(transactions: Transactions) -> None:
    first = await opened(transactions, version=7)
    await opened(transactions, version=8)
    assert (await transactions.get(id_of(first)))["expired_by"] == "fencing"


@pytest.mark.parametrize("version", [0, 4, 5])
async def test_a_committed_version_never_runs_again(
    transactions: Transactions, store: FaultyStore, version: int
) -> None:
    """CONTRACT: `version` at or below the last committed one, and nothing changes, nothing open is aborted."""
    await transactions.commit(id_of(await opened(transactions, version=5)))
    running = await opened(transactions, version=6)
    revision = await store.current_revision()
    begun = await begin(transactions, version=version)
    assert not begun.created
    assert (begun.txn["state"], begun.txn["already_committed"], begun.txn["version"]) == ("COMMITTED", True, version)
    assert await store.current_revision() == revision
    assert (await transactions.get(id_of(running)))["state"] == "OPEN"


async def test_only_a_commit_moves_the_last_version(transactions: Transactions, keys: TransactionKeys) -> None:
    await transactions.commit(id_of(await opened(transactions, version=2)))
    await transactions.abort(id_of(await opened(transactions, version=3)))
    await transactions.commit(id_of(await opened(transactions)))
    assert (await keys.get(KEY)).last_version == 2
    assert (await connect(keys)).last_version == 2
    assert (await opened(transactions, version=3))["version"] == 3


async def test_a_commit_is_answered_before_any_epoch_is_checked(
    transactions: Transactions, keys: TransactionKeys
) -> None:
    """DESIGN §5.15: its reply was lost, a newer connection has come, and the retry still succeeds."""
    await connect(keys)
    header = await opened(transactions, epoch=0, version=1)
    decided = await transactions.commit(id_of(header))
    await connect(keys)
    assert await transactions.commit(id_of(header)) == decided


async def test_a_commit_needs_the_key(transactions: Transactions, keys: TransactionKeys, store: FaultyStore) -> None:
    """DESIGN §5.15: the commit's own check of `key.txn_id` and epoch, should anything ever bypass the abort."""
    header = await opened(transactions)
    for change in ({"epoch": 1}, {"txn_id": None}):
        key = await read_key(store, None, KEY)
        assert key.value
        await store.apply(key.write(store.batch(), key.value.model_copy(update=change)))
        await refusal(transactions.commit(id_of(header)), ErrorCode.NOT_ALLOWED)
        assert (await transactions.get(id_of(header)))["state"] == "OPEN"
    assert (await transactions.abort(id_of(header)))["state"] == "ABORTED"


async def test_keys_of_two_owners_are_two_keys(transactions: Transactions, keys: TransactionKeys) -> None:
    """PIP: unique per owner."""
    mine = await opened(transactions, owner="alice")
    theirs = await opened(transactions, owner="bob")
    nobodys = await opened(transactions)
    assert (await connect(keys, owner="alice")).aborted_txn_id == mine["txn_id"]
    for header in (theirs, nobodys):
        assert (await transactions.get(id_of(header)))["state"] == "OPEN"
    await refusal(keys.get(KEY, "carol"), ErrorCode.NOT_FOUND)


# -- sessions


async def test_a_session_that_connects_again_finds_its_epoch(
    transactions: Transactions, keys: TransactionKeys, store: FaultyStore
) -> None:
    """A lost reply of connect costs nothing: nothing changes and nothing is aborted."""
    first = await connect(keys, session="run-1")
    header = await opened(transactions, epoch=0)
    revision = await store.current_revision()
    assert await connect(keys, session="run-1") == first
    assert await store.current_revision() == revision
    assert (await transactions.get(id_of(header)))["state"] == "OPEN"
    assert (await connect(keys, 0, session="run-1")).epoch == 1, "with its epoch it is a new connection"


@pytest.mark.parametrize("end", ["commit", "abort"])
async def test_a_session_that_connects_again_while_what_its_key_holds_is_decided(
    transactions: Transactions, keys: TransactionKeys, store: FaultyStore, end: str
) -> None:
    """The answer is the key as it was at one moment: with what it holds, or with the version that was committed.

    Found by the judge of histories: it was told of neither, as if the version still had to run.
    """
    await connect(keys, session="run-1")
    txn_id = id_of(await opened(transactions, version=1))
    await transactions.prepare(txn_id, 60_000)

    async def decided() -> None:
        await getattr(transactions, end)(txn_id)

    store.before_reads.extend([None, decided])
    answer = await connect(keys, session="run-1")
    assert (answer.epoch, answer.prepared_txn_id) == (0, None)
    assert answer.last_version == {"commit": 1, "abort": None}[end]


async def test_a_session_that_was_taken_over_from_stays_out(keys: TransactionKeys) -> None:
    """A zombie cannot fence its successor, whatever epoch it claims."""
    await connect(keys, session="run-1")
    assert (await connect(keys, session="run-2")).epoch == 1
    for epoch in (-1, 1):
        await refusal(connect(keys, epoch, session="run-1"), ErrorCode.NOT_ALLOWED)
    assert (await connect(keys, session="run-2")).epoch == 1
    assert (await connect(keys)).epoch == 2, "a connection without a name takes over too"
    await refusal(connect(keys, session="run-2"), ErrorCode.NOT_ALLOWED)


async def test_a_key_without_sessions_stores_none(
    transactions: Transactions, keys: TransactionKeys, truth: MemoryStore
) -> None:
    """DESIGN §4: epoch, txn_id?, last_version?, updated_ms, deleted?"""
    await connect(keys)
    header = await opened(transactions)
    await connect(keys)
    await keys.delete(KEY)
    (record,) = (await truth.scan(paths.TRANSACTION_KEYS)).records
    assert set(json.loads(record.value)) == {"epoch", "updated_ms", "deleted"}
    assert (await transactions.get(id_of(header)))["state"] == "ABORTED"


async def test_the_last_fenced_sessions_are_remembered(keys: TransactionKeys) -> None:
    """Bounded, so that a record does not grow forever."""
    for number in range(FENCED_SESSIONS_KEPT + 2):
        await connect(keys, session=f"run-{number}")
    for number in (1, FENCED_SESSIONS_KEPT):
        await refusal(connect(keys, session=f"run-{number}"), ErrorCode.NOT_ALLOWED)
    assert (await connect(keys, session="run-0")).epoch == FENCED_SESSIONS_KEPT + 2


async def test_sessions_survive_what_happens_under_the_key(transactions: Transactions, keys: TransactionKeys) -> None:
    """Begin, commit and abort rewrite the key's record; who holds it is none of their business."""
    await connect(keys, session="old")
    await connect(keys, session="run-1")
    await transactions.commit(id_of(await opened(transactions, version=1)))
    await transactions.abort(id_of(await opened(transactions, version=2)))
    assert (await connect(keys, session="run-1")).epoch == 1
    await refusal(connect(keys, session="old"), ErrorCode.NOT_ALLOWED)


# -- delete


@pytest.mark.parametrize("end", ["commit", "abort"])
async def test_a_transaction_that_is_prepared_and_taken_over_between_the_reads_of_its_end(
    transactions: Transactions, store: FaultyStore, truth: MemoryStore, clock: FakeClock, end: str
) -> None:
    """A prepared one outlives its epoch, so the end must not be refused as that of an unprepared one.

    Found by the judge of histories: a commit was NOT_ALLOWED that at no moment had to be refused.
    """
    txn_id = id_of((await under_key(transactions)).txn)
    other = Transactions(truth, clock)

    async def prepared_and_taken_over() -> None:
        await other.prepare(txn_id, 60_000)
        assert (await other.keys.connect("k", ConnectRequest(epoch=-1))).prepared_txn_id == str(txn_id)

    store.before_reads.extend([None, prepared_and_taken_over])
    final = await getattr(transactions, end)(txn_id)
    assert final["state"] == {"commit": "COMMITTED", "abort": "ABORTED"}[end]


@pytest.mark.parametrize("prepared", [False, True])
async def test_deleting_a_key_aborts_what_it_holds(
    transactions: Transactions, keys: TransactionKeys, prepared: bool
) -> None:
    """PIP: an administrator removes the key, a prepared transaction included."""
    header = await opened(transactions)
    if prepared:
        await transactions.prepare(id_of(header))
    assert (await keys.delete(KEY)).aborted_txn_id == header["txn_id"]
    await refusal(transactions.commit(id_of(header)), ErrorCode.EXPIRED_TRANSACTION)
    await refusal(keys.get(KEY), ErrorCode.NOT_FOUND)


async def test_a_deleted_key_repeats_neither_epoch_nor_version(
    transactions: Transactions, keys: TransactionKeys, store: FaultyStore
) -> None:
    """DESIGN §4: the tombstone keeps both; deleting again changes nothing."""
    await connect(keys)
    await connect(keys, session="run")
    await transactions.commit(id_of(await opened(transactions, version=5)))
    deleted = await keys.delete(KEY)
    revision = await store.current_revision()
    assert await keys.delete(KEY) == deleted
    assert await store.current_revision() == revision
    await refusal(connect(keys, 1), ErrorCode.NOT_ALLOWED)
    await refusal(begin(transactions, epoch=1, version=5), ErrorCode.NOT_ALLOWED)
    assert (await connect(keys)).model_dump(exclude_none=True) == {"epoch": 2, "last_version": 5}
    assert (await begin(transactions, version=5)).txn["already_committed"]
    await keys.delete(KEY)
    assert (await opened(transactions, version=6))["epoch"] == 3
    assert (await keys.get(KEY)).last_version == 5


async def test_a_deleted_key_remembers_who_was_fenced(keys: TransactionKeys) -> None:
    """A zombie of a job whose key was removed stays out all the same."""
    await connect(keys, session="run-1")
    await connect(keys, session="run-2")
    await keys.delete(KEY)
    await refusal(connect(keys, session="run-1"), ErrorCode.NOT_ALLOWED)
    assert (await connect(keys, session="run-3")).epoch == 2
    await refusal(connect(keys, session="run-1"), ErrorCode.NOT_ALLOWED)


@pytest.mark.parametrize("prepared", [False, True])
async def test_a_holder_that_is_fenced_ends_and_the_next_one_goes_on(
    transactions: Transactions, keys: TransactionKeys, prepared: bool
) -> None:
    """Also its session, which can never connect again; and only at the epoch that was meant."""
    await connect(keys, session="a")
    txn = await opened(transactions)
    if prepared:
        await transactions.prepare(id_of(txn))
    await refusal(keys.fence(KEY, 1), ErrorCode.NOT_ALLOWED)
    assert (await keys.get(KEY)).epoch == 0
    done = await keys.fence(KEY, 0)
    named = done.prepared_txn_id if prepared else done.aborted_txn_id
    assert (done.epoch, named) == (1, txn["txn_id"])
    await refusal(begin(transactions, epoch=0), ErrorCode.NOT_ALLOWED)
    await refusal(connect(keys, session="a"), ErrorCode.NOT_ALLOWED)
    await refusal(keys.fence(KEY, 0), ErrorCode.NOT_ALLOWED)
    assert (await connect(keys, session="b")).epoch == 2


async def test_a_key_that_is_not_in_use_has_nobody_to_fence(keys: TransactionKeys) -> None:
    await refusal(keys.fence(KEY, 0), ErrorCode.NOT_FOUND)
    await connect(keys)
    await keys.delete(KEY)
    await refusal(keys.fence(KEY, 0), ErrorCode.NOT_FOUND)


async def test_deleting_a_key_that_was_never_used_is_not_found(keys: TransactionKeys) -> None:
    await refusal(keys.delete(KEY), ErrorCode.NOT_FOUND)


async def test_a_key_tells_when_it_was_last_used(
    transactions: Transactions, keys: TransactionKeys, clock: FakeClock
) -> None:
    await connect(keys)
    clock.now_ms += 10
    await opened(transactions)
    assert (await keys.get(KEY)).updated_ms == clock.now_ms
