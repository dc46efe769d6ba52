"""What is held is kept: while a reader holds a topic, no policy drops anything of it, and it is not compacted; a
snapshot at the held revision is not refused, and shows the same each time, and no transaction that was decided
later."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.checkers.refusals import topic_of
from tests.simulation.history import HeldRead, History, Seen

_TAKEN_AWAY = ("POSITION_TRIMMED", "INVALID_ARGUMENT", "NOT_FOUND")


def check(history: History) -> Iterable[str]:
    for dropped in history.dropped:
        if (key := history.was_held(topic_of(dropped.segment), dropped.revision)) is not None:
            yield f"{dropped}, under {key}"
    for revision, segment in history.compactions:
        if (key := history.was_held(topic_of(segment), revision)) is not None:
            yield f"{segment} was compacted at {revision}, under {key}"
    for held in history.held_reads:
        yield from _of_reader(history, held)


def _of_reader(history: History, held: HeldRead) -> Iterable[str]:
    kept = _is_kept(history, held)
    if held.refused in _TAKEN_AWAY and kept:
        yield f"{held.key} holds {held.revision}, and a read was refused with {held.refused} at {held.ended}"
    for seen in (each for read in held.reads for each in read if each.txn_id is not None):
        decision = history.decisions.get(seen.txn_id or "")
        if decision is None or decision.revision > held.revision or not decision.counts(seen.writer):
            yield f"{held.key} read {seen} at {held.revision}, and it was decided as {decision}"
    if len(held.reads) == 2 and kept:
        first, second = ({seen.id for seen in _inside(read)} for read in held.reads)
        if first != second:
            yield f"{held.key} has read {sorted(first ^ second)} only once at {held.revision}"


def _is_kept(history: History, held: HeldRead) -> bool:
    """Whether the hold has been there all the time. One that has ended may come again, with a later revision: by a
    request to take it that was under way for long."""
    changes = history.states.get(held.key, ())
    has_ended = any(held.revision < revision <= held.ended for revision, state in changes if state is None)
    return not has_ended and history.was(held.key, {"there"}, held.ended, held.ended)


def _inside(read: list[Seen]) -> list[Seen]:
    """What is outside of transactions has no revision, and may follow."""
    return [seen for seen in read if seen.txn_id is not None]
