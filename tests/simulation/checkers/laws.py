"""One decision per header, and what else the store's records must never do, heard as it happened."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import History


def check(history: History) -> Iterable[str]:
    yield from history.broken
