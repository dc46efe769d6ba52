"""A process that is started again when it has ended, as by a supervisor."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

RESTART_PAUSE_S = 0.5
"""A process that ends at once must not eat the machine."""


class Service:
    """`command` is asked for the arguments of each start. `ended` counts the times that it ended by itself."""

    def __init__(self, name: str, command: Callable[[], Sequence[str]], log: Path) -> None:
        self.name = name
        self._command = command
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._wanted = asyncio.Event()
        self._sent_away = False
        self._supervisor: asyncio.Task[None] | None = None
        self.ended = 0

    def launch(self) -> None:
        self._wanted.set()
        if self._supervisor is None:
            self._supervisor = asyncio.create_task(self._supervise())

    async def _supervise(self) -> None:
        while True:
            await self._wanted.wait()
            with self._log.open("ab") as output:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command(), stdin=subprocess.DEVNULL, stdout=output, stderr=output
                )
            if not self._wanted.is_set():  # killed before it was there
                self.kill()
            await self._process.wait()
            sent_away, self._sent_away = self._sent_away, False
            if not sent_away:
                self.ended += 1
                await asyncio.sleep(RESTART_PAUSE_S)

    def kill(self) -> None:
        """`kill -9`; it stays away until it is launched again."""
        self._wanted.clear()
        self._sent_away = self.alive()
        self._signal(signal.SIGKILL)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was never started"
        return self._process.pid

    async def stop(self) -> None:
        """As an operator does; returns when it has ended."""
        self._wanted.clear()
        self._sent_away = self.alive()
        self._signal(signal.SIGTERM)
        if self._process is not None:
            await self._process.wait()

    async def over(self) -> None:
        """Wait until it has ended by itself; it is not started again."""
        while not self.ended:
            await asyncio.sleep(RESTART_PAUSE_S / 5)
        self._wanted.clear()

    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def close(self) -> None:
        """Whatever it does."""
        if self._supervisor is not None:
            self.kill()
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
            if self._process is not None:
                await self._process.wait()
