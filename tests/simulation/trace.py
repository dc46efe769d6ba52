"""What has happened in a simulation: a line for each thing that crosses an edge, and one number for all of them.

    12.345678 broker-1       store    applied at 118: +/txn-op/…

Two runs of one seed have the same digest, or the simulation is not deterministic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import IO

from tests.simulation.processes import CURRENT

KEPT_LINES = 400
"""Of a failed seed the last lines are shown; all of them are in the file that `--trace` names."""


class Trace:
    def __init__(self, clock: Callable[[], float], file: IO[str] | None = None) -> None:
        self._clock = clock
        self._file = file
        self._digest = blake2b(digest_size=8)
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.count = 0

    def note(self, edge: str, what: str) -> None:
        process = CURRENT.get()
        line = f"{self._clock():12.6f} {process.name if process else '-':<14} {edge:<8} {what}"
        self._digest.update(line.encode())
        self.lines.append(line)
        self.count += 1
        if self._file is not None:
            self._file.write(line + "\n")

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()
