"""`python -m tests.simulation --seeds 300`: run seeds and judge them; `--seed N` replays one."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import time
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from tests.simulation.record import ROOT, Record, publish
from tests.simulation.run import Result, run_seed
from tests.simulation.workloads import WORKLOADS

_SHOWN_LINES = 60
_SAY_EVERY_S = 10.0


def main() -> int:
    cores = len(os.sched_getaffinity(0))
    arguments = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    arguments.add_argument("--seeds", type=int, default=300, help="how many, from --first on")
    arguments.add_argument("--first", type=int, default=1)
    arguments.add_argument("--seed", type=int, help="replay this one, with its trace")
    arguments.add_argument("--trace", type=Path, help="write the whole trace of --seed to this file")
    arguments.add_argument("--workload", choices=sorted({kind.name for kind in WORKLOADS}), help="instead of any")
    arguments.add_argument("--workers", type=int, default=cores, help="how many processes; as many as there are cores")
    arguments.add_argument("--keep-going", action="store_true", help="do not stop at the first failure")
    arguments.add_argument("--publish", action="store_true", help="put the table into docs/simulation.md")
    kept = ROOT / "build" / "simulation"
    arguments.add_argument("--kept", type=Path, default=kept, help="where the record is written; build/simulation")
    given = arguments.parse_args()
    if given.seed is not None:
        return _replay(given.seed, given.trace, given.workload)
    record = Record(given.first, given.seeds, given.workload)
    return _run(record, given.workers, given.kept, keep_going=given.keep_going, to_page=given.publish)


def _replay(seed: int, trace: Path | None, workload: str | None) -> int:
    if trace is None:
        result = run_seed(seed, workload)
    else:
        with trace.open("w") as file:
            result = run_seed(seed, workload, file)
    _describe(result)
    return 1 if result.violations else 0


def _run(record: Record, workers: int, kept: Path, *, keep_going: bool, to_page: bool) -> int:
    """Seed after seed. A run that is cut off goes on where it was when the same is asked for again."""
    place = record.place(kept)
    if place.exists():
        record = Record.load(place)
        _say(f"going on behind seed {record.left.start - 1}")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _add_all(record, place, workers, keep_going=keep_going)
    except (KeyboardInterrupt, BrokenProcessPool) as cut:
        record.save(place)
        _say(f"cut off behind seed {record.left.start - 1} by {cut!r}: the same command goes on there")
        return 1
    place.unlink(missing_ok=True)
    tables = record.tables()
    record.save(kept / "record.json")
    (kept / "record.md").write_text(tables)
    if to_page:
        publish(tables)
    _say(tables)
    return 1 if record.failures else 0


def _add_all(record: Record, place: Path, workers: int, *, keep_going: bool) -> None:
    """All that are left, or all up to the first failure."""
    began, done = time.perf_counter(), record.done
    counted = said = began
    with closing(_results(record, workers)) as results:
        for result in results:
            now = time.perf_counter()
            record.add(result)
            record.wall_s += now - counted
            counted = now
            if result.violations:
                _describe(result)
                if not keep_going:
                    return
            if now - said >= _SAY_EVERY_S:
                said = now
                record.save(place)
                per_s = (record.done - done) / (now - began)
                left = f"{per_s:.1f} seeds/s, {len(record.left) / per_s / 60:.0f} min left"
                _say(f"{record.done} of {record.seeds} seeds, {len(record.failures)} failed, {left}")


def _results(record: Record, workers: int) -> Generator[Result, None, None]:
    """In the order of the seeds, no matter who has run them. The processes are forked, so that all of them run the
    source as it is now."""
    with ProcessPoolExecutor(workers, mp_context=get_context("fork"), initializer=_prepare_worker) as pool:
        try:
            yield from pool.map(partial(run_seed, workload=record.workload), record.left)
        finally:
            pool.shutdown(cancel_futures=True)


def _prepare_worker() -> None:
    """Ctrl-C is for who hands out the seeds: those that have begun come to their end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.freeze()  # what is imported stays


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _describe(result: Result) -> None:
    for line in result.lines[-_SHOWN_LINES:] if result.violations else ():
        _say(line)
    _say(f"seed {result.seed}: digest {result.digest}, {result.simulated_s:.0f} simulated s, {result.wall_s:.2f} s, ")
    _say(f"  {dict(result.counts)}, faults {dict(result.faults)}")
    for violation in result.violations:
        _say(f"  VIOLATION {violation}")
    if result.violations:
        _say(f"  replay: make simulate SEED={result.seed} WORKLOAD={result.workload}")


sys.exit(main())
