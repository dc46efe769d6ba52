"""No number is given out twice under one name, although its record was forgotten: neither a segment's id, nor an
incarnation of a subscription, nor an epoch of a transaction key or of an exclusive producer."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from metastore.txn import paths
from tests.simulation.history import History


def check(history: History) -> Iterable[str]:
    for key, numbers in history.counted.items():
        for (_, before), (revision, number) in pairwise(numbers):
            if number <= before:
                yield f"{key} was given {number} at revision {revision}, after {before}"
    for key, states in history.states.items():
        lives = [state for _, state in states]
        if key.startswith(paths.SEGMENTS) and None in lives and any(lives[lives.index(None) :]):
            yield f"{key} began again"
