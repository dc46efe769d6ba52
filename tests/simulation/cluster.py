"""Two coordinators, two brokers, one store: started, started again whenever they end, and healed.

In some worlds each broker has a disk of its own; in the others they share an object store and take over each other's
segments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random
from typing import Protocol

from metastore.errors import MetastoreError
from participants.broker.broker import Broker
from participants.segment.rolling import DEFAULT_MAX_LEDGER_BYTES
from tests.bounds import ledger_bytes, reconcile_interval_ms
from tests.simulation.bucket import Objects
from tests.simulation.disk import Device
from tests.simulation.network import Network
from tests.simulation.processes import Process
from tests.simulation.services import RECONCILE_INTERVAL_MS, SimulatedBroker, SimulatedCoordinator
from tests.simulation.store import StoreServer
from tests.simulation.survivor import Survivor
from tests.simulation.world import World

COORDINATORS = ("coordinator-1", "coordinator-2")
BROKERS = ("broker-1", "broker-2")
MAX_SKEW_MS = 600_000
_SUPERVISOR_PAUSE_S = (0.05, 4.0)
_ID_BLOCK_SIZES = (5, 40, 10_000)


class Service(Protocol):
    async def start(self) -> None: ...


_DRAIN_TIMEOUTS_MS = (1, 3_000, 20_000)
"""Of a broker that is stopped."""
_KEY_RETENTIONS_MS = (2_000, 10_000, 604_800_000)
"""How long an unused transaction key is remembered."""


class Role:
    """One place that a process has: started again some time after it has ended, for whatever reason."""

    def __init__(self, world: World, name: str, make: Callable[[Process], Service], skew_ms: int) -> None:
        self.name = name
        self.process: Process | None = None
        self.service: Service | None = None
        self.skew_ms = skew_ms
        self._world = world
        self._make = make
        self._random = world.generator(f"supervisor of {name}")
        self.started = asyncio.Event()
        """Set while the process serves."""

    def set_clock(self, skew_ms: int) -> None:
        self.skew_ms = skew_ms
        if self.process is not None:
            self.process.skew_ms = skew_ms

    async def keep_running(self) -> None:
        while True:
            self.process = process = self._world.process(self.name, self.skew_ms)
            ended = asyncio.Event()
            process.on_death.append(ended.set)
            serving = process.spawn(self._serve(process, ended))
            await ended.wait()
            self.started.clear()
            self.service = None
            if process.alive:
                await asyncio.wait([serving])
                self._world.kill(process, f"its start failed: {serving.exception()!r}")
            await asyncio.sleep(self._random.uniform(*_SUPERVISOR_PAUSE_S))

    async def _serve(self, process: Process, ended: asyncio.Event) -> None:
        service = self._make(process)
        try:
            await service.start()
        except BaseException:
            ended.set()
            raise
        self._world.trace.note("process", f"{self.name} serves")
        self.service = service
        self.started.set()
        await self._world.loop.create_future()


class Cluster:
    def __init__(self, world: World, *, kafka: bool = False) -> None:
        """`kafka`: whether the brokers serve clients of Kafka, too."""
        self.world = world
        self._kafka = kafka
        self.store = StoreServer(world)
        self.network = Network(world)
        self.devices = {name: Device(world, name) for name in BROKERS}
        self.objects = Objects(world) if world.generator("storage").random() < 0.5 else None
        """What brokers share; None: each has its own disk."""
        random = world.generator("skew")
        self._id_block_size = world.generator("bounds").choice(_ID_BLOCK_SIZES)
        self._key_retention_ms = self.world.generator("keys").choice(_KEY_RETENTIONS_MS)
        self.survivor = Survivor(self.store, self._id_block_size)
        self.most_ms = most_ms = random.choice((0, 200, MAX_SKEW_MS))
        """By how much a clock may be off."""
        self.roles: dict[str, Role] = {}
        for name in (*COORDINATORS, *BROKERS):
            self.roles[name] = Role(world, name, self._maker(name), random.randint(-most_ms, most_ms))
        self.topics: list[str] = []
        """Of all workloads."""
        self._keepers: list[asyncio.Task[None]] = []

    @property
    def coordinator_urls(self) -> list[str]:
        return [f"http://{name}" for name in COORDINATORS]

    @property
    def broker_urls(self) -> list[str]:
        return [f"http://{name}" for name in BROKERS]

    def _maker(self, name: str) -> Callable[[Process], Service]:
        if name in COORDINATORS:
            return lambda process: SimulatedCoordinator(
                self.store, self.network, process, 2 * self.most_ms, self._id_block_size, self._key_retention_ms
            )
        place = self.objects or self.devices[name]
        max_ledger_bytes = ledger_bytes(self.world.seed, DEFAULT_MAX_LEDGER_BYTES)
        interval_ms = reconcile_interval_ms(self.world.seed, RECONCILE_INTERVAL_MS)
        drain_ms = self.world.generator("drains").choice(_DRAIN_TIMEOUTS_MS)
        return lambda process: SimulatedBroker(
            self.store, self.network, process, place, max_ledger_bytes, interval_ms, drain_ms, kafka=self._kafka
        )

    async def start(self) -> None:
        """Returns once all serve."""
        self._keepers = [asyncio.create_task(role.keep_running()) for role in self.roles.values()]
        await self.all_serve()

    async def all_serve(self) -> None:
        for role in self.roles.values():
            await role.started.wait()

    # -- what an operator does to a broker that serves ---------------------------------------------------------

    def drain(self, role: Role) -> None:
        _process(role).spawn(_quietly(_broker(role).announcement.drain()))

    def undrain(self, role: Role) -> None:
        _process(role).spawn(_quietly(_broker(role).announcement.undrain()))

    def stop(self, role: Role) -> None:
        """SIGTERM. It is started again like one that has died."""
        role.started.clear()
        _process(role).spawn(self._stop(role.service, _process(role)))

    async def _stop(self, service: Service | None, process: Process) -> None:
        assert isinstance(service, SimulatedBroker)
        await service.before_stop()
        await service.stop()
        self.world.later(0, self._stopped, process)

    def _stopped(self, process: Process) -> None:
        if process.alive:
            self.world.kill(process, "stopped")

    def lose_power(self, name: str) -> None:
        """The machine of a broker."""
        process = self.roles[name].process
        if process is not None and process.alive:
            self.world.kill(process, "power cut")
        self.devices[name].lose_power()

    async def heal(self) -> None:
        """No more faults: everything that is frozen goes on, what is full has space, clocks agree, all serve."""
        self.world.faults.on = False
        self.store.down = self.store.full = False
        self.store.cut_off.clear()
        self.world.trace.note("world", "healing")
        for device in self.devices.values():
            device.full = device.crowded = False
        for role in self.roles.values():
            if role.process is not None and role.process.frozen:
                self.world.loop.thaw(role.process)
        self._set_clocks(self.most_ms)
        await self.all_serve()
        for name in BROKERS:
            await _process(self.roles[name]).spawn(_broker(self.roles[name]).announcement.undrain())

    def set_a_clock(self, random: Random) -> None:
        """Somebody sets it, forwards or back: no further than clocks may be apart in this world."""
        role = random.choice(list(self.roles.values()))
        role.set_clock(random.randint(-self.most_ms, self.most_ms))
        self.world.trace.note("world", f"the clock of {role.name} is off by {role.skew_ms} ms")

    def let_time_pass(self) -> None:
        """All clocks go on by what they may have been apart, so that nobody need wait for it."""
        self._set_clocks(3 * self.most_ms)

    def _set_clocks(self, skew_ms: int) -> None:
        for role in self.roles.values():
            role.set_clock(skew_ms)


def _process(role: Role) -> Process:
    assert role.process is not None, "it serves"
    return role.process


def _broker(role: Role) -> Broker:
    assert isinstance(role.service, SimulatedBroker) and role.service.broker is not None, "it serves"
    return role.service.broker


async def _quietly(change: Awaitable[None]) -> None:
    """An operator who is told that it failed lets it be."""
    with suppress(MetastoreError):
        await change
