"""Horizons never go back: not how far readers of a segment may go, not up to where decisions may have been collected.

A broker that was frozen may tell what was so before another one took the segment: so what one broker tells is compared
with what the same one told before. And no header goes whose decision lies above the horizon of collected ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from tests.simulation.history import History, HorizonSeen


def check(history: History) -> Iterable[str]:
    told: dict[tuple[str, str], list[HorizonSeen]] = {}
    for seen in history.horizons:
        told.setdefault((seen.segment, seen.server), []).append(seen)
    for horizons in told.values():
        for later in horizons:
            for earlier in horizons:
                if earlier.answered < later.asked and later.max_read_position < earlier.max_read_position:
                    yield f"{later} was told behind {earlier}"
    for before, after in pairwise(history.gc_horizons):
        if after < before:
            yield f"the horizon of collected decisions went back from {before} to {after}"
    for txn_id, (revision, horizon) in history.collected.items():
        decision = history.decisions.get(txn_id)
        if decision is not None and decision.revision > horizon:
            yield f"the header of {txn_id} went at {revision}, decided at {decision.revision}, the horizon at {horizon}"
