"""What all services have done in the last quarter of an hour, together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from metatxn.wire.models import ThroughputAnswer, ThroughputSample

MINUTES = 15
_MINUTE_MS = 60_000


class ThroughputOfAll:
    """The samples of services, each in the interval in which it was taken. Their clocks and intervals differ by less
    than an interval, which people do not notice. Names are those of `ThroughputSample`, and rates are per second; None
    where nothing is known."""

    def __init__(self, told: Sequence[ThroughputAnswer], now_ms: int) -> None:
        self._interval_ms = told[0].interval_ms if told else 10_000
        last = now_ms // self._interval_ms
        self._intervals = range(last - MINUTES * _MINUTE_MS // self._interval_ms, last)
        self._samples: dict[int, list[ThroughputSample]] = {}
        for sample in (sample for answer in told for sample in answer.samples):
            self._samples.setdefault(sample.at_ms // self._interval_ms - 1, []).append(sample)

    def rates(self, name: str) -> list[float | None]:
        """The rate in each interval, the latest last."""
        return [self._per_second(self._samples.get(interval, ()), name) for interval in self._intervals]

    def lately(self, name: str) -> float | None:
        """The rate of the last minute, or of as much of it as is known."""
        return _mean(self.rates(name)[-self._per_minute :])

    def minutes(self, names: Iterable[str]) -> list[tuple[int, dict[str, float | None]]]:
        """When each minute began, in milliseconds, and the rates in it, the latest last."""
        rates = {name: self.rates(name) for name in names}
        return [
            (
                self._intervals[first] * self._interval_ms,
                {name: _mean(values[first : first + self._per_minute]) for name, values in rates.items()},
            )
            for first in range(0, len(self._intervals), self._per_minute)
        ]

    @property
    def _per_minute(self) -> int:
        return max(1, _MINUTE_MS // self._interval_ms)

    def _per_second(self, samples: Iterable[ThroughputSample], name: str) -> float | None:
        counted = [number for sample in samples if (number := getattr(sample, name)) is not None]
        return sum(counted) * 1000 / self._interval_ms if counted else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
