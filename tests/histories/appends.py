"""Transactions over lists: is there one order of them that respects time, and in which every answer is true?

A transaction reads the lists of several keys and appends one element each to some of them, all at one moment. Every
element is appended once to one key, and who appends to a list has read it. So each list that was ever seen tells its
own history, and nothing needs to be guessed (Kingsbury and Alvaro, "Elle", 2020): version `n` of a key is its first `n`
elements, and the one who appended element `n` made version `n` out of version `n - 1`. The transactions that must be
before others form a graph:

    ww   made the version before        time   had been answered before the other was begun
    wr   made the version it read       rw     read the version that the other replaced

A cycle is a proof that no order exists; without one, any order along the edges is one. A stale read, a lost update, a
write skew and half an apply are all cycles. What no order could mend is found first: lists that contradict each
other, elements that nobody appended, appended twice, or whose transaction certainly failed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from tests.histories.calls import Call, Outcome

List = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Transaction:
    """Saw each list of `reads`, and appended an element to each key of `appends`, which it read too."""

    reads: dict[str, List]
    appends: dict[str, str] = field(default_factory=dict)

    def lists(self) -> dict[str, List]:
        """Every list that there was, if this took effect: what it read and what it made of it."""
        return {key: seen + ((self.appends[key],) if key in self.appends else ()) for key, seen in self.reads.items()}


def append_fault(calls: Iterable[Call]) -> str | None:
    """Why transactions on lists are not strictly serializable, or None."""
    every = list(calls)
    for call in every:
        assert call.action.appends.keys() <= call.action.reads.keys(), "who appends to a list must have read it"
    appended = _appenders(every)
    effective = _effective(every)
    return (
        _foreign_elements(effective, appended) or _contradictions(effective) or _Order(effective, appended).violation()
    )


def _appenders(calls: Sequence[Call]) -> dict[tuple[str, str], Call]:
    appended: dict[tuple[str, str], Call] = {}
    for call in calls:
        for key, element in call.action.appends.items():
            assert (key, element) not in appended, f"{element} is appended to {key} by two calls"
            appended[key, element] = call
    return appended


def _effective(calls: Sequence[Call]) -> list[Call]:
    """What has happened: all that is ok, and what is unknown but was seen by someone of whom the same holds.

    What is unknown and was not seen may just as well never have happened.
    """
    effective = [call for call in calls if call.outcome is Outcome.OK]
    unknown = [call for call in calls if call.outcome is Outcome.UNKNOWN]
    while True:
        seen = {(key, element) for call in effective for key, read in call.action.reads.items() for element in read}
        found = [call for call in unknown if any(append in seen for append in call.action.appends.items())]
        if not found:
            return effective
        effective += found
        unknown = [call for call in unknown if call not in found]


def _foreign_elements(calls: Sequence[Call], appended: dict[tuple[str, str], Call]) -> str | None:
    for call in calls:
        for key, read in call.action.reads.items():
            if len(set(read)) < len(read):
                return f"an element of {key} is there twice:\n    {call}"
            for element in read:
                source = appended.get((key, element))
                if source is None:
                    return f"nobody has appended {element} to {key}:\n    {call}"
                if source.outcome is Outcome.FAILED:
                    return f"{element} of {key} certainly was not appended, but is seen:\n    {source}\n    {call}"
    return None


def _contradictions(calls: Sequence[Call]) -> str | None:
    """All that was seen of a key must be the beginning of the longest list of it."""
    for key, seen in _seen(calls).items():
        longest, witness = max(seen, key=lambda one: len(one[0]))
        for made, call in seen:
            if longest[: len(made)] != made:
                return f"two lists of {key} contradict each other, an append is lost:\n    {call}\n    {witness}"
    return None


def _seen(calls: Iterable[Call]) -> dict[str, list[tuple[List, Call]]]:
    seen: defaultdict[str, list[tuple[List, Call]]] = defaultdict(list)
    for call in calls:
        for key, made in call.action.lists().items():
            seen[key].append((made, call))
    return seen


class _Order:
    """The graph. Nodes are the numbers of transactions, and behind them, in order, the moments of their answers."""

    def __init__(self, calls: Sequence[Call], appended: dict[tuple[str, str], Call]) -> None:
        self._calls = calls
        self._numbers = {id(call): number for number, call in enumerate(calls)}
        self._after: defaultdict[int, dict[int, str]] = defaultdict(dict)
        self._longest = {key: max((made for made, _ in seen), key=len) for key, seen in _seen(calls).items()}
        self._add_versions(appended)
        self._add_time()

    def _add_versions(self, appended: dict[tuple[str, str], Call]) -> None:
        makers = {
            key: [self._numbers[id(appended[key, element])] for element in longest]
            for key, longest in self._longest.items()
        }
        for number, call in enumerate(self._calls):
            for key, read in call.action.reads.items():
                if read:
                    kind = "ww" if key in call.action.appends else "wr"
                    self._add(makers[key][len(read) - 1], number, f"{kind} {key} {read[-1]}")
                if len(read) < len(makers[key]):
                    replaced = makers[key][len(read)]
                    self._add(number, replaced, f"rw {key} {self._longest[key][len(read)]}")

    def _add_time(self) -> None:
        """One node for each answer, in a chain: far fewer edges than one for each pair of calls."""
        answered = sorted(
            (call.returned, number) for number, call in enumerate(self._calls) if call.outcome is Outcome.OK
        )
        moments = [moment for moment, _ in answered]
        first = len(self._calls)
        for place, (_, number) in enumerate(answered):
            self._add(number, first + place, "time")
            if place:
                self._add(first + place - 1, first + place, "time")
        for number, call in enumerate(self._calls):
            before = bisect_left(moments, call.invoked)
            if before:
                self._add(first + before - 1, number, "time")

    def _add(self, before: int, after: int, why: str) -> None:
        if before != after:
            self._after[before].setdefault(after, why)

    def violation(self) -> str | None:
        """A cycle of few transactions, of those that meet the first one found, in words."""
        before: dict[int, list[int]] = {}
        for node, following in self._after.items():
            for other in following:
                before.setdefault(other, []).append(node)
        try:
            TopologicalSorter(before).prepare()
        except CycleError as error:
            nodes: list[int] = error.args[1]
            cycles = [self._cycle_through(node) for node in nodes if node < len(self._calls)]
            return self._describe(min(cycles, key=lambda cycle: sum(node < len(self._calls) for node in cycle)))
        return None

    def _cycle_through(self, start: int) -> list[int]:
        """Breadth first from `start`, which is on a cycle, back to it. Only transactions count as steps."""
        came_from: dict[int, int] = {}
        queue = deque([start])
        while start not in came_from:
            node = queue.popleft()
            for following in self._after[node]:
                if following not in came_from:
                    came_from[following] = node
                    (queue.append if following < len(self._calls) else queue.appendleft)(following)
        cycle = [came_from[start]]
        while cycle[-1] != start:
            cycle.append(came_from[cycle[-1]])
        return cycle[::-1]

    def _describe(self, cycle: Sequence[int]) -> str:
        lines = ["no order is possible: each of these must be before the next one, and the last before the first"]
        for node, following in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            if node < len(self._calls):
                lines += [f"    {self._calls[node]}", f"        {self._after[node][following]}"]
        return "\n".join(lines)
