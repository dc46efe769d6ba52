"""Nothing is left: no record of a transaction in the store, nothing of it in the memory of a service."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import History


def check(history: History) -> Iterable[str]:
    for where, what in history.left.items():
        yield f"{where}: {what}"
