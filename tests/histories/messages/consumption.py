"""Acknowledgements count exactly when the outputs of their transaction do: in the end, when everything was consumed,
there is one output of each input, and none of anything else. So do the offsets of Kafka's consumer groups. An input
that its client has sent twice counts twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tests.histories.messages.history import History

INPUTS, OUTPUTS = "orders", "bills"
KAFKA_INPUTS, KAFKA_OUTPUTS = "payments", "receipts"
PULSAR_INPUTS, PULSAR_OUTPUTS, PULSAR_BY_KEY = "parcels", "labels", "waybills"
"""Two subscriptions of the same inputs: queue consumers write the ones, stream consumers the others."""
PIPES = (
    *((INPUTS, OUTPUTS), (KAFKA_INPUTS, KAFKA_OUTPUTS)),
    *((PULSAR_INPUTS, PULSAR_OUTPUTS), (PULSAR_INPUTS, PULSAR_BY_KEY)),
)
"""Topics of inputs, each with one of outputs."""


def broken(history: History) -> Iterable[str]:
    for inputs, outputs in PIPES:
        yield from _unequal(history, inputs, outputs)


def _unequal(history: History, inputs: str, outputs: str) -> Iterable[str]:
    consumed = Counter(message for _, message in history.final.get(inputs, []))
    there = [message for _, message in history.final.get(outputs, [])]
    made = Counter(history.writes[message].of for message in there if message in history.writes)
    for message, times in consumed.items():
        if made[message] != times:
            yield f"{message} was consumed {times} times, and {made[message]} outputs of it are there"
    for strange in made.keys() - consumed.keys():
        yield f"there is an output of {strange}, which is no input"
