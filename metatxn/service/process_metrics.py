"""The metrics of the process that a service runs in: CPU, memory and files, its version, and how late its event loop
is."""

from __future__ import annotations

import asyncio
import platform

from prometheus_client import CollectorRegistry, Gauge, Histogram, ProcessCollector

LOOK_EVERY_S = 0.5


class LoopLag:
    """How late the event loop calls what is due: the time for which it has not looked, because something computed.
    While it is late, every request waits."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "metatxn_event_loop_lag_seconds",
            f"How late the event loop was, looked at every {LOOK_EVERY_S:g} s.",
            registry=registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
        )
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._look_at(loop, loop.time() + LOOK_EVERY_S)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_at(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self._timer = loop.call_at(due, self._look, loop, due)

    def _look(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        now = loop.time()
        self._seconds.observe(max(0.0, now - due))
        self._look_at(loop, now + LOOK_EVERY_S)


def add_process_metrics(registry: CollectorRegistry, version: str) -> None:
    """CPU, memory and files of the process, as every program with a Prometheus library shows them, and its version."""
    ProcessCollector(registry=registry)
    Gauge("metatxn_build_info", "Always 1; the labels say what runs.", ["version", "python"], registry=registry).labels(
        version, platform.python_version()
    ).set(1)
