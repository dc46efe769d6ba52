"""`python -m tests.fuzz --minutes 10`: every target with atheris in its turn; `--target NAME` only that one."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from tests.fuzz.targets import TARGETS

DIRECTORY = Path("build") / "fuzz"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="in all")
    parser.add_argument("--target", choices=sorted(TARGETS))
    arguments = parser.parse_args()
    names = [arguments.target] if arguments.target else sorted(TARGETS)
    seconds = max(1, int(60 * arguments.minutes / len(names)))
    failed = [name for name in names if not passes(name, seconds)]
    print(f"{len(names)} targets, {seconds} s each, failed: {', '.join(failed) or 'none'}")  # noqa: T201
    return int(bool(failed))


def passes(name: str, seconds: int) -> bool:
    directory = DIRECTORY / name.replace(" ", "-")
    directory.mkdir(parents=True, exist_ok=True)
    log = directory / "log.txt"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "tests.fuzz.coverage", name, str(seconds), str(directory)]
        ended = subprocess.run(command, stdout=output, stderr=output, check=False)
    text = log.read_text(errors="replace")
    runs = re.search(r"number_of_executed_units: (\d+)", text)
    verdict = "ok" if ended.returncode == 0 else f"FAILED, see {log}"
    print(f"{name:<28} {int(runs[1]) if runs else 0:>10} inputs  {verdict}", flush=True)  # noqa: T201
    return ended.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
