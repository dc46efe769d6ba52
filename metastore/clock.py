"""The clock that core logic is given. It never reads one of its own, so that a simulation can run it."""

from __future__ import annotations

from collections.abc import Callable

Clock = Callable[[], int]
"""Now, in milliseconds since the epoch."""
