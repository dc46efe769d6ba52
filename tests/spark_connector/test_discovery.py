"""Goal: Spark finds the format wherever a job is started. Method: its own way of looking, in a Python that was started
in another directory; jobs that are started elsewhere are in `test_shipping.py`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

LOOK = "import pkgutil; print(*(each.name for each in pkgutil.iter_modules() if each.name.startswith('pyspark_')))"


def test_spark_finds_the_format_from_anywhere(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", LOOK], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert "pyspark_metatxn" in done.stdout.split(), "install as `make setup` does"
