"""Coordinators whose clocks differ (DESIGN §5.16, issue 4 item 4; scenarios E39, E40, E43).

Goal: while no two clocks differ by more than the configured skew, nothing is aborted before the time that it was given
is over; beyond it an abort may come early or late, and that is all that can happen.

Method: one store and one true time; each coordinator reads it off by a constant. The timeout is counted in true time,
from the begin. The fixture checks in the end that all records agree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from coordinator.timeout_sweep import Swept, TimeoutSweep
from coordinator.transactions import Transactions
from metastore.backends.memory import MemoryStore
from metatxn.wire.coordinator import BeginRequest
from metatxn.wire.errors import ErrorCode
from tests.coordinator.conftest import SKEW_MS, FakeClock, id_of, refusal, under_key
from tests.coordinator.stores import ShuffledStore
from tests.coordinator.test_transactions import begin

TIMEOUT_MS = 10_000
HOUR_MS = 3_600_000
Off = Callable[[int], Transactions]


@pytest.fixture
def off(truth: MemoryStore, clock: FakeClock) -> Off:
    """A coordinator whose clock is ahead of the true time by this many milliseconds."""
    return lambda ahead_ms: Transactions(ShuffledStore(truth, seed=ahead_ms), lambda: clock() + ahead_ms)


def sweep(transactions: Transactions) -> TimeoutSweep:
    return TimeoutSweep(transactions, max_clock_skew_ms=SKEW_MS)


@pytest.mark.parametrize("begun_ahead_ms", [-SKEW_MS // 2, 0, SKEW_MS // 2])
@pytest.mark.parametrize("swept_ahead_ms", [-SKEW_MS // 2, 0, SKEW_MS // 2])
@pytest.mark.parametrize("verb", ["begin", "keep_alive", "prepare"])
async def test_never_early_and_hardly_late_while_clocks_differ_by_the_skew(
    off: Off, clock: FakeClock, begun_ahead_ms: int, swept_ahead_ms: int, verb: str
) -> None:
    """No matter who set the deadline, and by which verb: not a millisecond before, and at most twice the skew
    behind."""
    owner, sweeper = off(begun_ahead_ms), off(swept_ahead_ms)
    txn_id = await begin(owner, timeout_ms=TIMEOUT_MS)
    if verb != "begin":
        clock.now_ms += 4_000
        await getattr(owner, verb)(txn_id, TIMEOUT_MS)
    clock.now_ms += TIMEOUT_MS - 1
    assert await sweep(sweeper).sweep_once() == Swept(aborted=0, failed=0)
    clock.now_ms += 1 + 2 * SKEW_MS
    assert await sweep(sweeper).sweep_once() == Swept(aborted=1, failed=0)
    assert (await owner.get(txn_id))["expired_by"] == "timeout"


async def test_the_skew_is_used_up_exactly(off: Off, clock: FakeClock) -> None:
    """A sweeper that is ahead by all of it aborts at the very end of the given time; one more would be early."""
    txn_id = await begin(off(0), timeout_ms=TIMEOUT_MS)
    clock.now_ms += TIMEOUT_MS - 1
    assert (await sweep(off(SKEW_MS)).sweep_once()).aborted == 0
    assert (await sweep(off(SKEW_MS + 1)).sweep_once()).aborted == 1
    assert (await off(0).get(txn_id))["expired_by"] == "timeout"


async def test_a_clock_far_ahead_aborts_early_and_says_so(off: Off) -> None:
    """Its user is told EXPIRED_TRANSACTION by everybody; what was committed or is prepared for longer stays so."""
    right, wrong = off(0), off(HOUR_MS)
    committed, prepared, open_ = [await begin(right, timeout_ms=TIMEOUT_MS) for _ in range(3)]
    decided = await right.commit(committed)
    await right.prepare(prepared, 2 * HOUR_MS)
    assert await sweep(wrong).sweep_once() == Swept(aborted=1, failed=0)
    for coordinator in (right, wrong):
        await refusal(coordinator.commit(open_), ErrorCode.EXPIRED_TRANSACTION)
        assert await coordinator.get(committed) == decided
        assert (await coordinator.commit(prepared))["state"] == "COMMITTED"


async def test_a_clock_far_behind_is_late_and_the_others_are_not(off: Off, clock: FakeClock) -> None:
    """What it begins has a deadline that is long past, and what it sweeps is nobody's duty alone."""
    right, wrong = off(0), off(-HOUR_MS)
    late = await begin(right, timeout_ms=TIMEOUT_MS)
    clock.now_ms += TIMEOUT_MS + SKEW_MS
    assert await sweep(wrong).sweep_once() == Swept(aborted=0, failed=0)
    assert (await wrong.commit(late))["state"] == "COMMITTED", "no deadline refuses, only a final header does"
    early = await begin(wrong, timeout_ms=TIMEOUT_MS)
    assert await sweep(right).sweep_once() == Swept(aborted=1, failed=0)
    await refusal(wrong.commit(early), ErrorCode.EXPIRED_TRANSACTION)


async def test_wrong_clocks_and_a_race_have_one_outcome(off: Off, clock: FakeClock) -> None:
    """Sweepers of yesterday and of tomorrow, a commit and a keep-alive at once: one decision, told by all."""
    coordinators = [off(ahead_ms) for ahead_ms in (-HOUR_MS, 0, HOUR_MS)]
    for number in range(30):
        owner = coordinators[number % 3]
        txn_id = id_of((await owner.begin(BeginRequest(timeout_ms=TIMEOUT_MS))).txn)
        await asyncio.gather(
            *(sweep(each).sweep_once() for each in coordinators),
            coordinators[(number + 1) % 3].commit(txn_id),
            coordinators[(number + 2) % 3].keep_alive(txn_id, TIMEOUT_MS),
            return_exceptions=True,
        )
        told = [await each.get(txn_id) for each in coordinators]
        assert told[0]["state"] in ("COMMITTED", "ABORTED") and told.count(told[0]) == 3


async def test_a_clock_that_is_set_back_gives_no_id_and_no_epoch_twice(off: Off, clock: FakeClock) -> None:
    """Numbers come from the store and never from the time; only deadlines do."""
    coordinator = off(0)
    first = (await under_key(coordinator, version=1)).txn
    clock.now_ms -= HOUR_MS
    second = (await under_key(coordinator, version=2)).txn
    assert id_of(second) > id_of(first) and second["epoch"] == first["epoch"]
    assert (await coordinator.get(id_of(first)))["expired_by"] == "fencing"
    assert (await coordinator.commit(id_of(second)))["finalized_ms"] == clock.now_ms
