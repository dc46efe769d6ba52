"""Goal: however many calls are made at once, they go through in order, this many at a time and no more. What waits for
its turn uses up nobody's time, and what was never sent is never an unknown outcome.

Method: the simulator's event loop, whose time jumps, in front of a fake cluster that takes a second for each answer;
and a real server, for what only real sockets tell.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random

import pytest

import metatxn
from metatxn.http import MAX_ON_THEIR_WAY, Call, FixedEndpoint
from metatxn.transport.api import Answer, Request
from metatxn.transport.connection import HttpConnection
from metatxn.transport.dialer import Dialer
from metatxn.transport.pool import HttpTransport
from metatxn.transport.proxies import Proxy
from metatxn.transport.urls import Origin
from metatxn.wire.errors import ErrorCode
from tests.metatxn.fake_cluster import COORDINATOR, FakeCluster, answering
from tests.simulation.loop import SimulationLoop

CALLS = 10_000
REFUSED = 20
ANSWER_S = 0.5
TIMEOUT_S = 1.2
"""Of each request: far less than all of them take."""


class Slow:
    """Takes half a second for every answer but that of `/v1/cluster`, a minute for a long poll, and counts."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._inner = cluster.transport
        self.close = self._inner.close
        self.here = self.most = 0
        self.came: list[bytes] = []

    async def send(self, request: Request) -> Answer:
        if request.url.endswith("/v1/cluster"):
            return await self._inner.send(request)
        self.came.append(request.body or b"")
        self.here += 1
        self.most = max(self.most, self.here)
        await asyncio.sleep(60 if request.url.endswith("/receive") else ANSWER_S)
        self.here -= 1
        return await self._inner.send(request)


def in_virtual_time(story: Callable[[], Awaitable[None]]) -> float:
    """How long it took."""
    loop = SimulationLoop(Random(0), 1, lambda: 0.0)
    try:
        loop.run_until_complete(story())
        return loop.time()
    finally:
        loop.close()


def test_thousands_of_calls_at_once_go_through_in_order() -> None:
    cluster = FakeCluster()
    # Some of them come twice, and wait for their turn again.
    cluster.before = [("POST /v1/txns", answering(ErrorCode.STORE_UNAVAILABLE))] * REFUSED
    transport = Slow(cluster)

    async def story() -> None:
        client = metatxn.connect_async(COORDINATOR, request_timeout_s=TIMEOUT_S, transport=transport)
        async with client:
            await asyncio.gather(*[client.begin(timeout_ms=number) for number in range(CALLS)])

    took_s = in_virtual_time(story)
    assert transport.most == MAX_ON_THEIR_WAY and took_s > 2 * TIMEOUT_S
    came = [json.loads(content)["timeout_ms"] for content in transport.came]
    assert list(dict.fromkeys(came)) == list(range(CALLS)) and len(came) == CALLS + REFUSED


def test_long_polls_hold_up_no_commit() -> None:
    cluster = FakeCluster()
    transport = Slow(cluster)

    async def story() -> None:
        client = metatxn.connect_async(COORDINATOR, request_timeout_s=100, transport=transport)
        polls = [
            asyncio.ensure_future(client.consumer("t", "s").receive(timeout_s=0.5)) for _ in range(2 * MAX_ON_THEIR_WAY)
        ]
        await asyncio.sleep(1)
        assert transport.most == MAX_ON_THEIR_WAY
        await (await client.begin()).commit()
        assert asyncio.get_running_loop().time() < 10
        for poll in polls:
            poll.cancel()
        await asyncio.gather(*polls, return_exceptions=True)
        await client.let_go()

    in_virtual_time(story)


class Mute(asyncio.Transport):
    """A connection to nobody."""

    def __init__(self, connection: HttpConnection) -> None:
        self._connection = connection

    def is_closing(self) -> bool:
        return False

    def write(self, data: object) -> None: ...

    def abort(self) -> None:
        asyncio.get_running_loop().call_soon(self._connection.connection_lost, None)


class Nowhere(Dialer):
    """It never connects, or what it connects to never answers."""

    def __init__(self, connects: bool) -> None:
        self._connects = connects

    async def connect(self, connection: HttpConnection, there: Origin, proxy: Proxy | None, within_s: float) -> None:
        if not self._connects:
            async with asyncio.timeout(within_s):
                await asyncio.get_running_loop().create_future()
        connection.connection_made(Mute(connection))


@pytest.mark.parametrize("connects", [False, True])
def test_only_what_was_sent_may_have_happened(connects: bool) -> None:
    """Its time for the answer begins when it is sent."""

    async def story() -> None:
        transport = HttpTransport(dialer=Nowhere(connects))
        async with metatxn.connect_async(COORDINATOR, request_timeout_s=4, transport=transport) as client:
            with pytest.raises(metatxn.OutcomeUnknown if connects else metatxn.ServiceUnreachable):
                await client._connection.http.request(FixedEndpoint(COORDINATOR), Call("POST", "/"), patient=False)

    assert in_virtual_time(story) == (2 if connects else 1)


Answering = Callable[[asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def server(answer: Answering) -> AsyncIterator[FixedEndpoint]:
    """A real one. `answer` is awaited for each request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError), contextlib.closing(writer):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await answer(writer)

    listening = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=MAX_ON_THEIR_WAY)
    async with listening:
        yield FixedEndpoint(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}")


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()


async def say_nothing(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


@pytest.mark.parametrize("answer", [hang_up, say_nothing])
async def test_what_a_real_server_has_got_may_have_happened(answer: Answering) -> None:
    async with server(answer) as endpoint, metatxn.connect_async(endpoint.base, request_timeout_s=0.5) as client:
        with pytest.raises(metatxn.OutcomeUnknown):
            await client._connection.http.request(endpoint, Call("POST", "/", idempotent=False))


async def test_a_real_server_gets_so_many_at_a_time() -> None:
    """None is answered before all that may be on their way have come."""
    here = most = 0
    full = asyncio.Event()

    async def answer(writer: asyncio.StreamWriter) -> None:
        nonlocal here, most
        here += 1
        most = max(most, here)
        if here == MAX_ON_THEIR_WAY:
            full.set()
        await full.wait()
        here -= 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    async with server(answer) as endpoint, metatxn.connect_async(endpoint.base) as client:
        calls = [client._connection.http.request(endpoint, Call("POST", "/")) for _ in range(3 * MAX_ON_THEIR_WAY)]
        assert {each.status for each in await asyncio.gather(*calls)} == {200}
    assert most == MAX_ON_THEIR_WAY
