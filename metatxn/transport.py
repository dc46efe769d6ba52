"""The path of requests to the network: httpx, or a replacement of the caller's."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Mapping
from ssl import SSLContext

import httpx

IDLE_S = 30.0
"""Shorter than the 75 s of the services, so that an idle connection is dropped here first."""


class Connections:
    """A pool of httpx clients, each of which carries one request at a time.

    A single client would check all of its connections whenever a request begins or ends. With a hundred of them, as a
    hundred concurrent requests leave behind, that takes longer than everything else. Here the client used last is used
    first, and one that has been unused for `IDLE_S` is closed.
    """

    def __init__(
        self, headers: Mapping[str, str], tls: SSLContext, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        """A `transport` of the caller's own takes any number of requests at once, so there is one client for it."""
        self.closed = False
        self._headers = headers
        self._tls = tls
        self._shared = httpx.AsyncClient(headers=headers, verify=tls, transport=transport) if transport else None
        self._idle: deque[tuple[float, httpx.AsyncClient]] = deque()
        """The client used last is at the right; each has the time at which it was used."""
        self._busy: dict[httpx.AsyncClient, None] = {}

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[httpx.AsyncClient]:
        """A client for one request, whose answer is read to its end."""
        if self._shared is not None:
            yield self._shared
            return
        client = self._idle.pop()[1] if self._idle else self._new()
        self._busy[client] = None
        try:
            yield client
        finally:
            del self._busy[client]
            if not self.closed:
                self._idle.append((_now(), client))
        await self._drop_oldest()

    def _new(self) -> httpx.AsyncClient:
        # A client has as many connections as it has talked to services.
        limits = httpx.Limits(max_connections=None, keepalive_expiry=IDLE_S)
        return httpx.AsyncClient(headers=self._headers, verify=self._tls, limits=limits)

    async def _drop_oldest(self) -> None:
        """One at a time is enough, because each was used once."""
        if self._idle and self._idle[0][0] + IDLE_S < _now():
            await self._idle.popleft()[1].aclose()

    async def close(self) -> None:
        """Close. Requests in flight fail. Idempotent."""
        self.closed = True
        clients = [*self._busy, *(client for _, client in self._idle), *([self._shared] if self._shared else [])]
        self._idle.clear()
        for client in clients:
            await client.aclose()


def _now() -> float:
    return asyncio.get_running_loop().time()
