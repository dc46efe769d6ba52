"""What was acknowledged, and committed if it was inside a transaction, is there in the end; nothing is there twice,
except what its client has sent twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tests.histories.messages.history import History


def broken(history: History) -> Iterable[str]:
    there = Counter(message for messages in history.final.values() for _, message in messages)
    for message, times in there.items():
        if times > (history.writes[message].most if message in history.writes else 1):
            yield f"{message} is there {times} times"
    for write in history.writes.values():
        counts = write.txn is None or history.committed(write.txn)
        if counts and write.acknowledged and write.topic in history.final and write.id not in there:
            yield f"{write.id} was acknowledged and is lost: {write.call} {history.ends.get(write.txn or '', '')}"
