"""A retry of what was acknowledged is told where it lies, at the place of each message, and is never refused."""

from __future__ import annotations

from collections.abc import Iterable

from tests.simulation.history import History


def check(history: History) -> Iterable[str]:
    seen = {seen.id: seen for read in history.final_reads_committed() for seen in read.frames}
    for retold in history.retold:
        if retold.code is not None:
            yield f"{retold.write} was acknowledged, and its retry refused: {retold.code}"
            continue
        found = seen.get(retold.write.id)
        if found is None:
            continue  # `lost_writes` tells
        told = (retold.segment, retold.position, retold.index)
        if told != (found.segment, found.position, found.index):
            yield f"a retry of {retold.write} was told {told}, and it is {found}"
