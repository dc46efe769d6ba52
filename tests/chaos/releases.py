"""The release before this one, built from git by `make upgrade-test`, and how its processes are started.

A process of it must not find the packages of this checkout. So its Python leaves out the working directory, and the
clients' module, which is that of this checkout, is reached through a directory that has nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PREVIOUS = ROOT / "build" / "previous"
PYTHON = PREVIOUS / "venv" / "bin" / "python"
TESTS = PREVIOUS / "tests-alone"
UNKNOWN = ("--disk-watermark",)
"""Options of today that it does not have; each has one value."""


def of_the_previous_release(role: str, options: Sequence[str]) -> list[str]:
    """The command of one of its services."""
    assert PYTHON.exists(), "`make upgrade-test` builds the previous release"
    known, skip = [], False
    for each in options:
        if not skip and each not in UNKNOWN:
            known.append(each)
        skip = each in UNKNOWN
    return [str(PYTHON), "-P", "-c", "from metatxn.cli.main import main; main()", role, *known]


def client_of_the_previous_release(arguments: Sequence[str]) -> list[str]:
    """The command of a process of clients with its library; without bounds, which are those of this release."""
    TESTS.mkdir(exist_ok=True)
    link = TESTS / "tests"
    if not link.exists():
        link.symlink_to(ROOT / "tests")
    program = "import sys; from tests.chaos.client import main; main(*sys.argv[1:])"
    return ["env", f"PYTHONPATH={TESTS}", str(PYTHON), "-P", "-c", program, *arguments]
