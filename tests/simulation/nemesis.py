"""Who makes the faults that are no property of a single call: outages of the store, for all or for one process,
compactions, kills, power cuts, freezes, clocks that jump, stores and disks that are full; and who drains and stops
brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from tests.simulation.cluster import BROKERS, Cluster
from tests.simulation.processes import Process


class Nemesis:
    """`start`; it goes on until `stop`. `others` are processes of clients, which nobody starts again."""

    def __init__(self, cluster: Cluster, others: Iterable[Process]) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._faults = cluster.world.faults
        self._random = cluster.world.generator("nemesis")
        self._others = list(others)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        for name, strike in {
            "store_outages_per_minute": lambda: self._cluster.store.outage(self._random.choice((0.2, 1.5, 8.0))),
            "cut_off_from_store_per_minute": self._cut_off,
            "silences_of_store_per_minute": self._silence,
            "compactions_per_minute": self._cluster.store.compact,
            "sessions_lost_per_minute": lambda: self._cluster.store.lose_session(self._random.choice),
            "store_full_per_minute": lambda: self._cluster.store.fill(self._random.choice((0.2, 1.5, 8.0))),
            "disk_full_per_minute": self._fill_a_disk,
            "kills_per_minute": self._kill,
            "power_cuts_per_minute": lambda: self._cluster.lose_power(self._random.choice(BROKERS)),
            "freezes_per_minute": self._freeze,
            "drains_per_minute": self._drain,
            "clock_jumps_per_minute": lambda: self._cluster.set_a_clock(self._random),
        }.items():
            self._tasks.append(asyncio.create_task(self._strike(name, strike)))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _strike(self, name: str, strike: Callable[[], None]) -> None:
        while (pause := self._faults.pause_s(name)) is not None:
            await asyncio.sleep(pause)
            self._faults.made[name.removesuffix("_per_minute")] += 1
            strike()

    def _victims(self) -> list[Process]:
        served = [role.process for role in self._cluster.roles.values() if role.process is not None]
        return [process for process in (*served, *self._others) if process.alive]

    def _kill(self) -> None:
        self._world.kill(self._random.choice(self._victims()))

    def _freeze(self) -> None:
        victim = self._random.choice(self._victims())
        if not victim.frozen:
            self._world.freeze(victim, self._random.choice((0.5, 4.0, 15.0, 40.0)) * self._random.random())

    def _cut_off(self) -> None:
        """Often for longer than a session lasts: then another process takes over what this one still serves."""
        victim = self._random.choice(list(self._cluster.roles))
        self._cluster.store.cut_off_for(victim, self._random.choice((0.2, 1.5, 8.0, 25.0)))

    def _silence(self) -> None:
        """Never for as long as a session lasts: what one process knows is old, and it goes on."""
        victim = self._random.choice(list(self._cluster.roles))
        self._cluster.store.silence_for(victim, self._random.choice((0.1, 0.5, 2.0)))

    def _drain(self) -> None:
        """An operator begins or ends a drain, or stops a broker."""
        role = self._cluster.roles[self._random.choice(BROKERS)]
        change = self._random.choice((self._cluster.drain, self._cluster.undrain, self._cluster.stop))
        if role.started.is_set():
            self._world.trace.note("process", f"{role.name}: {change.__name__}")
            change(role)

    def _fill_a_disk(self) -> None:
        device = self._cluster.devices[self._random.choice(BROKERS)]
        device.full, device.crowded = self._random.choice(((True, False), (False, True)))
        self._world.trace.note("disk", f"{device.name} is {'full' if device.full else 'nearly full'}")

        def free() -> None:
            device.full = device.crowded = False
            self._world.trace.note("disk", f"{device.name} has space")

        self._world.later(self._random.uniform(0.2, 6.0), free)
