"""Goal: no request is served without the body that its client has sent: a commit without its list counts all writers.

Method: real servers on sockets. A stream of requests with every framing and every offer of an upgrade, cut in every
place, must be heard as it was sent; curl and Java offer h2c in their own words; bodies that were lost are refused.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from fastapi import APIRouter, Request
from prometheus_client import CollectorRegistry
from pydantic import BaseModel
from starlette.types import ASGIApp, Receive, Scope, Send

from metatxn.service.direct import DirectRoute, add_routes
from metatxn.service.gate import BODY
from metatxn.service.http import create_app
from metatxn.service.server import HttpServer
from metatxn.service.strict import StrictRoute

LIST = '{"writers": ["task-1"]}'
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
OFFERS = {
    "none": b"",
    "h2c": H2C,
    "websocket": b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n",
    "not of this hop": b"Upgrade: h2c\r\n",
    "two": b"Upgrade: h2c\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n",
}


@asynccontextmanager
async def serving(app: ASGIApp) -> AsyncIterator[HttpServer]:
    http = HttpServer(app, "127.0.0.1", 0)
    http.bind()
    await http.start()
    try:
        yield http
    finally:
        await http.stop()


@asynccontextmanager
async def connected(http: HttpServer) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


class Echo:
    """Answers with the body. `heard`: method, path and body of each request that came whole."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, bytes]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message["body"], message["more_body"]
        self.heard.append((scope["method"], scope["path"], body))
        length = (b"content-length", str(len(body)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})


class Commit(BaseModel):
    writers: list[str] | None = None


class Counted(BaseModel):
    counted: list[str] | None = None
    size: int | None = None


def commits() -> ASGIApp:
    """Verbs that mean something else without a body, on each kind of route, and one that takes none."""
    app = create_app("commits", "under test", "0", CollectorRegistry())
    for kind in (DirectRoute, StrictRoute):
        router = APIRouter(prefix=f"/{kind.__name__}", route_class=kind)

        @router.post("/commit", response_model_exclude_none=True)
        async def commit(body: Commit | None = None) -> Counted:
            return Counted(counted=body.writers if body and body.writers is not None else ["all"])

        @router.post("/entries", response_model_exclude_none=True, openapi_extra={"requestBody": {}})
        async def entries(request: Request) -> Counted:
            return Counted(size=len(request.scope[BODY]))

        @router.post("/seal", response_model_exclude_none=True)
        async def seal() -> Counted:
            return Counted()

        add_routes(app, router)
    return app


# -- upgrades ------------------------------------------------------------------------------------------------------


def requests() -> Iterator[tuple[bytes, tuple[str, str, bytes]]]:
    """Bytes, and what they say. No two bodies are alike, and each looks like a request of its own."""
    for number, (offer, framing) in enumerate(
        itertools.product(OFFERS.values(), ("length", "chunked", "neither", "zero"))
    ):
        body = b"POST /smuggled-%d HTTP/1.1\r\nHost: x\r\n\r\n" % number
        frame = b"Content-Length: %d\r\n\r\n" % len(body) + body
        if framing == "chunked":
            frame = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        elif framing != "length":
            frame, body = (b"Content-Length: 0\r\n\r\n" if framing == "zero" else b"\r\n"), b""
        yield b"POST /%d HTTP/1.1\r\nHost: x\r\n" % number + offer + frame, ("POST", f"/{number}", body)


@pytest.mark.parametrize("longest", [1, 97, 1 << 20])
async def test_what_is_heard_is_what_was_sent(longest: int) -> None:
    """All on one connection, without waiting for answers, in pieces of up to this many bytes."""
    echo, randomness = Echo(), random.Random(longest)
    sent, said = zip(*requests(), strict=True)
    stream = b"".join(sent)
    async with serving(echo) as http, asyncio.timeout(60), connected(http) as (reader, writer):
        while stream:
            size = randomness.randint(1, longest)
            writer.write(stream[:size])
            await asyncio.sleep(0)  # the server reads, on this loop
            stream = stream[size:]
        for _, _, body in said:
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200") and b"upgrade" not in head.lower(), head
            assert await reader.readexactly(len(body)) == body
    assert echo.heard == list(said)


@pytest.mark.parametrize(
    "head",
    [b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n", b"PRI * HTTP/2.0\r\n", b"CONNECT / HTTP/1.1\r\nHost: x\r\n" + H2C],
    ids=["a tunnel", "HTTP/2 at once", "a tunnel and h2c"],
)
async def test_another_protocol_is_refused(head: bytes) -> None:
    echo = Echo()
    async with serving(echo) as http, asyncio.timeout(60), connected(http) as (reader, writer):
        writer.write(head + b"\r\nPOST /tunnelled HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    assert echo.heard == []


async def said_by(*command: str, to: bytes = b"") -> str:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    output, _ = await process.communicate(to)
    assert process.returncode == 0, command
    return output.decode()


def installed(name: str) -> str:
    found = shutil.which(name)
    assert found, f"{name} is not installed, and this test needs it"
    return found


async def test_curl_that_offers_h2c_is_answered_as_one_that_does_not() -> None:
    curl = (installed("curl"), "-sS", "--http2", "-w", " %{http_code} %{http_version}", "-d", "@-")
    async with serving(commits()) as http:
        for writers in (["task-1"], [f"task-{number}" for number in range(10_000)]):
            body = json.dumps({"writers": writers}).encode()
            answer, status, version = (await said_by(*curl, f"{http.url}/DirectRoute/commit", to=body)).rsplit(" ", 2)
            assert (status, version, json.loads(answer)) == ("200", "1.1", {"counted": writers})


async def test_the_client_of_java_is_answered() -> None:
    """It offers h2c as long as it knows nothing better of a server, so its second request does as well."""
    java = (installed("java"), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
    async with serving(commits()) as http:
        source = str(Path(__file__).with_name("Post.java"))
        answers = await said_by(*java, source, f"{http.url}/DirectRoute/commit", LIST, "2")
    assert answers.splitlines() == ['200 HTTP_1_1 {"counted":["task-1"]}'] * 2


# -- bodies that were lost -----------------------------------------------------------------------------------------


async def test_a_body_that_ends_early_is_not_served() -> None:
    """Its sender ends it as one who has sent all, and would still hear an answer."""
    echo, body = Echo(), LIST.encode()
    length, chunked = b"Content-Length: %d\r\n\r\n" % len(body), b"Transfer-Encoding: chunked\r\n\r\n"
    chunk = b"%x\r\n%b\r\n" % (len(body), body)
    early = [length, length + body[:-1], chunked, chunked + chunk[:-3], chunked + chunk, chunked + chunk + b"0\r\n"]
    async with serving(echo) as http, asyncio.timeout(60):
        for offer, part in itertools.product(OFFERS.values(), early):
            async with connected(http) as (reader, writer):
                writer.write(b"POST / HTTP/1.1\r\nHost: x\r\n" + offer + part)
                writer.write_eof()
                assert b" 200 " not in await reader.read(), (offer, part)
    assert echo.heard == []


async def answered(http: HttpServer, path: str, headers: bytes) -> tuple[int, dict[str, object]]:
    async with connected(http) as (reader, writer):
        writer.write(b"POST %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%b\r\n" % (path.encode(), headers))
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


@pytest.mark.parametrize("kind", ["DirectRoute", "StrictRoute"])
async def test_a_body_that_is_announced_and_missing_is_refused(kind: str) -> None:
    """Announced by its type alone. Who says that it is empty is believed, and a verb that takes none misses none."""
    typed = b"Content-Type: application/json\r\n"
    all_of_them = (200, {"counted": ["all"]})
    async with serving(commits()) as http, asyncio.timeout(60):
        for verb in ("commit", "entries"):
            for of_type in (typed, b"Content-Type: application/x-www-form-urlencoded\r\n", b"content-type: \r\n"):
                status, problem = await answered(http, f"/{kind}/{verb}", of_type)
                assert (status, problem["code"], problem["field"]) == (422, "INVALID_ARGUMENT", "body"), problem
        assert await answered(http, f"/{kind}/commit", b"") == all_of_them
        assert await answered(http, f"/{kind}/commit", typed + b"Content-Length: 0\r\n") == all_of_them
        assert await answered(http, f"/{kind}/entries", b"") == (200, {"size": 0})
        assert await answered(http, f"/{kind}/seal", typed) == (200, {})
