"""What an open transaction can still be told: writers, keep-alive, prepare (DESIGN §5.1, §5.12, §5.16)."""

from __future__ import annotations

import pytest

from coordinator.transactions import PREPARED_TIMEOUT_MS, Transactions
from metastore.txn import paths
from metatxn.wire.coordinator import MAX_WRITERS
from metatxn.wire.errors import ErrorCode
from tests.coordinator.conftest import START_MS, FakeClock, refusal
from tests.coordinator.stores import FaultyStore
from tests.coordinator.test_transactions import begin


@pytest.mark.parametrize(
    ("given", "header"),
    [(None, None), ([], []), (["b", "a", "b"], ["a", "b"])],
    ids=["absent: all count", "empty: only unnamed", "a set, sorted"],
)
async def test_writers_that_count(
    transactions: Transactions, given: list[str] | None, header: list[str] | None
) -> None:
    """DESIGN §5.12."""
    assert (await transactions.commit(await begin(transactions), given)).get("writers") == header


async def test_commit_again_only_with_the_same_writers(transactions: Transactions) -> None:
    """DESIGN §5.11: compared as sets; without a list any repeated commit succeeds."""
    txn_id = await begin(transactions)
    decided = await transactions.commit(txn_id, ["a", "b"])
    assert await transactions.commit(txn_id, ["b", "a", "a"]) == decided
    assert await transactions.commit(txn_id) == decided
    for other in ([], ["a"], ["a", "b", "c"]):
        error = await refusal(transactions.commit(txn_id, other), ErrorCode.INVALID_TXN_STATE)
        assert "other writers" in error.detail
    everyone = await begin(transactions)
    await transactions.commit(everyone)
    await refusal(transactions.commit(everyone, []), ErrorCode.INVALID_TXN_STATE)


async def test_remembered_writers_are_taken_unless_the_commit_says_otherwise(transactions: Transactions) -> None:
    """CONTRACT: a commit without `writers` uses the remembered list; none remembered: all count."""
    remembered, overruled, nothing = [await begin(transactions) for _ in range(3)]
    for txn_id in (remembered, overruled):
        await transactions.add_writers(txn_id, ["b"])
        await transactions.add_writers(txn_id, ["a", "b"])
    await transactions.add_writers(nothing, [])
    assert (await transactions.commit(remembered))["writers"] == ["a", "b"]
    assert (await transactions.commit(overruled, ["z"]))["writers"] == ["z"]
    assert (await transactions.commit(nothing)).get("writers") is None


async def test_remembering_again_writes_nothing(transactions: Transactions, store: FaultyStore) -> None:
    txn_id = await begin(transactions)
    await transactions.add_writers(txn_id, ["a", "b"])
    revision = await store.current_revision()
    await transactions.add_writers(txn_id, ["b"])
    assert await store.current_revision() == revision


@pytest.mark.parametrize(
    "too_many", [[f"w{n}" for n in range(MAX_WRITERS + 1)], [f"{n:0256}" for n in range(2_000)]], ids=["names", "bytes"]
)
async def test_too_many_writers_are_refused_before_anything_happens(
    transactions: Transactions, store: FaultyStore, too_many: list[str]
) -> None:
    """DESIGN §5.12: the bound holds for one list and for what is remembered together."""
    txn_id = await begin(transactions)
    half = len(too_many) // 2
    await transactions.add_writers(txn_id, too_many[:half])
    store.requests = 0
    assert (await refusal(transactions.commit(txn_id, too_many), ErrorCode.INVALID_ARGUMENT)).members[
        "field"
    ] == "writers"
    assert store.requests == 0
    revision = await store.current_revision()
    assert (await refusal(transactions.add_writers(txn_id, too_many[half:]), ErrorCode.INVALID_ARGUMENT)).members[
        "field"
    ] == "add"
    assert await store.current_revision() == revision
    counted = (await transactions.commit(txn_id))["writers"]
    assert counted is not None and len(counted) == half


async def test_the_longest_lists_fit_into_a_header(transactions: Transactions) -> None:
    """What the bounds let through, every store can hold: else a commit would be refused by the store, forever."""
    txn_id = await begin(transactions, owner="é" * 256, properties={f"{n:0256}": "\u2028" * 1024 for n in range(64)})
    names = [f"{n:0195}" for n in range(2_000)]
    await transactions.add_writers(txn_id, names)
    assert (await transactions.commit(txn_id))["writers"] == names


async def test_a_keep_alive_moves_the_deadline_from_now(transactions: Transactions, clock: FakeClock) -> None:
    txn_id = await begin(transactions, timeout_ms=10_000)
    clock.now_ms += 4_000
    for timeout_ms in (30_000, 30_000, 5_000):
        answer = await transactions.keep_alive(txn_id, timeout_ms)
        assert answer["deadline_ms"] == clock.now_ms + timeout_ms == (await transactions.get(txn_id))["deadline_ms"]


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("verb", ["commit", "abort"])
async def test_a_decided_transaction_tells_of_its_keep_alives(
    transactions: Transactions, clock: FakeClock, verb: str, prepared: bool
) -> None:
    txn_id = await begin(transactions)
    for _ in range(2):
        clock.now_ms += 10
        await transactions.keep_alive(txn_id, 60_000)
    kept_ms, clock.now_ms = clock.now_ms, clock.now_ms + 5
    if prepared:
        await transactions.prepare(txn_id, 60_000)
    decided = await getattr(transactions, verb)(txn_id)
    assert (decided["renewals"], decided["renewed_ms"]) == (2, kept_ms)
    assert await transactions.get(txn_id) == decided


async def test_a_decided_transaction_refuses_changes(transactions: Transactions) -> None:
    """CONTRACT: the detail names the state and its time."""
    for end in (transactions.commit, transactions.abort):
        txn_id = await begin(transactions)
        decided = await end(txn_id)
        for verb in (
            transactions.keep_alive(txn_id, 1_000),
            transactions.add_writers(txn_id, ["w"]),
            transactions.prepare(txn_id),
        ):
            error = await refusal(verb, ErrorCode.INVALID_TXN_STATE)
            assert f"{decided['state']} at {decided['finalized_ms']}" in error.detail


async def test_prepare_closes_a_transaction_for_everything_but_its_decision(
    transactions: Transactions, clock: FakeClock
) -> None:
    """DESIGN §5.1: preparing again succeeds and moves nothing."""
    txn_id = await begin(transactions)
    await transactions.keep_alive(txn_id, 90_000)
    await transactions.add_writers(txn_id, ["w"])
    prepared = await transactions.prepare(txn_id)
    assert (prepared["state"], prepared["prepared"]) == ("OPEN", True)
    assert prepared["deadline_ms"] == START_MS + PREPARED_TIMEOUT_MS
    clock.now_ms += 1_000
    assert await transactions.prepare(txn_id, 5) == prepared == await transactions.get(txn_id)
    await refusal(transactions.keep_alive(txn_id, 1_000), ErrorCode.TXN_CONFLICT)
    await refusal(transactions.add_writers(txn_id, ["x"]), ErrorCode.TXN_CONFLICT)
    committed = await transactions.commit(txn_id)
    assert (committed["state"], committed.get("prepared"), committed["writers"]) == ("COMMITTED", None, ["w"])


async def test_a_prepared_transaction_can_be_aborted(transactions: Transactions, store: FaultyStore) -> None:
    txn_id = await begin(transactions)
    assert (await transactions.prepare(txn_id, 7_000))["deadline_ms"] == START_MS + 7_000
    assert (await transactions.abort(txn_id))["state"] == "ABORTED"
    assert await store.get(paths.prepared(txn_id)) is None
