"""Goal: the table of deliberate bugs is about the source as it is; `make mutants` runs them.

Method: apply each to a copy of the files that it edits.
"""

from __future__ import annotations

import ast
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants.guards import GUARDS
from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.protocol import PROTOCOL
from tests.simulation.workloads import WORKLOADS

MUTANTS = (*PROTOCOL, *GUARDS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_mutant_fits_the_source(mutant: Mutant, tmp_path: Path) -> None:
    """Each text is there exactly once, and what becomes of the file is another program."""
    for path in {edit.path for edit in mutant.edits}:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    mutant.apply(tmp_path)
    for path in {edit.path for edit in mutant.edits}:
        assert ast.dump(ast.parse((tmp_path / path).read_text())) != ast.dump(ast.parse((ROOT / path).read_text()))


def test_the_table_is_in_order() -> None:
    """A name is one row, its workload is run, and its tests are there."""
    assert not [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1]
    assert {mutant.workload for mutant in MUTANTS} <= {kind.name for kind in WORKLOADS}
    for test in {test for mutant in GUARDS for test in mutant.tests}:
        path, _, node = test.partition("::")
        assert not node or f"def {node.partition('[')[0]}(" in (ROOT / path).read_text(), test
        assert (ROOT / path).exists(), test
