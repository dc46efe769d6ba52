"""Is there an order of the calls that respects time, and in which every answer is true?

The search of Wing and Gong ("Testing and Verifying Concurrent Objects", 1993) with the memory of Lowe ("Testing for
Linearizability", 2017). A *configuration* is the set of calls that have been put in order, and the state they leave.
From each one the search goes on with every call that no remaining call precedes; a configuration that was reached
before is not searched again. Calls that failed are not in the order at all; unknown ones may be, from their
invocation to the end of time, but need not. Because they need not, two more kinds of configurations are left out:

- one that differs from another only in more unknown calls that have been put in order: what follows it follows the
  other, too;
- one with an unknown call in order and not the same call that was made earlier: that could stand in its place.

Linearizability is local: a history of many objects is linearizable if the history of each one is. So give it the
calls of one object at a time, or the search becomes hopeless.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from tests.histories.calls import Call, Outcome

MAX_CONFIGURATIONS = 1_000_000
SHOWN_CALLS = 30

State = TypeVar("State", bound=Hashable)


class Model(Protocol[State]):
    """What one object does when it is alone. Pure."""

    @property
    def initial(self) -> State: ...

    def step(self, state: State, action: Any) -> Sequence[State]:
        """The states that `action`, with what it answered, may leave behind; none if it cannot have happened here."""
        ...

    def observes(self, action: Any) -> bool:
        """It never changes any state, so it may be put in order as soon as it is true: no need to try later places."""
        ...


class Undecided(Exception):
    """The search was given up: too many configurations."""


@dataclass(frozen=True, slots=True)
class _Configuration(Generic[State]):
    """Ordered are the first `low` required calls, those whose bit in `ahead` is set (bit 0 is the call `low`), and
    the optional calls whose bit in `taken` is set."""

    low: int
    ahead: int
    taken: int
    state: State

    @property
    def depth(self) -> int:
        return self.low + self.ahead.bit_count()

    def with_required(self, number: int, state: State) -> _Configuration[State]:
        low, ahead = self.low, self.ahead | 1 << (number - self.low)
        while ahead & 1:
            low, ahead = low + 1, ahead >> 1
        return _Configuration(low, ahead, self.taken, state)

    def with_optional(self, number: int, state: State) -> _Configuration[State]:
        return _Configuration(self.low, self.ahead, self.taken | 1 << number, state)


class _Search(Generic[State]):
    def __init__(self, calls: Iterable[Call], model: Model[State]) -> None:
        ordered = sorted(calls, key=lambda call: call.invoked)
        self._required = [call for call in ordered if call.outcome is Outcome.OK]
        self._optional = [call for call in ordered if call.outcome is Outcome.UNKNOWN]
        self._like = [
            next((n for n in reversed(range(number)) if self._optional[n].action == call.action), None)
            for number, call in enumerate(self._optional)
        ]
        """The latest of the same optional calls before each one, by their numbers."""
        self._model = model
        self._reached: dict[Hashable, list[int]] = defaultdict(list)
        self._count = 0
        self.deepest: _Configuration[State] = _Configuration(0, 0, 0, model.initial)

    def succeeds(self, max_configurations: int) -> bool:
        """Depth first. `deepest` is a configuration with the most required calls in order. Raises `Undecided`."""
        stack = [self.deepest]
        while stack:
            configuration = stack.pop()
            if configuration.depth > self.deepest.depth:
                self.deepest = configuration
            if configuration.low == len(self._required):
                return True
            stack += filter(self._is_new, self._following(configuration))
            if self._count > max_configurations:
                raise Undecided(f"{self._count} configurations of {len(self._required)} calls")
        return False

    def _is_new(self, configuration: _Configuration[State]) -> bool:
        """No configuration was reached from which at least the same can follow."""
        taken = self._reached[configuration.low, configuration.ahead, configuration.state]
        if any(less & configuration.taken == less for less in taken):
            return False
        taken.append(configuration.taken)
        self._count += 1
        return True

    def _following(self, configuration: _Configuration[State]) -> list[_Configuration[State]]:
        """Where to go from here, the likeliest last: the call that returned first, before any unknown one."""
        candidates, horizon = self.candidates(configuration)
        state = configuration.state
        for number in candidates:
            action = self._required[number].action
            if self._model.observes(action) and self._model.step(state, action):
                return [configuration.with_required(number, state)]
        following = [
            configuration.with_optional(number, left)
            for number, call in enumerate(self._optional)
            if call.invoked <= horizon and self._may_be_next(number, configuration)
            for left in self._model.step(state, call.action)
        ]
        for number in sorted(candidates, key=lambda number: self._required[number].returned, reverse=True):
            left_behind = self._model.step(state, self._required[number].action)
            following += [configuration.with_required(number, left) for left in left_behind]
        return following

    def _may_be_next(self, number: int, configuration: _Configuration[State]) -> bool:
        like = self._like[number]
        return not configuration.taken >> number & 1 and (like is None or bool(configuration.taken >> like & 1))

    def candidates(self, configuration: _Configuration[State]) -> tuple[list[int], float]:
        """The required calls that may be next, and the time at which one of them must have been."""
        found: list[int] = []
        horizon = math.inf
        for number in range(configuration.low, len(self._required)):
            call = self._required[number]
            if call.invoked > horizon:
                break
            if not configuration.ahead >> (number - configuration.low) & 1:
                found.append(number)
                horizon = min(horizon, call.returned)
        return found, horizon

    def evidence(self) -> str:
        """The calls around the place where no order goes on."""
        candidates, horizon = self.candidates(self.deepest)
        stuck = [self._required[number] for number in candidates]
        others = [call for call in (*self._required, *self._optional) if call.invoked <= horizon and call not in stuck]
        shown = sorted(others, key=lambda call: call.invoked)[-SHOWN_CALLS:]
        return "\n".join(
            [
                f"no order explains them; the longest one ends with {self.deepest.state!r}, and next must be one of",
                *(f"    {call}" for call in stuck),
                f"the last of {len(others)} calls made before (invoked, returned, client, outcome):",
                *(f"    {call}" for call in shown),
            ]
        )


def not_linearizable(
    calls: Iterable[Call], model: Model[State], max_configurations: int = MAX_CONFIGURATIONS
) -> str | None:
    """None if some order explains the calls of one object; otherwise the evidence, for people. Raises `Undecided`."""
    search = _Search(calls, model)
    return None if search.succeeds(max_configurations) else search.evidence()
