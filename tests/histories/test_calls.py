"""Goal: what a process wrote down before it died is read back as what its clients knew.

Method: recorders with a clock of the test write lines; the lines of several are mixed.
"""

from __future__ import annotations

import itertools

import pytest

from tests.histories.calls import Call, Outcome, Recorder, read_calls


def test_calls_come_back_in_the_order_in_which_they_were_made() -> None:
    lines: list[bytes] = []
    clock = itertools.count(1).__next__
    one, two = Recorder(lines.append, "one", clock), Recorder(lines.append, "two", clock)
    first = one.invoke("a", {"read": "x"})
    second = two.invoke("b", {"read": "y"})
    two.answer(second, "b", Outcome.FAILED, "not reached")
    one.answer(first, "a", Outcome.OK, ["1", None])
    assert read_calls(lines) == [
        Call("a", {"read": "x"}, Outcome.OK, 1, 4, ["1", None]),
        Call("b", {"read": "y"}, Outcome.FAILED, 2, 3, "not reached"),
    ]


def test_a_call_that_was_never_answered_is_unknown_and_may_still_happen() -> None:
    lines: list[bytes] = []
    recorder = Recorder(lines.append, "one", itertools.count(1).__next__)
    recorder.invoke("a", "write")
    later = recorder.invoke("b", "read")
    recorder.answer(later, "b", Outcome.OK)
    dead, read = read_calls(lines)
    assert dead.outcome is Outcome.UNKNOWN and not dead.precedes(read)
    after = Call("c", "read", Outcome.OK, read.returned + 1, read.returned + 2)
    assert read.precedes(after) and not dead.precedes(after)


def test_a_name_is_used_once() -> None:
    lines: list[bytes] = []
    for _ in range(2):
        Recorder(lines.append, "same", itertools.count(1).__next__).invoke("a", "write")
    with pytest.raises(AssertionError, match="made twice"):
        read_calls(lines)
