"""What readers see of the entries of a segment: for people who look at all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from metatxn.wire.frames import Frame
from metatxn.wire.position import Position

Sight = Literal["readable", "skipped", "waits"]


@dataclass(frozen=True, slots=True)
class SeenEntry:
    """An entry and its state. `readable`: `read_committed` readers get it. `skipped`: they never will. `waits`: it is
    after the horizon."""

    frame: Frame
    sight: Sight


def seen_entries(durable: Iterable[Frame], readable: Iterable[Position], horizon: Position) -> Iterator[SeenEntry]:
    """The entries with their states. `durable` are all entries of a part of the segment, and `readable` the positions
    that a committed read of that part has returned. `horizon` was read before it: at or below a horizon nothing ever
    changes, so what the read has not returned there is skipped; and what it has returned is readable, also if the
    horizon has moved in between."""
    known = frozenset(readable)
    for frame in durable:
        if frame.position in known:
            yield SeenEntry(frame, "readable")
        else:
            yield SeenEntry(frame, "skipped" if frame.position <= horizon else "waits")
