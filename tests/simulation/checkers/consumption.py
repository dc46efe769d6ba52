"""Acknowledged exactly when its output is there: every input has one output, and no output is of something else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tests.simulation.history import History


def check(history: History) -> Iterable[str]:
    for source, target in history.pipes:
        inputs = {seen.id for seen in history.visible_in(source)}
        outputs = Counter(seen.key for seen in history.visible_in(target))
        for name in sorted(inputs):
            if outputs[name] != 1:
                yield f"{name} of {source} has {outputs[name]} outputs in {target}"
        for name in sorted(outputs.keys() - inputs):
            yield f"{target} has an output of {name}, which is not in {source}"
