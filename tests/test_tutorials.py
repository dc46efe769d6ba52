"""Goal: docs/rest.md and docs/sqlite.md show what happens. Method: every command of both pages is run, in order,
against one new `metatxn dev`, and the output is compared. To write the pages again: `python -m tests.test_tutorials`.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path

import pytest

from examples.flights.demo import running_dev
from tests.documents import examples, replayed

DOCS = Path(__file__).parent.parent / "docs"
PAGES = [DOCS / "rest.md", DOCS / "sqlite.md"]
COORDINATOR, BROKER = "http://127.0.0.1:8470", "http://127.0.0.1:8471"
VARYING = (
    r"\b\d{13}\b",  # times
    r'(?<="revision":)\d+',  # the broker writes too
    r"\b(?!0{8})[0-9a-f]{32}\b",  # ids that processes draw
    r"(?<=nothing wrong in )\d+",  # a broker may still be cleaning up
)


async def tutorials(directory: Path) -> list[str]:
    """The pages as their commands answer now."""
    with running_dev(directory, None) as url:
        (directory / "metatxn-data").symlink_to("data")
        shell = Shell(directory, url)
        return [await replayed(page.read_text(), shell.answer) for page in PAGES]


class Shell:
    """Runs what is typed, with the ports of this `metatxn dev` in place of the default ones."""

    def __init__(self, directory: Path, url: str) -> None:
        self._directory = directory
        self._coordinator = url
        self._broker = ""
        self._environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    async def answer(self, typed: str) -> str:
        if not self._broker:
            found = await self._printed(f"curl -s {self._coordinator}/v1/cluster")
            self._broker = re.findall(r'"brokers":\[\{[^}]*"url":"([^"]+)"', found)[0]
        output = await self._printed(typed.replace(COORDINATOR, self._coordinator).replace(BROKER, self._broker))
        output = output.replace(self._coordinator, COORDINATOR).replace(self._broker, BROKER)
        for pattern in VARYING:
            output = re.sub(pattern, "…", output)
        return output if not output or output.endswith("\n") else output + "\n"

    async def _printed(self, typed: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", typed), cwd=self._directory, env=self._environment, stdout=PIPE, stderr=STDOUT
        )
        output, _ = await process.communicate()
        return output.decode()


async def test_the_tutorials_answer_as_shown(tmp_path: Path) -> None:
    assert await tutorials(tmp_path) == [page.read_text() for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_command_is_left_out(page: Path) -> None:
    """Only `metatxn dev` itself, which the test starts, stands in a block without a mark."""
    text = page.read_text()
    assert text.count("```console") == len(examples(text, "console")) + text.count("```console\n$ metatxn dev\n```")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        for page, text in zip(PAGES, asyncio.run(tutorials(Path(directory))), strict=True):
            page.write_text(text)
