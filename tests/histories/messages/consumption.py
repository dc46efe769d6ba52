"""Acknowledgements count exactly when the outputs of their transaction do: in the end, when everything was consumed,
there is one output of each input, and none of anything else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tests.histories.messages.history import History

INPUTS = "orders"
OUTPUTS = "bills"


def broken(history: History) -> Iterable[str]:
    inputs = [message for _, message in history.final.get(INPUTS, [])]
    outputs = [message for _, message in history.final.get(OUTPUTS, [])]
    made = Counter(history.writes[message].of for message in outputs if message in history.writes)
    for message in inputs:
        if made[message] != 1:
            yield f"{message} was consumed, and {made[message]} outputs of it are there"
    for strange in made.keys() - set(inputs):
        yield f"there is an output of {strange}, which is no input"
