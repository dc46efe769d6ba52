"""Goal: the notebook does what it shows. Method: its cells, one after another, and what they print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

NOTEBOOK = Path(__file__).parents[2] / "examples" / "spark_connector.ipynb"


def test_every_cell_prints_what_stands_below_it(
    spark: SparkSession, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("METATXN_URL", url)
    names: dict[str, Any] = {}
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert sum(bool(cell["outputs"]) for cell in cells) >= 4
    for cell in cells:
        exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), names)
        shown = "".join("".join(output["text"]) for output in cell["outputs"])
        assert capsys.readouterr().out == shown
