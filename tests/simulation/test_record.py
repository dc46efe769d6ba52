"""Goal: a run of thousands of seeds is told truly, in however many processes and pieces it was made.

Method: a few seeds as `make simulate` runs them, in processes of their own, because threads that other tests have left
in this one may draw from the same randomness; for cuts and failures, which real seeds do not have, results that are
made up.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.simulation import record as records
from tests.simulation.record import DECIDING, ROOT, Record, publish, source_digest, sources
from tests.simulation.run import Result


def result(seed: int, *violations: str) -> Result:
    return Result(seed, "bank", list(violations), [], f"{seed:x}", Counter(kills=2), Counter(callbacks=30), 61.5, 0.1)


def record(*results: Result) -> Record:
    made = Record(first=7, seeds=4, workload=None)
    for each in results:
        made.add(each)
    return made


def test_two_workers_find_what_one_finds(tmp_path: Path) -> None:
    """No matter who has run a seed, and with whatever hashes; what was kept on the way is gone."""

    def run_with(workers: int) -> Path:
        kept = tmp_path / str(workers)
        run = [sys.executable, "-m", "tests.simulation", "--workload", "log", "--seeds", "2"]
        run += ["--workers", str(workers), "--kept", str(kept)]
        subprocess.run(run, stdout=subprocess.PIPE, check=True)
        return kept

    one, two = run_with(1), run_with(2)
    told = Record.load(two / "record.json")
    assert replace(Record.load(one / "record.json"), wall_s=told.wall_s) == told
    assert not told.left
    assert told.shortest_s > 60
    assert (two / "record.md").read_text() == told.tables()
    assert {path.name for path in two.iterdir()} == {"record.json", "record.md"}


def test_what_was_kept_is_all_that_is_needed_to_go_on(tmp_path: Path) -> None:
    record(result(7), result(8)).save(tmp_path / "kept.json")
    second = Record.load(tmp_path / "kept.json")
    assert second.left == range(9, 11)
    for seed in second.left:
        second.add(result(seed))
    assert second == record(*map(result, range(7, 11)))
    assert second.faults == {"kills": 8}


def test_a_failure_does_not_stop_a_run_and_is_told_with_its_command(tmp_path: Path) -> None:
    record(result(7), result(8, "order: two is before one")).save(tmp_path / "kept.json")
    kept = Record.load(tmp_path / "kept.json")
    kept.add(result(9))
    assert "`make simulate SEED=8 WORKLOAD=bank`: order: two is before one" in kept.tables()


def test_another_source_begins_anew(tmp_path: Path) -> None:
    rule, mutants = tmp_path / "coordinator" / "ends.py", tmp_path / "tests" / "mutants" / "protocol.py"
    bounds = tmp_path / "tests" / "bounds.py"
    for path in (rule, mutants, bounds):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    before = source_digest(tmp_path, 1, 300)
    assert source_digest(tmp_path, 1, 301) != before
    mutants.write_text("another mutant")
    assert source_digest(tmp_path, 1, 300) == before
    rule.write_text("another rule")
    assert source_digest(tmp_path, 1, 300) != before
    before = source_digest(tmp_path, 1, 300)
    bounds.write_text("another bound")
    assert source_digest(tmp_path, 1, 300) != before


def test_what_the_simulation_imports_is_of_its_source() -> None:
    deciding = [path for package in DECIDING for path in sources(ROOT, package) if not path.name.startswith("test_")]
    imported = {name for path in deciding for name in _imports(path)}
    files = {f"{name.replace('.', '/')}.py" for name in imported if name.startswith("tests.")}
    missing = [name for name in files if (ROOT / name).is_file() and ROOT / name not in deciding]
    assert "tests/bounds.py" in files and missing == []


def _imports(path: Path) -> Iterator[str]:
    """The modules that a file imports from."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (node.module, *(f"{node.module}.{name.name}" for name in node.names))
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def test_the_tables_take_their_place_in_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "simulation.md"
    page.write_text(records.PAGE.read_text())
    monkeypatch.setattr(records, "PAGE", page)
    publish(record(result(7)).tables())
    once = page.read_text()
    assert "| kills | 2 |" in once
    publish(record(result(7)).tables())
    assert page.read_text() == once
