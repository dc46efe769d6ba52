"""Clients of Kafka are told nothing that those who keep the rules are never told, and a transactional producer is
fenced only by another one with the same id, or because its transaction has timed out.

Anyone who is told that something may succeed later, or that a group has another generation, needs no reason.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.histories.calls import Call, Outcome
from tests.histories.messages.history import History

_NS_PER_MS = 1_000_000
_OF_THE_MOMENT = {
    *("_TIMED_OUT", "_TIMED_OUT_QUEUE", "_MSG_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_WAIT_COORD"),
    *("REQUEST_TIMED_OUT", "_PURGE_QUEUE", "_PURGE_INFLIGHT", "NOT_LEADER_FOR_PARTITION", "LEADER_NOT_AVAILABLE"),
    *("COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "KAFKA_STORAGE_ERROR"),
}
_OF_A_GROUP = {
    *("ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "_ILLEGAL_GENERATION"),
    *("_MAX_POLL_EXCEEDED", "_ASSIGNMENT_LOST", "_REBALANCE_IN_PROGRESS"),
}
_OF_ITS_MESSAGES = {"_INCONSISTENT", "_STATE"}
"""The library itself refuses what belongs to a transaction of which a message has failed."""
_FENCED = {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}


def broken(history: History) -> Iterable[str]:
    for call in history.kafka_errors:
        name = name_of(call)
        if name in _FENCED:
            has_reason = _was_replaced(history, call) or _timed_out(history, call)
        elif name in _OF_ITS_MESSAGES:
            has_reason = _misses_a_message(history, call)
        else:
            has_reason = name in _OF_THE_MOMENT | _OF_A_GROUP
        if not has_reason:
            yield f"nothing that has happened is a reason for {name}: {call}"


def name_of(call: Call) -> str:
    """Of the error that the client was told."""
    return str(call.result).removeprefix("Kafka ").partition(":")[0]


def _misses_a_message(history: History, call: Call) -> bool:
    """Of its transaction."""
    writes = history.transactions().get(call.action.get("txn"), [])
    return any(write.call is not call and write.call.outcome is Outcome.UNKNOWN for write in writes)


def _producer(history: History, call: Call) -> str | None:
    """The producer of a call, if it is one with a transactional id."""
    action = call.action
    begun = history.begun.get(action.get("txn"))
    found: str | None = action.get("producer") or (begun.action["producer"] if begun is not None else None)
    return found


def _was_replaced(history: History, call: Call) -> bool:
    producer = _producer(history, call)
    if producer is None:
        return False
    own = history.producers[producer]
    return any(
        other is not own
        and other.action["transactional_id"] == own.action["transactional_id"]
        and not other.precedes(own)
        and other.invoked <= call.returned
        for other in history.producers.values()
    )


def _timed_out(history: History, call: Call) -> bool:
    producer = _producer(history, call)
    return any(
        begun.action["producer"] == producer
        and call.returned - begun.invoked >= begun.action["timeout_ms"] * _NS_PER_MS
        and not _was_over(history, txn, begun)
        for txn, begun in history.begun.items()
        if "producer" in begun.action
    )


def _was_over(history: History, txn: str, begun: Call) -> bool:
    """It was ended by its producer before its time was over."""
    until = begun.invoked + begun.action["timeout_ms"] * _NS_PER_MS
    return any(end.returned < until for end in (*history.committed(txn), *history.aborted(txn)))
