"""Goal: pyproject.toml says what the code needs, and no more; other files about the project agree with it and the code.

Method: the syntax trees of all modules are read, and the environment is asked which distribution a module is of. The
product is what gets installed; tests, benchmarks, examples and scripts may also use the extras for development.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

from packaging.version import Version

from tests.extent import _LONG
from tests.test_source import ALLOWED

ROOT = Path(__file__).parent.parent
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
DEVELOPMENT = {"compose", "demo", "dev", "docs", "fuzz", "helm", "matrix", "peers", "plots"}
"""Extras of which the product may import nothing."""
BESIDE_THE_PRODUCT = ("tests", "benchmarks", "examples", "scripts")
PART_OF = {
    "markupsafe": "jinja2",
    "pil": "matplotlib",  # the module of Pillow, where that is not installed
    "pillow": "matplotlib",
    "pydantic-core": "pydantic",
    "starlette": "fastapi",
}
"""Distributions that belong to another one, which asks for the version that fits."""
NOT_IMPORTED = {
    "pandas": "Spark imports it where it exchanges Arrow data with Python",
    "flask": "the server of moto",
    "flask-cors": "the server of moto",
    "moto": "started as a program",
    "mypy": "started as a program",
    "podman-compose": "started as a program",
    "pytest-asyncio": "a plugin of pytest",
    "pytest-timeout": "a plugin of pytest",
    "pytest-xdist": "a plugin of pytest",
    "ruff": "started as a program",
    "mkdocs-material": "the theme in mkdocs.yml",
}
APACHE_2 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
"""The digest of https://www.apache.org/licenses/LICENSE-2.0.txt."""


def normalized(requirement: str) -> str:
    """The name of the distribution, as registries compare it."""
    (name,) = re.findall(r"^[\w.-]+", requirement)
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(*extras: str) -> set[str]:
    """The dependencies that always hold, and those of these extras."""
    optional = PROJECT["project"]["optional-dependencies"]
    lists = [PROJECT["project"]["dependencies"], *(optional[extra] for extra in extras)]
    return {normalized(each) for requirements in lists for each in requirements} - {"metatxn"}


def product() -> Iterator[Path]:
    """The modules that are installed."""
    setuptools = PROJECT["tool"]["setuptools"]
    yield from (ROOT / f"{name}.py" for name in setuptools["py-modules"])
    for pattern in setuptools["packages"]["find"]["include"]:
        for package in ROOT.glob(pattern):
            yield from package.rglob("*.py")


def beside_the_product() -> Iterator[Path]:
    for name in BESIDE_THE_PRODUCT:
        yield from (ROOT / name).rglob("*.py")


@cache
def installed() -> Mapping[str, list[str]]:
    """The distributions that bring each module."""
    return packages_distributions()


def distributions_of(module: str) -> set[str]:
    """Those of which one has to be declared. A module that is not installed here counts under its own name."""
    return {normalized(name) for name in installed().get(module, [module])}


def third_party(source: str) -> Iterator[str]:
    """The modules by their first names that a source imports, also within functions and for types alone."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in {name.partition(".")[0] for name in names} - sys.stdlib_module_names:
            if not (ROOT / name).is_dir() and not (ROOT / f"{name}.py").exists():
                yield name


@cache
def imported(which: str) -> frozenset[str]:
    paths = product() if which == "product" else beside_the_product()
    return frozenset(name for path in paths for name in third_party(path.read_text()))


def undeclared(modules: Iterable[str], requirements: set[str]) -> set[str]:
    return {
        module
        for module in modules
        if not {PART_OF.get(name, name) for name in distributions_of(module)} & requirements
    }


def unused(requirements: set[str], modules: Iterable[str]) -> set[str]:
    used = {name for module in modules for name in distributions_of(module)}
    stubs = {name for name in requirements if name.startswith("types-") or name.endswith("-stubs")}
    return requirements - used - stubs - NOT_IMPORTED.keys()


def test_what_the_product_imports_is_declared() -> None:
    extras = PROJECT["project"]["optional-dependencies"].keys() - DEVELOPMENT
    assert len(imported("product")) > 10, "or the modules were not found"
    assert undeclared(imported("product"), declared(*extras)) == set()


def test_the_client_needs_no_extra() -> None:
    """uvloop is faster where it is there, and OpenTelemetry is used where the program does."""
    servers = {"service", "console"}
    client = [path for path in (ROOT / "metatxn").rglob("*.py") if servers.isdisjoint(path.relative_to(ROOT).parts[:2])]
    modules = {name for path in client for name in third_party(path.read_text())}
    assert undeclared(modules, declared()) == {"opentelemetry", "uvloop"}
    connector = {name for path in (ROOT / "spark_connector").rglob("*.py") for name in third_party(path.read_text())}
    assert undeclared(connector, declared("spark")) == {"opentelemetry"}


def test_what_tests_and_tools_import_is_declared() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert undeclared(imported("beside"), declared(*extras)) == set()


def test_what_is_declared_is_imported() -> None:
    """What only tests and tools import must not be installed with the product."""
    extras = PROJECT["project"]["optional-dependencies"]
    assert unused(declared(*extras.keys() - DEVELOPMENT), imported("product")) == set()
    assert unused(declared(*extras), imported("product") | imported("beside")) == set()
    assert NOT_IMPORTED.keys() <= declared(*extras)


def test_what_is_missing_or_too_much_is_noticed() -> None:
    source = "import os, yaml.nodes\ndef late():\n    from pydantic_core import x\nfrom . import near\nimport tests"
    assert set(third_party(source)) == {"yaml", "pydantic_core"}
    assert undeclared(third_party(source), {"pyyaml"}) == {"pydantic_core"}
    assert undeclared(third_party(source), {"pydantic"}) == {"yaml"}
    assert unused({"pyyaml", "pydantic-settings", "types-pyyaml", "mypy"}, third_party(source)) == {"pydantic-settings"}


def test_what_the_quick_tests_leave_out_is_there() -> None:
    """A name of a file that has moved would leave nothing out."""
    assert [name for name in _LONG if not (ROOT / "tests" / name).exists()] == []


def test_the_version_is_that_of_the_changelog() -> None:
    """The changes that are not released stand above the release before, and belong to the one that is being developed:
    a cluster that is upgraded tells the two apart."""
    sections = re.findall(r"^## \[(.+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    version = Version(PROJECT["project"]["version"])
    assert (sections[0] == "Unreleased" and version > Version(sections[1])) or str(version) == sections[0]
    assert f"image: metatxn:{version}\n" in (ROOT / "docker-compose.yml").read_text()


def test_the_license_is_the_one_that_is_declared() -> None:
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2


def test_the_table_of_floors_is_the_one_that_is_enforced() -> None:
    (table,) = re.findall(r"<!-- floors -->\n(.*)<!-- end of floors -->", CONTRIBUTING, re.DOTALL)
    rows = [[set(re.findall(r"`(.+?)`", cell)) for cell in line.split(" | ")] for line in table.splitlines()[2:]]
    assert {name: below for (name,), below in rows} == {name: below - {name} for name, below in ALLOWED.items()}


def test_files_and_commands_that_contributing_names_exist() -> None:
    named = set(re.findall(r"\b((?:docs|metastore|metatxn|tests)/[\w./-]*\w)", CONTRIBUTING))
    assert len(named) > 20
    assert {name for name in named if not (ROOT / name).exists()} == set()
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    told = set(re.findall(r"`make ([a-z-]+)", CONTRIBUTING))
    assert told <= targets
    assert {target for target in targets if target.endswith("-test")} <= told


def test_names_in_files_that_contributing_names_exist() -> None:
    """`_LAWS` in `metastore/txn/invariants.py`: such a name is in one of the files of its step."""
    steps = re.findall(r"^\d\. (.*(?:\n   .*)*)", CONTRIBUTING, re.MULTILINE)
    seen = 0
    for step in steps:
        source = "".join((ROOT / name).read_text() for name in re.findall(r"`([\w/]+\.py)`", step))
        for name in re.findall(r"`([A-Z_][\w.]*)`", step) if source else ():
            seen += 1
            assert re.search(rf"\b{name.rpartition('.')[2]}\b", source), name
    assert seen > 5
