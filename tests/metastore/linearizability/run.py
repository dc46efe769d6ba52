"""One run: clients at work, faults in their turn, and in the end everything is read once more."""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path

from tests.histories.calls import Call, Outcome, Recorder, read_calls
from tests.metastore.linearizability.clients import LISTS_RANGE, PAIRS_RANGE, REGISTERS_RANGE, Client
from tests.metastore.linearizability.deployments import ClientProcess, Deployment, Fault

ANSWERS_BETWEEN_FAULTS = (200, 600)


class _History:
    """The lines of all processes, in a file; and who waits for what is in them."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self.path = path
        self.answers = 0
        self._more = asyncio.Event()
        self._doubt = asyncio.Event()

    def take(self, line: bytes) -> None:
        self._file.write(line)
        event = json.loads(line)["event"]
        if event == Outcome.OK:
            self.answers += 1
            self._more.set()
        elif event != "invoke":
            self._doubt.set()

    async def until(self, answers: int) -> None:
        while self.answers < answers:
            self._more.clear()
            await self._more.wait()

    async def trouble(self) -> None:
        """Wait until a call from now on fails or is left in doubt."""
        self._doubt.clear()
        await self._doubt.wait()

    def close(self) -> list[bytes]:
        self._file.close()
        return self.path.read_bytes().splitlines()


async def run(deployment: Deployment, path: Path, *, answers: int, rounds: int = 1) -> list[Call]:
    """All calls of all clients, who have had so many answers or more; the history is left behind at `path`."""
    history = _History(path)
    recorder = Recorder(history.take, "here", time.monotonic_ns)
    process = None
    if deployment.process_clients:
        process = ClientProcess(deployment.url, deployment.process_clients, history.take)
    await _live(deployment, process, history, recorder, answers, rounds)
    async with deployment.open() as store:
        last = Client("last", store, store, recorder)
        for start, end in (REGISTERS_RANGE, LISTS_RANGE, PAIRS_RANGE):
            assert await last.range(start, end)
    return read_calls(history.close())


async def _live(
    deployment: Deployment,
    process: ClientProcess | None,
    history: _History,
    recorder: Recorder,
    answers: int,
    rounds: int,
) -> None:
    dice, stop = random.Random(1), asyncio.Event()
    if process:
        await process.start()
    async with asyncio.TaskGroup() as tasks:
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
