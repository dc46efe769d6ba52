"""One seed's world: the loop, the faults, the trace, and what it means to be outside of every process."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from random import Random
from typing import IO, Any

from tests.simulation.faults import Faults
from tests.simulation.loop import SimulationLoop
from tests.simulation.processes import Process
from tests.simulation.trace import Trace

_REACHES = (1, 1, 4, 1000)


class World:
    """Every random decision comes from one of the generators here, each made from the seed and its own name: another
    draw in a workload does not move the faults."""

    def __init__(self, seed: int, trace_file: IO[str] | None = None) -> None:
        self.seed = seed
        schedule = self.generator("schedule")
        self.faults = Faults(self.generator("faults"))
        self.loop = SimulationLoop(
            schedule, schedule.choice(_REACHES), lambda: self.faults.delay_s("disk_slow", 0.001, 2.0)
        )
        self.trace = Trace(self.loop.time, trace_file)
        self.processes: dict[str, Process] = {}
        self._outside = Context()

    def generator(self, name: str) -> Random:
        return Random(f"{self.seed}/{name}")

    def process(self, name: str, skew_ms: int = 0) -> Process:
        """A new process; one of that name has died before."""
        before = self.processes.get(name)
        assert before is None or not before.alive, f"{name} is running"
        process = self.processes[name] = Process(name, self.loop, skew_ms)
        return process

    def later(self, delay_s: float, call: Callable[..., object], *args: Any) -> None:
        """Call outside of every process: what is on its way arrives, whatever has become of its sender."""
        self.loop.call_later(delay_s, call, *args, context=self._outside)

    # -- what happens to processes -----------------------------------------------------------------------------

    def kill(self, process: Process, why: str = "kill -9") -> None:
        self.trace.note("process", f"{process.name} dies: {why}")
        self.loop.bury(process)
        process.die()

    def freeze(self, process: Process, seconds: float) -> None:
        self.trace.note("process", f"{process.name} freezes for {seconds:.3f} s")
        process.freeze()

        def thaw() -> None:
            if process.alive:
                self.trace.note("process", f"{process.name} goes on")
                self.loop.thaw(process)

        self.later(seconds, thaw)
