"""What source and pages cite: sections of docs/design.md as `DESIGN §5.3`, and the numbers of docs/scenarios.md.

    python -m tests.citations      writes the column "tests" of docs/scenarios.md

A test names a scenario in its name (`test_47_49_pending_is_not_given_again`), or in its text ("Scenarios 24 and 53",
"scenarios K86-K88"); the docstring of a file names those of the whole file. A lone letter, as in "scenarios C, D",
names a section of the page, which must exist, and holds no number by itself.
"""

from __future__ import annotations

import ast
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
DESIGN = ROOT / "docs" / "design.md"
SCENARIOS = ROOT / "docs" / "scenarios.md"
EXAMPLES = frozenset({ROOT / "tests" / "citations.py", ROOT / "tests" / "test_citations.py"})
"""They show citations, and cite nothing."""
_NOT_SOURCE = {"build", "dist", "typings"}

_DASH = r"\s*[-–]\s*"
_NUMBER = rf"\d+(?:\.\d+)?(?:{_DASH}(?:\d+\.)?\d+)?"
_SEPARATOR = r"(?:,\s*and|,|\s+and|;)\s+"
_SECTIONS = re.compile(rf"DESIGN(?:\.md)?\s+§{_NUMBER}(?:{_SEPARATOR}(?:§{_NUMBER}|\d+\.{_NUMBER}))*")
_SECTION_RANGE = re.compile(rf"(?:(\d+)\.)?(\d+)(?:{_DASH}(?:\d+\.)?(\d+))?")
_HEADING = re.compile(r"^#+ §(\d+(?:\.\d+)?)[. ]", re.MULTILINE)

_ITEM = rf"(?:[A-Z]?\d+(?:(?:{_DASH}|\s+to\s+)[A-Z]?\d+)?|[A-Z]\b(?:\s+to\s+[A-Z]\b)?)"
_SCENARIOS = re.compile(rf"\b[Ss]cenarios?\s+{_ITEM}(?:{_SEPARATOR}{_ITEM})*")
_SCENARIO_RANGE = re.compile(rf"([A-Z]?)(\d+)(?:(?:{_DASH}|\s+to\s+)[A-Z]?(\d+))?|\b([A-Z])\b")
_NAMED = re.compile(r"test_(\d+(?:_\d+)*)_")
_ROW = re.compile(r"^\| (\d+) \| (.+?) \|(.*)\|$")
_LETTER = re.compile(r"^## ([A-Z])\. ")


def one_line(text: str) -> str:
    """Without the breaks of lines, and without the sign of a comment behind them."""
    return re.sub(r"\s*\n\s*(?:#\s+)?", " ", text)


def files(*endings: str) -> Iterator[Path]:
    """Of the project, without what is installed or made."""
    for folder, below, names in os.walk(ROOT):
        below[:] = [name for name in below if not name.startswith((".", "metatxn-data")) and name not in _NOT_SOURCE]
        yield from sorted(Path(folder, name) for name in names if name.endswith(endings))


# -- sections of the design --------------------------------------------------------------------------------------------


def sections(page: str) -> set[str]:
    """Those that have a heading."""
    return set(_HEADING.findall(page))


def cited_sections(text: str) -> set[str]:
    """`DESIGN §5.3-5, 5.9 and §7` cites 5.3, 5.4, 5.5, 5.9 and 7."""
    found: set[str] = set()
    for cited in _SECTIONS.finditer(one_line(text)):
        for chapter, first, last in _SECTION_RANGE.findall(cited[0].replace("§", "")):
            numbers = range(int(first), int(last or first) + 1)
            found |= {f"{chapter}.{number}" if chapter else str(number) for number in numbers}
    return found


# -- scenarios ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CitedScenarios:
    """`numbers`, each with the letter of its section or none; and sections that were named as a whole."""

    numbers: frozenset[tuple[str, int]]
    sections: frozenset[str]


def cited_scenarios(text: str) -> CitedScenarios:
    numbers: set[tuple[str, int]] = set()
    letters: set[str] = set()
    for cited in _SCENARIOS.finditer(one_line(text)):
        for letter, first, last, section in _SCENARIO_RANGE.findall(cited[0].partition(" ")[2]):
            if section:
                letters.add(section)
            else:
                numbers |= {(letter, number) for number in range(int(first), int(last or first) + 1)}
    for named in _NAMED.findall(text):
        numbers |= {("", int(number)) for number in named.split("_")}
    return CitedScenarios(frozenset(numbers), frozenset(letters))


def scenarios(page: str) -> dict[int, str]:
    """The letter of the section that each number is in."""
    found: dict[int, str] = {}
    letter = ""
    for line in page.splitlines():
        if heading := _LETTER.match(line):
            letter = heading[1]
        elif row := _ROW.match(line):
            assert int(row[1]) not in found, f"{row[1]} is there twice"
            found[int(row[1])] = letter
    return found


def holders() -> dict[int, list[str]]:
    """Of each number the tests that name it, and the files that do so as a whole and in no test."""
    found: defaultdict[int, list[str]] = defaultdict(list)
    for path in sorted(set((ROOT / "tests").rglob("test_*.py")) - EXAMPLES):
        source = path.read_text()
        if not cited_scenarios(source).numbers:
            continue
        name = str(path.relative_to(ROOT))
        tests: defaultdict[int, list[str]] = defaultdict(list)
        tree = ast.parse(source)
        lines = source.splitlines()
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
                for number in {number for _, number in cited_scenarios(text).numbers}:
                    tests[number].append(f"{name}::{node.name}")
        for _, number in cited_scenarios(ast.get_docstring(tree) or "").numbers:
            tests.setdefault(number, [name])
        for number, named in tests.items():
            found[number] += named
    return found


def claimed(page: str) -> dict[int, list[str]]:
    """Who holds each number, as the page says."""
    rows = (row for line in page.splitlines() if (row := _ROW.match(line)))
    return {int(row[1]): re.findall(r"`([^`]+)`", row[3]) for row in rows}


def with_holders(page: str, held_by: Mapping[int, list[str]]) -> str:
    """The page with its last column as `held_by` says."""
    lines = []
    for line in page.splitlines():
        if row := _ROW.match(line):
            names = ", ".join(f"`{name}`" for name in held_by.get(int(row[1]), []))
            line = f"| {row[1]} | {row[2]} | {names} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    SCENARIOS.write_text(with_holders(SCENARIOS.read_text(), holders()))
