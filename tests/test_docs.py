"""What the README and the client's page show is what happens: their marked examples (`tests.documents`) run against a
real `metatxn dev`, in order. The output of its program is compared; its commands must succeed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.flights.demo import running_dev
from tests.documents import commands, examples, outputs

ROOT = Path(__file__).parent.parent
DEFAULT_URL = "http://127.0.0.1:8470"
README = (ROOT / "README.md").read_text()
CLIENT_PAGE = (ROOT / "docs" / "client.md").read_text()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_dev(tmp_path_factory.mktemp("readme"), None) as url:
        yield url


def run(command: list[str], url: str, source: str | None = None) -> str:
    environment = {**os.environ, "METATXN_URL": url, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, input=source, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_python_example_prints_what_the_readme_shows(url: str) -> None:
    (source,) = examples(README, "python")
    (expected,) = outputs(README)
    assert run([sys.executable, "-"], url, source.replace(DEFAULT_URL, url)) == expected


def test_examples_of_the_client_page_print_what_it_shows(url: str) -> None:
    programs, printed = examples(CLIENT_PAGE, "python"), outputs(CLIENT_PAGE)
    assert len(programs) == len(printed) > 2
    for source, expected in zip(programs, printed, strict=True):
        assert run([sys.executable, "-"], url, source.replace(DEFAULT_URL, url)) == expected


def test_console_example_works(url: str) -> None:
    (session,) = examples(README, "console")
    for command in commands(session):
        assert run(shlex.split(command.typed), url)


def test_the_two_commands_come_first() -> None:
    """A newcomer needs to read no further than the first block."""
    (first, *_) = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    assert first.splitlines() == ["$ make demo", "$ make test"]


def test_files_that_the_readme_names_exist() -> None:
    named = re.findall(r"`(tests/[\w./]+)`", README) + re.findall(r"\]\(([\w./-]+)\)", README)
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def anchors(page: str) -> set[str]:
    """Those that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_lead_to_a_page_and_a_heading() -> None:
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("*/README.md")]
    broken = []
    for page in pages:
        for target, anchor in re.findall(r"\]\((?!https?:)([\w./-]*)(?:#([\w-]+))?\)", page.read_text()):
            linked = (page.parent / target) if target else page
            if not linked.exists() or (anchor and anchor not in anchors(linked.read_text())):
                broken.append(f"{page.name}: {target}#{anchor}")
    assert len(pages) > 15
    assert broken == []


def test_tests_that_the_page_about_tests_names_exist() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    source = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = re.findall(r"::(test_\w+)", page)
    assert named
    assert [name for name in named if f"def {name}(" not in source] == []
