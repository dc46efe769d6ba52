"""The messages of a key come in the order in which they were sent by those who waited for the answer before.

Inside a transaction, and outside of one, a producer need not wait: those that it sent one after another come so too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

from tests.histories.messages.history import History, Write


def broken(history: History) -> Iterable[str]:
    for topic, messages in history.final.items():
        by_key: dict[str, list[Write]] = defaultdict(list)
        for key, message in messages:
            if message in history.writes:
                by_key[key].append(history.writes[message])
        for key, writes in by_key.items():
            yield from _out_of_time(topic, key, writes)
            yield from _out_of_turn(topic, key, writes)


def _out_of_time(topic: str, key: str, writes: list[Write]) -> Iterable[str]:
    """A write that was over before an earlier one in the list was even begun. One pass from behind: of all that come
    later, the first to be answered tells."""
    soonest: Write | None = None
    for write in reversed([write for write in writes if write.acknowledged]):
        if soonest is not None and soonest.call.precedes(write.call):
            yield f"in {topic}, key {key}, {soonest.id} comes behind {write.id}: {soonest.call}, then {write.call}"
        if soonest is None or write.call.returned < soonest.call.returned:
            soonest = write


def _out_of_turn(topic: str, key: str, writes: list[Write]) -> Iterable[str]:
    """Of one client and one transaction, or none, the acknowledged ones are numbered in the order of sending."""
    turns: dict[tuple[str, str | None], list[Write]] = defaultdict(list)
    for write in writes:
        if write.acknowledged:
            turns[write.call.client, write.txn].append(write)
    for sent in turns.values():
        for before, after in pairwise(sent):
            if before.call.invoked > after.call.invoked:
                yield f"in {topic}, key {key}, {before.id} comes before {after.id}, and was sent later: {before.call}"
