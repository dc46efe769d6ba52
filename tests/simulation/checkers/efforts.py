"""No request tries forever, no matter who is in its way: what it asks of the store is bounded."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.efforts import MOST_OVERTAKEN, MOST_WRITES
from tests.simulation.history import History


def check(history: History) -> Iterable[str]:
    for effort in history.efforts:
        if effort.writes > MOST_WRITES and "//coordinator-" in effort.request:
            yield f"{effort.request} was {effort.writes} writes"
        if effort.overtaken > MOST_OVERTAKEN:
            yield f"{effort.request} was overtaken {effort.overtaken} times"
