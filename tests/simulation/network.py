"""The edge between clients, coordinators and brokers: requests go to the applications without a socket.

    request ──▶ on its way ──▶ the application, in a task of the server's process ──▶ on its way ──▶ answer

A request or an answer is lost, slow, or late: the caller has given up and goes on, and then it arrives. A request may
arrive twice, as when a proxy sends it again. When the server dies the connection breaks. Off: requests of which a part
arrives; TCP and the servers' own tests see to that.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

from starlette.types import ASGIApp, Message

from tests.simulation.efforts import EFFORT, Effort
from tests.simulation.processes import Process
from tests.simulation.world import World

TIMEOUT_S = 6.0
"""What a client waits for an answer."""
OF_A_GATEWAY = (500, 502, 503, 504)
LATE_S = 20.0
"""How much later than its caller's patience a request may arrive."""


class Unreachable(Exception):
    """Nobody listens there: nothing was sent."""


class NoAnswer(Exception):
    """Sent, and not answered: it may have happened, or may yet."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def ok(self) -> bool:
        return self.status < 300

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    url: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)

    def scope(self) -> dict[str, Any]:
        parts = urlsplit(self.url)
        headers = [(name.lower().encode(), value.encode()) for name, value in self.headers.items()]
        if self.body:
            headers.append((b"content-length", str(len(self.body)).encode()))
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": parts.scheme,
            "path": parts.path,
            "raw_path": parts.path.encode(),
            "query_string": parts.query.encode(),
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": (parts.hostname, parts.port),
            "root_path": "",
        }


def url(base: str, path: str, query: Mapping[str, object] | None = None) -> str:
    given = {name: value for name, value in (query or {}).items() if value is not None}
    return f"{base}{path}" + (f"?{urlencode(given)}" if given else "")


@dataclass(frozen=True, slots=True)
class _Server:
    process: Process
    app: ASGIApp


class Network:
    def __init__(self, world: World) -> None:
        self._world = world
        self._servers: dict[str, _Server] = {}
        self.efforts: list[Effort] = []
        self._served: list[tuple[Process, Effort]] = []
        self._gateway = world.generator("gateway")
        self._answered_by_gateway = self._gateway.choice((0.0, 0.5))
        self.copies = 0
        """How many a proxy has made so far of anybody's requests. One that arrives late may do what was refused."""

    def listen(self, base: str, process: Process, app: ASGIApp) -> None:
        self._servers[base] = _Server(process, app)

    def close(self, base: str, process: Process) -> None:
        if base in self._servers and self._servers[base].process is process:
            del self._servers[base]

    async def request(self, request: Request, timeout_s: float = TIMEOUT_S, *, once: bool = False) -> Answer:
        """`once`: it does not arrive again, nor after its caller has given up. Raises `Unreachable`, `NoAnswer`."""
        world, faults = self._world, self._world.faults
        answer: asyncio.Future[Answer] = world.loop.create_future()
        timer = world.loop.call_later(timeout_s, _fail, answer, NoAnswer(f"no answer within {timeout_s} s"))
        world.trace.note("network", f"{request.method} {request.url}")
        delay = faults.delay_s("net_slow")
        copied = False
        if faults.happens("net_lost_request"):
            world.trace.note("network", "lost request")
            world.later(faults.random.uniform(0, timeout_s), _fail, answer, NoAnswer("the connection broke"))
        elif not once and faults.happens("net_late"):
            world.trace.note("network", "late request")
            world.later(timeout_s + faults.random.uniform(0, LATE_S), self._arrive, request, answer)
        else:
            world.later(delay, self._arrive, request, answer)
            copied = not once and faults.happens("net_duplicated")
            if copied:
                self.copies += 1
                again: asyncio.Future[Answer] = world.loop.create_future()
                world.later(delay + faults.random.uniform(0, LATE_S), self._arrive, request, again)
        try:
            return await answer
        except Unreachable as error:
            if copied:
                raise NoAnswer("a copy of the request is still on its way") from error
            raise
        finally:
            timer.cancel()

    def status_of_gateway(self) -> int | None:
        """What a gateway says of a request without an answer; None if it says nothing, or is not there."""
        if self._gateway.random() >= self._answered_by_gateway:
            return None
        self._world.faults.made["net_gateway_pages"] += 1
        return self._gateway.choice(OF_A_GATEWAY)

    def under_way(self) -> list[str]:
        """Requests that a living process is serving."""
        return [effort.request for process, effort in self._served if process.alive]

    def _arrive(self, request: Request, answer: asyncio.Future[Answer]) -> None:
        parts = urlsplit(request.url)
        server = self._servers.get(f"{parts.scheme}://{parts.netloc}")
        if server is None or not server.process.alive:
            _fail(answer, Unreachable(f"nobody listens at {parts.netloc}"))
            return

        def broken() -> None:
            _fail(answer, NoAnswer("the connection broke"))

        server.process.on_death.append(broken)
        server.process.spawn(self._serve(server, request, answer, broken), f"{request.method} {parts.path}")

    async def _serve(self, server: _Server, request: Request, answer: asyncio.Future[Answer], broken: Any) -> None:
        effort = Effort(f"{request.method} {request.url}")
        EFFORT.set(effort)
        self.efforts.append(effort)
        self._served.append((server.process, effort))
        given = await ask(server.app, request, answer)
        effort.answered = True
        self._served.remove((server.process, effort))
        server.process.on_death.remove(broken)
        world = self._world
        lost = given is None or world.faults.happens("net_lost_reply")
        if given is None or lost:
            what = f"lost answer {given.status}" if given is not None else "unfinished answer"
            world.trace.note("network", f"{what} to {request.method} {request.url}")
            world.later(world.faults.random.uniform(0, 1), _fail, answer, NoAnswer("the connection broke"))
            return
        detail = f": {given.json()['detail']}" if given.status >= 300 else ""
        world.trace.note("network", f"answer {given.status} to {request.method} {request.url}{detail}")
        world.later(world.faults.delay_s("net_slow"), _give, answer, given)


async def ask(app: ASGIApp, request: Request, waits: asyncio.Future[Answer]) -> Answer | None:
    """One request to an application, as a server makes it, whose client hangs up when it no longer `waits`. None: the
    answer was left unfinished, with which a server ends the connection."""
    status, headers, chunks = 0, {}, []
    sent = finished = False

    async def receive() -> Message:
        nonlocal sent
        if sent:
            if not waits.done():
                await asyncio.wait([waits])
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": request.body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status, headers, finished
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            chunks.append(message.get("body", b""))
            finished = not message.get("more_body", False)

    await app(request.scope(), receive, send)
    return Answer(status, headers, b"".join(chunks)) if finished else None


def _give(answer: asyncio.Future[Answer], given: Answer) -> None:
    if not answer.done():
        answer.set_result(given)


def _fail(answer: asyncio.Future[Answer], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()  # seen: the one who asked may be dead
