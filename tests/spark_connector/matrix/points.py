"""Points: places in a micro-batch where a test lets a process wait or fail. Files, because the processes are many.

A process reaches a point by a name such as `task 1.0 has sent some of batch 1` (partition 1, attempt 0). If the test
has armed it, the process notes that it is there; then it goes on, or raises, or waits until the test opens the point.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, Literal

from tests.spark_connector.helpers import wait_until

POINTS = "MATRIX_POINTS"
"""The environment variable that names their directory."""

Action = Literal["note", "raise", "hold"]


class OnPurpose(RuntimeError):
    pass


def reach(name: str, **seen: Any) -> None:
    """In the job. `seen` is told to the test, beside the process that is here."""
    point = Path(os.environ[POINTS], name)
    try:
        action = (point / "armed").read_text()
    except FileNotFoundError:
        return
    (point / "noting").write_text(json.dumps({"pid": os.getpid(), "parent": os.getppid(), **seen}))
    (point / "noting").rename(point / "reached")
    if action == "raise":
        raise OnPurpose(f"on purpose: {name}")
    if action == "hold":
        wait_until(lambda: (point / "open").exists() or not point.exists(), f"the test opens: {name}")


class Points:
    """In the test."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()

    def arm(self, action: Action, *names: str) -> None:
        for name in names:
            (self.directory / name).mkdir()
            (self.directory / name / "armed").write_text(action)

    def reached(self, name: str) -> bool:
        return (self.directory / name / "reached").exists()

    def wait(self, name: str) -> dict[str, Any]:
        """Until it is reached; what was seen there."""
        wait_until(lambda: self.reached(name), f"a process reaches: {name}")
        seen: dict[str, Any] = json.loads((self.directory / name / "reached").read_text())
        return seen

    def open(self, *names: str) -> None:
        """For anyone who waits there, and for all that come."""
        for name in names:
            (self.directory / name / "open").touch()

    def clear(self) -> None:
        """Anyone who still waits goes on."""
        for point in self.directory.iterdir():
            shutil.rmtree(point)
