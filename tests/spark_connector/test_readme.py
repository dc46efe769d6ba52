"""Goal: what the connector's README promises is held by what it says holds it. Method: its text beside the source."""

from __future__ import annotations

import re
from pathlib import Path

from spark_connector.options import READ_OPTIONS, WRITE_OPTIONS

HERE = Path(__file__).parent
README = (HERE.parent.parent / "spark_connector" / "README.md").read_text()


def test_every_row_of_the_failure_table_names_tests_that_exist() -> None:
    rows = [line for line in README.partition("## When something fails")[2].splitlines() if "`test_" in line]
    assert len(rows) > 10
    for row in rows:
        file = ""
        for named, test in re.findall(r"`(test_\w+\.py)?(?:::(\w+))?`", row):
            file = named or file
            source = (HERE / file).read_text()
            assert not test or f"def {test}(" in source, f"{file} has no {test}"


def test_the_tables_of_options_are_complete() -> None:
    writing, reading = README.partition("## Writing")[2], README.partition("## Reading")[2]
    for options, section in ((WRITE_OPTIONS, writing), (READ_OPTIONS, reading)):
        table = "\n".join(line for line in section.partition("\n## ")[0].splitlines() if line.startswith("| `"))
        assert [name for name in options if f"`{name}`" not in table] == []
