"""Cumulative acknowledgements count exactly when the marks that were written with them do: everything up to the highest
one is acknowledged, and no entry behind it."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import History


def check(history: History) -> Iterable[str]:
    if history.marks is None:
        return
    highest: dict[str, tuple[int, int]] = {}
    for mark in history.visible_in(history.marks):
        segment, _, place = mark.key.rpartition(" ")
        ledger, _, entry = place.partition(":")
        position = (int(ledger), int(entry))
        highest[segment] = max(position, highest.get(segment, position))
    for segment, reached in history.mark_deletes.items():
        marked = highest.get(segment, (0, -1))
        if reached < marked:
            yield f"{segment} is acknowledged up to {reached}, and marked up to {marked}"
        for read in history.final_reads_committed():
            for seen in read.frames if read.segment == segment else ():
                if marked < seen.position <= reached:
                    yield f"{seen} is acknowledged, and marked is what stands up to {marked}"
