"""Goal: every anomaly of transactions over lists is found, and no history that has an order is refused.

Method: each known anomaly as a history of a few transactions; then random tiny histories, true ones and ones with a
lie in them, against every order there is; and a long one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.histories.appends import List, Transaction, append_fault
from tests.histories.brute_force import orders
from tests.histories.calls import Call, Outcome

OK, FAILED, UNKNOWN = Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN


def call(
    invoked: int, returned: int, reads: dict[str, str], appends: dict[str, str] | None = None, outcome: Outcome = OK
) -> Call:
    """A list is written as a word, each letter an element."""
    lists = {key: tuple(word) for key, word in reads.items()}
    return Call(f"client {invoked}", Transaction(lists, appends or {}), outcome, invoked, returned)


SERIALIZABLE = {
    "nothing at all": [],
    "one after the other": [
        call(1, 2, {"x": ""}, {"x": "a"}),
        call(3, 4, {"x": "a"}, {"x": "b"}),
        call(5, 6, {"x": "ab"}),
    ],
    "both keys at once": [
        call(1, 9, {"x": "", "y": ""}, {"x": "a", "y": "b"}),
        call(2, 3, {"x": "", "y": ""}),
        call(4, 5, {"x": "a", "y": "b"}),
    ],
    "who checks what the other writes, in an order": [
        call(1, 9, {"x": "", "y": ""}, {"x": "a"}),
        call(1, 9, {"x": "a", "y": ""}, {"y": "b"}),
    ],
    "unknown took effect late": [
        call(1, 2, {"x": ""}, {"x": "a"}, UNKNOWN),
        call(3, 4, {"x": ""}),
        call(5, 6, {"x": "a"}),
    ],
    "unknown never took effect": [call(1, 2, {"x": ""}, {"x": "a"}, UNKNOWN), call(3, 4, {"x": ""}, {"x": "b"})],
    "an unknown one shows that another has happened": [
        call(1, 2, {"x": ""}, {"x": "a"}, UNKNOWN),
        call(3, 4, {"x": "a", "y": ""}, {"y": "b"}, UNKNOWN),
        call(5, 6, {"y": "b"}),
    ],
    "a definite failure": [call(1, 2, {"x": ""}, {"x": "a"}, FAILED), call(3, 4, {"x": ""})],
}
ANOMALIES = {
    "stale read": ([call(1, 2, {"x": ""}, {"x": "a"}), call(3, 4, {"x": ""})], "rw x a"),
    "lost append": (
        [call(1, 2, {"x": ""}, {"x": "a"}), call(3, 4, {"x": ""}, {"x": "b"}), call(5, 6, {"x": "b"})],
        "an append is lost",
    ),
    "lost update": ([call(1, 9, {"x": ""}, {"x": "a"}), call(1, 9, {"x": ""}, {"x": "b"})], "an append is lost"),
    "write skew": (
        [call(1, 9, {"x": "", "y": ""}, {"x": "a"}), call(1, 9, {"x": "", "y": ""}, {"y": "b"})],
        "rw y b",
    ),
    "write skew seen by nobody, in an unknown one": (
        [
            call(1, 9, {"x": "", "y": ""}, {"x": "a"}),
            call(1, 9, {"x": "", "y": ""}, {"y": "b"}, UNKNOWN),
            call(10, 11, {"y": "b"}),
        ],
        "rw x a",
    ),
    "half an apply": (
        [call(1, 9, {"x": "", "y": ""}, {"x": "a", "y": "b"}), call(2, 8, {"x": "a", "y": ""})],
        "wr x a",
    ),
    "two readers disagree about the order": (
        [
            call(1, 9, {"x": ""}, {"x": "a"}),
            call(1, 9, {"y": ""}, {"y": "b"}),
            call(2, 8, {"x": "a", "y": ""}),
            call(2, 8, {"x": "", "y": "b"}),
        ],
        "rw",
    ),
    "back in time": (
        [call(1, 9, {"x": ""}, {"x": "a"}), call(2, 3, {"x": "a"}), call(4, 5, {"x": ""})],
        "time",
    ),
    "the effect of a definite failure is seen": (
        [call(1, 2, {"x": ""}, {"x": "a"}, FAILED), call(3, 4, {"x": "a"})],
        "certainly was not appended",
    ),
    "the unknown depends on what is not there": (
        [
            call(1, 2, {"x": "", "y": ""}, {"y": "b"}, UNKNOWN),
            call(3, 4, {"x": ""}, {"x": "a"}),
            call(5, 6, {"y": ""}),
            call(7, 8, {"y": "b"}),
        ],
        "rw x a",
    ),
    "appended twice": ([call(1, 2, {"x": ""}, {"x": "a"}), call(3, 4, {"x": "aa"})], "twice"),
    "out of the air": ([call(1, 2, {"x": "z"})], "nobody"),
}


@pytest.mark.parametrize("calls", SERIALIZABLE.values(), ids=SERIALIZABLE)
def test_an_order_is_found(calls: list[Call]) -> None:
    assert append_fault(calls) is None


@pytest.mark.parametrize(("calls", "told"), ANOMALIES.values(), ids=ANOMALIES)
def test_the_anomaly_is_named(calls: list[Call], told: str) -> None:
    fault = append_fault(calls)
    assert fault is not None and told in fault


def test_the_shortest_cycle_is_shown() -> None:
    """Many transactions are on long cycles with the stale read; the append that it missed is enough to blame it."""
    calls = [call(10 * n, 10 * n + 1, {"x": "abcdefgh"[:n]}, {"x": "abcdefgh"[n]}) for n in range(8)]
    calls.append(call(90, 91, {"x": "abcdefg"}))
    fault = append_fault(calls)
    assert fault is not None and fault.count("client") == 2


def test_an_append_without_a_read_is_an_error_of_the_test() -> None:
    with pytest.raises(AssertionError, match="must have read it"):
        append_fault([call(1, 2, {}, {"x": "a"})])


def atomic_history(dice: random.Random, steps: int, keys: str) -> list[Call]:
    """What clients of one atomic place see; some answers are lost, with and without the effect."""
    state: dict[str, List] = dict.fromkeys(keys, ())
    calls = []
    for step in range(steps):
        now = 10 * step
        reads = {key: state[key] for key in dice.sample(keys, dice.randrange(1, len(keys) + 1))}
        appends = dict.fromkeys(dice.sample(sorted(reads), dice.randrange(len(reads) + 1)), f"e{step}")
        outcome = dice.choice([OK] * 8 + [UNKNOWN, FAILED])
        if outcome is OK or (outcome is UNKNOWN and dice.random() < 0.5):
            state |= {key: (*reads[key], element) for key, element in appends.items()}
        invoked, returned = now - dice.randrange(30), now + dice.randrange(1, 30)
        calls.append(Call(f"client {step}", Transaction(reads, appends), outcome, invoked, returned))
    return calls


def with_a_lie(calls: list[Call], dice: random.Random) -> list[Call]:
    """One list is cut, or one failure was none, or one call is said to have been elsewhere in time."""
    number = dice.randrange(len(calls))
    told = calls[number]
    shift = dice.randrange(-20, 20)
    key = dice.choice(sorted(told.action.reads))
    reads = told.action.reads | {key: told.action.reads[key][:-1]}
    lie = dice.choice(
        [
            replace(told, invoked=told.invoked + shift, returned=told.returned + shift),
            replace(told, outcome=OK),
            replace(told, outcome=FAILED),
            replace(told, action=Transaction(reads, told.action.appends)),
        ]
    )
    return [*calls[:number], lie, *calls[number + 1 :]]


def explains(order: Sequence[Call]) -> bool:
    state: dict[str, List] = {}
    for one in order:
        transaction: Transaction = one.action
        if any(state.get(key, ()) != seen for key, seen in transaction.reads.items()):
            return False
        state |= transaction.lists()
    return True


@pytest.mark.parametrize("seed", range(5))
def test_the_verdict_is_that_of_trying_every_order(seed: int) -> None:
    dice = random.Random(seed)
    verdicts = []
    for _ in range(200):
        calls = atomic_history(dice, dice.randrange(1, 6), "xy")
        assert append_fault(calls) is None
        lied = with_a_lie(calls, dice)
        verdicts.append(append_fault(lied) is None)
        assert verdicts[-1] == any(explains(order) for order in orders(lied)), lied
    assert len(set(verdicts)) == 2, "some lies must show, and some must not"


def test_a_long_history_is_judged_and_one_stale_read_in_it_is_found() -> None:
    calls = atomic_history(random.Random(1), 1_500, "uvwxyz")
    assert append_fault(calls) is None
    late = next(n for n in range(1_200, 1_500) if calls[n].outcome is OK and not calls[n].action.appends)
    stale = {key: seen[:-20] for key, seen in calls[late].action.reads.items()}
    calls[late] = replace(calls[late], action=Transaction(stale))
    fault = append_fault(calls)
    assert fault is not None and fault.count("client") < 6
