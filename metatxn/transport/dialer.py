"""Connections to services: TCP, TLS, and through a proxy.

http://            TCP to the service
https://           TCP and TLS to the service
http://, proxied   TCP to the proxy (with TLS, if the proxy has an https:// URL), which gets whole requests
https://, proxied  the same, CONNECT, and through it TLS with the service
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import re
import socket
import ssl
from typing import TypeVar, cast

from metatxn.transport.api import Unsent
from metatxn.transport.connection import HttpConnection
from metatxn.transport.proxies import Proxy
from metatxn.transport.urls import Origin

_LONGEST_HEAD = 64 * 1024
P = TypeVar("P", bound=asyncio.BaseProtocol)


class Dialer:
    """Opens connections. `tls` are the authorities to trust, by default the system's."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls

    async def connect(self, connection: HttpConnection, there: Origin, proxy: Proxy | None, within_s: float) -> None:
        """Open a connection. Raises `OSError` (`TimeoutError` and `ssl.SSLError` are some) and `Unsent`."""
        async with asyncio.timeout(within_s):
            if proxy is None:
                await self._open(connection, there, within_s)
            elif not there.tls:
                await self._open(connection, proxy.origin, within_s)
            else:
                await self._tunnel(connection, there, proxy, within_s)

    def _context(self, there: Origin) -> ssl.SSLContext | None:
        return (self._tls or usual_authorities()) if there.tls else None

    async def _open(self, protocol: P, there: Origin, within_s: float) -> None:
        """Open a connection to an address of the name. They are tried in turn, each for its part of the time."""
        loop, tls = asyncio.get_running_loop(), self._context(there)
        name = there.host if tls is not None else None
        addresses = await _addresses(there)
        for index, address in enumerate(addresses):
            try:
                async with asyncio.timeout(within_s / len(addresses)):
                    await loop.create_connection(lambda: protocol, address, there.port, ssl=tls, server_hostname=name)
                    return
            except OSError:
                if index == len(addresses) - 1:
                    raise

    async def _tunnel(self, connection: HttpConnection, there: Origin, proxy: Proxy, within_s: float) -> None:
        asked = _Asked()
        await self._open(asked, proxy.origin, within_s)
        try:
            await asked.for_a_tunnel(there, proxy)
            loop, tls = asyncio.get_running_loop(), self._context(there)
            assert tls is not None
            secured = await loop.start_tls(asked.transport, connection, tls, server_hostname=there.host)
            assert secured is not None
        except BaseException:
            asked.transport.abort()
            raise
        connection.connection_made(secured)


class _Asked(asyncio.Protocol):
    """A proxy that is asked for a tunnel."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._said = b""
        self._answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def for_a_tunnel(self, there: Origin, proxy: Proxy) -> None:
        host = f"[{there.host}]" if ":" in there.host else there.host
        lines = [f"CONNECT {host}:{there.port} HTTP/1.1", f"Host: {host}:{there.port}"]
        lines += [f"{name}: {value}" for name, value in proxy.headers.items()]
        self.transport.write("\r\n".join([*lines, "", ""]).encode("latin-1"))
        head = await self._answer
        if not re.match(rb"HTTP/1\.[01] 2\d\d", head):
            first = head.partition(b"\r\n")[0].decode("latin-1")
            raise Unsent(f"the proxy {proxy.origin.netloc} opens no connection to {there.netloc}: {first}")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._said += data
        if self._answer.done():
            return
        if self._said.endswith(b"\r\n\r\n"):
            self._answer.set_result(self._said)
        elif b"\r\n\r\n" in self._said or len(self._said) > _LONGEST_HEAD:
            self._answer.set_exception(Unsent("the proxy's answer to CONNECT is not HTTP"))

    def connection_lost(self, error: Exception | None) -> None:
        if not self._answer.done():
            self._answer.set_exception(Unsent(f"the proxy hung up: {error or 'without an answer'}"))


async def _addresses(there: Origin) -> list[str]:
    try:
        ipaddress.ip_address(there.host)
    except ValueError:
        found = await asyncio.get_running_loop().getaddrinfo(there.host, there.port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))
    return [there.host]


@functools.cache
def usual_authorities() -> ssl.SSLContext:
    """The system's authorities. Loading them takes 20 ms, so they are loaded once, when they are first needed."""
    return ssl.create_default_context()
