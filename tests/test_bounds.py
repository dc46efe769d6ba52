"""Goal: every bound that production code has is drawn by the simulation and by chaos, or it says why not.

Method: the source is read. A bound that is not looked up when it is used would be drawn in vain.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from tests.bounds import AS_THEY_ARE, LEDGER_BYTES, SMALL, applied, drawn, ledger_bytes, place_of

ROOT = Path(__file__).parents[1]
_ELSEWHERE = (
    "metastore/backends",
    "metatxn/cli",
    "metatxn/console",
    "metatxn/stored",
    "metatxn/sync",
    "participants/restored",
)
"""What neither of them runs with a seed: stores, the console and what it looks through have suites of their own, and so
does a restored cluster."""
_LOOKS_LIKE_A_BOUND = re.compile(
    r"(_BYTES|_CHUNK|SLICE|TOGETHER|_PAGE|_PER_[A-Z]+|AT_ONCE|KEPT[A-Z_]*|_KEPT|_ENTRIES|_CHECKPOINTS|^MAX_[A-Z_]+"
    r"|^MANY_[A-Z]+|_MESSAGES|REMEMBERED_[A-Z_]+|_RIVALS|_AHEAD|_READS)$"
)


@cache
def source() -> dict[str, ast.Module]:
    """By module."""
    found = {}
    for package in ("metastore", "coordinator", "participants", "metatxn"):
        for file in sorted((ROOT / package).rglob("*.py")):
            name = file.relative_to(ROOT).with_suffix("").as_posix()
            if not name.startswith(_ELSEWHERE):
                found[name.replace("/", ".").removesuffix(".__init__")] = ast.parse(file.read_text())
    return found


def constants(module: str) -> Iterator[str]:
    """What the module itself defines and is a number."""
    for node in source()[module].body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(getattr(importlib.import_module(module), target.id), int):
                yield target.id


@cache
def as_they_are() -> set[str]:
    lines = [line.split(": ") for lines in AS_THEY_ARE.values() for line in lines]
    return {f"{module}.{name}" for module, names in lines for name in names.split()}


def test_every_bound_is_drawn_or_says_why_not() -> None:
    found = {f"{module}.{name}" for module in source() for name in constants(module)}
    assert as_they_are() <= found
    looking = {name for name in found if _LOOKS_LIKE_A_BOUND.search(name.rpartition(".")[2])}
    assert looking <= SMALL.keys() | as_they_are()


def test_a_bound_that_is_drawn_is_drawn_wherever_it_is_imported() -> None:
    imported = {
        (f"{node.module}.{alias.name}", f"{module}.{alias.name}")
        for module, tree in source().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert not [here for there, here in imported if there in SMALL and here not in SMALL]


@pytest.mark.parametrize("name", SMALL)
def test_a_bound_that_is_drawn_is_looked_up_when_it_is_used(name: str) -> None:
    place, attribute = place_of(name)
    usual = getattr(place, attribute)
    assert max(SMALL[name]) < usual if usual else min(SMALL[name]) > usual
    tree = source()[place.__module__ if isinstance(place, type) else place.__name__]
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    names = chain.from_iterable(ast.walk(statement) for function in functions for statement in function.body)
    used = {getattr(node, "id", getattr(node, "attr", None)) for node in names}
    assert attribute in used or isinstance(place, type), "its base class does"


def test_each_seed_has_bounds_of_its_own_and_leaves_the_usual_ones() -> None:
    seeds = [drawn(seed) for seed in range(20)]
    assert all(any(name in seed for seed in seeds) and any(name not in seed for seed in seeds) for name in SMALL)
    assert drawn(1) == drawn("1") != drawn(2)
    usual = {name: getattr(*place_of(name)) for name in SMALL}
    with applied(seeds[0]):
        assert {name: getattr(*place_of(name)) for name in SMALL} == usual | seeds[0]
    assert {name: getattr(*place_of(name)) for name in SMALL} == usual
    assert {ledger_bytes(seed, 10**9) for seed in range(20)} == {*LEDGER_BYTES, 10**9}
