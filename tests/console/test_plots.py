"""Goal: a plot shows what was counted, all services together, and says it in words; values read as people say them.

Method: samples that are made up.
"""

from __future__ import annotations

import re

import pytest

from metatxn.console.formats import coded, rate, sentence, span, time_tag
from metatxn.console.plots import Line, nice, plot
from metatxn.throughput import ThroughputOfAll
from metatxn.wire.models import ThroughputAnswer, ThroughputSample

NOW_MS = 1_767_225_600_000


def told(**counts: list[int]) -> ThroughputAnswer:
    """Samples of a service, the last of which was taken just now."""
    (numbers,) = {len(values) for values in counts.values()}
    samples = [
        ThroughputSample(
            at_ms=NOW_MS - (numbers - 1 - index) * 10_000, **{name: values[index] for name, values in counts.items()}
        )
        for index in range(numbers)
    ]
    return ThroughputAnswer(interval_ms=10_000, samples=samples)


def test_what_several_services_have_counted_is_one_line() -> None:
    together = ThroughputOfAll([told(messages_in=[10, 20, 30]), told(messages_in=[5])], NOW_MS)
    assert together.rates("messages_in")[-3:] == [1.0, 2.0, 3.5]
    assert together.rates("messages_in")[:-3] == [None] * 87, "a quarter of an hour, of which nothing is known"
    assert together.lately("messages_in") == pytest.approx(6.5 / 3)
    assert together.lately("transactions_committed") is None


def test_samples_of_long_ago_are_not_shown() -> None:
    assert set(ThroughputOfAll([told(messages_in=[7] * 90)], NOW_MS + 900_000).rates("messages_in")) == {None}


def test_a_plot_says_in_words_what_it_shows() -> None:
    shown = plot("Messages per second", [Line("in", [None, 4.0, 20.0, 10.0]), Line("out", [None] * 4)], rate)
    assert shown.words == (
        "Messages per second, the last 15 minutes. in: now 10/s, at most 20/s; out: now unknown, at most 0/s"
    )
    assert [words for _, words in shown.rows] == ["0/s", "10/s", "20/s"]
    assert len(re.findall("[ML]", shown.lines[0].path)) == 3 and shown.lines[1].path == ""


def test_nothing_is_drawn_where_nothing_is_known() -> None:
    """A service that was away has no line across that time, and what it did before is not what it does now."""
    (away,) = plot("Messages per second", [Line("in", [1.0, None, 2.0, None, None, 3.0])], rate).lines
    assert [len(run.split("L")) for run in away.path.split("M")[1:]] == [2, 2], (
        "a line over an interval that was missed, and a point"
    )
    assert away.area.count("Z") == 2 and away.now == "3/s"
    (gone,) = plot("Messages per second", [Line("in", [7.0, *[None] * 3])], rate).lines
    assert (gone.now, gone.most) == ("unknown", "7/s")


@pytest.mark.parametrize(
    ("highest", "base", "end"),
    [(0, 10, 1), (0.3, 10, 0.5), (1, 10, 1), (1.1, 10, 2), (4.9, 10, 5), (73, 10, 100), (3000, 2, 4096), (0, 2, 1)],
)
def test_an_axis_ends_at_a_round_number(highest: float, base: int, end: float) -> None:
    assert nice(highest, base) == pytest.approx(end)


def test_values_read_as_people_say_them() -> None:
    assert [span(ms) for ms in (None, 0, 999, 1_000, 90_000, 90_061_000)] == [
        "–",
        "0 ms",
        "999 ms",
        "1s",
        "1m 30s",
        "1d 1h",
    ]
    assert [sentence(text) for text in ("it is gone", "text: is too long", "Why?")] == [
        "It is gone.",
        "text: is too long.",
        "Why?",
    ]
    assert str(time_tag(NOW_MS)) == (
        '<time datetime="2026-01-01T00:00:00.000Z" title="2026-01-01T00:00:00.000Z · 1767225600000">'
        "2026-01-01 00:00:00 UTC</time>"
    )
    assert [time_tag(ms) for ms in (None, 10**30)] == ["–", str(10**30)], "also a time that no calendar has"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Run `metatxn dev <DIR>`.", "Run <code>metatxn dev &lt;DIR&gt;</code>."),
        ("`a` or `b`", "<code>a</code> or <code>b</code>"),
        ("It's ` <b>", "It&#39;s ` &lt;b&gt;"),
    ],
)
def test_what_is_typed_is_shown_as_such_and_nothing_is_markup(text: str, shown: str) -> None:
    assert coded(text) == shown
