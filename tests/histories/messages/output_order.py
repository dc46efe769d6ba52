"""Members of a group of Kafka's clients write what they make of a partition to one partition of the outputs: there it
is in the order of the inputs, no matter which of them had the partition when. The key of a message is its partition. So
are the outputs of a key of Pulsar's stream consumers in the order of its inputs, also over splits and merges."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise

from tests.histories.messages.consumption import KAFKA_INPUTS, KAFKA_OUTPUTS, PULSAR_BY_KEY, PULSAR_INPUTS
from tests.histories.messages.history import History


def broken(history: History) -> Iterable[str]:
    yield from _out_of_order(history, KAFKA_INPUTS, KAFKA_OUTPUTS)
    yield from _out_of_order(history, PULSAR_INPUTS, PULSAR_BY_KEY)


def _out_of_order(history: History, inputs: str, outputs: str) -> Iterable[str]:
    """Inputs that are there twice, because their client has sent them twice, have no place."""
    there = [message for _, message in history.final.get(inputs, [])]
    times = Counter(there)
    places = {message: place for place, message in enumerate(there) if times[message] == 1}
    made: dict[str, list[str]] = defaultdict(list)
    for partition, message in history.final.get(outputs, []):
        write = history.writes.get(message)
        if write is not None and write.of in places:
            made[partition].append(write.of)
    for partition, sources in made.items():
        for before, after in pairwise(sources):
            if places[before] > places[after]:
                yield f"in {outputs}, {partition} the output of {before} comes before that of {after}, an earlier input"
