"""Plots of what all services have done lately, together."""

from __future__ import annotations

from collections.abc import Iterable

from metatxn.console.formats import rate, size
from metatxn.console.plots import Line, Plot, plot
from metatxn.throughput import ThroughputOfAll

TRANSACTIONS = (("commits", "transactions_committed"), ("aborts", "transactions_aborted"))
MESSAGES = (("in", "messages_in"), ("out", "messages_out"))
BYTES = (("in", "bytes_in"), ("out", "bytes_out"))


def throughput_plots(together: ThroughputOfAll) -> list[Plot]:
    def lines(named: Iterable[tuple[str, str]]) -> list[Line]:
        return [Line(words, together.rates(name)) for words, name in named]

    return [
        plot("Transactions per second", lines(TRANSACTIONS), rate),
        plot("Messages per second", lines(MESSAGES), rate),
        plot("Bytes per second", lines(BYTES), lambda number: f"{size(round(number))}/s", base=2),
    ]
