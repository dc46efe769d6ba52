"""How much one request asks of the store.

A loop that never ends shows here, also when something ends it after all: somebody takes over the key, or the process is
killed.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

MOST_WRITES = 100
"""Of a coordinator: several times of what any request needed in thousands of seeds."""
MOST_OVERTAKEN = 100
"""Of any service: what a broker writes depends on how much there is to do, but not how often others may be faster."""


@dataclass(eq=False, slots=True)
class Effort:
    """`overtaken` is how many of the writes failed a check, but for those that found what they would have written. What
    a request has begun in the background counts until it is answered."""

    request: str
    writes: int = 0
    overtaken: int = 0
    answered: bool = False


EFFORT: ContextVar[Effort | None] = ContextVar("effort", default=None)
"""Of the request that is being served."""
