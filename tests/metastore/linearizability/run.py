"""One run: clients at work, faults in their turn, and in the end everything is read once more."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path
from typing import IO

from tests.histories.calls import Call, Outcome, Recorder, read_calls
from tests.metastore.linearizability.clients import LISTS_RANGE, PAIRS_RANGE, REGISTERS_RANGE, Client
from tests.metastore.linearizability.deployments import ClientProcess, Deployment, Fault

ANSWERS_BETWEEN_FAULTS = (200, 600)


class _History:
    """The lines of all processes go to `file`; and whoever waits for something in them hears of it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.answers = 0
        self._more = asyncio.Event()
        self._trouble = asyncio.Event()

    def take(self, line: bytes) -> None:
        self._file.write(line)
        event = json.loads(line)["event"]
        if event == Outcome.OK:
            self.answers += 1
            self._more.set()
        elif event != "invoke":
            self._trouble.set()

    async def until(self, answers: int) -> None:
        while self.answers < answers:
            self._more.clear()
            await self._more.wait()

    async def trouble(self) -> None:
        """Wait until a call from now on fails, or is left in doubt."""
        self._trouble.clear()
        await self._trouble.wait()


async def run(deployment: Deployment, path: Path, *, answers: int, rounds: int = 1) -> list[Call]:
    """All calls of all clients, who have had so many answers or more; the history is left behind at `path`."""
    with path.open("wb") as file:
        history = _History(file)
        recorder = Recorder(history.take, "here", time.monotonic_ns)
        async with asyncio.TaskGroup() as tasks:  # a client that fails ends the run at once
            await _live(deployment, history, recorder, tasks, answers, rounds)
        async with deployment.open() as store:
            last = Client("last", store, store, recorder)
            for start, end in (REGISTERS_RANGE, LISTS_RANGE, PAIRS_RANGE):
                while not await last.range(start, end):
                    pass  # its server has just been started, on a machine that may be busy
    return read_calls(path.read_bytes().splitlines())


async def _live(
    deployment: Deployment,
    history: _History,
    recorder: Recorder,
    tasks: asyncio.TaskGroup,
    answers: int,
    rounds: int,
) -> None:
    """All clients at work, and every fault in its turn."""
    dice, stop = random.Random(1), asyncio.Event()
    process = None
    if deployment.process_clients:
        process = ClientProcess(deployment.url, deployment.process_clients, history.take, tasks)
        await process.start()
    stores = deployment.stores
    for number, store in enumerate(stores):
        other = stores[(number + 2) % len(stores)]
        tasks.create_task(Client(f"client{number}", store, other, recorder).run(stop))
    for fault in [*deployment.faults] * rounds:
        await history.until(history.answers + dice.randrange(*ANSWERS_BETWEEN_FAULTS))
        await _befall(fault, deployment, process, history)
    await history.until(max(answers, history.answers + ANSWERS_BETWEEN_FAULTS[0]))
    stop.set()
    if process:
        await process.stop()


async def _befall(fault: Fault, deployment: Deployment, process: ClientProcess | None, history: _History) -> None:
    if fault is Fault.CLIENTS_KILLED:
        assert process is not None
        await process.kill()
        await process.start()
        return
    assert deployment.server is not None
    if fault is Fault.SERVER_KILLED:
        await asyncio.to_thread(deployment.server.kill)
        await asyncio.to_thread(deployment.server.start)
        return
    deployment.server.freeze()
    try:
        await history.trouble()
    finally:
        deployment.server.thaw()
