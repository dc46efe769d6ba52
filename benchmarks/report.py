"""What every benchmark prints and writes: a table, and `build/bench/<name>.json`.

The file is a list: first a header record (machine, versions, time), then one record per figure: `name`, `value` (the
median of the runs), `unit`, `target` (or null), `holds` (or null), `runs`.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

DIRECTORY = Path(__file__).parent.parent / "build" / "bench"
PACKAGES = ("metatxn", "pyspark", "pyarrow", "grpcio", "fastapi", "pydantic")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number. `at_least` or `at_most` is its target, where an issue names one."""

    name: str
    runs: Sequence[float]
    unit: str
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        """A benchmark takes minutes: tell a person at a terminal each figure once it is known."""
        if sys.stderr.isatty():
            print(f"{self.name}: {_round(self.value)} {self.unit}", file=sys.stderr)

    @property
    def target(self) -> float | None:
        return self.at_least if self.at_least is not None else self.at_most

    @property
    def value(self) -> float:
        return statistics.median(self.runs)

    @property
    def holds(self) -> bool | None:
        if self.at_most is not None:
            return self.value <= self.at_most
        return None if self.at_least is None else self.value >= self.at_least


def publish(name: str, title: str, figures: Sequence[Figure]) -> None:
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    records: list[dict[str, object]] = [_machine()]
    table = Table("figure", "median", "unit", "target", "met", "runs", title=title)
    for figure in figures:
        records.append(
            {
                "name": figure.name,
                "value": figure.value,
                "unit": figure.unit,
                "target": figure.target,
                "holds": figure.holds,
                "runs": list(figure.runs),
            }
        )
        target = "" if figure.target is None else f"{'≥' if figure.at_most is None else '≤'} {figure.target:g}"
        met = {True: "yes", False: "no", None: ""}[figure.holds]
        runs = "  ".join(_round(run) for run in figure.runs)
        table.add_row(figure.name, _round(figure.value), figure.unit, target, met, runs)
    path = DIRECTORY / f"{name}.json"
    path.write_text(json.dumps(records, indent=1) + "\n")
    Console().print(table)
    Console().print(f"written to {path.relative_to(DIRECTORY.parent.parent)}")


def _round(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _machine() -> dict[str, object]:
    return {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": sys.version.split()[0],
        "versions": {package: version(package) for package in PACKAGES},
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def percentile(values: Sequence[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]
