"""The limits of one service: sizes, times, requests in progress, requests per second."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

MAX_BODY_BYTES = 16 << 20
"""The size of one entry. Larger bodies need `--max-body-bytes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits are generous: a normal client never reaches them. Times are in milliseconds."""

    max_body_bytes: int = MAX_BODY_BYTES
    max_headers: int = 100
    max_header_bytes: int = 32 << 10
    """The bytes of names and values. The URL does not count, because a browse token contains a place for each
    segment."""
    body_timeout_ms: int = 60_000
    """The time for the whole body to arrive, counted from the end of the head."""
    request_timeout_ms: int = 120_000
    """The time for the answer; longer than the longest long poll."""
    max_requests: int = 4096
    """The most requests in progress at the same time."""
    requests_per_second: float | None = None
    """The most requests per second of one principal, or of one address while requests are not authenticated. None: no
    limit."""

    slow_request_ms: int = 1_000
    """An answer that takes longer is logged."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            assert value is None or value > 0, f"{name} must be above 0"


class RateLimit:
    """A token bucket for each caller, filled at `per_second`, that holds one second's worth (at least one token).

    A full bucket is the same as none, so the buckets of callers that were silent for longest are dropped first.
    """

    MAX_CALLERS = 10_000

    def __init__(self, per_second: float) -> None:
        self._rate = per_second
        self._burst = max(1.0, per_second)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, caller: str, now_s: float) -> float:
        """Take one token. Returns 0 if there was one, or else the seconds until there will be one."""
        left, at = self._buckets.pop(caller, (self._burst, now_s))
        left = min(self._burst, left + (now_s - at) * self._rate)
        granted = left >= 1
        self._buckets[caller] = (left - 1 if granted else left), now_s
        if len(self._buckets) > self.MAX_CALLERS:
            self._buckets.popitem(last=False)
        return 0 if granted else (1 - left) / self._rate
