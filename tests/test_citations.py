"""Goal: whatever section of the design or number of a scenario is cited, a reader finds it.

Method: `tests.citations` reads every source file and page; nothing is imported. The rules are tried on texts that are
wrong.
"""

from __future__ import annotations

from tests.citations import (
    DESIGN,
    EXAMPLES,
    ROOT,
    SCENARIOS,
    cited_scenarios,
    cited_sections,
    claimed,
    files,
    holders,
    scenarios,
    sections,
    with_holders,
)


def unresolved(text: str, design: str, listed: str) -> list[str]:
    """What a text cites that the two pages do not have."""
    numbers, cited = scenarios(listed), cited_scenarios(text)
    wrong = [f"DESIGN §{section}" for section in cited_sections(text) - sections(design)]
    wrong += [f"scenarios {letter}" for letter in cited.sections - set(numbers.values())]
    for letter, number in cited.numbers:
        if number not in numbers or letter not in ("", numbers[number]):
            wrong.append(f"scenario {letter}{number}")
    return sorted(wrong)


def test_whatever_is_cited_is_there() -> None:
    design, listed = DESIGN.read_text(), SCENARIOS.read_text()
    texts = {path: path.read_text() for path in files(".py", ".md") if path not in EXAMPLES}
    assert sum(bool(cited_sections(text)) for text in texts.values()) > 50, "or the files were not found"
    wrong = {str(path.relative_to(ROOT)): unresolved(text, design, listed) for path, text in texts.items()}
    assert {name: cited for name, cited in wrong.items() if cited} == {}


def test_each_scenario_is_held_where_the_page_says() -> None:
    """The page may name fewer tests than there are. When one has moved: `python -m tests.citations`."""
    page, held_by = SCENARIOS.read_text(), holders()
    numbers = list(scenarios(page))
    assert numbers == sorted(set(numbers)) and len(numbers) >= 120
    assert {number: names for number, names in claimed(page).items() if not names} == {}
    wrong = {number: set(names) - set(held_by.get(number, [])) for number, names in claimed(page).items()}
    assert {number: names for number, names in wrong.items() if names} == {}


def test_what_is_wrong_is_noticed() -> None:
    design = "## §2. Pieces\n\n### §5.1 One\n\n### §5.2 Two\n"
    listed = "## A. Begin\n\n| 1 | It begins. | |\n| 2 | It ends. | |\n"
    assert unresolved("DESIGN §2, DESIGN §5.1-2; scenarios A1, 2. Scenarios A", design, listed) == []
    assert unresolved("# DESIGN\n    # §5.3 is not there", design, listed) == ["DESIGN §5.3"]
    assert unresolved("DESIGN.md §5.1–5.4 and §7", design, listed) == ["DESIGN §5.3", "DESIGN §5.4", "DESIGN §7"]
    assert unresolved("DESIGN §5.1, 5.9", design, listed) == ["DESIGN §5.9"]
    assert unresolved("Scenarios 1 to 3 and 7", design, listed) == ["scenario 3", "scenario 7"]
    assert unresolved("scenario B1, scenarios A,\nC", design, listed) == ["scenario B1", "scenarios C"]
    assert unresolved("def test_1_9_it_begins", design, listed) == ["scenario 9"]


def test_what_is_no_number_of_ours_is_left_alone() -> None:
    """The text behind a citation, and what other laws call their sections."""
    assert cited_sections("RFC 8725 §2.1; DESIGN §4, issue 4 item 6") == {"4"}
    assert cited_sections("DESIGN §5.16, 10 minutes") == {"5.16"}
    assert cited_sections("DESIGN §5.13: 1.5 s") == {"5.13"}
    assert cited_scenarios("Scenario 22: six transactions. Scenario 120. It has 7").numbers == {("", 22), ("", 120)}


def test_the_column_is_written_anew() -> None:
    page = "| 1 | It begins. | `tests/gone.py` |\n| 2 | It ends. | |\n"
    written = with_holders(page, {1: ["tests/a.py", "tests/b.py::test_1"]})
    assert written == "| 1 | It begins. | `tests/a.py`, `tests/b.py::test_1` |\n| 2 | It ends. |  |\n"
    assert claimed(written) == {1: ["tests/a.py", "tests/b.py::test_1"], 2: []}
