"""`python -m tests.chaos --minutes 10 --mix etcd --seed 7`: without a mix, the default ones share the time."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos.mixes import DEFAULT, GROUPS, MIXES
from tests.chaos.run import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of faults, in all")
    choices = [*sorted(MIXES), *GROUPS]
    parser.add_argument("--mix", choices=choices, help=f"otherwise one after another: {', '.join(DEFAULT)}")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 20))
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nobody leaves processes and mounts behind
    mixes = GROUPS.get(arguments.mix, [arguments.mix]) if arguments.mix else DEFAULT
    reports = []
    for mix in mixes:
        directory = Path(tempfile.mkdtemp(prefix=f"metatxn-chaos-{mix}-{arguments.seed}-"))
        print(f"{mix}, seed {arguments.seed}: {directory}", flush=True)  # noqa: T201
        report = asyncio.run(run(mix, arguments.seed, 60 * arguments.minutes / len(mixes), directory))
        print(report, flush=True)  # noqa: T201
        reports.append(report)
    return int(any(report.anomalies for report in reports))


if __name__ == "__main__":
    sys.exit(main())
