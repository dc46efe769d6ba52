"""The main job (`make demo`) agrees to the row, and the checker that says so can say otherwise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from examples.flights import data
from examples.flights.checker import compare
from examples.flights.demo import Observed
from tests.extent import usually
from tests.spark_connector.helpers import JAVA_OPTIONS

ROOT = Path(__file__).parent.parent


@pytest.mark.timeout(900)
def test_two_kills_leave_every_row_exactly_once_in_both_topics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo on SQLite, with a part of its input, in as few micro-batches as both kills need; in `make test-all` with
    all of it. Its exit code is 0 only when every count is right."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", JAVA_OPTIONS)
    command = [sys.executable, "-m", "examples.flights.demo", "--store", "sqlite", "--directory", str(tmp_path)]
    command += ["--rows", str(usually(8_000, data.ROWS)), "--files", str(usually(4, data.FILES))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "WRONG" not in done.stdout


def departures(*carriers: str) -> pa.Table:
    rows = [{"row": number, "carrier": carrier, "dep_delay": 1.0} for number, carrier in enumerate(carriers)]
    return pa.Table.from_pylist(rows, schema=data.SCHEMA)


def delays(**flights: int) -> pa.Table:
    rows = [
        {"batch_id": 0, "carrier": carrier, "flights": count, "cancelled": count, "total_delay": float(count)}
        for carrier, count in flights.items()
    ]
    return pa.Table.from_pylist(rows, schema=data.DELAYS_SCHEMA)


def test_the_checker_is_content_with_equal_counts() -> None:
    tables = {"departures": departures("AA", "AA", "UA"), "carrier_delays": delays(AA=2, UA=1)}
    assert compare(tables)["half_visible"] == []


@pytest.mark.parametrize(
    "tables",
    [
        {"departures": departures("AA", "AA"), "carrier_delays": delays(AA=1)},
        {"departures": departures("AA"), "carrier_delays": delays()},
        {"departures": departures(), "carrier_delays": delays(AA=1)},
        {"departures": departures("AA", "UA"), "carrier_delays": delays(AA=2)},
    ],
)
def test_the_checker_sees_a_half_visible_transaction(tables: dict[str, pa.Table]) -> None:
    assert compare(tables)["half_visible"]


def test_one_half_visible_poll_is_never_forgotten() -> None:
    observed = Observed()
    observed.take('{"poll": 1, "rows": 1, "batches": 1, "half_visible": ["AA"]}')
    observed.take('{"poll": 2, "rows": 2, "batches": 1, "half_visible": []}')
    assert (observed.polls, observed.half_visible) == (2, 1)
