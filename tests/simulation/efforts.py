"""How much one request to a coordinator asks of the store.

A loop that never ends shows here, also when something ends it after all: somebody takes over the key, or the process is
killed.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

MOST_WRITES = 100
"""Several times of what any request needed in thousands of seeds."""


@dataclass(eq=False, slots=True)
class Effort:
    request: str
    writes: int = 0


EFFORT: ContextVar[Effort | None] = ContextVar("effort", default=None)
"""Of the request that a coordinator is serving."""
