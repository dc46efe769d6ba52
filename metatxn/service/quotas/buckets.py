"""A token bucket that may be in debt: how much a request moves is often known only when it is answered."""

from __future__ import annotations

BURST_S = 2.0
"""The seconds' worth that a bucket holds. A client that waits for the seconds of `Retry-After` finds what has come in
meanwhile, also if it is a little late."""
BEGIN_S = 0.25
"""The seconds' worth that a new bucket holds: a principal that comes to many processes at once is new to each of
them."""


class TokenBucket:
    __slots__ = ("_at", "_level", "_rate")

    def __init__(self, rate: float, now_s: float) -> None:
        self._rate = rate
        self._level = max(1.0, rate * BEGIN_S)
        self._at = now_s

    @property
    def _most(self) -> float:
        return max(1.0, self._rate * BURST_S)

    def set_rate(self, rate: float, now_s: float) -> None:
        self._fill(now_s)
        self._rate = rate
        self._level = min(self._level, self._most)

    def missing(self, needed: float, now_s: float) -> float:
        """How much is missing to the needed amount; 0 if there is enough. Nothing is taken."""
        self._fill(now_s)
        return max(0.0, needed - self._level)

    def take(self, amount: float) -> None:
        self._level -= amount

    def _fill(self, now_s: float) -> None:
        self._level = min(self._most, self._level + max(0.0, now_s - self._at) * self._rate)
        self._at = now_s
