"""What the runbooks show is what happens (issue 4, item 10): every command is run, and its output compared.

Method: the story (`tests.runbooks.story`) is told on a real etcd and a real ZooKeeper by the production coordinator
and broker; then each page is replayed, command by command, with the real `etcdctl` and `zkCli.sh`. To write a page
again after a change: `python -m tests.runbooks`.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from metastore.txn import paths
from metatxn.cli.main import app
from tests.documents import Command, commands, examples, replayed
from tests.runbooks.pages import ETCDCTL_PAGE, ZK_PROMPT, ZOOKEEPER_PAGE, etcdctl_page, zookeeper_page

PAGES = [pytest.param(ETCDCTL_PAGE, id="etcdctl"), pytest.param(ZOOKEEPER_PAGE, id="zookeeper-shell")]


async def test_etcdctl_answers_as_shown(tmp_path: Path) -> None:
    page = ETCDCTL_PAGE.read_text()
    assert await etcdctl_page(page, tmp_path) == page


async def test_zookeeper_shell_answers_as_shown(tmp_path: Path) -> None:
    page = ZOOKEEPER_PAGE.read_text()
    assert await zookeeper_page(page, tmp_path) == page


@pytest.mark.parametrize("path", PAGES)
def test_no_command_is_left_out(path: Path) -> None:
    """A console block without a mark would be shown and never run."""
    page = path.read_text()
    assert page.count("```console") == len(examples(page, "console")) > 0


@pytest.mark.parametrize("path", PAGES)
def test_no_command_writes_a_record(path: Path) -> None:
    """An operator looks with the store's own tools, and acts with `metatxn`."""
    prompt = ZK_PROMPT if path == ZOOKEEPER_PAGE else "$ "
    typed = [command.typed for block in examples(path.read_text(), "console") for command in commands(block, prompt)]
    assert typed
    reads = re.compile(
        r"etcdctl (get|watch|endpoint status|alarm list|compaction|defrag|alarm disarm)\b"
        r"|date |(ls|get|stat|sync|addWatch) "
    )
    assert [command for command in typed if not reads.match(command)] == []


@pytest.mark.parametrize("path", PAGES)
def test_the_commands_of_metatxn_beside_them_exist(path: Path) -> None:
    """With these options and arguments: parsed by the real command line, and not run."""
    named = re.findall(r"`metatxn ([^`]+)`", path.read_text())
    assert named
    for line in named:
        command, context = typer.main.get_command(app), None
        arguments = shlex.split(line)
        while hasattr(command, "resolve_command"):
            context = command.make_context("metatxn", arguments, parent=context, resilient_parsing=True)
            _, command, arguments = command.resolve_command(context, arguments)
            assert command is not None
        command.make_context("metatxn", arguments, parent=context)


@pytest.mark.parametrize("path", PAGES)
def test_every_kind_of_record_is_explained(path: Path) -> None:
    """Anyone who meets a key finds on the page whether it may be deleted."""
    kinds = [value for name, value in vars(paths).items() if name.isupper() and value.startswith("/")]
    assert paths.HEADERS in kinds
    page = path.read_text()
    assert [kind for kind in kinds if f"`{kind}" not in page] == []


async def test_a_wrong_line_is_noticed() -> None:
    """The comparison above can fail: an answer that is not what the page shows changes the page."""
    page = "<!-- example: console -->\n```console\n$ one\n1\n$ two\n```\n"
    answers = {"one": "1\n", "two": ""}

    async def answer(typed: str) -> str:
        return answers[typed]

    assert commands(examples(page, "console")[0]) == [Command("one", "1\n"), Command("two", "")]
    assert await replayed(page, answer) == page
    answers["two"] = "2\n"
    assert await replayed(page, answer) == page.replace("$ two\n", "$ two\n2\n")
