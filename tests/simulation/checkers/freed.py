"""What a policy frees is gone, once nobody writes any more and its time is over."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import History


def check(history: History) -> Iterable[str]:
    yield from history.not_freed
