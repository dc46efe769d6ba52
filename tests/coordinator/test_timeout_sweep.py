"""Timeouts (scenarios E39–E46 as far as they concern the coordinator, DESIGN §5.16). Method: a clock that is moved."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable

import pytest

from coordinator.shares import share_of
from coordinator.timeout_sweep import SLICE, TOGETHER, Swept, TimeoutSweep
from coordinator.transactions import Transactions
from metastore.errors import StoreUnavailable
from metastore.types import RangeResult
from metatxn.wire.errors import ErrorCode
from metatxn.wire.ids import TxnId
from tests.coordinator.conftest import SKEW_MS, START_MS, CountedReads, FakeClock, id_of, refusal, under_key
from tests.coordinator.stores import Fault, FaultyStore
from tests.coordinator.test_transactions import begin


async def test_aborts_at_the_deadline_plus_the_clock_skew_and_not_before(
    transactions: Transactions, sweep: TimeoutSweep, clock: FakeClock, store: FaultyStore
) -> None:
    """E39, E40, E45: three seconds are 3,000 ms."""
    txn_id = await begin(transactions, timeout_ms=3_000)
    clock.now_ms = START_MS + 3_000 + SKEW_MS - 1
    requests = store.requests
    assert await sweep.sweep_once() == Swept(aborted=0, failed=0)
    assert store.requests == requests, "what is not due is not read"
    assert await transactions.expire(txn_id, SKEW_MS) is False, "and would not be aborted"
    assert (await transactions.get(txn_id))["state"] == "OPEN", "the deadline alone refuses nothing"
    clock.now_ms += 1
    assert await sweep.sweep_once() == Swept(aborted=1, failed=0)
    header = await transactions.get(txn_id)
    assert (header["state"], header["expired_by"], header["finalized_ms"]) == ("ABORTED", "timeout", clock.now_ms)
    assert header["reason"] == f"deadline {START_MS + 3_000} passed"


async def test_the_user_of_a_timed_out_transaction_is_told(
    transactions: Transactions, sweep: TimeoutSweep, clock: FakeClock
) -> None:
    """E42, E43: EXPIRED_TRANSACTION for everything but abort, which succeeds."""
    txn_id = await begin(transactions, timeout_ms=1)
    clock.now_ms += 1_000
    await sweep.sweep_once()
    for verb in (
        transactions.commit(txn_id),
        transactions.commit(txn_id, ["w"]),
        transactions.keep_alive(txn_id, 1_000),
        transactions.add_writers(txn_id, ["w"]),
        transactions.prepare(txn_id),
    ):
        error = await refusal(verb, ErrorCode.EXPIRED_TRANSACTION)
        assert error.members["expired_by"] == "timeout"
    assert (await transactions.abort(txn_id))["expired_by"] == "timeout"


async def test_a_late_commit_before_the_sweep_wins(
    transactions: Transactions, sweep: TimeoutSweep, clock: FakeClock
) -> None:
    """DESIGN §5.16: only a final header refuses."""
    txn_id = await begin(transactions, timeout_ms=1)
    clock.now_ms += 60_000
    assert (await transactions.commit(txn_id))["state"] == "COMMITTED"
    assert await sweep.sweep_once() == Swept(aborted=0, failed=0)


async def test_each_timeout_is_counted_once(
    coordinate: Callable[..., Transactions], transactions: Transactions, sweep: TimeoutSweep, clock: FakeClock
) -> None:
    """E44, also when two coordinators sweep."""
    other = coordinate()
    for _ in range(3):
        await begin(transactions, timeout_ms=1)
    clock.now_ms += 1_000
    await asyncio.gather(sweep.sweep_once(), TimeoutSweep(other).sweep_once())
    await sweep.sweep_once()
    counted = [
        each.metrics.registry.get_sample_value("metatxn_transactions_ended_total", {"result": "timed_out"})
        for each in (transactions, other)
    ]
    assert sum(count or 0 for count in counted) == 3


async def test_another_coordinator_sweeps_what_a_dead_one_began(
    coordinate: Callable[..., Transactions], clock: FakeClock
) -> None:
    """E46, K86: also deadlines that were moved before the restart."""
    before = coordinate()
    short, moved = await begin(before, timeout_ms=1_000), await begin(before, timeout_ms=1_000)
    await before.keep_alive(moved, 20_000)
    after = coordinate()
    clock.now_ms += 10_000
    assert await TimeoutSweep(after).sweep_once() == Swept(aborted=1, failed=0)
    assert [(await after.get(txn_id))["state"] for txn_id in (short, moved)] == ["ABORTED", "OPEN"]
    clock.now_ms += 20_000
    assert await TimeoutSweep(after).sweep_once() == Swept(aborted=1, failed=0)


async def test_a_prepared_transaction_has_its_own_deadline(
    transactions: Transactions, sweep: TimeoutSweep, clock: FakeClock
) -> None:
    txn_id = await begin(transactions, timeout_ms=1_000)
    await transactions.prepare(txn_id, 60_000)
    clock.now_ms = START_MS + 30_000
    assert await sweep.sweep_once() == Swept(aborted=0, failed=0)
    clock.now_ms = START_MS + 60_000 + SKEW_MS
    assert await sweep.sweep_once() == Swept(aborted=1, failed=0)
    assert "prepared deadline" in str((await transactions.get(txn_id))["reason"])


async def test_a_timed_out_transaction_lets_go_of_its_key(
    transactions: Transactions, sweep: TimeoutSweep, clock: FakeClock
) -> None:
    """`check_records` proves it for every test; here the next begin finds nothing to fence."""
    old = (await under_key(transactions, timeout_ms=1)).txn
    clock.now_ms += 1_000
    await sweep.sweep_once()
    assert (await transactions.keys.get("k")).txn_id is None
    assert (await under_key(transactions)).created
    assert (await transactions.get(id_of(old)))["expired_by"] == "timeout"


async def test_many_are_aborted_in_slices(
    transactions: Transactions, sweep: TimeoutSweep, clock: FakeClock, store: FaultyStore
) -> None:
    """And what is not due is not even read."""
    for _ in range(2 * SLICE + 5):
        await begin(transactions, timeout_ms=1)
    for _ in range(50):
        await begin(transactions, timeout_ms=60_000)
    clock.now_ms += 1_000
    store.requests = 0
    assert await sweep.sweep_once() == Swept(aborted=2 * SLICE + 5, failed=0)
    assert store.requests == 3 + 2 * SLICE // TOGETHER + 1, "one read for each slice, and applies for many"


async def test_some_that_cannot_be_aborted_do_not_hold_up_the_others(
    transactions: Transactions, sweep: TimeoutSweep, clock: FakeClock, store: FaultyStore
) -> None:
    """Those whose apply failed, and one under a key, which goes by itself."""
    ids = [await begin(transactions, timeout_ms=1) for _ in range(2 * TOGETHER)]
    ids.append(id_of((await under_key(transactions, timeout_ms=1)).txn))
    clock.now_ms += 1_000
    store.faults.extend([Fault.UNAVAILABLE, Fault.NONE, Fault.UNAVAILABLE])
    assert await sweep.sweep_once() == Swept(aborted=TOGETHER, failed=TOGETHER + 1)
    errors = transactions.metrics.registry.get_sample_value("metatxn_timeout_sweep_errors_total")
    assert errors == TOGETHER + 1
    assert await sweep.sweep_once() == Swept(aborted=TOGETHER + 1, failed=0)
    assert {(await transactions.get(txn_id))["state"] for txn_id in ids} == {"ABORTED"}


async def test_a_sweep_that_cannot_read_what_is_due_is_counted(
    transactions: Transactions, sweep: TimeoutSweep, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: object, **__: object) -> RangeResult:
        raise StoreUnavailable("by the test")

    monkeypatch.setattr(store, "range", fails)
    with pytest.raises(StoreUnavailable):
        await sweep.sweep()
    assert transactions.metrics.registry.get_sample_value("metatxn_timeout_sweep_errors_total") == 1


async def test_one_that_is_not_as_it_was_read_takes_nobody_with_it(
    transactions: Transactions, sweep: TimeoutSweep, clock: FakeClock, store: FaultyStore
) -> None:
    """It shares an apply with nine others, and is kept alive while that is on its way."""
    ids = [await begin(transactions, timeout_ms=1) for _ in range(10)]
    clock.now_ms += 1_000
    store.sent.clear()
    store.before_applies.append(lambda: transactions.keep_alive(ids[3], 60_000))
    assert await sweep.sweep_once() == Swept(aborted=9, failed=0)
    assert len(store.sent) == 1 + 1 + 9, "all of them in vain, the keep-alive, and each that is due by itself"
    assert [(await transactions.get(txn_id))["state"] == "OPEN" for txn_id in ids] == [n == 3 for n in range(10)]


async def test_every_kind_is_aborted_and_says_which_deadline_has_passed(
    transactions: Transactions, sweep: TimeoutSweep, clock: FakeClock
) -> None:
    """Side by side in one slice: plain, kept alive, prepared, with writers, and under a key."""
    plain, kept, prepared, written = [await begin(transactions, timeout_ms=1_000) for _ in range(4)]
    keyed = id_of((await under_key(transactions, timeout_ms=1_000)).txn)
    await transactions.keep_alive(kept, 2_000)
    await transactions.prepare(prepared, 3_000)
    await transactions.add_writers(written, ["w"])
    clock.now_ms += 10_000
    assert await sweep.sweep_once() == Swept(aborted=5, failed=0)
    told = {txn_id: (await transactions.get(txn_id))["reason"] for txn_id in (plain, kept, prepared, written, keyed)}
    assert told == {
        **dict.fromkeys((plain, written, keyed), f"deadline {START_MS + 1_000} passed"),
        kept: f"deadline {START_MS + 2_000} passed",
        prepared: f"prepared deadline {START_MS + 3_000} passed",
    }


async def test_what_is_too_large_together_is_aborted_one_by_one(
    transactions: Transactions, sweep: TimeoutSweep, clock: FakeClock
) -> None:
    properties = {f"{number:0256}": "x" * 1_024 for number in range(64)}
    for _ in range(TOGETHER):
        await begin(transactions, timeout_ms=1, properties=properties)
    clock.now_ms += 1_000
    assert await sweep.sweep_once() == Swept(aborted=TOGETHER, failed=0)


@pytest.mark.parametrize("fault", [Fault.LOSE_REPLY, Fault.LOSE_REQUEST, Fault.DELAY])
async def test_a_lost_reply_of_many_aborts_is_resolved_and_counted_once(
    transactions: Transactions, sweep: TimeoutSweep, clock: FakeClock, store: FaultyStore, fault: Fault
) -> None:
    """DESIGN §5.11."""
    ids = [await begin(transactions, timeout_ms=1) for _ in range(10)]
    clock.now_ms += 1_000
    store.faults.append(fault)
    assert (await sweep.sweep_once()).failed == 0
    await store.deliver()
    assert {(await transactions.get(txn_id))["expired_by"] for txn_id in ids} == {"timeout"}
    metric = "metatxn_transactions_ended_total"
    assert transactions.metrics.registry.get_sample_value(metric, {"result": "timed_out"}) == 10


@pytest.mark.parametrize("meanwhile", ["keep_alive", "commit", "prepare"])
async def test_what_happens_between_the_sweeps_read_and_its_write_wins(
    transactions: Transactions,
    sweep: TimeoutSweep,
    clock: FakeClock,
    store: FaultyStore,
    meanwhile: str,
) -> None:
    """DESIGN §5.1: the checks cover header, lease and prepared record."""
    txn_id = await begin(transactions, timeout_ms=1)
    clock.now_ms += 1_000
    arguments = {"keep_alive": (5_000,), "commit": (), "prepare": ()}[meanwhile]
    store.before_applies.append(lambda: getattr(transactions, meanwhile)(txn_id, *arguments))
    assert await sweep.sweep_once() == Swept(aborted=0, failed=0)
    assert (await transactions.get(txn_id))["state"] == ("COMMITTED" if meanwhile == "commit" else "OPEN")


async def test_the_loop_survives_everything(
    transactions: Transactions, store: FaultyStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Store errors and bugs alike: the next sweep comes."""
    txn_id = await begin(transactions, timeout_ms=1)
    clock.now_ms += 1_000
    failures = [StoreUnavailable("down"), RuntimeError("a bug")]
    read = store.range
    aborted = asyncio.Event()

    async def failing_range(*arguments: str, **options: object) -> RangeResult:
        if failures:
            raise failures.pop(0)
        aborted.set()
        return await read(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "range", failing_range)
    sweep = TimeoutSweep(transactions, interval_ms=1)
    sweep.start()
    await asyncio.wait_for(aborted.wait(), 60)
    await sweep.stop()
    assert (await transactions.get(txn_id))["state"] == "ABORTED"
    await sweep.stop()


async def test_an_index_entry_without_a_transaction_harms_nobody(
    transactions: Transactions, sweep: TimeoutSweep, clock: FakeClock
) -> None:
    """`expire` looks at the records, never at the index alone."""
    assert await transactions.expire(TxnId(0, 99), 0) is False
    decided = await begin(transactions, timeout_ms=1)
    await transactions.commit(decided)
    clock.now_ms += 60_000
    assert await transactions.expire(decided, 0) is False


async def test_a_sweep_reads_what_is_due_and_not_what_is_open(
    transactions: Transactions, sweep: TimeoutSweep, clock: FakeClock, store: FaultyStore, counted: CountedReads
) -> None:
    """Ten of ten thousand: ten index entries and ten headers, not one more; idle, nothing at all."""
    for _ in range(100):
        await asyncio.gather(*(begin(transactions, timeout_ms=600_000) for _ in range(100)))
    due = [await begin(transactions, timeout_ms=1_000) for _ in range(10)]
    counted.start()
    await sweep.sweep_once()
    assert (counted.ranges, counted.rows, counted.keys) == (1, 0, 0)
    clock.now_ms = START_MS + 1_000 + SKEW_MS
    assert await sweep.sweep_once() == Swept(aborted=10, failed=0)
    assert (counted.ranges, counted.rows, counted.keys) == (2, 10, 10)
    assert {(await transactions.get(txn_id))["expired_by"] for txn_id in due} == {"timeout"}


def sharing(coordinate: Callable[..., Transactions], process: str, announced: list[str]) -> TimeoutSweep:
    """The sweep of another process, which sees that `announced` are."""
    share = functools.partial(share_of, process, announced)
    return TimeoutSweep(coordinate(), interval_ms=1_000, max_clock_skew_ms=SKEW_MS, share=share)


async def test_coordinators_divide_the_work(
    coordinate: Callable[..., Transactions], transactions: Transactions, clock: FakeClock, store: FaultyStore
) -> None:
    """Each transaction is read and aborted by one of three, at once; nothing is asked twice."""
    sweeps = [sharing(coordinate, process, ["a", "b", "c"]) for process in "abc"]
    for _ in range(3 * SLICE):
        await begin(transactions, timeout_ms=1_000)
    clock.now_ms = START_MS + 1_000 + SKEW_MS
    store.requests = 0
    swept = await asyncio.gather(*(sweep.sweep_once() for sweep in sweeps))
    assert [one.aborted for one in swept] == [SLICE] * 3
    assert store.requests == 3 * 3 * (1 + 2), "each reads its third of three slices, and aborts it in two applies"


async def test_the_share_of_a_dead_coordinator_is_swept_by_the_others(
    coordinate: Callable[..., Transactions], transactions: Transactions, clock: FakeClock
) -> None:
    """It is announced still: after two intervals what it has left is everybody's; once forgotten, at once."""
    announced = ["alive", "dead"]
    alive = sharing(coordinate, "alive", announced)
    for _ in range(10):
        await begin(transactions, timeout_ms=1_000)
    clock.now_ms = START_MS + 1_000 + SKEW_MS
    assert await alive.sweep_once() == Swept(aborted=5, failed=0)
    clock.now_ms += 1_999
    assert await alive.sweep_once() == Swept(aborted=0, failed=0)
    clock.now_ms += 1
    assert await alive.sweep_once() == Swept(aborted=5, failed=0)
    announced.remove("dead")
    for _ in range(10):
        await begin(transactions, timeout_ms=1)
    clock.now_ms += SKEW_MS + 1
    assert await alive.sweep_once() == Swept(aborted=10, failed=0)


async def test_two_that_sweep_the_same_are_harmless(
    coordinate: Callable[..., Transactions], transactions: Transactions, clock: FakeClock
) -> None:
    """DESIGN §5.17: as when the announcements are wrong. Each transaction is aborted by one of them."""
    sweeps = [sharing(coordinate, process, []) for process in ("unannounced", "neither")]
    ids = [await begin(transactions, timeout_ms=1_000) for _ in range(2 * SLICE + 7)]
    clock.now_ms = START_MS + 1_000 + SKEW_MS
    swept = await asyncio.gather(*(sweep.sweep_once() for sweep in sweeps))
    assert sum(one.aborted for one in swept) == len(ids)
    assert {(await transactions.get(txn_id))["expired_by"] for txn_id in ids} == {"timeout"}
