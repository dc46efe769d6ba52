"""Who follows a topic from page to page sees everything once, in order, however the segments come and go; or is told
that it has missed something."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from tests.simulation.history import Browsed, History, Outcome, Write


def check(history: History) -> Iterable[str]:
    writes = {write.id: write for write in history.writes}
    for name, browsed in history.browsed.items():
        topic, seen = browsed.topic, browsed.seen
        again = sorted(entry for entry, times in Counter(seen).items() if times > 1)
        if again:
            yield f"{name} has seen {again[:9]} of {topic} more than once"
        missed = sorted({*_to_be_seen(history, browsed)} - set(seen))
        if missed:
            yield f"{name} has not seen {missed[:9]} of {topic}, and was not told so"
        yield from _overtaken(name, [writes[entry] for entry in seen if entry in writes])


def _to_be_seen(history: History, browsed: Browsed) -> Iterator[str]:
    """What is there in the end, and what was written outside of transactions since the reader has begun, whether or not
    it was trimmed before the reader came there."""
    yield from (each.id for each in history.visible_in(browsed.topic))
    for write in history.writes:
        of_topic = write.topic == browsed.topic and write.txn_id is None and write.outcome is Outcome.OK
        if of_topic and write.begun > browsed.since:
            yield write.id


def _overtaken(name: str, seen: Iterable[Write]) -> Iterable[str]:
    latest: dict[str, Write] = {}
    for write in seen:
        before = latest.get(write.key)
        if before is not None and write.ended is not None and write.ended < before.begun:
            yield f"{name} has seen {write} behind {before}, which was sent later"
        if before is None or write.begun > before.begun:
            latest[write.key] = write
