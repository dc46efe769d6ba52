"""Who reads a topic on and on sees of each key exactly how its list begins that everybody sees in the end: nothing
appears behind a reader's back, and nothing is taken back. Of a segment that is a part of this list."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from tests.histories.messages.history import History


def broken(history: History) -> Iterable[str]:
    final = {topic: _by_key(messages) for topic, messages in history.final.items()}
    for (reader, topic), messages in history.reads.items():
        if topic not in final:
            continue
        for key, seen in _by_key(messages).items():
            expected = final[topic].get(key, [])[: len(seen)]
            if seen != expected:
                at = next((n for n, (one, other) in enumerate(zip(seen, expected, strict=False)) if one != other), 0)
                yield f"{reader} read of {topic}, key {key}, at {at}: {seen[at:][:3]}, and not {expected[at:][:3]}"
    for (reader, topic, segment), messages in history.segment_reads.items():
        if topic not in final:
            continue
        for key, seen in _by_key(messages).items():
            whole = final[topic].get(key, [])
            if not any(whole[at : at + len(seen)] == seen for at, one in enumerate(whole) if one == seen[0]):
                yield f"{reader} read of segment {segment} of {topic}, key {key}, what is no part of it: {seen[:5]}"


def _by_key(messages: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    lists: dict[str, list[str]] = defaultdict(list)
    for key, message in messages:
        lists[key].append(message)
    return lists
