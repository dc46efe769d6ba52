"""Pictures of Grafana's dashboards: what the panels show of a time, drawn where the dashboards have them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.ops.live_rules import Prometheus

Series = tuple[str, dict[int, float]]
"""A legend, and the values by the second."""

SUFFIXES = {"short": "", "s": "s", "reqps": "req/s", "ops": "ops/s", "cps": "c/s", "Bps": "B/s", "bytes": "MiB"}
"""As Grafana writes its units, besides `percentunit`, a fraction that is shown as percent."""
COLUMNS, COLUMN_INCHES, ROW_INCHES = 24, 0.5, 0.4
LEGENDS = 4
"""The highest ones are named."""
LINE = 0.15
"""Inches of a line of the legend."""
COLOURS = ["#56a64b", "#f2cc0c", "#3274d9", "#ff780a", "#e02f44", "#8f3bb8", "#37872d", "#1f60c4", "#c4162a", "#7c2ea3"]
GROUND, FRAME, TEXT, FAINT = "#f4f5f5", "#d8d9dc", "#24292e", "#6e757c"


async def series_of(prometheus: Prometheus, panel: Mapping[str, Any], start: float, end: float) -> list[Series]:
    """Those of all queries of a panel, the highest first."""
    found: list[Series] = []
    for target in panel["targets"]:
        for one in await prometheus.query_range(target["expr"], start, end):
            known = {round(at - start): float(value) for at, value in one["values"]}
            found.append((legend_of(target["legendFormat"], one["metric"]), known))
    return sorted(found, key=lambda one: _highest(one[1]), reverse=True)


def legend_of(legend: str, labels: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda name: labels.get(name[1], ""), legend)


def shown(value: float, suffix: str) -> str:
    thousands, of = (value / 1000, "k") if value >= 1000 else (value, "")
    return f"{thousands:g} {of}{suffix}".rstrip()


def _highest(values: Mapping[int, float]) -> float:
    return max((value for value in values.values() if not math.isnan(value)), default=0.0)


async def draw(dashboard: Path, prometheus: Prometheus, start: float, end: float, into: Path) -> None:
    """The whole dashboard, light, as PNG."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot

    board = json.loads(dashboard.read_text())
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
    width, height = COLUMNS * COLUMN_INCHES, (rows + 1) * ROW_INCHES
    with pyplot.rc_context({"font.size": 7.5, "text.color": TEXT}):
        figure = pyplot.figure(figsize=(width, height), facecolor=GROUND)
        _write(figure, 0.07, height - 0.2, board["title"], size=11, weight="bold")
        for panel in board["panels"]:
            at = panel["gridPos"]
            x, y = at["x"] * COLUMN_INCHES, (rows - at["y"] - at["h"]) * ROW_INCHES
            if panel["type"] == "row":
                _write(figure, x + 0.07, y + 0.2, panel["title"], size=9)
            else:
                found = await series_of(prometheus, panel, start, end)
                place = (x, y, at["w"] * COLUMN_INCHES, at["h"] * ROW_INCHES)
                _panel(figure, place, panel, found).set_xlim(0, end - start)
        figure.savefig(into, dpi=125, metadata={"Software": None})
        pyplot.close(figure)
    _compress(into)


def _write(figure: Any, x: float, y: float, text: str, **style: Any) -> None:
    """At a place in inches, as all places are here."""
    figure.text(x, y, text, va="center", transform=figure.dpi_scale_trans, **style)


def _panel(figure: Any, place: tuple[float, float, float, float], panel: Mapping[str, Any], found: list[Series]) -> Any:
    """A white card with the title, the plot, which it returns, and the legend below it."""
    from matplotlib.patches import Rectangle

    x, y, width, height = place
    card = Rectangle((x + 0.04, y + 0.04), width - 0.08, height - 0.08, transform=figure.dpi_scale_trans)
    card.set(facecolor="white", edgecolor=FRAME, zorder=-1)
    figure.add_artist(card)
    _write(figure, x + 0.14, y + height - 0.2, panel["title"], size=8.5, weight="bold")
    below = 0.42 + LINE * min(len(found), LEGENDS + 1)
    inches = (x + 0.75, y + below, width - 0.95, height - below - 0.42)
    axes = figure.add_axes(
        [length / side for length, side in zip(inches, [*figure.get_size_inches()] * 2, strict=True)]
    )
    unit = panel["fieldConfig"]["defaults"]["unit"]
    scale = 1 << 20 if unit == "bytes" else 1
    for number, (legend, values) in enumerate(found):
        scaled = [value / scale for value in values.values()]
        colour = COLOURS[number % len(COLOURS)]
        axes.plot([*values], scaled, color=colour, linewidth=1, zorder=len(found) - number)
        if number < LEGENDS:
            _write(figure, x + 0.16, y + below - 0.36 - LINE * number, "━", color=colour, size=7)
            _write(figure, x + 0.36, y + below - 0.36 - LINE * number, legend, size=6.5)
    if (more := len(found) - LEGENDS) > 0:
        _write(figure, x + 0.36, y + below - 0.36 - LINE * LEGENDS, f"and {more} more", size=6.5, color=FAINT)
    axes.set_ylim(bottom=0, top=None if any(_highest(values) > 0 for _, values in found) else 1)
    _axes(axes, unit)
    return axes


def _axes(axes: Any, unit: str) -> None:
    from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, PercentFormatter

    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=unit == "short"))
    if unit == "percentunit":
        axes.yaxis.set_major_formatter(PercentFormatter(1))
    elif unit == "s":
        axes.yaxis.set_major_formatter(EngFormatter(SUFFIXES[unit]))
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, SUFFIXES[unit])))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 3, 6, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda second, _: f"{int(second) // 60}:{int(second) % 60:02}"))
    axes.tick_params(length=0, labelcolor=FAINT, labelsize=6.5)
    axes.set_axisbelow(True)
    axes.grid(color="#e9eaec", linewidth=0.6)
    for side in axes.spines.values():
        side.set_visible(False)


def _compress(picture: Path) -> None:
    """By a palette, which makes it a third, and nobody sees it."""
    from PIL import Image

    with Image.open(picture) as image:
        image.convert("RGB").quantize(64, kmeans=2).save(picture, optimize=True)
