"""A TCP relay in front of a server: some clients lose their way to it while all others keep theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self

_CHUNK = 1 << 16

Way = Literal["requests", "replies"]


class Relay:
    """Carries bytes between its own port and that of a server. While it is cut, connections end and none begins. While
    it holds requests or replies, those wait here; they arrive late, or never. `said` may change what clients say first.

    `connections` counts those that reached the server: each but the first is a client that came back.
    """

    def __init__(self, server_port: int, said: Callable[[bytes], bytes] = bytes) -> None:
        self._server_port = server_port
        self._said = said
        self._cut = False
        self._pumps: set[asyncio.Task[None]] = set()
        self._ways: dict[Way, asyncio.Event] = {"requests": asyncio.Event(), "replies": asyncio.Event()}
        for way in self._ways.values():
            way.set()
        self.connections = 0

    def cut(self) -> None:
        self._cut = True
        for pump in self._pumps:
            pump.cancel()

    def mend(self) -> None:
        self._cut = False

    def hold(self, way: Way) -> None:
        self._ways[way].clear()

    def release(self, *, lose: bool) -> None:
        """Let everything through again. What was held arrives now; with `lose` its connections end instead."""
        if lose:
            for pump in self._pumps:
                pump.cancel()
        for way in self._ways.values():
            way.set()

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self.accept, "127.0.0.1", 0)
        self.port: int = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        await self.close()

    async def close(self) -> None:
        """End what it carries."""
        self.cut()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry this connection too; its own port is not the only way in."""
        if self._cut:
            writer.transport.abort()
            return
        pump = asyncio.get_running_loop().create_task(self._carry(reader, writer), name="relay")
        self._pumps.add(pump)
        pump.add_done_callback(self._pumps.discard)
        pump.add_done_callback(lambda _: writer.transport.abort())  # also of one that is cut before it has begun

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Both ways, until one of the two ends is gone. The other one is then cut off too."""
        with suppress(OSError):
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
            self.connections += 1
            try:
                there = asyncio.create_task(_pump(reader, server_writer, self._ways["requests"], self._said))
                back = asyncio.create_task(_pump(server_reader, writer, self._ways["replies"]))
                try:
                    await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    there.cancel()
                    back.cancel()
                    await asyncio.gather(there, back, return_exceptions=True)
            finally:
                server_writer.transport.abort()


class Relays:
    """Several ways that are cut and held as one."""

    def __init__(self, *relays: Relay) -> None:
        self._relays = relays

    def cut(self) -> None:
        for relay in self._relays:
            relay.cut()

    def mend(self) -> None:
        for relay in self._relays:
            relay.mend()

    def hold(self, way: Way) -> None:
        for relay in self._relays:
            relay.hold(way)

    def release(self, *, lose: bool) -> None:
        for relay in self._relays:
            relay.release(lose=lose)


async def _pump(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    way: asyncio.Event,
    said: Callable[[bytes], bytes] = bytes,
) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            await way.wait()
            writer.write(said(data))
            said = bytes
            await writer.drain()
