"""A client tries again elsewhere what a service could not carry out, if it knows another one."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import History


def check(history: History) -> Iterable[str]:
    for client in history.stays:
        yield from client.found
