"""Goal: the search finds an order exactly where there is one, and soon enough for real histories.

Method: small histories whose verdict is known, drawn as `client: action invoked-returned`; random tiny ones against
every order there is; and long ones made by a register that really is atomic, whole and then with one lie in them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.extent import usually
from tests.histories.brute_force import orders
from tests.histories.calls import Call, Outcome
from tests.histories.linearizable import Undecided, not_linearizable
from tests.histories.registers import Action, CompareAndSet, Read, Register, Write, register_fault

OK, FAILED, UNKNOWN = Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN


def call(action: Action, invoked: int, returned: int, outcome: Outcome = OK) -> Call:
    return Call(f"client {invoked}", action, outcome, invoked, returned)


LINEARIZABLE = {
    "nothing at all": [],
    "nothing was written, nothing is there": [call(Read(None), 1, 2)],
    "read what was written": [call(Write("1"), 1, 2), call(Read("1"), 3, 4)],
    "read either value during a write": [
        call(Write("1"), 1, 2),
        call(Write("2"), 3, 9),
        call(Read("1"), 4, 5),
        call(Read("2"), 6, 7),
    ],
    "two writes at once, in either order": [call(Write("1"), 1, 9), call(Write("2"), 1, 9), call(Read("1"), 10, 11)],
    "one of two wins": [
        call(Write("1"), 1, 2),
        call(CompareAndSet("1", "2"), 3, 9),
        call(Read("2"), 3, 9),
        call(CompareAndSet("1", "3"), 3, 9, FAILED),
    ],
    "removed and created again": [
        call(CompareAndSet(None, "1"), 1, 2),
        call(CompareAndSet("1", None), 3, 4),
        call(Read(None), 5, 6),
        call(CompareAndSet(None, "2"), 7, 8),
        call(Read("2"), 9, 10),
    ],
    "unknown took effect late": [
        call(Write("1"), 1, 2),
        call(Write("2"), 3, 4, UNKNOWN),
        call(Read("1"), 10, 11),
        call(Read("2"), 12, 13),
    ],
    "unknown took effect behind a later write": [
        call(Write("2"), 1, 2, UNKNOWN),
        call(Write("1"), 3, 4),
        call(Read("1"), 5, 6),
        call(Read("2"), 7, 8),
    ],
    "unknown never took effect": [
        call(Write("1"), 1, 2),
        call(CompareAndSet("1", "2"), 3, 4, UNKNOWN),
        call(Read("1"), 10, 11),
        call(CompareAndSet("1", "3"), 12, 13),
    ],
    "an unknown removal took effect twice, by two calls": [
        call(Write("1"), 1, 2),
        call(Write(None), 3, 4, UNKNOWN),
        call(Write(None), 3, 4, UNKNOWN),
        call(Read(None), 5, 6),
        call(Write("2"), 7, 8),
        call(Read(None), 9, 10),
    ],
    "a definite failure": [call(Write("1"), 1, 2, FAILED), call(Read(None), 3, 4)],
}
NOT_LINEARIZABLE = {
    "stale read": [call(Write("1"), 1, 2), call(Write("2"), 3, 4), call(Read("1"), 5, 6)],
    "lost write": [call(Write("1"), 1, 2), call(Read(None), 3, 4)],
    "back in time during a write": [
        call(Write("1"), 1, 2),
        call(Write("2"), 3, 9),
        call(Read("2"), 4, 5),
        call(Read("1"), 6, 7),
    ],
    "lost update": [
        call(Write("1"), 1, 2),
        call(CompareAndSet("1", "2"), 3, 9),
        call(CompareAndSet("1", "3"), 3, 9),
    ],
    "two created it": [call(CompareAndSet(None, "1"), 1, 9), call(CompareAndSet(None, "2"), 1, 9)],
    "the effect of a definite failure is seen": [call(Write("1"), 1, 2, FAILED), call(Read("1"), 3, 4)],
    "an unknown write was seen, and then was not": [
        call(Write("1"), 1, 2),
        call(CompareAndSet("1", "2"), 3, 4, UNKNOWN),
        call(Read("2"), 5, 6),
        call(Read("1"), 7, 8),
    ],
    "an unknown write took effect before it was made": [call(Read("1"), 1, 2), call(Write("1"), 3, 4, UNKNOWN)],
    "an unknown compare-and-set took effect on another value": [
        call(Write("1"), 1, 2),
        call(CompareAndSet("0", "2"), 3, 4, UNKNOWN),
        call(Read("2"), 5, 6),
    ],
    "out of the air": [call(Read("7"), 1, 2)],
}


@pytest.mark.parametrize("calls", LINEARIZABLE.values(), ids=LINEARIZABLE)
def test_an_order_is_found(calls: list[Call]) -> None:
    assert register_fault(calls) is None


@pytest.mark.parametrize("calls", NOT_LINEARIZABLE.values(), ids=NOT_LINEARIZABLE)
def test_there_is_no_order(calls: list[Call]) -> None:
    assert register_fault(calls)


def test_the_evidence_names_the_call_that_fits_nowhere() -> None:
    fault = register_fault([call(Write("1"), 1, 2), call(Write("2"), 3, 4), call(Read("1"), 5, 6)])
    assert fault is not None
    stuck = fault.splitlines()[:2]
    assert "'2'" in stuck[0] and "Read(value='1')" in stuck[1]


def test_values_written_twice_are_an_error_of_the_test() -> None:
    with pytest.raises(AssertionError, match="written by two calls"):
        register_fault([call(Write("1"), 1, 2), call(Write("1"), 3, 4)])


def test_a_search_that_grows_too_large_says_so() -> None:
    """Writes at the same time, in any order."""
    calls = [call(Write(f"{number}"), 1, 9) for number in range(16)]
    calls.append(call(Read("never"), 100, 101))
    with pytest.raises(Undecided):
        not_linearizable(calls, Register(), max_configurations=10_000)


def test_unknown_calls_that_change_nothing_for_others_do_not_make_the_search_grow() -> None:
    """Removals whose outcome is unknown, between writes: each may have happened in every gap, and one is as good as the
    others."""
    calls = [call(Write(None), 1, 2, UNKNOWN) for _ in range(18)]
    for number in range(9):
        calls += [call(Write(f"{number}"), 10 + 4 * number, 11 + 4 * number), call(Read(None), 12 + 4 * number, 13)]
    calls.append(call(Read("never"), 100, 101))
    assert not_linearizable(calls, Register(), max_configurations=1_000)


@st.composite
def tiny_histories(draw: st.DrawFn) -> list[Call]:
    calls = []
    for number in range(draw(st.integers(1, 5))):
        value = st.sampled_from([None, "0", "1", "2", "3", "4"])
        written = draw(st.sampled_from([None, str(number)]))
        action: Action = draw(
            st.one_of(
                st.builds(Read, value), st.just(Write(written)), st.builds(CompareAndSet, value, st.just(written))
            )
        )
        invoked = draw(st.integers(1, 8))
        outcome = draw(st.sampled_from([OK, OK, OK, UNKNOWN, FAILED]))
        calls.append(call(action, invoked, invoked + draw(st.integers(1, 6)), outcome))
    return calls


def explains(order: Sequence[Call]) -> bool:
    state = None
    for one in order:
        action: Action = one.action
        if isinstance(action, Read):
            if action.value != state:
                return False
        elif isinstance(action, CompareAndSet) and action.expected != state:
            return False
        else:
            state = action.value
    return True


@settings(max_examples=usually(100, 300), deadline=None)
@given(tiny_histories())
def test_the_verdict_is_that_of_trying_every_order(calls: list[Call]) -> None:
    assert (register_fault(calls) is None) == any(explains(order) for order in orders(calls))


def atomic_history(dice: random.Random, clients: int, steps: int) -> list[Call]:
    """What clients of an atomic register see: each effect lies somewhere inside its call. Some answers are lost."""
    state: str | None = None
    free_at = [0] * clients
    calls = []
    for step in range(steps):
        now = 10 * step
        client = dice.choice([one for one in range(clients) if free_at[one] <= now] or [-1])
        if client < 0:
            continue
        invoked, returned = max(free_at[client], now - dice.randrange(30)), now + dice.randrange(1, 60)
        free_at[client] = returned + 1
        value = None if dice.random() < 0.1 else str(step)
        possible: list[Action] = [Read(state), Write(value), CompareAndSet(state, value)]
        action = dice.choice(possible)
        lost = dice.random() < 0.02
        if not isinstance(action, Read) and not (lost and dice.random() < 0.5):
            state = value
        calls.append(call(action, invoked, returned, UNKNOWN if lost else OK))
    return calls


@pytest.mark.parametrize("seed", range(5))
def test_a_long_history_is_judged_and_one_stale_read_in_it_is_found(seed: int) -> None:
    calls = atomic_history(random.Random(seed), clients=6, steps=1_500)
    assert len(calls) > 1_000 and register_fault(calls) is None
    reads = [
        n for n, one in enumerate(calls) if one.outcome is OK and isinstance(one.action, Read) and one.action.value
    ]
    stale, late = calls[reads[len(reads) // 2]], reads[len(reads) * 3 // 4]
    calls[late] = replace(calls[late], action=stale.action)
    fault = register_fault(calls)
    assert fault is not None and str(calls[late]) in fault
