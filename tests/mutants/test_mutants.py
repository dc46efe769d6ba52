"""Goal: the table of deliberate bugs is about the source as it is; `make mutants` runs them.

Method: apply each to the text of the files that it edits.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from types import CodeType
from typing import Any

from tests.mutants.__main__ import is_in, known_rows
from tests.mutants.guards import GUARDS
from tests.mutants.mutant import ROOT
from tests.mutants.protocol import PROTOCOL
from tests.simulation.workloads import WORKLOADS

MUTANTS = (*PROTOCOL, *GUARDS)


def test_the_mutants_fit_the_source() -> None:
    """Each text is there exactly once, and what becomes of the file is another program."""
    wrong = []
    for mutant in MUTANTS:
        try:
            edited: dict[str, str] = {}
            for edit in mutant.edits:
                edited[edit.path] = edit.of(edited.get(edit.path) or text_of(edit.path))
            same = [path for path, text in edited.items() if program(text) == program_of(path)]
            wrong += [f"{mutant.name} changes nothing in {path}" for path in same]
        except (AssertionError, SyntaxError) as error:
            wrong.append(f"{mutant.name}: {error}")
    assert wrong == []


@cache
def text_of(path: str) -> str:
    return (ROOT / path).read_text()


@cache
def program_of(path: str) -> Any:
    return program(text_of(path))


def program(text: str) -> Any:
    """What can be compared, without the places in the text: a comment is not another program."""
    return _parts(compile(text, "", "exec", dont_inherit=True))


def _parts(code: CodeType) -> Any:
    constants = [_parts(each) if isinstance(each, CodeType) else (type(each), repr(each)) for each in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants


def test_a_comment_is_not_another_program() -> None:
    text = 'def f(x: int) -> bool:\n    """Doc."""\n    return x > 1\n'
    assert program(text) == program(text.replace("    return", "    # Why?\n\n    return"))
    for other in ("x > 1.0", "x > True", "x >= 1", "y > 1"):
        assert program(text) != program(text.replace("x > 1", other))


def test_the_table_is_in_order() -> None:
    """A name is one row, its workload is run, and its tests are there."""
    assert not [name for name, count in Counter(mutant.name for mutant in MUTANTS).items() if count > 1]
    assert {mutant.workload for mutant in MUTANTS} <= {kind.name for kind in WORKLOADS}
    for test in {test for mutant in GUARDS for test in mutant.tests}:
        path, _, node = test.partition("::")
        assert not node or f"def {node.partition('[')[0]}(" in (ROOT / path).read_text(), test
        assert (ROOT / path).exists(), test


def test_the_page_says_what_caught_each_mutant() -> None:
    """`make mutants NEW=1` adds those that it does not have."""
    rows = known_rows()
    assert [mutant.name for mutant in MUTANTS if not is_in(rows, mutant)] == []
    assert sorted(rows.keys() - {mutant.name for mutant in MUTANTS}) == []
