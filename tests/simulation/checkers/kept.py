"""What a policy keeps is not dropped: nothing that is younger than it says while fewer bytes than it says are left,
nothing that a subscription has not acknowledged unless it is hard, and nothing of an open transaction. Nor does
anything count as acknowledged, that nobody has acknowledged, before its time."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.checkers.refusals import topic_of
from tests.simulation.history import Dropped, Expired, History, Write

UNLIMITED = -1
MOST_BYTES_OF_AN_ENTRY = 300


def check(history: History) -> Iterable[str]:
    for expired in history.expired:
        yield from _expired_early(history, expired)
    for dropped in history.dropped:
        gone = [
            write
            for write in history.writes
            if write.segment == dropped.segment
            and write.position is not None
            and dropped.before <= write.position < dropped.first
        ]
        yield from _by_the_policy(history, dropped, gone)
        for name, mark in dropped.marks.items():
            if not dropped.hard and mark < dropped.first:
                yield f"{dropped}, and {name} has acknowledged only what is before {mark}"
        for write in gone:
            decision = history.decisions.get(write.txn_id or "")
            if write.txn_id is not None and (decision is None or decision.revision > dropped.revision):
                yield f"{dropped}, and the transaction of {write} was open"


def _expired_early(history: History, expired: Expired) -> Iterable[str]:
    if expired.evicts_bytes != UNLIMITED and _most_bytes(history, expired) >= expired.evicts_bytes:
        return
    allowed = [each for each in (expired.ttl_ms, expired.evicts_ms) if each != UNLIMITED]
    for write in history.writes:
        if write.segment != expired.segment or write.position is None or write.txn_id in history.aborted:
            continue
        if max(expired.before, expired.trimmed) <= write.position < expired.mark:
            age_s = expired.at - write.begun + history.clocks_differ_s
            if not allowed or age_s * 1000 < min(allowed):
                yield f"{expired}, and {write} was at most {age_s:.3f} s old"


def _most_bytes(history: History, expired: Expired) -> int:
    """At most so much had been written to the topic by then."""
    topic = topic_of(expired.segment)
    return MOST_BYTES_OF_AN_ENTRY * sum(write.topic == topic and write.begun < expired.at for write in history.writes)


def _by_the_policy(history: History, dropped: Dropped, gone: Iterable[Write]) -> Iterable[str]:
    if dropped.kept_bytes != UNLIMITED and dropped.left_bytes >= dropped.kept_bytes:
        return
    if dropped.kept_ms == UNLIMITED:
        yield f"{dropped}, and the policy keeps {dropped.kept_bytes} bytes"
        return
    for write in gone:
        if write.txn_id in history.aborted:  # it goes with its ledger, or before
            continue
        age_s = dropped.at - write.begun + history.clocks_differ_s
        if age_s * 1000 < dropped.kept_ms:
            yield f"{dropped}, and {write} was at most {age_s:.3f} s old"
