"""A message that has a delivery time is not delivered before it, by the clock that is furthest ahead."""

from __future__ import annotations

from collections.abc import Iterable

from metatxn.wire.names import MessageId
from tests.simulation.history import History


def check(history: History) -> Iterable[str]:
    if not history.due_s:
        return
    ids = {
        (seen.segment, seen.position, seen.index): seen.id
        for topic, _ in history.pipes
        for seen in history.visible_in(topic)
    }
    for delivered in history.delivered:
        latest_s = delivered.answered + history.clocks_differ_s
        for each in map(MessageId.parse, delivered.keys):
            place = (each.segment, (each.position.ledger, each.position.entry), each.index)
            due_s = history.due_s.get(ids[place], 0) if place in ids else 0
            if latest_s < due_s:
                yield f"{delivered} has {each}, which is to be delivered at {due_s:.3f}"
