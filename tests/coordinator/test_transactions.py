"""Begin, end and state machine (scenarios A1–A12, D34, K86–K88). Method: one coordinator on the memory store."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from coordinator.transactions import Transactions
from metastore.txn import paths
from metastore.txn.records.operations import WriteOp
from metastore.txn.records.transactions import Header
from metastore.txn.states import TxnState
from metastore.txn.store import finalize, put_write_op, read_transaction
from metatxn.wire.coordinator import BeginRequest
from metatxn.wire.errors import ErrorCode
from metatxn.wire.ids import TxnId
from tests.coordinator.conftest import START_MS, FakeClock, id_of, refusal
from tests.coordinator.stores import FaultyStore

UNKNOWN = TxnId(0, 4711)


async def begin(transactions: Transactions, **fields: object) -> TxnId:
    return id_of((await transactions.begin(BeginRequest.model_validate(fields))).txn)


def another(transactions: Transactions) -> Transactions:
    """A coordinator of the same store. What it begins, the first one has to read."""
    return Transactions(transactions.store, transactions.clock)


async def test_ids_of_one_coordinator_are_unique_and_increase(transactions: Transactions) -> None:
    """A1: the header is OPEN and its owner is recorded."""
    begun = [(await transactions.begin(BeginRequest(owner="alice"))).txn for _ in range(20)]
    ids = [id_of(header) for header in begun]
    assert ids == sorted(set(ids))
    assert {(header["state"], header["owner"]) for header in begun} == {("OPEN", "alice")}


async def test_two_coordinators_have_independent_sequences(coordinate: Callable[..., Transactions]) -> None:
    """A2: the coordinator's id is in the transaction's id."""
    first, second = coordinate(1), coordinate(2)
    assert [await begin(first), await begin(second), await begin(first)] == [TxnId(1, 1), TxnId(2, 1), TxnId(1, 2)]


async def test_every_verb_refuses_an_unknown_transaction(transactions: Transactions) -> None:
    """A3, A8."""
    for verb in (
        transactions.get(UNKNOWN),
        transactions.commit(UNKNOWN),
        transactions.abort(UNKNOWN),
        transactions.keep_alive(UNKNOWN, 1),
        transactions.add_writers(UNKNOWN, ["w"]),
        transactions.prepare(UNKNOWN),
    ):
        error = await refusal(verb, ErrorCode.TXN_NOT_FOUND)
        assert error.members["txn_id"] == str(UNKNOWN)


async def test_a_fresh_transaction_is_open(transactions: Transactions) -> None:
    """A4: and its times are absolute."""
    txn_id = await begin(transactions, timeout_ms=3_000, properties={"why": "test"})
    header = await transactions.get(txn_id)
    assert (header["state"], header["created_ms"], header["deadline_ms"]) == ("OPEN", START_MS, START_MS + 3_000)
    assert (
        header["properties"] == {"why": "test"}
        and header.get("prepared") is None
        and header.get("revision") is not None
    )


@pytest.mark.parametrize(("end", "other", "state"), [("commit", "abort", "COMMITTED"), ("abort", "commit", "ABORTED")])
async def test_an_end_is_idempotent_and_excludes_the_other(
    transactions: Transactions, store: FaultyStore, clock: FakeClock, end: str, other: str, state: str
) -> None:
    """A5, A6, A7, A12, D34: the same action succeeds and changes nothing; the opposite one names state and time."""
    txn_id = await begin(transactions)
    decided = await getattr(transactions, end)(txn_id)
    assert (decided["state"], decided["finalized_ms"]) == (state, START_MS)
    revision = await store.current_revision()
    clock.now_ms += 5_000
    assert await getattr(transactions, end)(txn_id) == decided
    error = await refusal(getattr(transactions, other)(txn_id), ErrorCode.INVALID_TXN_STATE)
    assert state in error.detail and str(START_MS) in error.detail
    assert await transactions.get(txn_id) == decided
    assert await store.current_revision() == revision, "an answer from the header must not write"


async def test_an_end_after_the_header_was_collected_is_not_found(
    transactions: Transactions, store: FaultyStore
) -> None:
    """D34: nobody remembers, so nobody guesses."""
    txn_id = await begin(transactions)
    await transactions.commit(txn_id)
    record = await store.get(paths.header(txn_id))
    assert record is not None
    await store.apply(store.batch().remove(record))
    await refusal(transactions.commit(txn_id), ErrorCode.TXN_NOT_FOUND)
    said = await refusal(transactions.get(txn_id), ErrorCode.TXN_NOT_FOUND)
    assert "was collected after its end, or never began" in said.detail and "--gc-retention-ms" in said.action


async def test_whether_an_id_was_given_out_is_said(transactions: Transactions, store: FaultyStore) -> None:
    """Only the ids of blocks that were leased can have been begun."""
    begun = await begin(transactions)
    counter = await store.get(paths.id_sequence(begun.coordinator))
    assert counter is not None
    for sequence, words in ((int(counter.value) - 1, "was given out"), (int(counter.value), "was given its id")):
        said = await refusal(transactions.get(TxnId(begun.coordinator, sequence)), ErrorCode.TXN_NOT_FOUND)
        assert words in said.detail
    assert "is unknown" in (await refusal(transactions.get(TxnId(7, 1)), ErrorCode.TXN_NOT_FOUND)).detail


async def test_a_decision_with_a_stale_expectation_is_rejected(transactions: Transactions, store: FaultyStore) -> None:
    """A9, A10: what was read before another's decision cannot decide, and a final state cannot be left."""
    txn_id = await begin(transactions)
    before = await read_transaction(store, txn_id)
    assert before is not None
    await transactions.abort(txn_id)
    after = await read_transaction(store, txn_id)
    assert after is not None
    final = before.header.model_copy(update={"state": TxnState.COMMITTED, "finalized_ms": 1})
    with pytest.raises(Exception, match="check failed"):
        await store.apply(finalize(store.batch(), [before], final))
    with pytest.raises(AssertionError):
        finalize(store.batch(), [after], final)
    assert (await transactions.get(txn_id))["state"] == "ABORTED"


async def test_an_end_does_not_look_at_operations(transactions: Transactions, store: FaultyStore) -> None:
    """DESIGN §1: deciding costs the same however much was written; and operations stay for their participants."""
    txn_id = await begin(another(transactions))
    for counter in range(300):
        op = WriteOp(segment="s", after="0:0", count=1)
        await store.apply(put_write_op(store.batch(), txn_id, 1, counter, op))
    store.requests = 0
    await transactions.commit(txn_id)
    assert store.requests == 2, "one read and one apply"
    assert len((await store.scan(paths.ops_of_transaction(txn_id))).records) == 300


async def test_an_abort_keeps_its_reason(transactions: Transactions) -> None:
    txn_id = await begin(transactions)
    assert (await transactions.abort(txn_id, "changed my mind", force=True))["reason"] == "changed my mind"
    assert (await transactions.abort(txn_id, "another reason"))["reason"] == "changed my mind"


async def test_the_header_is_written_exactly_twice(transactions: Transactions, store: FaultyStore) -> None:
    """DESIGN §4: keep-alive, writers and prepare leave it at its first version, and the decision takes all of it."""
    txn_id = await begin(transactions)
    await transactions.keep_alive(txn_id, 10_000)
    await transactions.add_writers(txn_id, ["w"])
    await transactions.prepare(txn_id)
    record = await store.get(paths.header(txn_id))
    assert record is not None and record.first
    await transactions.commit(txn_id)
    record = await store.get(paths.header(txn_id))
    assert record is not None and not record.first
    assert Header.decode(record.value).finalized_ms == START_MS


async def test_a_coordinator_that_restarts_has_forgotten_nothing(
    coordinate: Callable[..., Transactions], clock: FakeClock
) -> None:
    """K86, K88: everything is in the store; ids go on and none comes twice, also on an empty store."""
    before = coordinate()
    open_id, done_id = await begin(before, owner="a"), await begin(before)
    done = await before.commit(done_id, ["w"])
    clock.now_ms += 1_000
    after = coordinate()
    assert await after.get(open_id) == await before.get(open_id)
    assert await after.commit(done_id, ["w"]) == done
    fresh = [await begin(after), await begin(before)]
    assert len({open_id, done_id, *fresh}) == 4 and min(fresh) > done_id


async def test_another_client_commits_what_a_dead_one_began(coordinate: Callable[..., Transactions]) -> None:
    """K87: the id is all that is needed."""
    first = coordinate()
    ids = [await begin(first) for _ in range(20)]
    second = coordinate()
    assert {(await second.commit(txn_id))["state"] for txn_id in ids} == {"COMMITTED"}


@pytest.mark.parametrize("field", ["epoch", "version"])
async def test_epoch_and_version_need_a_key(transactions: Transactions, field: str) -> None:
    error = await refusal(begin(transactions, **{field: 1}), ErrorCode.INVALID_ARGUMENT)
    assert error.members["field"] == field


async def test_decisions_are_counted(transactions: Transactions) -> None:
    """The metrics of the contract, where they happen."""
    committed, aborted = await begin(transactions), await begin(transactions)
    await transactions.commit(committed)
    await transactions.commit(committed)
    await transactions.abort(aborted)
    await refusal(transactions.abort(committed), ErrorCode.INVALID_TXN_STATE)

    def counted(name: str, result: str) -> float | None:
        return transactions.metrics.registry.get_sample_value(name, {"result": result})

    cas = "pulsar_txn_metadata_store_header_cas_total"
    assert [counted(cas, result) for result in ("ok", "conflict", "reject")] == [2, 0, 1]
    ended = "metatxn_transactions_ended_total"
    assert [counted(ended, result) for result in ("committed", "aborted", "timed_out", "fenced")] == [1, 1, 0, 0]
