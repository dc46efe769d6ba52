"""Goal: no client can take more of a service than it is meant to have, however it words its requests.

Method: a real server on a socket, and clients that write bytes by hand: floods, bodies without end, silence.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import Response
from prometheus_client import CollectorRegistry
from starlette.types import Message, Receive, Scope, Send

import metatxn
from metatxn.service import server
from metatxn.service.exposure import open_exposure
from metatxn.service.gate import Gate
from metatxn.service.http import create_app
from metatxn.service.limits import Limits, RateLimit
from metatxn.service.request_metrics import RequestMetrics
from metatxn.service.server import HttpServer
from metatxn.wire.errors import ErrorCode
from metatxn.wire.problems import Problem
from tests.certificates import Authority
from tests.over_httpx import OverHttpx
from tests.service.secured import secured
from tests.service.security import TokenFile, bearer

Served = AbstractAsyncContextManager[HttpServer]


LARGE_BYTES = 32 << 20


class Handler:
    """What an endpoint saw, and when it may answer."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.entered = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.finished = asyncio.Event()

    def add_to(self, app: FastAPI) -> None:
        @app.post("/echo")
        async def echo(body: dict[str, Any]) -> dict[str, Any]:
            self.bodies.append(json.dumps(body).encode())
            return body

        @app.get("/large")
        async def large() -> Response:
            self.entered.set()
            return Response(bytes(LARGE_BYTES))

        @app.get("/slow")
        async def slow() -> str:
            self.entered.set()
            await self.may_answer.wait()
            self.finished.set()
            return "done"


@pytest.fixture
def handler() -> Handler:
    return Handler()


@pytest.fixture
def serve(handler: Handler) -> Callable[..., Served]:
    @asynccontextmanager
    async def serving(**options: Any) -> AsyncIterator[HttpServer]:
        exposure = open_exposure(**options)
        app = create_app("a service", "under test", "0", CollectorRegistry(), exposure)
        handler.add_to(app)
        http = HttpServer(app, "127.0.0.1", 0, tls=exposure.tls)
        http.bind()
        await http.start()
        try:
            yield http
        finally:
            handler.may_answer.set()
            await http.stop()

    return serving


class Raw:
    """A client that sends what it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def flood(self, chunk: bytes) -> int:
        """Send `chunk` until the server hangs up; how many bytes it took to make it do so."""
        sent = 0
        try:
            while True:
                self._writer.write(chunk)
                await self._writer.drain()
                sent += len(chunk)
        except ConnectionError:
            return sent

    async def rest(self) -> bytes:
        """Everything up to the server's hanging up."""
        try:
            return await self._reader.read()
        except ConnectionError:
            return b""

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await self._reader.readexactly(int(headers["content-length"]))
        return int(head[0].split()[1]), headers, body


@asynccontextmanager
async def raw(http: HttpServer) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
    try:
        yield Raw(reader, writer)
    finally:
        writer.transport.abort()


def client(http: HttpServer, **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=http.url, timeout=60, verify=False, **options)


def refused(status: int, body: bytes, code: ErrorCode) -> Problem:
    problem = Problem.model_validate_json(body)
    assert (problem.code, problem.status) == (code, status), problem
    return problem


HEAD = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


async def test_the_body_of_an_answer_does_not_wait_until_its_head_is_acknowledged(serve: Callable[..., Served]) -> None:
    """They are two writes, and the kernel would keep the second one back (Nagle's algorithm)."""
    async with serve() as http, raw(http) as caller:
        caller.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        await caller.answer()
        (connection,) = http._server.server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# -- bodies --------------------------------------------------------------------------------------------------------


async def test_a_body_at_the_limit_passes_and_one_byte_more_does_not(
    serve: Callable[..., Served], handler: Handler
) -> None:
    """By its declared length, and chunk by chunk; and the connection goes on to serve."""
    fits = json.dumps({"a": "x" * (1000 - 9)}).encode()
    assert len(fits) == 1000

    async def chunks(body: bytes) -> AsyncIterator[bytes]:
        for place in range(0, len(body), 100):
            yield body[place : place + 100]

    async with serve(max_body_bytes=1000) as http, client(http) as caller:
        for content in (fits, chunks(fits)):
            answer = await caller.post("/echo", content=content)
            assert answer.status_code == 200, answer.text
        for content in (fits + b" ", chunks(fits + b" ")):
            answer = await caller.post("/echo", content=content)
            problem = refused(answer.status_code, answer.content, ErrorCode.PAYLOAD_TOO_LARGE)
            assert problem.limit_bytes == 1000  # type: ignore[attr-defined]
        assert (await caller.post("/echo", json={})).status_code == 200
    assert len(handler.bodies) == 3


async def test_a_declared_length_is_refused_before_a_byte_of_it(serve: Callable[..., Served]) -> None:
    async with serve(max_body_bytes=1000) as http, raw(http) as caller:
        caller.send(HEAD + b"Content-Length: 1001\r\n\r\n")
        status, _, body = await caller.answer()
        refused(status, body, ErrorCode.PAYLOAD_TOO_LARGE)


async def test_a_body_without_end_is_answered_and_then_cut_off(
    serve: Callable[..., Served], handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is taken for a moment, so that the client sees the answer and no reset; then the connection ends."""
    monkeypatch.setattr(server, "LINGER_S", 0.2)
    async with serve(max_body_bytes=1000) as http, raw(http) as caller:
        caller.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"800\r\n" + b"x" * 0x800 + b"\r\n")
        status, _, body = await caller.answer()
        refused(status, body, ErrorCode.PAYLOAD_TOO_LARGE)
        await caller.flood(b"800\r\n" + b"x" * 0x800 + b"\r\n")
    assert handler.bodies == []


async def test_a_slow_body_ends_with_408(serve: Callable[..., Served], handler: Handler) -> None:
    """One that never comes, and one that stops in the middle; neither reaches the endpoint."""
    for part in (b"", b'{"a": '):
        async with serve(body_timeout_ms=100) as http, raw(http) as caller:
            caller.send(HEAD + b"Content-Length: 1000\r\n\r\n" + part)
            status, headers, body = await caller.answer()
            assert refused(status, body, ErrorCode.INVALID_ARGUMENT).retriable
            assert (status, headers["connection"]) == (408, "close")
            assert await caller.rest() == b""
    assert handler.bodies == []


async def test_a_client_that_leaves_in_the_middle_of_its_body_leaves_nothing(
    serve: Callable[..., Served], handler: Handler
) -> None:
    async with serve(max_requests=1) as http:
        async with raw(http) as caller:
            caller.send(HEAD + b"Content-Length: 1000\r\n\r\n{")
        async with client(http) as other, asyncio.timeout(60):
            while (await other.post("/echo", json={})).status_code != 200:
                await asyncio.sleep(0)
    assert handler.bodies == [b"{}"]


# -- heads ---------------------------------------------------------------------------------------------------------


async def test_too_many_and_too_large_headers_are_431(serve: Callable[..., Served]) -> None:
    async with serve(max_headers=50) as http, client(http) as caller:
        assert (await caller.get("/healthz", headers={f"x-{n}": "" for n in range(40)})).status_code != 431
        for headers in ({f"x-{n}": "" for n in range(60)}, {"x": "y" * 40_000}):
            answer = await caller.get("/slow", headers=headers)
            assert answer.status_code == 431
            assert refused(431, answer.content, ErrorCode.INVALID_ARGUMENT).field == "headers"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "endless",
    [
        pytest.param((b"GET / HTTP/1.1\r\n", b"x: y\r\n" * 1000), id="headers"),
        pytest.param((b"GET / HTTP/1.1\r\nx: ", b"y" * 8192), id="one header"),
        pytest.param((b"GET /", b"a" * 8192), id="URL"),
    ],
)
async def test_a_head_without_end_is_cut_off(serve: Callable[..., Served], endless: tuple[bytes, bytes]) -> None:
    """The parser would collect it forever. What the kernel buffers on both sides comes on top of our bound."""
    first, chunk = endless
    async with serve() as http, raw(http) as caller, asyncio.timeout(60):
        caller.send(first)
        assert await caller.flood(chunk) < server.MAX_HEAD_BYTES + (16 << 20)


@pytest.mark.parametrize("sent", [b"", b"G", b"GET / HTTP/1.1\r\nHost: x\r\n", b"\r\n"])
async def test_a_head_that_does_not_come_ends_the_connection(
    serve: Callable[..., Served], monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """Slow loris: on a fresh connection, and on one that has served already."""
    monkeypatch.setattr(server, "HEAD_TIMEOUT_S", 0.2)
    async with serve() as http, asyncio.timeout(60):
        async with raw(http) as caller:
            caller.send(sent)
            assert await caller.rest() == b""
        if sent:
            async with raw(http) as caller:
                caller.send(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n")
                assert (await caller.answer())[0] == 404
                caller.send(sent)
                assert await caller.rest() == b""


async def test_a_client_that_takes_nothing_of_its_answer_is_cut(
    serve: Callable[..., Served], handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer holds memory. Whether it takes none or only the beginning, the rest does not wait forever."""
    monkeypatch.setattr(server, "STALL_S", 0.1)
    async with serve() as http, raw(http) as lazy:
        lazy.send(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await handler.entered.wait()
        while http._server.server_state.connections:
            await asyncio.sleep(0.01)
        assert len(await lazy.rest()) < LARGE_BYTES
        async with client(http) as eager:
            assert len((await eager.get("/large")).content) == LARGE_BYTES


async def test_many_large_requests_on_one_connection_are_no_flood(serve: Callable[..., Served]) -> None:
    """The bound is for one head: neither bodies nor earlier requests count, also when they arrive in one piece."""
    body = json.dumps({"a": "x" * 100_000}).encode()
    whole = HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    async with serve() as http, raw(http) as caller, asyncio.timeout(60):
        for _ in range(12):
            caller.send(whole + whole)
            assert [(await caller.answer())[0] for _ in range(2)] == [200, 200]


# -- times and rates -----------------------------------------------------------------------------------------------


async def test_an_answer_that_takes_too_long_is_unknown_and_the_work_goes_on(
    serve: Callable[..., Served], handler: Handler
) -> None:
    async with serve(request_timeout_ms=100) as http, client(http) as caller:
        answer = await caller.get("/slow")
        assert not refused(answer.status_code, answer.content, ErrorCode.OUTCOME_UNKNOWN).definite
        assert not handler.finished.is_set()
        handler.may_answer.set()
        await handler.finished.wait()
        assert (await caller.get("/slow")).json() == "done"


async def test_an_answer_that_has_begun_is_not_given_up() -> None:
    """However long the rest of it takes: another head in the middle of it would be nonsense."""
    sent: list[str] = []

    async def streams(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(0.002)  # behind the gate's timer, which began before it and is shorter
        await send({"type": "http.response.body", "body": b"all of it"})

    async def note(message: Message) -> None:
        sent.append(message["type"])

    async def nothing() -> Message:
        raise AssertionError("there is no body")

    scope: Scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    gate = Gate(streams, Limits(request_timeout_ms=1), None, RequestMetrics(CollectorRegistry()))
    await gate(scope, nothing, note)
    assert sent == ["http.response.start", "http.response.body"]


async def test_requests_at_once_are_bounded(serve: Callable[..., Served], handler: Handler) -> None:
    """What is under way stays so; what comes on top is told to come again, and does."""
    async with serve(max_requests=1) as http, client(http) as caller:
        first = asyncio.create_task(caller.get("/slow"))
        await handler.entered.wait()
        answer = await caller.get("/metrics")
        refused(answer.status_code, answer.content, ErrorCode.RATE_LIMITED)
        assert int(answer.headers["Retry-After"]) >= 1
        handler.may_answer.set()
        assert (await first).json() == "done"
        assert (await caller.get("/metrics")).status_code == 200


async def test_each_principal_has_a_rate_of_its_own(serve: Callable[..., Served], tmp_path: Path) -> None:
    """One that asks too much is refused with the time to wait; another one does not feel it. Who has no token is
    counted by address, and cannot choose that.
    """
    tokens = TokenFile(tmp_path)
    ada, bob = bearer(tokens.add("ada")), bearer(tokens.add("bob"))
    async with serve(token_file=tokens.path, requests_per_second=0.01) as http, client(http) as caller:
        assert (await caller.get("/metrics", headers=ada)).status_code == 200
        answer = await caller.get("/metrics", headers=ada)
        refused(answer.status_code, answer.content, ErrorCode.RATE_LIMITED)
        assert 1 <= int(answer.headers["Retry-After"]) <= 100
        assert (await caller.get("/metrics", headers=bob)).status_code == 200
        wrong = await caller.get("/metrics", headers=bearer("mtx_"))
        refused(wrong.status_code, wrong.content, ErrorCode.UNAUTHENTICATED)
        again = await caller.get("/metrics", headers=bearer("mtx_") | {"X-Forwarded-For": "10.1.2.3"})
        refused(again.status_code, again.content, ErrorCode.RATE_LIMITED)


def test_a_bucket_fills_with_time_and_never_over_the_brim() -> None:
    rate = RateLimit(10)
    assert [rate.wait_s("a", 0) for _ in range(10)] == [0] * 10
    assert rate.wait_s("a", 0) == pytest.approx(0.1)
    assert rate.wait_s("b", 0) == 0
    assert rate.wait_s("a", 0.11) == 0 and rate.wait_s("a", 0.11) > 0
    assert [rate.wait_s("a", 1000) > 0 for _ in range(11)] == [False] * 10 + [True]


def test_a_million_addresses_do_not_fill_the_memory() -> None:
    """And anyone who is refused does not become free by others' passing."""
    rate = RateLimit(1)
    granted = 0
    for n in range(3 * RateLimit.MAX_CALLERS):
        assert rate.wait_s(str(n), 0) == 0
        if n % 1000 == 0:
            granted += rate.wait_s("greedy", 0) == 0
    assert granted == 1
    assert len(rate._buckets) == RateLimit.MAX_CALLERS


async def test_what_is_no_request_passes() -> None:
    """The life-cycle messages of an application are not for the gate."""
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])

    async def unused(*_: Any) -> Any:
        raise AssertionError

    await Gate(app, Limits(), None, RequestMetrics(CollectorRegistry()))({"type": "lifespan"}, unused, unused)
    assert seen == ["lifespan"]


# -- TLS -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


async def test_tls_for_whoever_trusts_the_authority(tmp_path: Path, authority: Authority) -> None:
    """The client finds both services over TLS, and does a whole transaction; another authority is not believed."""
    tokens = TokenFile(tmp_path)
    token = tokens.add("ada", topics={"*": "produce,consume,admin"})
    ours = authority.sign("server")
    other = Authority(tmp_path / "other", "another")

    def work(url: str) -> list[Any]:
        with metatxn.connect(url, token=token, ca=str(authority.ca)) as client:
            client.create_topic("t")
            with client.transaction() as txn:
                client.producer("t").send({"id": 7}, txn=txn)
            return [message.value for message in client.reader("t", start="earliest")]

    def untrusting(url: str, ca: str | None) -> metatxn.MetatxnError:
        with metatxn.connect(url, token=token, ca=ca) as client, pytest.raises(metatxn.MetatxnError) as refused:
            client.cluster()
        return refused.value

    options: dict[str, Any] = {"token_file": tokens.path, "tls_cert": ours.cert, "tls_key": ours.key}
    async with secured(tmp_path / "data", **options) as service:
        assert service.coordinator_url.startswith("https://") and service.broker_url.startswith("https://")
        for url in (service.coordinator_url, service.broker_url):
            for ca in (None, str(other.ca)):
                error = await asyncio.to_thread(untrusting, url, ca)
                assert "is not trusted" in error.detail and not error.retriable and "--ca" in error.action
        assert {"id": 7} in await asyncio.to_thread(work, service.broker_url)
        plain = service.broker_url.replace("https", "http")
        async with httpx.AsyncClient(timeout=60) as http:
            with pytest.raises(httpx.TransportError):
                await http.get(f"{plain}/healthz")


async def test_a_token_for_tls_is_never_sent_without(serve: Callable[..., Served]) -> None:
    """A service that lists, or redirects to, an http:// URL gets no second request: the token would be readable."""
    asked: list[str] = []

    def lie(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        plain = [{"id": "1", "url": "http://plain"}]
        if request.url.path == "/v1/cluster":
            return httpx.Response(200, json={"coordinators": plain, "brokers": plain, "revision": 1})
        return httpx.Response(307, headers={"Location": "http://plain/v1/elsewhere"})

    client = metatxn.connect("https://tls", token="secret", transport=OverHttpx(httpx.MockTransport(lie)))
    with client, pytest.raises(metatxn.ServiceUnreachable, match="does not use TLS"):
        client.begin()
    assert asked == ["https://tls/v1/cluster"]


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "é"])
def test_a_token_that_cannot_be_sent_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(metatxn.InvalidArgument) as refused:
        metatxn.connect("http://x", token=token)
    assert not token or token not in refused.value.detail


def test_files_that_do_not_fit_are_refused(tmp_path: Path, authority: Authority) -> None:
    one, two = authority.sign("one"), authority.sign("two")
    for options in (
        {"tls_cert": one.cert},
        {"tls_key": one.key},
        {"tls_cert": one.cert, "tls_key": two.key},
        {"tls_cert": tmp_path / "none", "tls_key": one.key},
        {"tls_cert": one.key, "tls_key": one.key},
        {"jwt_audience": "metatxn"},
        {"token_file": TokenFile(tmp_path).path, "allow_anonymous": True},
        {"jwt_public_key": one.key},
    ):
        with pytest.raises(ValueError) as refused:
            open_exposure(**options)
        assert str(refused.value).endswith("."), refused.value
    with pytest.raises(metatxn.InvalidArgument, match="ca: "):
        metatxn.connect("https://x", ca=str(one.key))


# -- the page ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("with_tokens", [True, False])
async def test_the_page_says_what_the_gate_asks_for(
    serve: Callable[..., Served], tmp_path: Path, with_tokens: bool
) -> None:
    """A token where one is needed, and only when this service needs one; and every refusal of the gate."""
    options = {"token_file": TokenFile(tmp_path).path} if with_tokens else {}
    async with serve(**options) as http, client(http) as caller:
        described = (await caller.get("/openapi.json")).json()
    assert described["components"]["securitySchemes"] == {"bearer": {"type": "http", "scheme": "bearer"}}
    echo, metrics = described["paths"]["/echo"]["post"], described["paths"]["/metrics"]["get"]
    assert {"401", "403", "413", "429"} <= set(echo["responses"])
    assert {"401", "403", "429"} <= set(metrics["responses"]) and "413" not in metrics["responses"]
    assert all(
        operation.get("security") == ([{"bearer": []}] if with_tokens else None) for operation in (echo, metrics)
    )
