"""One run: clients at work, faults in their turn, and in the end every coordinator is asked for everything."""

from __future__ import annotations

import asyncio
import random
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.coordinator.linearizability.clients import PATIENT_S, Client, Known
from tests.coordinator.linearizability.verdict import STORE_AWAY
from tests.coordinator.processes import CoordinatorProcess
from tests.extent import usually
from tests.histories.calls import Call, Outcome, Recorder, read_calls
from tests.histories.journal import Journal
from tests.servers import EtcdServer

CLIENTS = 10
COORDINATORS = 3
ANSWERS_BETWEEN_FAULTS = (150, 400)

Fault = Callable[[Recorder], Coroutine[Any, Any, None]]


@dataclass
class Deployment:
    """Coordinators at `urls`, which `http` can reach, and what shall befall them."""

    http: httpx.AsyncClient
    urls: list[str]
    faults: Sequence[Fault] = field(default_factory=list)


async def run(deployment: Deployment, path: Path, *, answers: int) -> list[Call]:
    """All calls of all clients, who have had this many answers or more; the history is left behind at `path`."""
    dice, stop, known = random.Random(1), asyncio.Event(), Known()
    with path.open("wb") as file:
        journal = Journal(file)
        recorder = Recorder(journal.take, "here", time.monotonic_ns)

        def client(name: str, urls: Sequence[str]) -> Client:
            return Client(name, deployment.http, urls, known, recorder)

        async with asyncio.TaskGroup() as tasks:  # a client that fails ends the run at once
            for number in range(CLIENTS):
                tasks.create_task(client(f"client{number}", deployment.urls).run(stop))
            for fault in deployment.faults:
                await journal.until(journal.answers + dice.randrange(*ANSWERS_BETWEEN_FAULTS))
                await fault(recorder)
            await journal.until(max(answers, journal.answers + ANSWERS_BETWEEN_FAULTS[0]))
            stop.set()
        for number, url in enumerate(deployment.urls):
            last = client(f"last{number}", [url])
            await last.list_all()
            for key in known.keys:
                await last.look_at_key(key.name)
    return read_calls(path.read_bytes().splitlines())


@asynccontextmanager
async def on_etcd(directory: Path) -> AsyncIterator[Deployment]:
    """Three processes, each of which is killed and replaced, and a store that is killed, also while one is away."""
    with EtcdServer(directory / "etcd") as server, ExitStack() as stack:
        store_url = f"etcd://{server.endpoint}/{secrets.token_hex(6)}"
        made = [CoordinatorProcess(store_url, "--log-level", "error") for _ in range(COORDINATORS)]
        processes = [await asyncio.to_thread(stack.enter_context, process) for process in made]
        urls = [process.url for process in processes]

        def coordinator_killed(number: int) -> Fault:
            async def befall(recorder: Recorder) -> None:
                process = processes[number]
                process.signal(signal.SIGKILL)
                assert await asyncio.to_thread(process.wait) == -signal.SIGKILL
                urls.remove(process.url)
                processes[number] = CoordinatorProcess(store_url, "--log-level", "error")
                await asyncio.to_thread(stack.enter_context, processes[number])
                urls.append(processes[number].url)

            return befall

        async def store_killed(recorder: Recorder) -> None:
            call = recorder.invoke("nemesis", {"verb": STORE_AWAY})
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.start)
            recorder.answer(call, "nemesis", Outcome.OK)

        async def both(recorder: Recorder) -> None:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(coordinator_killed(1)(recorder))
                tasks.create_task(store_killed(recorder))

        one, two, three = map(coordinator_killed, range(COORDINATORS))
        faults = usually([one, store_killed, both], [one, store_killed, two, store_killed, three, both])
        async with httpx.AsyncClient(timeout=PATIENT_S, limits=httpx.Limits(max_connections=50)) as http:
            yield Deployment(http, urls, faults)
