"""The store is bounded: of what was aborted long ago it remembers little, however much that was, and nothing of
segments of which nothing is needed any more, of deleted topics and of dropped subscriptions."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import History


def check(history: History) -> Iterable[str]:
    for segment, count in history.outcomes.items():
        if count >= history.few_outcomes:
            yield f"{count} outcomes are left of {segment}, and it was idle"
    for segment in history.bare:
        yield f"{segment} is left, although nothing is left in it and nothing needs it"
    for key in history.tombstones:
        yield f"{key} is left, although it was deleted long ago"
