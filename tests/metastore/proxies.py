"""A proxy between a client and a server that can keep replies back and cut connections."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class Proxy:
    """Forwards everything to `port`; while `holding`, nothing comes back from there."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._connections: set[asyncio.Task[None]] = set()
        self._awaited: tuple[bytes, bool, asyncio.Event] | None = None
        self._dropping = False
        self._cuts = 0
        self.holding = False

    def hold_from(self, part: bytes, *, forward: bool) -> asyncio.Event:
        """Be `holding` from the request on that has `part` in it, until `cut`. Without `forward` it is lost itself, and
        all after it. The event is set when it has come."""
        met = asyncio.Event()
        self._awaited = (part, forward, met)
        return met

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._forward(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)
        connection.add_done_callback(lambda _: writer.close())  # also of one that is cut before it has begun

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, requests = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, requests, held=False))
                pumps.create_task(self._pump(answers, writer, held=True))
        except* (ConnectionError, EOFError):
            pass  # either end has gone
        finally:
            requests.close()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, held: bool) -> None:
        cuts = self._cuts
        while data := await reader.read(1 << 16):
            if cuts != self._cuts:
                break  # an answer that comes between the cut and the end of this task must not get through
            if not held:
                self._look_at(data)
            if not (self.holding if held else self._dropping):
                writer.write(data)
        raise EOFError

    def _look_at(self, requests: bytes) -> None:
        """The part that is awaited is short, and its sender sends it at once: it never comes in two reads."""
        if self._awaited and self._awaited[0] in requests:
            _, forward, met = self._awaited
            self._awaited = None
            self.holding, self._dropping = True, not forward
            met.set()

    def cut(self) -> None:
        """End all connections; new ones are forwarded as ever."""
        self.holding = self._dropping = False
        self._cuts += 1
        for connection in self._connections:
            connection.cancel()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()
