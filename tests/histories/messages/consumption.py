"""Acknowledgements count exactly when the outputs of their transaction do: in the end, when everything was consumed,
there is one output of each input, and none of anything else. So do the offsets of Kafka's consumer groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tests.histories.messages.history import History

INPUTS, OUTPUTS = "orders", "bills"
KAFKA_INPUTS, KAFKA_OUTPUTS = "payments", "receipts"
PIPES = {INPUTS: OUTPUTS, KAFKA_INPUTS: KAFKA_OUTPUTS}
"""Of each topic of inputs the one with their outputs."""


def broken(history: History) -> Iterable[str]:
    for inputs, outputs in PIPES.items():
        yield from _unequal(history, inputs, outputs)


def _unequal(history: History, inputs: str, outputs: str) -> Iterable[str]:
    consumed = [message for _, message in history.final.get(inputs, [])]
    there = [message for _, message in history.final.get(outputs, [])]
    made = Counter(history.writes[message].of for message in there if message in history.writes)
    for message in consumed:
        if made[message] != 1:
            yield f"{message} was consumed, and {made[message]} outputs of it are there"
    for strange in made.keys() - set(consumed):
        yield f"there is an output of {strange}, which is no input"
