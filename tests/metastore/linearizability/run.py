"""One run: clients at work, faults in their turn, and in the end everything is read once more."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

from tests.histories.calls import Call, Recorder, read_calls
from tests.histories.journal import Journal
from tests.metastore.linearizability.clients import LISTS_RANGE, PAIRS_RANGE, REGISTERS_RANGE, Client
from tests.metastore.linearizability.deployments import ClientProcess, Deployment, Fault

ANSWERS_BETWEEN_FAULTS = (200, 600)


async def run(deployment: Deployment, path: Path, *, answers: int, rounds: int = 1) -> list[Call]:
    """All calls of all clients, who have had this many answers or more; the history is left behind at `path`."""
    with path.open("wb") as file:
        history = Journal(file)
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
    history: Journal,
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


async def _befall(fault: Fault, deployment: Deployment, process: ClientProcess | None, history: Journal) -> None:
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
