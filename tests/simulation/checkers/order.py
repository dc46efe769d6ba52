"""Each writer's entries on a segment come in the order in which it sent those it had waited for."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import History


def check(history: History) -> Iterable[str]:
    for read in history.committed_reads():
        positions = [seen.position for seen in read.frames]
        if positions != sorted(positions):
            yield f"{read.client} read {read.segment} out of order: {positions}"
        if any(not read.after < position <= read.next for position in positions):
            yield f"{read.client} read {read.segment} from {read.after} to {read.next} and got {positions}"
