"""Lost replies and lost requests (DESIGN §5.11, scenario X112).

Goal: an answer is never a guess. Method: a store that loses what a test names; then what was answered is compared with
what is stored, after everything that was still on its way has arrived.
"""

from __future__ import annotations

import pytest

from coordinator.gc_sweep import GcSweep
from coordinator.timeout_sweep import TimeoutSweep
from coordinator.transactions import Transactions
from metastore.backends.memory import MemoryStore
from metatxn.wire.coordinator import BeginRequest, ConnectRequest
from metatxn.wire.errors import ErrorCode
from metatxn.wire.problems import problem_of
from tests.coordinator.conftest import FakeClock, epoch_of, id_of, refusal, under_key
from tests.coordinator.stores import Fault, FaultyStore, unavailable
from tests.coordinator.test_transactions import another, begin

LOST = [Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.DELAY]
ENDS = ["commit", "abort"]
FINAL = {"commit": "COMMITTED", "abort": "ABORTED"}


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("end", ENDS)
async def test_an_end_whose_answer_was_lost_is_resolved(
    transactions: Transactions, store: FaultyStore, clock: FakeClock, end: str, fault: Fault
) -> None:
    """And a copy that arrives late changes nothing."""
    txn_id = await begin(transactions)
    store.faults.append(fault)
    decided = await getattr(transactions, end)(txn_id)
    assert decided["state"] == FINAL[end]
    await store.deliver()
    assert await transactions.get(txn_id) == decided


@pytest.mark.parametrize("end", ENDS)
async def test_what_is_sent_again_is_identical(transactions: Transactions, store: FaultyStore, end: str) -> None:
    """DESIGN §5.11: the same time and the same versions, so that it does not matter which copy arrives."""
    txn_id = await begin(transactions)
    store.faults.extend([Fault.DELAY, Fault.UNAVAILABLE, Fault.DELAY, Fault.LOSE_REQUEST])
    store.sent.clear()
    await getattr(transactions, end)(txn_id)
    assert len(store.sent) == 5
    assert all(batch == store.sent[0] for batch in store.sent)
    await store.deliver()
    assert (await transactions.get(txn_id))["state"] == FINAL[end]


@pytest.mark.parametrize("end", ENDS)
async def test_nobody_knows_is_said_as_such(
    transactions: Transactions, store: FaultyStore, truth: MemoryStore, end: str
) -> None:
    """The request may still arrive, so "it did not happen" would be a guess; later the header tells."""
    txn_id = await begin(transactions)
    store.faults.extend([Fault.DELAY, *[Fault.UNAVAILABLE] * 100])
    error = await refusal(getattr(transactions, end)(txn_id), ErrorCode.OUTCOME_UNKNOWN)
    assert error.members["txn_id"] == str(txn_id) and not problem_of(error).definite
    store.faults.clear()
    assert (await transactions.get(txn_id))["state"] == "OPEN"
    await store.deliver()
    assert (await transactions.get(txn_id))["state"] == FINAL[end]
    assert (await getattr(transactions, end)(txn_id))["state"] == FINAL[end]


async def test_a_store_that_takes_no_writes_still_tells_what_landed(
    transactions: Transactions, store: FaultyStore
) -> None:
    """The records are read before anything is sent again."""
    txn_id = await begin(transactions)
    store.faults.extend([Fault.LOSE_REPLY, *[Fault.UNAVAILABLE] * 100])
    assert (await transactions.commit(txn_id))["state"] == "COMMITTED"


async def test_a_failure_before_anything_was_sent_is_definite(transactions: Transactions, store: FaultyStore) -> None:
    txn_id = await begin(transactions)
    store.faults.append(Fault.UNAVAILABLE)
    with pytest.raises(Exception, match="nobody listens") as failed:
        await transactions.commit(txn_id)
    assert getattr(failed.value, "definite", None) is True
    assert (await transactions.get(txn_id))["state"] == "OPEN"


async def test_a_read_that_fails_after_a_lost_reply_is_not_definite(
    transactions: Transactions, store: FaultyStore, truth: MemoryStore
) -> None:
    """It was decided by the lost request, and the coordinator cannot see it: it must not say "nothing happened"."""
    txn_id = await begin(another(transactions))
    store.faults.append(Fault.LOSE_REPLY)
    store.before_reads.extend([None, *[unavailable] * 100])
    await refusal(transactions.commit(txn_id), ErrorCode.OUTCOME_UNKNOWN)
    store.before_reads.clear()
    assert (await transactions.get(txn_id))["state"] == "COMMITTED"


@pytest.mark.parametrize("after", [1, 2])
async def test_a_decision_is_not_called_off_by_the_reads_behind_it(
    transactions: Transactions, store: FaultyStore, after: int
) -> None:
    """The probe says that something has changed, and then the store goes away."""
    txn_id = await begin(another(transactions))
    store.faults.append(Fault.LOSE_REPLY)
    store.before_reads.extend([None, None, *[None] * (after - 1), *[unavailable] * 100])
    await refusal(transactions.commit(txn_id), ErrorCode.OUTCOME_UNKNOWN)
    store.before_reads.clear()
    assert (await transactions.get(txn_id))["state"] == "COMMITTED"


@pytest.mark.parametrize(
    ("rival", "code"), [("abort", ErrorCode.INVALID_TXN_STATE), ("expire", ErrorCode.EXPIRED_TRANSACTION)]
)
async def test_a_rival_may_decide_while_a_reply_is_lost(
    transactions: Transactions, store: FaultyStore, truth: MemoryStore, clock: FakeClock, rival: str, code: ErrorCode
) -> None:
    """Then the answer is what the header says, not what was asked for; the late copy arrives in vain."""
    txn_id = await begin(another(transactions), timeout_ms=1)
    other = Transactions(truth, clock)
    store.faults.append(Fault.DELAY)

    async def decide() -> None:
        clock.now_ms += 10_000
        await (other.abort(txn_id) if rival == "abort" else other.expire(txn_id, 0))

    store.before_reads.extend([None, decide])
    await refusal(transactions.commit(txn_id), code)
    await store.deliver()
    assert (await other.get(txn_id))["state"] == "ABORTED"


async def test_a_keep_alive_in_between_makes_the_decision_start_over(
    transactions: Transactions, store: FaultyStore, truth: MemoryStore, clock: FakeClock
) -> None:
    """The lost copy can never arrive any more, so a new one is built from what is there now."""
    txn_id = await begin(another(transactions))
    other = Transactions(truth, clock)
    store.faults.append(Fault.DELAY)
    store.before_reads.extend([None, lambda: other.keep_alive(txn_id, 90_000)])
    decided = await transactions.commit(txn_id)
    await store.deliver()
    assert await other.get(txn_id) == decided


@pytest.mark.parametrize("fault", LOST)
async def test_begin_is_resolved(
    transactions: Transactions, store: FaultyStore, truth: MemoryStore, fault: Fault
) -> None:
    """One transaction, whatever was lost; what arrives too late is another one, of which nobody was told."""
    await begin(transactions)
    store.faults.append(fault)
    begun = await transactions.begin()
    assert begun.created
    assert len((await truth.scan("/txn/")).records) == 2
    await store.deliver()
    assert (await transactions.get(id_of(begun.txn))) == begun.txn
    assert len((await truth.scan("/txn/")).records) == (3 if fault is Fault.DELAY else 2)


async def end_and_collect(store: MemoryStore, clock: FakeClock) -> None:
    """Every transaction that is there, by its timeout, as other coordinators do."""
    clock.now_ms += 600_000
    other = Transactions(store, clock)
    await TimeoutSweep(other, max_clock_skew_ms=0).sweep_once()
    await GcSweep(store, clock, other.metrics, retention_ms=0).sweep()
    assert not (await store.scan("/txn/")).records


@pytest.mark.parametrize("key", [None, "k"])
async def test_no_id_begins_twice_though_it_was_collected_while_its_reply_was_lost(
    transactions: Transactions, store: FaultyStore, truth: MemoryStore, clock: FakeClock, key: str | None
) -> None:
    """The coordinator stands still, and when it goes on its transaction has timed out and is gone."""
    epoch = await epoch_of(transactions) if key else None
    await begin(transactions)
    store.sent.clear()
    store.faults.append(Fault.LOSE_REPLY)
    store.before_reads.extend([*([None] if key else []), lambda: end_and_collect(truth, clock)])
    begun = await transactions.begin(BeginRequest(transaction_key=key, epoch=epoch))
    headers = [key for batch in store.sent for key in batch.puts if key.startswith("/txn/")]
    assert len(set(headers)) == len(headers) == 2
    assert begun.created and headers[-1] == f"/txn/{begun.txn_id}"


async def test_no_id_begins_twice_though_a_copy_arrives_when_it_was_collected(
    transactions: Transactions, store: FaultyStore, truth: MemoryStore, clock: FakeClock
) -> None:
    await begin(transactions)
    store.faults.append(Fault.DELAY)
    begun = await transactions.begin()
    await transactions.commit(id_of(begun.txn))
    await end_and_collect(truth, clock)
    await store.deliver()
    (late,) = (await truth.scan("/txn/")).records
    assert late.key != f"/txn/{begun.txn_id}"


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("version", [None, 1])
async def test_begin_under_a_key_is_resolved(
    transactions: Transactions, store: FaultyStore, fault: Fault, version: int | None
) -> None:
    old = (await under_key(transactions)).txn
    store.faults.append(fault)
    begun = await transactions.begin(BeginRequest(transaction_key="k", epoch=old["epoch"], version=version))
    await store.deliver()
    assert begun.created
    assert (await transactions.keys.get("k")).txn_id == begun.txn_id
    assert (await transactions.get(id_of(old)))["expired_by"] == "fencing"


@pytest.mark.parametrize("fault", LOST)
@pytest.mark.parametrize("session", [None, "run"])
async def test_connect_is_resolved(
    transactions: Transactions, store: FaultyStore, fault: Fault, session: str | None
) -> None:
    """What it answers is the epoch of the key, and nobody else was given it; with a session no epoch is wasted."""
    old = (await under_key(transactions)).txn
    store.faults.append(fault)
    answer = await transactions.keys.connect("k", ConnectRequest(epoch=-1, session=session))
    await store.deliver()
    assert answer.epoch == (await transactions.keys.get("k")).epoch
    assert answer.aborted_txn_id == old["txn_id"]
    assert session is None or answer.epoch == 1


async def test_connect_never_claims_to_have_aborted_what_was_committed(
    transactions: Transactions, store: FaultyStore, truth: MemoryStore, clock: FakeClock
) -> None:
    """Its first bump never arrived, and before the second one the predecessor committed."""
    old = (await under_key(transactions)).txn
    other = Transactions(truth, clock)
    store.faults.append(Fault.LOSE_REQUEST)
    store.before_reads.extend([None, None, lambda: other.commit(id_of(old))])
    answer = await transactions.keys.connect("k", ConnectRequest(epoch=-1, session="run"))
    assert (answer.epoch, answer.aborted_txn_id) == (1, None)
    assert (await transactions.get(id_of(old)))["state"] == "COMMITTED"


async def test_connect_with_an_epoch_never_calls_its_own_bump_stale(
    transactions: Transactions, store: FaultyStore
) -> None:
    """After a lost reply the epoch may be gone because of this very call: that is not known to be a refusal."""
    await transactions.keys.connect("k", ConnectRequest(epoch=-1))
    store.faults.append(Fault.LOSE_REPLY)
    await refusal(transactions.keys.connect("k", ConnectRequest(epoch=0)), ErrorCode.OUTCOME_UNKNOWN)


@pytest.mark.parametrize("fault", LOST)
async def test_a_commit_under_a_key_is_resolved(transactions: Transactions, store: FaultyStore, fault: Fault) -> None:
    header = (await under_key(transactions, version=1)).txn
    store.faults.append(fault)
    assert (await transactions.commit(id_of(header)))["state"] == "COMMITTED"
    await store.deliver()
    assert (await transactions.keys.get("k")).last_version == 1


@pytest.mark.parametrize("fault", LOST)
async def test_changes_of_an_open_transaction_are_resolved(
    transactions: Transactions, store: FaultyStore, fault: Fault
) -> None:
    txn_id = await begin(transactions)
    for verb, argument in (("keep_alive", 99_000), ("add_writers", ["w"]), ("prepare", 77_000)):
        store.faults.append(fault)
        answer = await getattr(transactions, verb)(txn_id, argument)
        await store.deliver()
        assert await transactions.get(txn_id) == answer
    assert (await transactions.commit(txn_id))["writers"] == ["w"]


async def test_a_change_that_was_counted_is_not_refused_for_certain(
    transactions: Transactions, store: FaultyStore, truth: MemoryStore, clock: FakeClock
) -> None:
    """A commit in between has taken the change along: "it is decided, nothing happened" would be wrong."""
    txn_id = await begin(transactions)
    other = Transactions(truth, clock)
    store.faults.append(Fault.LOSE_REPLY)
    store.before_reads.extend([None, lambda: other.commit(txn_id)])
    error = await refusal(transactions.add_writers(txn_id, ["w"]), ErrorCode.OUTCOME_UNKNOWN)
    assert not problem_of(error).definite
    assert (await transactions.get(txn_id))["writers"] == ["w"]


async def test_a_change_that_was_seen_is_not_unavailable_for_certain(
    transactions: Transactions, store: FaultyStore
) -> None:
    """It landed, its reply was lost, and the store takes no second one."""
    txn_id = await begin(transactions)
    before = await transactions.get(txn_id)
    store.faults.extend([Fault.LOSE_REPLY, *[Fault.UNAVAILABLE] * 100])
    await refusal(transactions.keep_alive(txn_id, 99_000), ErrorCode.OUTCOME_UNKNOWN)
    assert await transactions.get(txn_id) != before


@pytest.mark.parametrize("fault", LOST)
async def test_deleting_a_key_is_resolved(transactions: Transactions, store: FaultyStore, fault: Fault) -> None:
    header = (await under_key(transactions)).txn
    store.faults.append(fault)
    assert (await transactions.keys.delete("k")).epoch == 0
    await store.deliver()
    assert (await transactions.get(id_of(header)))["state"] == "ABORTED"


async def test_deleting_a_key_is_not_called_off_by_the_reads_behind_it(
    transactions: Transactions, store: FaultyStore
) -> None:
    """The probe says that the key has changed, and then the store goes away."""
    header = (await under_key(transactions)).txn
    store.faults.append(Fault.LOSE_REPLY)
    store.before_reads.extend([None, None, None, *[unavailable] * 100])
    await refusal(transactions.keys.delete("k"), ErrorCode.OUTCOME_UNKNOWN)
    store.before_reads.clear()
    assert (await transactions.get(id_of(header)))["state"] == "ABORTED"


async def test_a_decision_that_landed_unheard_is_counted_once(transactions: Transactions, store: FaultyStore) -> None:
    txn_id = await begin(transactions)
    store.faults.append(Fault.LOSE_REPLY)
    await transactions.commit(txn_id)
    metric = "metatxn_transactions_ended_total"
    assert transactions.metrics.registry.get_sample_value(metric, {"result": "committed"}) == 1
