"""`python -m tests.simulation --seeds 300`: run seeds and judge them; `--seed N` replays one."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from tests.simulation.run import Result, run_seed
from tests.simulation.workloads import WORKLOADS

_SHOWN_LINES = 60


def main() -> int:
    arguments = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    arguments.add_argument("--seeds", type=int, default=300, help="how many, from --first on")
    arguments.add_argument("--first", type=int, default=1)
    arguments.add_argument("--seed", type=int, help="replay this one, with its trace")
    arguments.add_argument("--trace", type=Path, help="write the whole trace of --seed to this file")
    arguments.add_argument("--workload", choices=sorted({kind.name for kind in WORKLOADS}), help="instead of any")
    arguments.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    given = arguments.parse_args()
    if given.seed is not None:
        return _replay(given.seed, given.trace, given.workload)
    return _run(range(given.first, given.first + given.seeds), given.keep_going, given.workload)


def _replay(seed: int, trace: Path | None, workload: str | None) -> int:
    if trace is None:
        result = run_seed(seed, workload)
    else:
        with trace.open("w") as file:
            result = run_seed(seed, workload, file)
    _describe(result)
    return 1 if result.violations else 0


def _run(seeds: range, keep_going: bool, workload: str | None) -> int:
    faults: Counter[str] = Counter()
    wall_s = simulated_s = 0.0
    transactions = 0
    failed: list[int] = []
    for seed in seeds:
        result = run_seed(seed, workload)
        faults += result.faults
        wall_s += result.wall_s
        simulated_s += result.simulated_s
        transactions += result.transactions
        if result.violations:
            failed.append(seed)
            _describe(result)
            if not keep_going:
                break
    _say(f"{seed - seeds.start + 1} seeds, {len(failed)} failed {failed or ''}".rstrip())
    _say(f"{transactions} transactions in {simulated_s / 3600:.1f} simulated hours, {wall_s:.1f} s of wall time")
    _say("faults: " + ", ".join(f"{name} {count}" for name, count in sorted(faults.items())))
    return 1 if failed else 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _describe(result: Result) -> None:
    for line in result.lines[-_SHOWN_LINES:] if result.violations else ():
        _say(line)
    _say(f"seed {result.seed}: digest {result.digest}, {result.steps} steps, {result.simulated_s:.0f} simulated s, ")
    _say(f"  {result.transactions} transactions, {result.wall_s:.2f} s, faults {dict(result.faults)}")
    for violation in result.violations:
        _say(f"  VIOLATION {violation}")
    if result.violations:
        _say(f"  replay: make simulate SEED={result.seed} WORKLOAD={result.workload}")


sys.exit(main())
