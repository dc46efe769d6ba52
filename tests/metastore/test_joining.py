"""Goal: however applies are grouped and sent, the outcome is that of the calls one after the other.

Method: a model of what etcd does to a request (all compares on the state before it, then all writes in order) runs
the groups that `take_group` forms; two requests in flight are answered in either order. The memory store runs the
same batches one by one. Verdicts and final records must be the same.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from metastore.api import MetadataStore
from metastore.backends.joining import Footprint, RequestLimits, take_group
from metastore.backends.memory import MemoryStore
from metastore.errors import CheckFailed
from metastore.types import Absent, Batch, Check, EmptyRange
from tests.extent import usually

KEYS = "abcde"
LIMITS = RequestLimits(max_txn_ops=12, max_bytes=1_000)


@dataclass(eq=False)
class Call:
    batch: Batch
    footprint: Footprint
    cost: int = 1
    size_bytes: int = 1
    won: bool | None = None


def call(*, checks: list[Check] | None = None, puts: str = "", ranges: list[tuple[str, str]] | None = None) -> Call:
    batch = Batch().check(*(checks or []))
    for start, end in ranges or []:
        batch.delete_range(start, end)
    for key in puts:
        if not any(start <= key < end for start, end in batch.range_deletes):
            batch.put(key, b"")
    return Call(batch, Footprint.of(batch))


def holds(check: Check, state: set[str]) -> bool:
    if isinstance(check, EmptyRange):
        return not any(check.start <= key < check.end for key in state)
    assert isinstance(check, Absent)
    return check.key not in state


def run_request(members: list[Call], state: set[str], flat: bool) -> bool:
    """False: a check did not hold, and the members stood in one list, so nothing has happened."""
    before = set(state)
    for member in members:
        member.won = all(holds(check, before) for check in member.batch.checks)
    if flat and not all(member.won for member in members):
        return False
    for member in members:
        if member.won:
            for start, end in member.batch.range_deletes:
                state.difference_update([key for key in state if start <= key < end])
            state.update(member.batch.puts)
    return True


async def run_one_by_one(calls: list[Call]) -> tuple[list[bool], set[str]]:
    store: MetadataStore = MemoryStore()
    won = []
    for one in calls:
        try:
            await store.apply(one.batch)
            won.append(True)
        except CheckFailed:
            won.append(False)
    return won, {record.key for record in (await store.range("", "z")).records}


ranges = st.tuples(st.sampled_from(KEYS), st.sampled_from(KEYS + "z")).filter(lambda bounds: bounds[0] < bounds[1])
checks = st.one_of(
    st.sampled_from(KEYS).map(Absent),
    ranges.map(lambda bounds: EmptyRange(*bounds)),
)
calls = st.builds(
    lambda checks, puts, ranges: call(checks=checks, puts="".join(sorted(puts)), ranges=ranges),
    st.lists(checks, max_size=2),
    st.sets(st.sampled_from(KEYS), max_size=2),
    st.lists(ranges, max_size=1),
)


@settings(deadline=None, max_examples=usually(150, 400))
@given(st.lists(calls, min_size=1, max_size=12), st.integers())
def test_groups_equal_the_calls_one_after_the_other(submitted: list[Call], seed: int) -> None:
    rng = random.Random(seed)
    state: set[str] = set()
    queue = deque(submitted)
    in_flight: list[tuple[list[Call], Footprint, bool]] = []
    flat = True
    while queue or in_flight:
        # Small groups too: otherwise what touches would seldom meet in two requests.
        limits = RequestLimits(rng.choice((3, LIMITS.max_txn_ops)), LIMITS.max_bytes)
        group, footprint = take_group(queue, [other for _, other, _ in in_flight], limits, flat=flat)
        if group:
            in_flight.append((group, footprint, flat))
        if len(in_flight) == 2 or not group:
            members, _, together = in_flight.pop(rng.randrange(len(in_flight)))
            flat = run_request(members, state, together)
            if not flat:
                queue.extendleft(reversed(members))
    assert ([one.won for one in submitted], state) == asyncio.run(run_one_by_one(submitted))


def taken(*submitted: Call, in_flight: Call | None = None) -> list[int]:
    group, _ = take_group(deque(submitted), [in_flight.footprint] if in_flight else [], LIMITS)
    return [submitted.index(one) for one in group]


def test_checks_of_one_key_travel_together() -> None:
    assert taken(call(checks=[Absent("h")], puts="a"), call(checks=[Absent("h")], puts="b")) == [0, 1]


def test_a_check_of_what_a_member_writes_waits() -> None:
    assert taken(call(puts="h"), call(checks=[Absent("h")], puts="b"), call(puts="c")) == [0, 2]


def test_a_write_of_what_a_member_checks_travels() -> None:
    assert taken(call(checks=[Absent("h")], puts="a"), call(puts="h")) == [0, 1]


def test_a_write_of_what_a_request_in_flight_checks_waits() -> None:
    assert taken(call(puts="h"), in_flight=call(checks=[Absent("h")], puts="a")) == []


def test_a_range_meets_the_keys_in_it_in_flight_too() -> None:
    assert taken(call(puts="b"), call(puts="c"), in_flight=call(checks=[EmptyRange("a", "c")])) == [1]
    assert taken(call(puts="b"), call(puts="c"), in_flight=call(ranges=[("a", "c")])) == [1]
    assert taken(call(ranges=[("a", "c")]), call(puts="c"), in_flight=call(checks=[Absent("b")])) == [1]
    assert taken(call(checks=[EmptyRange("a", "c")]), call(puts="c"), in_flight=call(puts="b")) == [1]
    assert taken(call(ranges=[("b", "d")]), call(puts="d"), in_flight=call(checks=[EmptyRange("a", "c")])) == [1]


def test_nothing_overtakes_a_waiting_one_that_it_touches() -> None:
    waiting = call(checks=[Absent("b")], puts="a")
    assert taken(waiting, call(puts="b"), call(puts="c"), in_flight=call(puts="a")) == [2]


def test_a_range_meets_the_keys_in_it() -> None:
    assert taken(call(puts="b"), call(ranges=[("a", "c")])) == [0]
    assert taken(call(ranges=[("a", "c")]), call(checks=[EmptyRange("b", "d")])) == [0]
    assert taken(call(ranges=[("a", "c")]), call(checks=[EmptyRange("c", "d")])) == [0, 1]


def test_the_first_travels_whatever_its_size() -> None:
    large, small = call(puts="a"), call(puts="b")
    large.size_bytes = 2_000
    assert taken(large, small) == [0]
    assert taken(small, large) == [0]


def test_the_nesting_budget_is_shared() -> None:
    submitted = [call(puts=key) for key in "abcdefghijklmn"]
    assert len(taken(*submitted)) == 10  # 10 members + the marker + 1 operation each = 12
    submitted[3].cost = 7
    assert len(taken(*submitted)) == 4  # 4 + 1 + 7 = 12
    flat, _ = take_group(deque(submitted), [], LIMITS, flat=True)
    assert len(flat) == 5  # the marker + 1 + 1 + 1 + 7 + 1 = 12
