"""Refused only for what was so: an acknowledgement loses against a transaction only while that may still commit. And
refused in a transaction when nobody was given the message."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import History


def check(history: History) -> Iterable[str]:
    for taken in history.given_to_nobody:
        yield f"{taken} was taken, and nobody was given the message"
    for refused in history.refused_acks:
        decision = history.decisions.get(refused.holder)
        if decision is None or decision.committed or decision.revision > refused.floor:
            continue
        collected = history.collected.get(refused.holder)
        if collected is None or collected[0] > refused.at_revision:
            yield f"{refused}, and its holder was aborted at {decision.revision}"
