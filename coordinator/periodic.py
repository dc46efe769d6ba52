"""A sweep that is repeated until it is stopped, whatever happens to it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod

import structlog

from metastore.errors import MetastoreError

_LONGEST_BACKOFF_MS = 10_000

log = structlog.get_logger()


class PeriodicSweep(ABC):
    """Runs `sweep` every `interval_ms`. After a failure it waits twice as long each time, up to ten seconds or the
    interval."""

    def __init__(self, name: str, interval_ms: int) -> None:
        self._name = name
        self._interval_ms = interval_ms
        self._stopping = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    @abstractmethod
    async def sweep(self) -> bool:
        """One sweep. Returns False if some of it failed and it should be repeated a little later than usual."""

    @property
    def stopping(self) -> bool:
        """Whether a stop was requested: a sweep in slices then ends after the current one."""
        return self._stopping.is_set()

    def start(self) -> None:
        assert self._loop is None, f"the {self._name} is running"
        self._stopping.clear()
        self._loop = asyncio.create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        """Stop after the current slice."""
        self._stopping.set()
        if self._loop:
            await self._loop
            self._loop = None

    async def _run(self) -> None:
        wait_ms = self._interval_ms
        while not await self.stopped_within(wait_ms):
            if await self._sweep_and_survive():
                wait_ms = self._interval_ms
            else:
                wait_ms = max(self._interval_ms, min(wait_ms * 2, _LONGEST_BACKOFF_MS))

    async def _sweep_and_survive(self) -> bool:
        try:
            return await self.sweep()
        except MetastoreError as error:
            log.warning("the store failed a sweep", sweep=self._name, error=str(error))
        except Exception:
            # Whatever it was, the next sweep must run: without sweeps, readers would wait forever.
            log.exception("sweep failed", sweep=self._name)
        return False

    async def stopped_within(self, wait_ms: int) -> bool:
        """A pause that a stop ends; it then returns true."""
        try:
            await asyncio.wait_for(self._stopping.wait(), wait_ms / 1000)
        except TimeoutError:
            return False
        return True
