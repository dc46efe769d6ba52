"""The processes, and the ways between them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import httpx

from metastore.api import MetadataStore
from metastore.urls import open_store_to_read
from participants.ledger.watermark import DEFAULT_PERCENT
from participants.segment.rolling import DEFAULT_MAX_LEDGER_BYTES
from tests.bounds import ledger_bytes
from tests.chaos.client_ways import ClientWays, client_ways
from tests.chaos.disk import Disk
from tests.chaos.mixes import Fault, Mix
from tests.chaos.pulsar_client import PULSAR_TOPICS, command_of_actors, compile_actors
from tests.chaos.releases import client_of_the_previous_release, of_the_previous_release
from tests.chaos.schedule import (
    BROKERS,
    CLIENTS,
    COORDINATORS,
    DISKS,
    KAFKA_CLIENTS,
    LISTENER_CLIENTS,
    PULSAR_CLIENTS,
    SERVICES,
    SHIPPER,
    clients,
    members,
)
from tests.chaos.service import Service
from tests.chaos.store_space import make_room
from tests.metastore.storms.relay import Relay, Relays
from tests.partitions import PeerWays, between_etcds, between_zookeepers
from tests.servers import EtcdCluster, EtcdServer, ZooKeeperEnsemble, ZooKeeperServer, free_port

Member = EtcdServer | ZooKeeperServer
SWEEPS = [
    *("--timeout-sweep-interval-ms", "500", "--gc-interval-ms", "1000"),
    *("--gc-retention-ms", "20000", "--max-clock-skew-ms", "500"),
]
"""Finished transactions are forgotten soon, so that collection meets everything else, but not while somebody asks."""
QUOTA = ("--quota-backend-bytes", str(128 << 20))
"""Of etcd: more than a run needs, and little enough to be filled within seconds."""
LEDGERS_SIZE, STORE_SIZE = "512m", "1g"
"""Of disks. What lies on them takes memory; etcd keeps five files of its log, 64 MiB each, and copies its database."""
OURSELVES = "last"
"""The harness, which is a client of a listener in the end, or has one."""
POLL_S = 0.2
PATIENCE_S = 300.0
"""How long anything may take without faults: much longer than on a machine that has nothing else to do."""


class Cluster:
    """`everyone` that can be killed and frozen, by name; `ways` by `from>to`; `peers` between members of the store;
    `disks` that can be filled up: that of the ledgers, and those of members of the store. `died` counts how often a
    member of the store has ended by itself."""

    def __init__(self, mix: Mix, seed: int, directory: Path) -> None:
        self.mix = mix
        self._seed = seed
        self._directory = directory
        self.histories = directory / "histories"
        self.members: dict[str, Member] = {}
        self.services: dict[str, Service] = {}
        self.clients: dict[str, Service] = {}
        self.ways: dict[str, Relay] = {}
        self.peers = PeerWays()
        self.disks: dict[str, Disk] = {}
        self.died: Counter[str] = Counter()
        self.listeners = ClientWays()
        self._ports = {name: free_port() for name in SERVICES}
        self._listener_ports = {name: free_port() for name in BROKERS}
        self._last: Service | None = None
        self.of_previous: set[str] = {*SERVICES, CLIENTS[0]} if mix.upgrade else set()
        """The processes that run the previous release, once they are launched again. The other clients may be ahead of
        the services."""
        self.changed_release: Counter[str] = Counter()

    @property
    def everyone(self) -> dict[str, Member | Service]:
        return {**self.members, **self.services, **self.clients}

    @property
    def urls(self) -> list[str]:
        """Of the services, as clients know them."""
        return [self._advertised(name) for name in SERVICES]

    @property
    def listener_addresses(self) -> str:
        """Where clients of the listener begin."""
        return ",".join(self.listeners.addresses.values())

    def way(self, target: str) -> Relay | Relays:
        """What a fault of the schedule names: one way, or all those of one client of a listener."""
        name, _, to = target.partition(">")
        return self.listeners.of_client[name] if to == "brokers" else self.ways[target]

    def _advertised(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ways[f'clients>{name}'].port}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Without the clients; they are launched when there is something for them."""
        self.histories.mkdir(parents=True)
        async with AsyncExitStack() as stack:
            self._open_disk(stack, DISKS, self._directory / DISKS, LEDGERS_SIZE)
            await self._start_store(stack)
            for name in SERVICES:
                await self._open_way(stack, f"clients>{name}", self._ports[name])
                for one, member in self.members.items():
                    await self._open_way(stack, f"{name}>{one}", member.port)
            if self.mix.listener:
                await self._open_ways_to_listeners(stack, self.mix.listener)
            if self.mix.listener == "pulsar":
                await asyncio.to_thread(compile_actors, self._directory)
            for name in SERVICES:
                self.services[name] = Service(name, partial(self._service, name), self.log(name))
            for name in clients(self.mix):
                self.clients[name] = Service(name, partial(self._client, name), self.log(name))
            for service in (*self.services.values(), *self.clients.values()):
                stack.push_async_callback(service.close)
            for service in self.services.values():
                service.launch()
            async with asyncio.timeout(PATIENCE_S):
                await self.ready()
            yield

    def _open_disk(self, stack: AsyncExitStack, name: str, path: Path, size: str) -> None:
        self.disks[name] = disk = Disk(path, size)
        stack.callback(disk.close)

    async def _start_store(self, stack: AsyncExitStack) -> None:
        names = members(self.mix)
        directory = self._directory / "store"
        if Fault.STORE_DISK in self.mix.faults:
            for number, name in enumerate(names):
                self._open_disk(stack, name, directory / f"m{number}" if names[1:] else directory, STORE_SIZE)
        started: Sequence[Member]
        match self.mix.store, self.mix.members:
            case "etcd", 1:
                started = [await asyncio.to_thread(stack.enter_context, EtcdServer(directory, flags=QUOTA))]
            case "etcd", 3:
                cluster = EtcdCluster(directory, flags=QUOTA)
                self.peers = await stack.enter_async_context(between_etcds(cluster))
                started = (await asyncio.to_thread(stack.enter_context, cluster)).members
            case "zk", 1:
                started = [await asyncio.to_thread(stack.enter_context, ZooKeeperServer(directory))]
            case "zk", 3:
                ensemble = ZooKeeperEnsemble(directory)
                self.peers = await stack.enter_async_context(between_zookeepers(ensemble))
                started = (await asyncio.to_thread(stack.enter_context, ensemble)).members
            case other:
                raise AssertionError(f"there is no store of this kind: {other}")
        self.members = dict(zip(names, started, strict=True))

    async def _open_way(self, stack: AsyncExitStack, name: str, port: int) -> None:
        self.ways[name] = await stack.enter_async_context(Relay(port))

    async def _open_ways_to_listeners(self, stack: AsyncExitStack, listener: str) -> None:
        ports = {}
        for name in BROKERS:
            await self._open_way(stack, f"{listener}>{name}", self._listener_ports[name])
            ports[name] = self.ways[f"{listener}>{name}"].port
        self.listeners = await stack.enter_async_context(client_ways(ports, self._processes_of_clients))

    def _processes_of_clients(self) -> dict[str, int | None]:
        known = {name: self.clients.get(name) for name in LISTENER_CLIENTS[self.mix.listener]}
        pids = {name: each.pid if each and each.alive() else None for name, each in known.items()}
        return {**pids, OURSELVES: self._last.pid if self._last and self._last.alive() else os.getpid()}

    @asynccontextmanager
    async def last_client(self, *role: str) -> AsyncIterator[Service]:
        """A client of Pulsar's that belongs to the harness; nobody strikes it."""
        self._last = Service(OURSELVES, partial(self._pulsar_client, OURSELVES, *role), self.log(OURSELVES))
        try:
            self._last.launch()
            yield self._last
            await self._last.stop()
        finally:
            await self._last.close()

    def log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _service(self, name: str) -> list[str]:
        role = name.partition("-")[0]
        if name in self.of_previous:
            return of_the_previous_release(role, self._options(name))
        return [sys.executable, "-m", "tests.chaos.bounded", str(self._seed), role, *self._options(name)]

    def _options(self, name: str) -> list[str]:
        endpoints = ",".join(f"127.0.0.1:{self.ways[f'{name}>{member}'].port}" for member in self.members)
        options = ["--store", f"{self.mix.store}://{endpoints}/chaos", "--port", str(self._ports[name])]
        options += ["--advertise-url", self._advertised(name)]
        if name in COORDINATORS:
            return options + SWEEPS
        options += ["--max-ledger-bytes", str(ledger_bytes(self._seed, DEFAULT_MAX_LEDGER_BYTES))]
        options += ["--disk-watermark", str(100 if self._seed % 2 else DEFAULT_PERCENT)]
        if (kind := self.mix.listener) is not None:
            options += [f"--{kind}-port", str(self._listener_ports[name])]
            options += [f"--{kind}-advertise", self.listeners.addresses[name]]
        if self.mix.ledgers == "shared":
            return [*options, "--storage", f"file://{self.disks[DISKS].path / 'objects'}"]
        return [*options, "--data-dir", str(self.disks[DISKS].path / name)]

    def _client(self, name: str) -> list[str]:
        if name in KAFKA_CLIENTS:
            arguments = [self.listener_addresses, str(self.histories), name, str(self._seed)]
            return [sys.executable, "-m", "tests.chaos.kafka_client", *arguments]
        if name in PULSAR_CLIENTS:
            return self._pulsar_client(name, "feed" if name == SHIPPER else "work")
        arguments = [",".join(self.urls), str(self.histories), name, str(self._seed)]
        if self.mix.listener == "pulsar":
            arguments.append(",".join(PULSAR_TOPICS))
        if name in self.of_previous:
            return client_of_the_previous_release(arguments)
        return [sys.executable, "-m", "tests.chaos.client", *arguments]

    def _pulsar_client(self, name: str, *role: str) -> list[str]:
        return command_of_actors(self._directory, self.listener_addresses, self.histories, name, self._seed, *role)

    # -- releases ----------------------------------------------------------------------------------------------

    async def upgrade_or_back(self, name: str) -> None:
        """Restart a process with the other release; every second time it is killed instead of stopped."""
        process = self.services.get(name) or self.clients[name]
        if self.changed_release[name] % 2:
            process.kill()
        else:
            await process.stop()
        self.changed_release[name] += 1
        self.of_previous ^= {name}
        process.launch()

    async def refuses_the_previous_release(self, name: str) -> str:
        """What a service of the previous release says that is started too late, instead of this one."""
        await self.services[name].stop()
        late = await asyncio.create_subprocess_exec(
            *of_the_previous_release(name.partition("-")[0], self._options(name)), stderr=asyncio.subprocess.PIPE
        )
        said = (await late.communicate())[1].decode()
        self.services[name].launch()
        return said if late.returncode else ""

    # -- waiting, for a caller that sets a limit -------------------------------------------------------------------

    async def ready(self) -> None:
        """Until the store is there, with room, and every service says that it can serve. A member that was filled and
        made room replays both when it is started again: its file is large then, and its next put ends in the alarm."""
        for name in self.members:
            await self.revive(name)
        if Fault.STORE_FULL in self.mix.faults:
            await make_room(list(self.members.values()))
        async with httpx.AsyncClient(timeout=30) as http:
            for name in SERVICES:
                while not await _answers(http, f"http://127.0.0.1:{self._ports[name]}/readyz"):
                    await asyncio.sleep(POLL_S)

    async def drains(self, broker: str, *, end: bool = False) -> bool:
        """Have a broker begin or end a drain. Whether it says that it has. One that was killed is announced at the same
        address for a while, and sends anyone who asks for it elsewhere."""
        url = f"http://127.0.0.1:{self._ports[broker]}/v1"
        async with httpx.AsyncClient(timeout=5) as http:
            with suppress(httpx.HTTPError):
                brokers = (await http.get(f"{url}/cluster")).raise_for_status().json()["brokers"]
                here = [each["id"] for each in brokers if each["url"] == self._advertised(broker)]
                asked = [f"{url}/brokers/{each}/{'undrain' if end else 'drain'}" for each in here]
                return any([(await http.post(each)).is_success for each in asked])
        return False

    async def revive(self, name: str) -> None:
        """Until this member of the store serves. One that has died is started again, as by an operator who looks."""
        member = self.members[name]
        while not await asyncio.to_thread(member.serves):
            if member.ended:
                self.died[name] += 1
                member.kill()
                member.launch()
            await asyncio.sleep(POLL_S)

    @asynccontextmanager
    async def store(self) -> AsyncIterator[MetadataStore]:
        """The way of an operator who only looks."""
        endpoints = ",".join(member.endpoint for member in self.members.values())
        store = await open_store_to_read(f"{self.mix.store}://{endpoints}/chaos")
        try:
            yield store
        finally:
            await store.close()


async def _answers(http: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await http.get(url)).is_success
    except httpx.TransportError:
        return False
