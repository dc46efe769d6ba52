"""A real cluster for the alerts: etcd, two coordinators, two brokers with local files, and two with an object store.

Each has a way to etcd of its own that can be cut, and below the ledgers of the first broker is a small disk. Clients
put a steady, light load on it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from importlib.metadata import distribution
from pathlib import Path

import httpx

import metatxn
from metatxn.client import AsyncClient
from tests.chaos.cluster import QUOTA
from tests.chaos.disk import Disk
from tests.chaos.service import Service
from tests.metastore.storms.relay import Relay
from tests.servers import EtcdServer, free_port

COORDINATORS = ("coordinator-1", "coordinator-2")
LOCAL, SHARED = ("broker-1", "broker-2"), ("broker-3", "broker-4")
"""Brokers with files of their own, and those of one object store."""
BROKERS = (*LOCAL, *SHARED)
SWEEPS = [
    *("--timeout-sweep-interval-ms", "500", "--gc-interval-ms", "1000", "--gc-retention-ms", "2000"),
    *("--max-clock-skew-ms", "0"),
]
DISK_SIZE = "256m"
POLL_S = 0.2
SOURCE = Path(__file__).parents[2]


class LiveCluster:
    """`services` and their `ways` to etcd by name; `disk` is that of `broker-1`."""

    def __init__(self, directory: Path, request_timeout_s: float = 5) -> None:
        self._directory = directory
        self._request_timeout_s = request_timeout_s
        self.services: dict[str, Service] = {}
        self.ways: dict[str, Relay] = {}
        self.addresses = {name: f"127.0.0.1:{free_port()}" for name in (*COORDINATORS, *BROKERS)}
        self._releases: dict[str, str] = {}
        self.disk: Disk
        self.etcd: EtcdServer
        self.client: AsyncClient

    @property
    def targets(self) -> dict[str, dict[str, str]]:
        """The addresses that Prometheus scrapes, by job and name."""
        jobs = {"metatxn-coordinator": COORDINATORS, "metatxn-broker": BROKERS}
        return {job: {name: self.addresses[name] for name in names} for job, names in jobs.items()}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self._directory.mkdir(parents=True)
        async with AsyncExitStack() as stack:
            self.disk = Disk(self._directory / "disk", DISK_SIZE)
            stack.callback(self.disk.close)
            self.etcd = EtcdServer(self._directory / "etcd", flags=QUOTA)
            await asyncio.to_thread(stack.enter_context, self.etcd)
            for name in self.addresses:
                self.ways[name] = await stack.enter_async_context(Relay(self.etcd.port))
                self.services[name] = Service(name, partial(self._command, name), self._log(name))
                stack.push_async_callback(self.services[name].close)
                self.services[name].launch()
            await self.ready()
            self.client = await stack.enter_async_context(
                metatxn.connect_async(
                    f"http://{self.addresses['coordinator-1']}", request_timeout_s=self._request_timeout_s
                )
            )
            yield

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _command(self, name: str) -> list[str]:
        role, port = name.partition("-")[0], self.addresses[name].partition(":")[2]
        command = [*self._interpreter(name), "-m", "metatxn", role, "--port", port]
        command += ["--store", f"etcd://127.0.0.1:{self.ways[name].port}/ops"]
        if name in COORDINATORS:
            return command + SWEEPS
        if name in SHARED:
            return [*command, "--storage", f"file://{self._directory / 'objects'}"]
        return [*command, "--data-dir", str(self.data_dir(name)), "--max-ledger-bytes", str(256 << 10)]

    def _interpreter(self, name: str) -> list[str]:
        """With the installation that `restart_as` has made, if it has: its metadata precede those of the source."""
        if name not in self._releases:
            return [sys.executable]
        path = os.pathsep.join([str(self._installation(self._releases[name])), str(SOURCE)])
        return ["env", f"PYTHONPATH={path}", sys.executable, "-P"]

    def _installation(self, release: str) -> Path:
        return self._directory / f"release-{release}"

    async def restart_as(self, name: str, release: str | None) -> None:
        """The service stops, and starts again as another release: the same code, in an installation that tells this
        version. `None` is the release that it was."""
        if release is None:
            del self._releases[name]
        else:
            self._releases[name] = release
            metadata = self._installation(release) / f"metatxn-{release}.dist-info"
            metadata.mkdir(parents=True)
            (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: metatxn\nVersion: {release}\n")
            (metadata / "entry_points.txt").write_text(distribution("metatxn").read_text("entry_points.txt") or "")
        await self.services[name].stop()
        self.services[name].launch()
        await self.ready()

    def data_dir(self, name: str) -> Path:
        return (self.disk.path if name == "broker-1" else self._directory) / name

    async def ready(self) -> None:
        async with httpx.AsyncClient(timeout=5) as http:
            for address in self.addresses.values():
                while True:
                    with suppress(httpx.TransportError):
                        if (await http.get(f"http://{address}/readyz")).is_success:
                            break
                    await asyncio.sleep(POLL_S)

    async def topic_on(self, broker: str, name: str, segments: int = 1) -> str:
        """A new topic on the storage of the broker that makes it."""
        async with httpx.AsyncClient(base_url=f"http://{self.addresses[broker]}", timeout=30) as http:
            made = await http.post("/v1/topics", json={"name": name, "segments": segments})
            return str(made.raise_for_status().json()["name"])

    async def load(self, topic: str) -> None:
        """Transactions, messages and a consumer, until it is cancelled. What fails is repeated."""
        await self.client.create_subscription(topic, "load")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(forever(self._transaction, topic))
            tasks.create_task(forever(self._consume, topic))

    async def _transaction(self, topic: str) -> None:
        async with self.client.transaction() as txn:
            await self.client.producer(topic).send({"id": 1}, txn=txn)
        await asyncio.sleep(0.1)

    async def _consume(self, topic: str) -> None:
        async with self.client.consumer(topic, "load") as consumer:
            while True:
                if found := await consumer.receive_many(timeout_s=1):
                    await consumer.acknowledge(found)


async def forever(work: Callable[..., Awaitable[object]], *arguments: str) -> None:
    """Do it again and again. What fails is tried again after a pause."""
    while True:
        try:
            await work(*arguments)
        except metatxn.MetatxnError:
            await asyncio.sleep(POLL_S)
