"""What `docs/upgrade.md` shows is what happens: its commands are run against a cluster whose store is of release 0.2.0,
and their output is compared."""

from __future__ import annotations

import asyncio
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from metastore.backends.sqlite import SqliteStore
from metastore.txn import paths
from metastore.txn.records.processes import Incarnation
from metastore.txn.store import INDEXES
from tests.documents import replayed
from tests.metatxn.command_line import run_here
from tests.metatxn.dev_server import DevServer

PAGE = Path(__file__).parents[2] / "docs" / "upgrade.md"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DevServer]:
    """This release, on a store that release 0.2.0 has left."""

    async def left_by_0_2_0() -> None:
        store = await SqliteStore.open(tmp_path / "metadata.db", INDEXES)
        first = Incarnation(id="f" * 32, begun_ms=1).encode()
        await store.apply(store.batch().create(paths.INCARNATION, first))
        await store.close()

    asyncio.run(left_by_0_2_0())
    with DevServer(tmp_path) as server:
        yield server


def test_the_page_shows_what_the_commands_print(server: DevServer) -> None:
    """Apart from the widths of columns, because the ports are others."""
    urls = {server.coordinator_url: "http://127.0.0.1:8470", server.broker_url: "http://127.0.0.1:8471"}

    async def answer(typed: str) -> str:
        command, _, piped = typed.removeprefix("metatxn ").partition(" | ")
        done = await asyncio.to_thread(run_here, *shlex.split(command), METATXN_URL=server.coordinator_url)
        output = done.stdout + done.stderr
        if piped:
            output = subprocess.run(["bash", "-c", piped], input=output, capture_output=True, text=True).stdout
        for actual, shown in urls.items():
            output = output.replace(actual, shown)
        return output

    page = PAGE.read_text()
    assert narrow(asyncio.run(replayed(page, answer))) == narrow(page)


def narrow(text: str) -> str:
    return re.sub(" {2,}", "  ", text)
