"""Goal: a service is reached as the environment says: directly or through a proxy, with TLS to whom it should be.

Method: a service and a proxy on loopback, which keep what they were sent.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from metatxn.transport import dialer
from metatxn.transport.api import Answer, BadUrl, Headers, Request, Unsent
from metatxn.transport.pool import HttpTransport
from metatxn.transport.urls import Origin
from tests.certificates import Authority

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
SECRET = "Basic " + base64.b64encode(b"me:p w").decode()


Loop = Callable[[], asyncio.AbstractEventLoop]
LOOPS: dict[str, Loop] = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
on_both_loops = pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
"""The blocking client has that of uvloop where it is installed."""


def run(loop: Loop, story: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(story)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def served(authority: Authority) -> ssl.SSLContext:
    one = authority.sign("one")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(one.cert, one.key)
    return context


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError), contextlib.closing(writer):
        while data := await reader.read(1 << 16):
            writer.write(data)


class Listener:
    """A service, which is also a proxy: what it is asked to CONNECT to it connects to, unless it `refuses`."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.refuses = False
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, OSError), contextlib.closing(writer):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                if self.refuses:
                    writer.write(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n")
                elif head.startswith("CONNECT "):
                    host, _, port = head.split()[1].partition(":")
                    there, to = await asyncio.open_connection(host, int(port))
                    writer.write(b"HTTP/1.1 200 Go on\r\n\r\n")
                    await asyncio.gather(relay(reader, to), relay(there, writer))
                    return
                else:
                    writer.write(OK)


@contextlib.asynccontextmanager
async def listening(tls: ssl.SSLContext | None = None) -> AsyncIterator[Listener]:
    listener = Listener()
    server = await asyncio.start_server(listener.serve, "127.0.0.1", 0, ssl=tls)
    listener.port = server.sockets[0].getsockname()[1]
    yield listener
    server.close()  # not awaited: it would wait for idle connections


async def ask(url: str, authority: Authority | None = None) -> Answer:
    tls = ssl.create_default_context(cafile=authority.ca) if authority else None
    http = HttpTransport(tls)
    try:
        return await http.send(Request("GET", url, Headers({"Authorization": "Bearer t"}), None, 5, 60, float("inf")))
    finally:
        await http.close()


@pytest.mark.parametrize("secured", [False, True], ids=["http", "https"])
@on_both_loops
def test_a_service_is_reached_directly(loop: Loop, secured: bool, authority: Authority) -> None:
    run(loop, reach_directly(secured, authority))


async def reach_directly(secured: bool, authority: Authority) -> None:
    async with listening(served(authority) if secured else None) as service:
        url = f"http{'s' * secured}://127.0.0.1:{service.port}/v1/x?y=z"
        assert (await ask(url, authority)).body == b"ok"
        assert service.heads[0].startswith(f"GET /v1/x?y=z HTTP/1.1\r\nHost: 127.0.0.1:{service.port}\r\n")


async def test_a_service_that_nobody_vouches_for_is_sent_nothing(authority: Authority) -> None:
    async with listening(served(authority)) as service:
        with pytest.raises(Unsent) as caught:
            await ask(f"https://127.0.0.1:{service.port}/")
        assert isinstance(caught.value.__cause__, ssl.SSLCertVerificationError)
        with pytest.raises(Unsent):
            await ask(f"https://localhost:{service.port}/", authority)  # a certificate of another name
        assert service.heads == []


async def test_the_usual_authorities_are_those_of_the_environment(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers have no other way to know a private one."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
    dialer.usual_authorities.cache_clear()
    try:
        async with listening(served(authority)) as service:
            assert (await ask(f"https://127.0.0.1:{service.port}/")).ok
    finally:
        dialer.usual_authorities.cache_clear()


@pytest.mark.parametrize("to_proxy", ["http", "https"])
@pytest.mark.parametrize("to_service", ["http", "https"])
@on_both_loops
def test_a_proxy_is_used(
    loop: Loop, to_proxy: str, to_service: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told who we are, and hears nothing else of what is sent with TLS."""
    run(loop, reach_through_a_proxy(to_proxy, to_service, authority, monkeypatch))


async def reach_through_a_proxy(
    to_proxy: str, to_service: str, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        listening(served(authority) if to_proxy == "https" else None) as proxy,
        listening(served(authority) if to_service == "https" else None) as service,
    ):
        monkeypatch.setenv(f"{to_service.upper()}_PROXY", f"{to_proxy}://me:p%20w@127.0.0.1:{proxy.port}")
        name = f"127.0.0.1:{service.port}"
        assert (await ask(f"{to_service}://{name}/v1/x", authority)).body == b"ok"
        (heard,) = proxy.heads
        assert f"Proxy-Authorization: {SECRET}\r\n" in heard
        if to_service == "http":
            assert heard.startswith(f"GET http://{name}/v1/x HTTP/1.1\r\nHost: {name}\r\n") and service.heads == []
        else:
            assert heard.startswith(f"CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n") and "Bearer" not in heard
            assert service.heads[0].startswith("GET /v1/x HTTP/1.1\r\n") and "Proxy" not in service.heads[0]


async def test_a_proxy_is_not_used_for_what_the_environment_excepts(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as proxy, listening() as service:
        monkeypatch.setenv("all_proxy", f"127.0.0.1:{proxy.port}")
        monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
        assert (await ask(f"http://127.0.0.1:{service.port}/")).ok
        assert (proxy.heads, len(service.heads)) == ([], 1)
        monkeypatch.setenv("no_proxy", "localhost")
        assert (await ask(f"http://127.0.0.1:{service.port}/")).ok
        assert (len(proxy.heads), len(service.heads)) == (1, 1)


async def test_what_a_proxy_does_not_let_through_was_not_sent(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening() as proxy, listening(served(authority)) as service:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.port}")
        proxy.refuses = True
        with pytest.raises(Unsent, match="403"):
            await ask(f"https://127.0.0.1:{service.port}/", authority)
        assert service.heads == []


async def test_a_proxy_of_another_kind_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "socks5://user:secret@proxy:1080")
    with pytest.raises(BadUrl, match="socks5://proxy:1080") as caught:
        await ask("http://service/")
    assert "secret" not in str(caught.value)


async def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async with listening() as service:
        assert (await ask(f"http://localhost:{service.port}/")).ok

        async def two(_: Origin) -> list[str]:
            return ["127.0.0.2", "127.0.0.1"]

        monkeypatch.setattr(dialer, "_addresses", two)
        assert (await ask(f"http://two.example:{service.port}/")).ok
        with pytest.raises(Unsent):
            await ask("http://two.example:1/")


async def test_a_name_that_nobody_knows_was_sent_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(_: Origin) -> list[str]:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(dialer, "_addresses", none)
    with pytest.raises(Unsent, match="not known"):
        await ask("http://nowhere.example/")
