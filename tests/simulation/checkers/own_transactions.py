"""Whoever begins a transaction is answered with its own, never with one that somebody else began: not even when ids are
given out again, as by a store that was restored from a backup."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import History


def check(history: History) -> Iterable[str]:
    for begun in history.answered_begins:
        if begun.by != begun.asked:
            yield f"{begun.asked} was answered with {begun.txn_id}, which {begun.by} began"
