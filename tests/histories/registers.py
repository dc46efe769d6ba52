"""A register: one value, or none, that is read, written, and compared and set.

Every value is written by one call only, so a value stands for the version it was written at: a compare-and-set that
took effect at a version, took effect at a value. Removing the record writes None, as often as one likes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.histories.calls import Call, Outcome
from tests.histories.linearizable import not_linearizable

Value = str | None


@dataclass(frozen=True, slots=True)
class Read:
    """Saw `value`. A compare-and-set that lost is one too."""

    value: Value


@dataclass(frozen=True, slots=True)
class Write:
    value: Value


@dataclass(frozen=True, slots=True)
class CompareAndSet:
    """Found `expected`, and wrote `value`."""

    expected: Value
    value: Value


Action = Read | Write | CompareAndSet


class Register:
    """The model; none at first."""

    initial: Value = None

    def step(self, state: Value, action: Action) -> Sequence[Value]:
        match action:
            case Read(value):
                return (state,) if state == value else ()
            case Write(value):
                return (value,)
            case CompareAndSet(expected, value):
                return (value,) if state == expected else ()

    def observes(self, action: Action) -> bool:
        return isinstance(action, Read)


def register_fault(calls: Iterable[Call]) -> str | None:
    """Why the calls of one register are not linearizable, or None. Raises `Undecided`."""
    relevant = list(calls)
    _assert_unique([call.action for call in relevant])
    return not_linearizable(_without_the_unseen(relevant), Register())


def _assert_unique(actions: Iterable[Action]) -> None:
    written = [action.value for action in actions if not isinstance(action, Read) and action.value is not None]
    assert len(written) == len(set(written)), "a value is written by two calls"


def _without_the_unseen(calls: Sequence[Call]) -> list[Call]:
    """Leave out unknown calls that need not have happened: reads, and writes of a value that nobody ever met.

    For speed, and exact: in an order with such a write nothing observes the state between it and the next write.
    """
    met = {action.value for call in calls if call.outcome is Outcome.OK for action in [call.action]}
    met |= {call.action.expected for call in calls if isinstance(call.action, CompareAndSet)}
    return [
        call
        for call in calls
        if call.outcome is not Outcome.UNKNOWN
        or (not isinstance(call.action, Read) and (call.action.value is None or call.action.value in met))
    ]
