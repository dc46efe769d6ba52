"""Sockets that lead nowhere: what is written to them is kept, and a test says what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from metatxn.transport.api import Headers, Request
from metatxn.transport.connection import HttpConnection
from metatxn.transport.dialer import Dialer
from metatxn.transport.proxies import Proxy
from metatxn.transport.urls import Origin

URL = "http://service/v1/things"


def request(
    body: bytes | None = b"{}", url: str = URL, *, connect_s: float = 5, answer_s: float = 60, end: float = float("inf")
) -> Request:
    headers = Headers({"Content-Type": "application/json"} if body is not None else {})
    return Request("GET" if body is None else "POST", url, headers, body, connect_s, answer_s, end)


def answer(body: bytes = b"{}", *headers: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class Socket(asyncio.Transport):
    def __init__(self, connection: HttpConnection) -> None:
        self.connection = connection
        self.sends: list[bytes] = []
        self.unsent = 0
        self.closed = False

    def write(self, data: object) -> None:
        assert isinstance(data, bytes) and not self.closed
        self.sends.append(data)

    def writelines(self, parts: Iterable[object]) -> None:
        self.write(b"".join(part for part in parts if isinstance(part, bytes)))

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.lose(None)

    def lose(self, error: Exception | None) -> None:
        """The connection ends, here or there."""
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.connection.connection_lost, error)

    def receive(self, data: bytes) -> None:
        while data:
            room = self.connection.get_buffer(len(data))
            count = min(len(room), len(data))
            room[:count] = data[:count]
            self.connection.buffer_updated(count)
            data = data[count:]


class Sockets(Dialer):
    """Connects at once, or `takes_s` seconds later."""

    def __init__(self, takes_s: float = 0) -> None:
        self.opened: list[Socket] = []
        self._takes_s = takes_s

    async def connect(self, connection: HttpConnection, there: Origin, proxy: Proxy | None, within_s: float) -> None:
        async with asyncio.timeout(within_s):
            await asyncio.sleep(self._takes_s)
        self.opened.append(Socket(connection))
        connection.connection_made(self.opened[-1])

    async def sent(self, count: int = 1) -> Socket:
        """The socket opened last, once this many requests were written to it."""
        while not self.opened or len(self.opened[-1].sends) < count:
            await asyncio.sleep(0)
        return self.opened[-1]
