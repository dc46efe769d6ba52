"""The way of requests to the network: httpx, or what a caller has put in its place."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Mapping
from ssl import SSLContext

import httpx

IDLE_S = 30.0
"""Shorter than the services' own 75 s, so that an idle connection is dropped here first."""


class Connections:
    """httpx clients, of which each carries one request at a time.

    One client for all asks each of its connections about all others whenever a request begins or ends: with a hundred
    of them, as a hundred requests at once leave behind, that takes longer than everything else. Here the client used
    last is used first, and one that nobody has used for `IDLE_S` is closed.
    """

    def __init__(
        self, headers: Mapping[str, str], tls: SSLContext, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        """A `transport` of the caller's own takes any number of requests at once, so it has one client."""
        self.closed = False
        self._headers = headers
        self._tls = tls
        self._shared = httpx.AsyncClient(headers=headers, verify=tls, transport=transport) if transport else None
        self._idle: deque[tuple[float, httpx.AsyncClient]] = deque()
        """The one used last at the right, and each with the time when that was."""
        self._busy: dict[httpx.AsyncClient, None] = {}

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[httpx.AsyncClient]:
        """For one request, whose answer is read to its end."""
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
        # As many connections as services it has talked to.
        limits = httpx.Limits(max_connections=None, keepalive_expiry=IDLE_S)
        return httpx.AsyncClient(headers=self._headers, verify=self._tls, limits=limits)

    async def _drop_oldest(self) -> None:
        """One at a time is enough: each was used once."""
        if self._idle and self._idle[0][0] + IDLE_S < _now():
            await self._idle.popleft()[1].aclose()

    async def close(self) -> None:
        """What is on its way fails. Idempotent."""
        self.closed = True
        clients = [*self._busy, *(client for _, client in self._idle), *([self._shared] if self._shared else [])]
        self._idle.clear()
        for client in clients:
            await client.aclose()


def _now() -> float:
    return asyncio.get_running_loop().time()
