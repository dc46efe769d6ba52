"""The source obeys the architecture: imports point downwards only, and what must be handed in is not reached for.

Method: read every module's syntax tree; no module is imported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("metastore", "service", "coordinator", "participants", "metatxn", "spark_connector", "pyspark_metatxn")

WIRE_MODELS = {
    "coordinator.api.models",
    "participants.api.models",
    "participants.broker.names",
    "participants.ledger.frames",
    "participants.ledger.position",
    "service.models",
    "service.problems",
    "service.text",
    "metastore.txn.ids",
}
ALLOWED: dict[str, set[str]] = {
    "metastore": {"metastore"},
    "service": {"service", "metastore"},
    "coordinator": {"coordinator", "service", "metastore"},
    "participants": {"participants", "service", "metastore"},
    "metatxn": {"metatxn", *WIRE_MODELS},
    "spark_connector": {"spark_connector", "metatxn"},
    "pyspark_metatxn": {"spark_connector"},
}
BANNED_CALLS = {
    "time.time": "take the clock that is handed in",
    "time.sleep": "await an event",
    "random.random": "take the randomness that is handed in",
    "datetime.now": "take the clock that is handed in",
}


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        if (ROOT / f"{package}.py").exists():
            yield package, ROOT / f"{package}.py"
        for path in sorted((ROOT / package).rglob("*.py")):
            yield package, path


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def allowed(package: str, module: str) -> bool:
    if module.partition(".")[0] not in PACKAGES:
        return True
    return any(module == name or module.startswith(f"{name}.") for name in ALLOWED[package])


@pytest.mark.parametrize(("package", "path"), [pytest.param(*m, id=str(m[1].relative_to(ROOT))) for m in modules()])
def test_imports_point_downwards(package: str, path: Path) -> None:
    """DESIGN §2: who may know whom."""
    wrong = [name for name in imported(ast.parse(path.read_text())) if not allowed(package, name)]
    assert not wrong, f"{path.name} in {package} must not import {', '.join(wrong)}"


def test_import_rule_can_fail() -> None:
    """The rule above notices each forbidden arrow."""
    assert not allowed("participants", "coordinator.transactions")
    assert not allowed("coordinator", "participants.records")
    assert not allowed("metastore", "service.http")
    assert not allowed("metatxn", "participants.broker.broker")
    assert not allowed("spark_connector", "participants.api.models")
    assert allowed("metatxn", "participants.api.models")


@pytest.mark.parametrize("path", [pytest.param(m[1], id=str(m[1].relative_to(ROOT))) for m in modules()])
def test_nothing_reaches_for_clock_or_randomness(path: Path) -> None:
    """Core logic is written without I/O of its own (DESIGN §2), so that a simulator can run it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            assert name not in BANNED_CALLS, f"{path.name}:{node.lineno} {name}: {BANNED_CALLS[name]}"


def test_no_leftovers() -> None:
    """Nothing that says "later" is committed."""
    marks = ("TO" + "DO", "FIX" + "ME", "X" + "XX")
    for path in (*ROOT.glob("*/**/*.py"), *ROOT.glob("*.md")):
        if ".venv" in path.parts or "build" in path.parts:
            continue
        text = path.read_text()
        assert not any(mark in text for mark in marks), f"{path} has a leftover mark"
