"""What clients that send, read, transact and acknowledge were told, and the promises that must hold for it.

    history.py        the calls, and what all topics show once everything is quiet
    visibility.py     a transaction is seen whole, on all topics, or not at all
    aborted.py        nothing of an aborted transaction, or of a refused send, is ever seen
    acknowledged.py   what was acknowledged is there, and once
    key_order.py      the messages of a key come in the order in which they were sent
    reading_on.py     who reads on misses nothing and sees nothing that is taken back
    sums.py           each snapshot of the bank sums up to zero, and holds all that was committed before it
    consumption.py    acks count exactly when the outputs do: one output for each input
    output_order.py   Kafka's clients write what they make of a partition in its order
    decisions.py      nobody is told that one transaction was committed and aborted
    refusals.py       nobody is refused for certain without a reason
    kafka_errors.py   nor is a client of Kafka's told of an error without one
    pulsar_errors.py  nor one of Pulsar's

Each takes a `History` and yields what contradicts its promise, in words. None of them knows how a service works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tests.histories.messages import (
    aborted,
    acknowledged,
    consumption,
    decisions,
    kafka_errors,
    key_order,
    output_order,
    pulsar_errors,
    reading_on,
    refusals,
    sums,
    visibility,
)
from tests.histories.messages.history import History

PROMISES: dict[str, Callable[[History], Iterable[str]]] = {
    "all or nothing": visibility.broken,
    "aborted is never seen": aborted.broken,
    "acknowledged is there, once": acknowledged.broken,
    "order per key": key_order.broken,
    "reading on": reading_on.broken,
    "snapshot sums": sums.broken,
    "acks exactly when outputs": consumption.broken,
    "outputs in the order of inputs": output_order.broken,
    "one decision": decisions.broken,
    "refused with a reason": refusals.broken,
    "Kafka's errors have a reason": kafka_errors.broken,
    "Pulsar's errors have a reason": pulsar_errors.broken,
}


def judge(history: History) -> dict[str, list[str]]:
    """What is wrong, by promise."""
    found = {promise: list(broken(history)) for promise, broken in PROMISES.items()}
    return {promise: anomalies for promise, anomalies in found.items() if anomalies}
