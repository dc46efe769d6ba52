"""Kafka's clients have one output for each input, and an offset has the same record for every reader.

An input that was acknowledged is there once; one whose producer has given up at most once. The inputs of a producer
stand in the order in which it has sent them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from tests.simulation.history import History, KafkaRecords

_NUMBERED = re.compile(rb"(.+)-(\d+)-(\d+)")
"""The producer of an input, and its number."""


def check(history: History) -> Iterable[str]:
    records = history.kafka
    if records is None:
        return
    yield from records.unexpected
    inputs, outputs = (Counter(records.values(topic)) for topic in (records.inputs, records.outputs))
    for value in sorted(records.sent):
        least = value in records.acknowledged
        if not least <= inputs[value] <= 1:
            yield f"the input {value!r} is there {inputs[value]} times{', and was acknowledged' * least}"
    for value in sorted(inputs.keys() | outputs.keys()):
        if outputs[value] != 1 or value not in inputs:
            yield f"{value!r} has {outputs[value]} outputs and {inputs[value]} inputs"
    yield from _offsets(records)
    yield from _order(records)


def _offsets(records: KafkaRecords) -> Iterable[str]:
    for place, found in records.uncommitted.items():
        offsets = [offset for offset, _ in found]
        if any(later <= earlier for earlier, later in pairwise(offsets)):
            yield f"the offsets of {place} do not grow: {offsets[:50]}"
        if not set(records.committed[place]) <= set(found):
            yield f"{place} has records under one offset that differ by isolation"
    for partition, offset, value in records.read:
        if (offset, value) not in records.committed[records.outputs, partition]:
            yield f"a reader has seen {value!r} at {offset} of {records.outputs}-{partition}, where it is not"


def _order(records: KafkaRecords) -> Iterable[str]:
    for (topic, partition), found in records.uncommitted.items():
        last: dict[bytes, tuple[int, int]] = {}
        numbered = (_NUMBERED.fullmatch(value or b"") for _, value in found) if topic == records.inputs else ()
        for match in filter(None, numbered):
            producer, number = match[1], (int(match[2]), int(match[3]))
            if number <= last.get(producer, (-1, -1)):
                yield f"{match[0]!r} stands behind what its producer has sent later, in {topic}-{partition}"
            last[producer] = number
