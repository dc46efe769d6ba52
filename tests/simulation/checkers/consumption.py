"""Acknowledged exactly when its output is there: every input has one output, and no output is of something else.

What a subscription delivers after it was moved to the beginning is what can be read. One that is not isolated has
delivered all of that, and perhaps more.

An input is delivered at most once more often than its subscription says before it is given up: only of its first
delivery a crash leaves nothing. An input that was given up has one dead letter instead of its output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import inf

from tests.simulation.history import History


def check(history: History) -> Iterable[str]:
    for source, target in history.pipes:
        inputs = {seen.id for seen in history.visible_in(source)}
        outputs = Counter(seen.key for seen in history.visible_in(target))
        letters = history.letters.get(source, Counter())
        for name in sorted(inputs):
            if outputs[name] + letters[name] != 1:
                yield f"{name} of {source} has {outputs[name]} outputs in {target} and {letters[name]} dead letters"
            most = history.max_redeliveries.get(source, inf) + 2
            if history.given[name] > most:
                yield f"{name} of {source} was delivered {history.given[name]} times, more than {most}"
        for name in sorted((outputs.keys() | letters.keys()) - inputs):
            yield f"there is an output or a dead letter of {name}, which is not in {source}"
    for topic, again in history.again.items():
        differ = sorted(again ^ {seen.id for seen in history.visible_in(topic)})
        if differ:
            yield f"moved to the beginning of {topic}, a subscription differs from a read in {differ[:9]}"
    for topic, early in history.early.items():
        missed = sorted({seen.id for seen in history.visible_in(topic)} - early)
        if missed:
            yield f"an uncommitted subscription of {topic} has never delivered {missed[:9]}"
