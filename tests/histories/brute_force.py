"""Every order of a tiny history, to judge the judges by."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.histories.calls import Call, Outcome


def orders(calls: Sequence[Call]) -> Iterator[list[Call]]:
    """Every order that respects time, of all calls that are ok and of any of the unknown."""
    possible = [number for number, call in enumerate(calls) if call.outcome is not Outcome.FAILED]

    def extend(done: list[int]) -> Iterator[list[Call]]:
        left = [number for number in possible if number not in done]
        if not any(calls[number].outcome is Outcome.OK for number in left):
            yield [calls[number] for number in done]
        for number in left:
            if not any(calls[other].precedes(calls[number]) for other in left):
                yield from extend([*done, number])

    return extend([])
