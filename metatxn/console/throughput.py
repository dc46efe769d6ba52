"""What all services have done lately, together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from metatxn.console.formats import rate, size
from metatxn.console.plots import Line, Plot, plot
from metatxn.wire.models import ThroughputAnswer, ThroughputSample

MINUTES = 15
TRANSACTIONS = (("commits", "transactions_committed"), ("aborts", "transactions_aborted"))
MESSAGES = (("in", "messages_in"), ("out", "messages_out"))
BYTES = (("in", "bytes_in"), ("out", "bytes_out"))


class Together:
    """The samples of services, each in the interval in which it was taken. Their clocks and intervals differ by less
    than an interval, which a plot does not show."""

    def __init__(self, told: Sequence[ThroughputAnswer], now_ms: int) -> None:
        self._interval_ms = told[0].interval_ms if told else 10_000
        last = now_ms // self._interval_ms
        self._intervals = range(last - MINUTES * 60_000 // self._interval_ms, last)
        self._samples: dict[int, list[ThroughputSample]] = {}
        for sample in (sample for answer in told for sample in answer.samples):
            self._samples.setdefault(sample.at_ms // self._interval_ms - 1, []).append(sample)

    def plots(self) -> list[Plot]:
        return [
            plot("Transactions per second", self._lines(TRANSACTIONS), rate),
            plot("Messages per second", self._lines(MESSAGES), rate),
            plot("Bytes per second", self._lines(BYTES), lambda number: f"{size(round(number))}/s", base=2),
        ]

    def lately(self, name: str) -> float | None:
        """The rate of the last minute, or of as much of it as is known."""
        known = [value for value in self._values(name)[-60_000 // self._interval_ms :] if value is not None]
        return sum(known) / len(known) if known else None

    def _lines(self, named: Iterable[tuple[str, str]]) -> list[Line]:
        return [Line(words, self._values(name)) for words, name in named]

    def _values(self, name: str) -> list[float | None]:
        return [self._per_second(self._samples.get(interval, ()), name) for interval in self._intervals]

    def _per_second(self, samples: Iterable[ThroughputSample], name: str) -> float | None:
        counted = [number for sample in samples if (number := getattr(sample, name)) is not None]
        return sum(counted) * 1000 / self._interval_ms if counted else None
