"""Members of a group of Kafka's clients write what they make of a partition to one partition of the outputs: there it
is in the order of the inputs, whoever of them had the partition when. The key of a message is its partition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

from tests.histories.messages.consumption import KAFKA_INPUTS, KAFKA_OUTPUTS
from tests.histories.messages.history import History


def broken(history: History) -> Iterable[str]:
    places = {message: place for place, (_, message) in enumerate(history.final.get(KAFKA_INPUTS, []))}
    made: dict[str, list[str]] = defaultdict(list)
    for partition, message in history.final.get(KAFKA_OUTPUTS, []):
        write = history.writes.get(message)
        if write is not None and write.of in places:
            made[partition].append(write.of)
    for partition, sources in made.items():
        for before, after in pairwise(sources):
            if places[before] > places[after]:
                yield f"in partition {partition} the output of {before} comes before that of {after}, an earlier input"
