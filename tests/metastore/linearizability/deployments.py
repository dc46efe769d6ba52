"""The table of backends: who are the clients of each, and what befalls them and their server. No test names one."""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any

from metastore.api import MetadataStore
from tests.extent import usually
from tests.metastore.linearizability.clients import open_patiently
from tests.servers import EtcdServer, ZooKeeperServer

ROOT = Path(__file__).parents[3]
LONGEST_LINE = 1 << 22


class Fault(Enum):
    SERVER_KILLED = auto()
    SERVER_FROZEN = auto()
    CLIENTS_KILLED = auto()


@dataclass
class Deployment:
    """`stores` has one entry for each client of this process; `process_clients` more are in a process of their own,
    which opens `url`. `open` gives a new client on what is there in the end."""

    open: Callable[[], AbstractAsyncContextManager[MetadataStore]]
    stores: Sequence[MetadataStore] = ()
    url: str = ""
    process_clients: int = 0
    server: EtcdServer | ZooKeeperServer | None = None
    faults: Sequence[Fault] = field(default_factory=list)


Factory = Callable[[Path], AbstractAsyncContextManager[Deployment]]

_FEW_FAULTS = [Fault.SERVER_KILLED, Fault.SERVER_FROZEN, Fault.SERVER_KILLED, Fault.CLIENTS_KILLED]
_MANY_FAULTS = [
    *_FEW_FAULTS,
    Fault.SERVER_KILLED,
    Fault.SERVER_FROZEN,
    Fault.SERVER_KILLED,
    Fault.SERVER_KILLED,
]
SERVER_STORES = 8


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[MetadataStore]:
    store = await open_patiently(url)
    yield store
    await store.close()


@asynccontextmanager
async def _memory(directory: Path) -> AsyncIterator[Deployment]:
    async with _opened("memory://") as store:

        @asynccontextmanager
        async def again() -> AsyncIterator[MetadataStore]:
            yield store

        yield Deployment(again, stores=[store] * 12)


@asynccontextmanager
async def _sqlite(directory: Path) -> AsyncIterator[Deployment]:
    """The process that has the file is server and clients in one."""
    url = f"sqlite:///{directory / 'store.db'}"
    yield Deployment(lambda: _opened(url), url=url, process_clients=12, faults=[Fault.CLIENTS_KILLED] * 6)


async def _deploy(
    stack: AsyncExitStack, server: EtcdServer | ZooKeeperServer, scheme: str, options: Mapping[str, Any]
) -> Deployment:
    """Two clients on each of several stores, so that some travel together, and more in another process."""
    url = f"{scheme}://{server.endpoint}/{secrets.token_hex(6)}"
    stores = []
    for _ in range(SERVER_STORES):
        store = await open_patiently(url, **options)
        stack.push_async_callback(store.close)
        stores += [store, store]
    return Deployment(lambda: _opened(url), stores, url, 4, server, usually(_FEW_FAULTS, _MANY_FAULTS))


@asynccontextmanager
async def _etcd(directory: Path) -> AsyncIterator[Deployment]:
    with EtcdServer(directory / "etcd") as server:
        async with AsyncExitStack() as stack:
            yield await _deploy(stack, server, "etcd", {"deadline_ms": 1_500})


@asynccontextmanager
async def _zookeeper(directory: Path) -> AsyncIterator[Deployment]:
    with ZooKeeperServer(directory / "zookeeper") as server:
        async with AsyncExitStack() as stack:
            yield await _deploy(stack, server, "zk", {"deadline_ms": 1_500, "session_timeout_ms": 2_000})


DEPLOYMENTS: dict[str, Factory] = {"etcd": _etcd, "memory": _memory, "sqlite": _sqlite, "zookeeper": _zookeeper}


class ClientProcess:
    """Runs `client_process`, one after another; each has names of its own. `take` is given the lines of all.

    One that ends by itself fails `tasks`.
    """

    def __init__(self, url: str, clients: int, take: Callable[[bytes], object], tasks: asyncio.TaskGroup) -> None:
        self._url = url
        self._clients = clients
        self._take = take
        self._tasks = tasks
        self._started = 0
        self._ending = False
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._started += 1
        self._ending = False
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.metastore.linearizability.client_process"),
            *(self._url, f"process{self._started}", str(self._clients)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=LONGEST_LINE,
            cwd=ROOT,
        )
        self._reading = self._tasks.create_task(self._read(self._process))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        try:
            async for line in process.stdout:
                if line.endswith(b"\n"):  # the last one is torn when the process dies in the middle of it
                    self._take(line)
            assert self._ending, "the clients have failed"
        finally:
            if process.returncode is None and not self._ending:
                process.kill()
            code = await process.wait()
        assert code in (0, -signal.SIGKILL), f"the clients ended with {code}"

    async def kill(self) -> None:
        assert self._process is not None and self._reading is not None
        self._ending = True
        self._process.kill()
        await self._reading

    async def stop(self) -> None:
        assert self._process is not None and self._process.stdin is not None and self._reading is not None
        self._ending = True
        self._process.stdin.close()
        await self._reading
