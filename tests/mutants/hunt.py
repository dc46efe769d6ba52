"""Looks for what catches a mutant: the tests, and seeds of the simulation. First come the test and the seed that caught
it the last time; only if they pass, the others are looked through.

What catches it must pass without the mutant: otherwise it has found a bug of ours, which comes first. Seeds are run
again at once, and tests all together in the end (`failing_anyway`). What was found is kept in build/mutants under the
digest of the mutated source, so that a run which was cut off goes on where it was.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.mutants.mutant import ROOT, Mutant
from tests.simulation.record import source_digest
from tests.simulation.run import run_seed

SEEDS = 200
TESTS_S = 240
"""How long a mutant's own tests may take."""
TESTS_BESIDE_S = 60
"""How long to look for a test that catches what the simulation has to catch: what takes longer is no quick answer."""
_STOPPED_WITHIN_S = 60
_KEPT = ROOT / "build" / "mutants"
_PACKAGES = ("metastore", "coordinator", "participants", "metatxn", "metatxn_gateways", "spark_connector")
_COPIED = (
    *_PACKAGES,
    "tests",
    "ops",
    "docs",
    "examples",
    "benchmarks",
    "README.md",
    "LICENSE",
    "pyproject.toml",
    "pyspark_metatxn.py",
)


class Catch(NamedTuple):
    """What failed, and after how many seconds; `seed` when the simulation did."""

    by: str
    seconds: float
    seed: int = 0


class Found(NamedTuple):
    by_tests: Catch | None
    by_seeds: Catch | None


class Last(NamedTuple):
    """What caught a mutant the last time."""

    test: str | None
    seed: int | None


def hunt(mutant: Mutant, last: Last | None) -> Found:
    """Where the mutant has to be found, and where it might be: tests beside the file of a rule of the protocol. Where
    none of these has found it the last time, they are not looked through again."""
    with _copied() as copy:
        mutant.apply(copy)
        test = last.test if last is not None else None
        if mutant.tests:
            return Found(_by_tests(mutant, copy, mutant.tests, TESTS_S, test), None)
        beside = None
        if last is None or test is not None:
            beside = _by_tests(mutant, copy, (mutant.tests_beside,), TESTS_BESIDE_S, test)
        digest = source_digest(copy, mutant.workload)
        seed = last.seed if last is not None else None
        return Found(beside, _kept(mutant, f"seeds-{digest}", lambda: _by_seeds(mutant, copy, seed)))


@contextmanager
def _copied() -> Iterator[Path]:
    """A copy of the source."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as place:
        copy = Path(place)
        for name in _COPIED:
            if (ROOT / name).is_dir():
                # With what is compiled, which holds as long as its source; not with what is being compiled.
                shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("*.pyc.*", "images"))
            else:
                shutil.copy(ROOT / name, copy / name)
        yield copy


def failing_anyway(tests: Iterable[str]) -> list[str]:
    """Those of these tests that fail without any mutant, in a copy like that of the mutants."""
    wanted = sorted(set(tests))
    if not wanted:
        return []  # pytest would take that for all of them
    with _copied() as copy:
        (copy / "wanted").write_text("".join(f"{test}\n" for test in wanted))
        patience = ("--timeout", str(TESTS_S // 2), "--timeout-method", "signal")
        command = [*_PYTEST, "-n", str(os.cpu_count()), *patience, "@wanted"]
        run = subprocess.run(command, cwd=copy, stdout=subprocess.PIPE, text=True, check=False)
        failed = _FAILED.findall(run.stdout)
        assert run.returncode == 0 or failed, f"these tests did not run:\n{run.stdout[-2000:]}"
        return failed


def find(first: int, last: int, workload: str) -> tuple[str, int] | None:
    """The promise that the first of these seeds to fail shows broken, and that seed; None when all pass."""
    for seed in range(first, last + 1):
        if violations := run_seed(seed, workload).violations:
            return violations[0].partition(":")[0], seed
    return None


def _kept(mutant: Mutant, digest: str, look: Callable[[], Catch | None]) -> Catch | None:
    kept = _KEPT / f"{mutant.name}-{digest}.json"
    if not kept.exists():
        found = look()
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found))
    known = json.loads(kept.read_text())
    return None if known is None else Catch(*known)


def _by_seeds(mutant: Mutant, copy: Path, first: int | None) -> Catch | None:
    begun = time.monotonic()
    found = _find_in(copy, first, first, mutant.workload) if first is not None else None
    found = found or _find_in(copy, 1, SEEDS, mutant.workload)
    seconds = time.monotonic() - begun
    if found is None:
        return None
    promise, seed = found
    mutant.take_back(copy)
    ours = _find_in(copy, seed, seed, mutant.workload)
    mutant.apply(copy)
    assert ours is None, f"{mutant.name}: without it, too, this is found: {ours}"
    return Catch(promise, seconds, seed)


def _find_in(copy: Path, first: int, last: int, workload: str) -> tuple[str, int] | None:
    """`find` in a copy of the source."""
    asked = f"print(json.dumps(hunt.find({first}, {last}, {workload!r})))"
    command = [sys.executable, "-c", f"import json; from tests.mutants import hunt; {asked}"]
    run = subprocess.run(command, cwd=copy, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(run.stdout.splitlines()[-1])
    return None if found is None else (found[0], found[1])


def _by_tests(mutant: Mutant, copy: Path, tests: tuple[str, ...], at_most_s: int, first: str | None) -> Catch | None:
    """Kept for this source, and for what stands in the directories of these tests, of which `first` comes first."""
    beside = {"/".join(Path(test.partition("::")[0]).parts[:2]) for test in tests}
    digest = source_digest(copy, tests, at_most_s, packages=(*_PACKAGES, *sorted(beside)))
    if first is not None and not first.startswith(tests):
        first = None  # the mutant names other tests now
    return _kept(mutant, f"tests-{digest}", lambda: _first_that_fails(copy, tests, at_most_s, first))


def _first_that_fails(copy: Path, tests: tuple[str, ...], at_most_s: int, first: str | None) -> Catch | None:
    begun = time.monotonic()
    test = _first_to_fail(copy, (first,), at_most_s) if first is not None else None
    test = test or _first_to_fail(copy, tests, at_most_s)
    return None if test is None else Catch(test, time.monotonic() - begun)


_PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
_INTERRUPTED, _NOT_THERE = 2, 4
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?::.+?)(?: - .*)?$", re.MULTILINE)


def _first_to_fail(copy: Path, tests: tuple[str, ...], at_most_s: int) -> str | None:
    """None when all pass or are not there, or, of tests that are only looked through, none has failed within
    `at_most_s`. One that waits forever fails after half of that; if it cannot even be stopped then, the first of the
    tests that have to fail is named. Nothing that they have started stays behind, whatever a mutant does to those who
    stop it."""
    patience = ("--timeout", str(at_most_s // 2), "--timeout-method", "signal")
    command = [*_PYTEST, "-x", *patience, *tests]
    run = subprocess.Popen(
        command, cwd=copy, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )
    _GROUPS.add(run.pid)
    try:
        told, errors = run.communicate(timeout=at_most_s)
    except subprocess.TimeoutExpired:
        _interrupt(run)
        return tests[0] if at_most_s >= TESTS_S else None
    finally:
        _GROUPS.discard(run.pid)
        _end(run.pid)
    failed = _FAILED.search(told)
    if run.returncode in (0, _INTERRUPTED, _NOT_THERE) and not failed:  # a test of Ctrl-C may interrupt the run
        return None
    assert failed, f"these tests did not run:\n{told[-2000:]}{errors[-2000:]}"
    return failed[1]


_GROUPS: set[int] = set()
"""Of the processes that look for mutants now. Ctrl-C does not reach them."""


def give_up() -> None:
    """End all that looks for mutants now."""
    for group in list(_GROUPS):
        _end(group)


def _end(group: int) -> None:
    with suppress(ProcessLookupError):  # nobody of it is left
        os.killpg(group, signal.SIGKILL)


def _interrupt(run: subprocess.Popen[str]) -> None:
    """Fixtures stop the servers that they have started, as after Ctrl-C."""
    run.send_signal(signal.SIGINT)
    try:
        run.communicate(timeout=_STOPPED_WITHIN_S)
    except subprocess.TimeoutExpired:
        run.kill()
        run.communicate()
