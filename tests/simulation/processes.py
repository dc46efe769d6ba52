"""Processes of a simulated machine: everything that runs knows by its context which one it belongs to.

A task hands its context down to the tasks and callbacks it makes, so one variable names the process of every handle in
the event loop. That makes `kill -9` and SIGSTOP what they are outside: the loop runs no handle of a dead process any
more, not even a `finally`, and keeps those of a frozen one until it is thawed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any, TypeVar

T = TypeVar("T")
EPOCH_MS = 1_767_225_600_000
"""The wall clock when a simulation begins: 2026, so that numbers look as they will."""


class Died(BaseException):
    """Raised into what a process was doing when it died within a system call. Nothing may catch it for good."""


class Process:
    """One simulated process. `skew_ms` is what its wall clock is ahead of the others."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop, skew_ms: int = 0) -> None:
        self.name = name
        self.skew_ms = skew_ms
        self.alive = True
        self.frozen = False
        self.parked: list[asyncio.Handle] = []
        """What a frozen process would have done meanwhile."""
        self.on_death: list[Callable[[], None]] = []
        self._loop = loop
        self._context: Context = copy_context()
        self._context.run(CURRENT.set, self)

    def spawn(self, work: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """A task of this process."""
        return self._loop.create_task(work, name=name or self.name, context=self._context.copy())

    def wall_clock_ms(self) -> int:
        return EPOCH_MS + self.skew_ms + int(self._loop.time() * 1000)

    def freeze(self) -> None:
        self.frozen = True

    def thaw(self) -> list[asyncio.Handle]:
        """Go on; returns what has piled up, for the loop."""
        self.frozen = False
        parked, self.parked = self.parked, []
        return parked

    def die(self) -> None:
        """Never run anything of it again; the world hears of it."""
        self.alive = False
        self.parked.clear()
        for tell in self.on_death:
            tell()
        self.on_death.clear()

    def assert_alive(self) -> None:
        if not self.alive:
            raise Died


CURRENT: ContextVar[Process | None] = ContextVar("process", default=None)
"""None: the world itself (the servers of the store, the network, what makes the faults). It never dies."""
