"""What the README and the client's page show is what happens: their marked examples (`tests.documents`) run against a
real `metatxn dev`, in order. The output of its program is compared; its commands must succeed.

What pages link to exists, and every page is in the navigation of the site and reads the same there.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from examples.flights.demo import running_dev
from tests.citations import files
from tests.documents import commands, examples, outputs
from tests.links import anchors, links, navigated

ROOT = Path(__file__).parent.parent
DEFAULT_URL = "http://127.0.0.1:8470"
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The URL of its coordinator, and what it has printed."""
    printed: list[str] = []
    with running_dev(tmp_path_factory.mktemp("readme"), None, printed) as url:
        yield url, "".join(f"{line}\n" for line in printed)


@pytest.fixture
def url(dev: tuple[str, str]) -> str:
    return dev[0]


def run(command: list[str], url: str, source: str | None = None) -> str:
    environment = {**os.environ, "METATXN_URL": url, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, input=source, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout


ONE_AFTER_THE_OTHER = """
import json, sys

for program in json.load(sys.stdin):
    exec(program, {"__name__": "__main__"})
    print("\\0")
"""


def test_python_example_prints_what_the_readme_shows(url: str) -> None:
    (source,) = examples(README, "python")
    (expected,) = outputs(README)
    assert run([sys.executable, "-"], url, source.replace(DEFAULT_URL, url)) == expected


@pytest.mark.parametrize(("page", "least"), [("client", 3), ("policies", 1), ("schemas", 1)])
def test_examples_of_a_page_print_what_it_shows(page: str, least: int, url: str) -> None:
    source = (ROOT / "docs" / f"{page}.md").read_text()
    programs, printed = examples(source, "python"), outputs(source)
    assert len(programs) == len(printed) >= least
    told = run([sys.executable, "-c", ONE_AFTER_THE_OTHER], url, json.dumps(programs).replace(DEFAULT_URL, url))
    assert told.split("\0\n") == [*printed, ""]


@pytest.mark.parametrize("page", ["README.md", "docs/security.md"])
def test_metatxn_dev_prints_what_the_pages_show(page: str, dev: tuple[str, str]) -> None:
    """Except for the ports and the place of the data directory, whose path is absolute."""

    def without_place(output: str) -> str:
        return re.sub(r"(?<=^data {9})/.*$", "/…", re.sub(r"(?<=127\.0\.0\.1:)\d+", "…", output), flags=re.MULTILINE)

    (shown,) = re.findall(r"\$ (?:\.venv/bin/)?metatxn dev\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert without_place(shown) == without_place(dev[1])


def test_console_example_works(url: str) -> None:
    (session,) = examples(README, "console")
    for command in commands(session):
        assert run(shlex.split(command.typed), url)


def test_the_two_commands_come_first() -> None:
    """A newcomer needs to read no further than the first block."""
    (first, *_) = re.findall(r"```console\n(.*?)```", README, re.DOTALL)
    assert first.splitlines() == ["$ make demo", "$ make test"]


def test_files_that_the_readme_names_exist() -> None:
    named = re.findall(r"`(tests/[\w./]+)`", README)
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_tests_that_the_page_about_tests_names_exist() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    source = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = re.findall(r"::(test_\w+)", page)
    assert named
    assert [name for name in named if f"def {name}(" not in source] == []


def broken_links(page: Path) -> list[str]:
    """Those to what is not a file, and those to a heading that is not there."""
    return [
        link.written
        for link in links(page)
        if not link.file.is_file() or (link.anchor and link.anchor not in anchors(link.file))
    ]


def test_links_lead_to_files_and_headings_that_exist() -> None:
    pages = list(files(".md"))
    assert sum(len(list(links(page))) for page in pages) > 100, "or the links were not found"
    broken = {str(page.relative_to(ROOT)): broken_links(page) for page in pages}
    assert {name: written for name, written in broken.items() if written} == {}


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "source.py").touch()
    right = "[a](source.py) [b](page.md#here-it-is) [c](#here-it-is) [d](http://there) `[no](link)` ``[no `](link)``\n"
    code = "```md\n[no](link)\n# No heading\n```\n"
    page.write_text(f"# Here: *it* `is`\n\n## Twice -- numbered\n\n{right}\n{code}")
    assert len(list(links(page))) == 3
    assert broken_links(page) == []
    wrong = ["gone.py", ".", "#no-heading", "page.md#gone", "#twice----numbered", "reference.md"]
    written = " ".join(f"[a]({link})" for link in wrong[:-1])
    page.write_text(f"{page.read_text()}\n{written}\n\n[b]: reference.md\n")
    assert broken_links(page) == wrong


def test_every_page_is_in_the_navigation_of_the_site_once() -> None:
    named = list(navigated(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("[!.]*/README.md")]
    assert sorted(named) == sorted(str(page.relative_to(ROOT)) for page in pages)


def test_pages_read_the_same_on_a_forge_and_on_the_site() -> None:
    """What belongs to the item of a list is indented by four spaces, and `\\|` in code would show its backslash."""
    indented, escaped = re.compile(r"^ {1,3}(?:```|[-*] |\d+\. )", re.MULTILINE), re.compile(r"`[^`\n]*\\\|[^`\n]*`")
    assert indented.search("1. One:\n\n   ```sh")
    assert escaped.search(r"| `begin\|commit` |")
    for page in files(".md"):
        for wrong in (indented, escaped):
            assert wrong.search(page.read_text()) is None, page


def test_the_examples_of_sizes_follow_from_the_unit_costs() -> None:
    """The first table of the section is measured, for transactions over 4 segments in its column of that name."""
    page = (ROOT / "docs" / "operations.md").read_text()
    section = page[page.index("## Size a cluster") : page.index("## Upgrade, back up, move")]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    column = table[0].index("4 segments")
    unit = {row[0]: float(re.sub(r"[^\d.]", "", row[column])) for row in table[2:8]}
    examples = [row for row in table if len(row) == 8 and row[0][:1].isdigit()]
    assert len(examples) == 4
    for each in examples:
        wanted, clusters, of_each, applies, coordinators, brokers, etcd = [float(c.replace(",", "")) for c in each[:7]]
        assert of_each == pytest.approx(wanted / clusters, rel=0.001)
        assert applies == pytest.approx(of_each * unit["applies of the metadata store"], rel=0.01)
        assert coordinators == pytest.approx(of_each * unit["CPU of a coordinator"] / 1000, rel=0.03)
        assert brokers == pytest.approx(of_each * unit["CPU of the brokers"] / 1000, rel=0.03)
        assert etcd == pytest.approx(of_each * unit["CPU of etcd"] / 1000, rel=0.03)
        headers = int(each[7].split()[0].replace(",", ""))
        assert headers == pytest.approx(of_each * 3600, rel=0.001)
        size, of_bytes = each[7].split()[2:]
        stored = unit["bytes in the store from its end until it is collected"] * headers
        assert float(size) * {"MB": 1e6, "GB": 1e9}[of_bytes] == pytest.approx(stored, rel=0.03)
