"""The transport over sockets: a pool of connections, without a limit of its own.

The connection used last is used first, and those that have been unused for `IDLE_S` are closed, so taking one and
giving it back take the same time however many there are.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from functools import partial

from metatxn.transport.api import Answer, Request, Unsent
from metatxn.transport.connection import HttpConnection
from metatxn.transport.dialer import Dialer
from metatxn.transport.proxies import Proxy, proxy_for
from metatxn.transport.tracing import send_traced
from metatxn.transport.urls import Origin, split_url

IDLE_S = 30.0
"""Shorter than the 75 s of the services, so that an idle connection is dropped here first."""


class _Service:
    """The way to one origin, and the idle connections to it. The one used last is at the right."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.proxy: Proxy | None = proxy_for(origin)
        self.idle: deque[HttpConnection] = deque()
        plain = self.proxy is not None and not origin.tls
        self._before_target = f"{origin.scheme}://{origin.netloc}" if plain else ""
        headers = {"Host": origin.netloc, "User-Agent": "metatxn"}
        if plain and self.proxy is not None:
            headers |= self.proxy.headers
        self._after_target = " HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())

    def head(self, request: Request, target: str) -> bytes:
        lines = [f"{request.method} {self._before_target}{target}{self._after_target}"]
        lines += [f"{name}: {value}\r\n" for name, value in request.headers.items()]
        if request.body is not None or request.method != "GET":
            lines.append(f"Content-Length: {len(request.body or b'')}\r\n")
        lines.append("\r\n")
        return "".join(lines).encode("latin-1")


class HttpTransport:
    """A `Transport`, for one event loop. Only requests to the same service share connections."""

    def __init__(self, tls: ssl.SSLContext | None = None, dialer: Dialer | None = None) -> None:
        """`tls` are the authorities to trust, by default the system's."""
        self._dialer = dialer or Dialer(tls)
        self._services: dict[Origin, _Service] = {}
        self._open: set[HttpConnection] = set()
        self._closed = False

    async def send(self, request: Request) -> Answer:
        return await send_traced(self._send, request)

    async def _send(self, request: Request) -> Answer:
        origin, target = split_url(request.url)
        service = self._services.get(origin)
        if service is None:
            service = self._services[origin] = _Service(origin)
        head = service.head(request, target)
        connection = self._idle(service) or await self._connected(service, request)
        answer = await connection.send(request, head)
        self._give_back(service, connection)
        return answer

    def _idle(self, service: _Service) -> HttpConnection | None:
        oldest = asyncio.get_running_loop().time() - IDLE_S
        while service.idle:
            connection = service.idle.pop()
            if connection.usable and connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    async def _connected(self, service: _Service, request: Request) -> HttpConnection:
        within_s = min(request.connect_s, request.end - asyncio.get_running_loop().time())
        if self._closed or within_s <= 0:
            raise Unsent("the transport is closed" if self._closed else "no time was left to connect")
        connection = HttpConnection(partial(self._lost, service))
        try:
            await self._dialer.connect(connection, service.origin, service.proxy, within_s)
        except OSError as error:
            why = f"no connection within {within_s:.3g} s" if isinstance(error, TimeoutError) else str(error)
            raise Unsent(why or type(error).__name__) from error
        if self._closed or not connection.usable:
            connection.abort()
            raise Unsent("the connection was closed as soon as it was opened")
        self._open.add(connection)
        return connection

    def _give_back(self, service: _Service, connection: HttpConnection) -> None:
        if self._closed or not connection.usable:
            connection.abort()
            return
        now = connection.idle_since = asyncio.get_running_loop().time()
        service.idle.append(connection)
        while service.idle[0].idle_since + IDLE_S < now:
            service.idle.popleft().abort()

    def _lost(self, service: _Service, connection: HttpConnection) -> None:
        self._open.discard(connection)
        if connection in service.idle:
            service.idle.remove(connection)

    async def close(self) -> None:
        self._closed = True
        connections = list(self._open)
        for connection in connections:
            connection.fail("the client was closed")
        if connections:
            await asyncio.wait([connection.lost for connection in connections])
