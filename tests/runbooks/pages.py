"""The runbooks, and how each of their commands is run: literally, as an operator types it.

What cannot be the same every time (names that processes draw by lot, sizes, ports, ZooKeeper's own numbers and times)
is shown as `…`, and every line of `VARYING…` says which.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from tests.documents import replayed
from tests.runbooks.story import Story, told
from tests.servers import EtcdServer, ZooKeeperServer

DOCS = Path(__file__).parents[2] / "docs"
ETCDCTL_PAGE = DOCS / "etcdctl.md"
ZOOKEEPER_PAGE = DOCS / "zookeeper-shell.md"
ZKCLI = "/usr/share/zookeeper/bin/zkCli.sh"
ZK_PROMPT = "[zk] "

VARYING_ON_ETCD = (
    r'(?<="DBSize" : )\d+',
    r"(?<=/batch/)[0-9a-f]{12}",
    r'(?<=\{"batch":)\d+',
    r'(?<=^\{"level":"warn",).*(?=\}$)',  # etcdctl 3.4 logs an error before it prints it
    r"(?<=etcd member\[)127\.0\.0\.1:\d+",
)
VARYING_ON_ZOOKEEPER = (
    r"(?<=^[cmp]Zxid = ).+",
    r"(?<=^[cm]time = ).+",
    r"(?<=^dataVersion = )\d{2,}",  # 0 and 1 are what a header has
    r'(?<=^\{"revision":)\d+',
    r"\b[0-9a-f]{12}\b",
)


def _steady(output: str, varying: Sequence[str]) -> str:
    for pattern in varying:
        output = re.sub(pattern, "…", output, flags=re.MULTILINE)
    return output


# -- etcdctl -------------------------------------------------------------------------------------------------------


async def etcdctl_page(page: str, directory: Path) -> str:
    """The page as its commands answer now, on a new etcd in `directory`."""
    # The story ends before the history does, also on a slow machine.
    with EtcdServer(directory / "etcd", flags=("--auto-compaction-retention=0",)) as server:
        async with told(f"etcd://{server.endpoint}", directory / "broker") as story:
            return await replayed(page, Etcdctl(server, story).answer)


class Etcdctl:
    """Runs what is typed in a shell that knows the server."""

    def __init__(self, server: EtcdServer, story: Story) -> None:
        self._server = server
        self._story = story
        self._environment = {**os.environ, "ETCDCTL_API": "3", "ETCDCTL_ENDPOINTS": server.endpoint, "LC_ALL": "C"}

    async def answer(self, typed: str) -> str:
        output = await (self._watched(typed) if typed.startswith("etcdctl watch") else self._printed(typed))
        return _steady(output, VARYING_ON_ETCD)

    async def _printed(self, typed: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", typed), env=self._environment, stdout=PIPE, stderr=STDOUT
        )
        output, _ = await process.communicate()
        return output.decode()

    async def _watched(self, typed: str) -> str:
        """A watch never ends, so it is read up to the first decision: one in the past, or one that is made now."""
        watches = self._server.watches()
        process = await asyncio.create_subprocess_exec(
            *shlex.split(typed), env=self._environment, stdout=PIPE, stderr=STDOUT, start_new_session=True
        )
        try:
            if "--rev" not in typed:
                while self._server.watches() == watches:
                    await asyncio.sleep(0.02)
                await self._story.decide_one()
            return "".join([line async for line in _up_to(process, '"state":"COMMITTED"')])
        finally:
            await _ended(process)


# -- ZooKeeper's shell ---------------------------------------------------------------------------------------------


async def zookeeper_page(page: str, directory: Path) -> str:
    """The page as its commands answer now, typed into one shell on a new ZooKeeper in `directory`."""
    with ZooKeeperServer(directory / "zookeeper") as server:
        async with (
            told(f"zk://{server.endpoint}", directory / "broker") as story,
            ZkCli.started(server, story) as shell,
        ):
            return await replayed(page, shell.answer, ZK_PROMPT)


class ZkCli:
    """One shell for all commands: each would cost a Java machine of its own.

    It prints no prompt to a pipe, so every command is followed by `version`, whose line says that the answer is
    complete.
    """

    _COMPLETE = "ZooKeeper CLI version: "

    def __init__(self, process: Process, story: Story) -> None:
        self._process = process
        self._story = story

    @classmethod
    @asynccontextmanager
    async def started(cls, server: ZooKeeperServer, story: Story) -> AsyncIterator[ZkCli]:
        process = await asyncio.create_subprocess_exec(
            *(ZKCLI, "-server", server.endpoint), stdin=PIPE, stdout=PIPE, stderr=STDOUT, start_new_session=True
        )
        try:
            async for _ in _up_to(process, "state:SyncConnected type:None"):
                pass
            shell = cls(process, story)
            await shell.answer("")  # what it says of itself at its start may come after the connection
            yield shell
        finally:
            await _ended(process)

    async def answer(self, typed: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{typed}\nversion\n".encode())
        *lines, _ = [line async for line in _up_to(self._process, self._COMPLETE)]
        if typed.startswith("addWatch"):
            await self._story.decide_one()
            lines += [line async for line in _up_to(self._process, "type:NodeDataChanged")]
        return _steady("".join(lines), VARYING_ON_ZOOKEEPER)


# -- both ----------------------------------------------------------------------------------------------------------


async def _up_to(process: Process, last: str) -> AsyncIterator[str]:
    """The lines that the process prints, up to and with the first that holds `last`."""
    assert process.stdout is not None
    seen: list[str] = []
    while True:
        line = (await process.stdout.readline()).decode()
        assert line, f"it ended without {last!r}: {''.join(seen)}"
        seen.append(line)
        yield line
        if last in line:
            return


async def _ended(process: Process) -> None:
    """With its children: `zkCli.sh` is a shell that starts Java."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    await process.wait()
