"""Plots, as SVG that the server makes: they need no script, and they have words for those who do not see them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 320, 150
LEFT, RIGHT, TOP, BOTTOM = 78, 6, 9, 20
"""The space around the plot for the words at its axes."""
LATELY = 3
"""The latest value is not known while it is still being counted: the present one is among these last values."""


@dataclass(frozen=True, slots=True)
class Line:
    """One quantity over time, the latest value last; None where nothing is known."""

    name: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class DrawnLine:
    """A line of a plot. `number` chooses the colour. `area` is what is below the line."""

    number: int
    name: str
    path: str
    area: str
    now: str
    most: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A plot. `rows` and `columns` are the places of the grid, with the words beside them."""

    title: str
    lines: Sequence[DrawnLine]
    rows: Sequence[tuple[float, str]]
    columns: Sequence[tuple[float, str]]

    @property
    def words(self) -> str:
        said = "; ".join(f"{line.name}: now {line.now}, at most {line.most}" for line in self.lines)
        return f"{self.title}, the last 15 minutes. {said}"


def plot(title: str, lines: Sequence[Line], shown: Callable[[float], str], base: int = 10) -> Plot:
    """A plot of the last quarter of an hour. `shown` says a value in words; `base` is what makes round numbers."""
    highest = nice(max((value for line in lines for value in line.values if value is not None), default=0), base)
    inner = HEIGHT - TOP - BOTTOM
    rows = [(TOP + inner * (1 - part), shown(highest * part)) for part in (0, 0.5, 1)]
    columns = [(_x(minute, 15), f"−{15 - minute} min" if minute < 15 else "now") for minute in (0, 5, 10, 15)]
    return Plot(title, [_drawn(index, line, highest, shown) for index, line in enumerate(lines, 1)], rows, columns)


def nice(highest: float, base: int = 10) -> float:
    """The end of an axis: the next number of the form 1, 2 or 5 times a power of ten, or the next power of two."""
    if highest <= 0:
        return 1.0
    if base == 2:
        return 2.0 ** math.ceil(math.log2(highest))
    power = 10.0 ** math.floor(math.log10(highest))
    return next((factor * power for factor in (1, 2, 5) if highest <= factor * power), 10 * power)


def _drawn(number: int, line: Line, highest: float, shown: Callable[[float], str]) -> DrawnLine:
    runs = list(_runs(line.values, highest))
    known = [value for value in line.values if value is not None]
    lately = [value for value in line.values[-LATELY:] if value is not None]
    return DrawnLine(
        number,
        line.name,
        " ".join(map(_path, runs)),
        " ".join(f"{_path(run)} V{HEIGHT - BOTTOM} H{run[0][0]:.1f} Z" for run in runs),
        shown(lately[-1]) if lately else "unknown",
        shown(max(known, default=0)),
    )


def _runs(values: Sequence[float | None], highest: float) -> Iterator[list[tuple[float, float]]]:
    """The points that a line joins: nothing is drawn where nothing is known. But looks are not quite regular, so a
    single interval may have none."""
    run: list[tuple[float, float]] = []
    unknown = 0
    for index, value in enumerate(values):
        if value is None:
            unknown += 1
            continue
        if run and unknown > 1:
            yield run
            run = []
        run.append((_x(index, len(values) - 1), _y(value, highest)))
        unknown = 0
    if run:
        yield run


def _path(run: Sequence[tuple[float, float]]) -> str:
    (x, y), *others = run
    return f"M{x:.1f} {y:.1f} " + " ".join(f"L{x:.1f} {y:.1f}" for x, y in others or run)


def _x(index: float, last: int) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * (index / last if last else 1)


def _y(value: float, highest: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / highest)
