"""A TCP listener for protocols of frames that follow their size: limits, and answers in the order of the requests.

    bytes ─▶ one buffer per request ─▶ a task per request ─▶ answers, in the order in which the requests came

Each request is received into a buffer of its own, which its handler may keep and change. It grows as bytes come,
because the size in front of a request is only a claim. A connection that sends something malformed is
closed, with one line in the log.

A protocol whose answers need no order, or whose server speaks unasked, sends frames by itself.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import cast

import structlog

log = structlog.get_logger()

MAX_REQUEST_BYTES = 64 << 20
FIRST_BYTES = 256 << 10
"""The size of a buffer at first; it doubles when it is full. Few requests are larger, so few are copied."""
MAX_CONNECTIONS = 1_000
"""The most connections of a listener, unless it was given another number."""
MAX_IN_PROGRESS = 16
"""The most requests of one connection that are in progress; then no more are received."""
WRITE_BYTES = 64 << 10
"""The bytes from which on no further answer goes into the same write."""
AUTHENTICATED_WITHIN_S = 30.0
"""How long a connection may take to show a token, where one is needed."""
MAX_BYTES_BEFORE = 64 << 10
"""The most bytes of a request on a connection that is not authenticated yet."""
_SIZE_BYTES = 4

Reply = Sequence[bytes | bytearray | memoryview]
Handler = Callable[[memoryview], Awaitable[Reply | None] | None]
"""Answer one request, whose bytes the handler may keep: the parts of the answer without its size, or None for none.
Raises `MalformedRequest`. One that returns None at once takes care of its answers, by `FrameConnection.send`."""
OnConnect = Callable[["FrameConnection"], Handler]


OnClosed = Callable[[str], None]
"""Called with the reason when a connection is closed from here: `malformed`, `not_authenticated` or `too_many`."""


def ignored(reason: str) -> None:
    """Do not count."""


class MalformedRequest(Exception):
    """These bytes are not a request, or not a supported one. The connection is closed."""


class NotAuthenticated(MalformedRequest):
    """No token was shown on this connection, or it is no longer valid. The connection is closed."""


class FrameConnection(asyncio.BufferedProtocol):
    """One connection. Used only from the event loop of its process."""

    def __init__(
        self,
        connect: OnConnect,
        connections: set[FrameConnection],
        closed: OnClosed = ignored,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._connect = connect
        self.closed = closed
        self._max_connections = max_connections
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._into = self._size = bytearray(_SIZE_BYTES)
        self._filled = 0
        self._expected_bytes = 0
        """The buffer of the request that is being received."""
        self._answering: deque[asyncio.Task[Reply | None]] = deque()
        self._writable = asyncio.Event()
        self._writable.set()
        self._arrived = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self.on_lost: Callable[[], None] = lambda: None
        """Called when the connection is gone. May be set by `connect`."""
        self.on_writable: Callable[[bool], None] = lambda _: None
        """Called with False when the peer takes too little of what is sent, and with True once it has taken most of it.
        May be set by `connect`."""
        self.max_request_bytes = MAX_REQUEST_BYTES

    # -- what asyncio calls ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not a subclass of it
        if len(self._connections) >= self._max_connections:
            log.warning("connection refused: there are too many", peer=self.peer)
            self.closed("too_many")
            self._transport.abort()
            return
        self._connections.add(self)
        self._handle = self._connect(self)
        self._writer = asyncio.create_task(self._write_answers(), name="answers of a connection")

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._into)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled < len(self._into):
            return
        if self._into is self._size:
            size = int.from_bytes(self._size, signed=True)
            if not 0 < size <= self.max_request_bytes:
                self.close_because(MalformedRequest(f"a request of {size} bytes"))
                return
            self._into, self._filled, self._expected_bytes = bytearray(min(size, FIRST_BYTES)), 0, size
            return
        if self._filled < self._expected_bytes:
            self._into = self._into + bytes(min(self._filled, self._expected_bytes - self._filled))
            return
        request, self._into, self._filled = memoryview(self._into), self._size, 0
        try:
            handled = self._handle(request)
        except MalformedRequest as error:
            self.close_because(error)
            return
        if handled is None:
            return
        answering = asyncio.ensure_future(handled)
        answering.add_done_callback(_looked_at)
        self._answering.append(answering)
        self._arrived.set()
        if len(self._answering) >= MAX_IN_PROGRESS and self._transport is not None:
            self._transport.pause_reading()

    def pause_writing(self) -> None:
        self._writable.clear()
        self.on_writable(False)

    def resume_writing(self) -> None:
        self._writable.set()
        self.on_writable(True)

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        if self._writer is not None:
            self._writer.cancel()
        for task in self._answering:
            task.cancel()
        self._answering.clear()
        self.on_lost()

    # -- answers -----------------------------------------------------------------------------------------------

    @property
    def peer(self) -> str:
        name = self._transport.get_extra_info("peername") if self._transport is not None else None
        return f"{name[0]}:{name[1]}" if name else "unknown"

    @property
    def writable(self) -> bool:
        """Whether the peer has taken most of what was sent."""
        return self._writable.is_set()

    @property
    def unsent_bytes(self) -> int:
        """The bytes that were sent and that the peer has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def refuse(self, answer: Reply | None, why: str) -> None:
        """Close a connection that is not authenticated, after an answer that says so, if there is one."""
        if self._transport is None or self._transport.is_closing():
            return
        log.info("connection closed: not authenticated", peer=self.peer, why=why)
        self.closed("not_authenticated")
        if answer is None:
            self._transport.abort()
        else:
            self.send(answer)
            self._transport.close()

    def close_because(self, error: MalformedRequest) -> None:
        """Close the connection, with one line in the log."""
        if self._transport is not None and not self._transport.is_closing():
            if isinstance(error, NotAuthenticated):
                log.info("connection closed: not authenticated", peer=self.peer, why=str(error))
                self.closed("not_authenticated")
            else:
                log.warning("connection closed: malformed request", peer=self.peer, why=str(error))
                self.closed("malformed")
            self._transport.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def send(self, *frames: Reply) -> None:
        """Send frames, whose sizes are put in front of them. What the peer does not take is kept in memory: see
        `until_writable`."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines([part for frame in frames for part in _sized(frame)])

    async def until_writable(self) -> None:
        """Wait until the peer has taken most of what was sent, also by others that have waited for this."""
        while not self._writable.is_set():
            await self._writable.wait()

    def receive_more(self, wanted: bool) -> None:
        """Set whether more is received from the peer."""
        if self._transport is not None and not self._transport.is_closing():
            (self._transport.resume_reading if wanted else self._transport.pause_reading)()

    async def _write_answers(self) -> None:
        assert self._transport is not None
        while True:
            while not self._answering:
                self._arrived.clear()
                await self._arrived.wait()
            try:
                answer = await self._answering[0]
            except MalformedRequest as error:
                self.close_because(error)
                return
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log.error("unhandled error", peer=self.peer, exc_info=error)
                self._transport.abort()
                return
            await self._writable.wait()
            self._answering.popleft()
            self.send(*self._with_next(answer))
            if len(self._answering) < MAX_IN_PROGRESS:
                self._transport.resume_reading()

    def _with_next(self, answer: Reply | None) -> list[Reply]:
        """An answer with those behind it that are there as well, because a write of its own costs more than a small
        answer does."""
        answers = [] if answer is None else [answer]
        while self._answering and _is_answered(self._answering[0]) and _size(answers) < WRITE_BYTES:
            if (following := self._answering.popleft().result()) is not None:
                answers.append(following)
        return answers


def _is_answered(answering: asyncio.Task[Reply | None]) -> bool:
    return answering.done() and not answering.cancelled() and answering.exception() is None


def _size(answers: Sequence[Reply]) -> int:
    return sum(len(part) for answer in answers for part in answer)


def _sized(frame: Reply) -> Reply:
    return [sum(map(len, frame)).to_bytes(_SIZE_BYTES), *frame]


def _looked_at(answering: asyncio.Future[Reply | None]) -> None:
    """Retrieve a failure. A request after a malformed one may fail, too, which interests no one."""
    if not answering.cancelled():
        answering.exception()


class FrameServer:
    """Listens on one address, with or without TLS. `connect` is called for each connection and returns its handler."""

    def __init__(
        self,
        connect: OnConnect,
        host: str,
        port: int,
        tls: ssl.SSLContext | None = None,
        closed: OnClosed = ignored,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._connect = connect
        self._max_connections = max_connections
        self._host = host
        self._port = port
        self._tls = tls
        self._closed = closed
        self._server: asyncio.Server | None = None
        self._connections: set[FrameConnection] = set()

    @property
    def port(self) -> int:
        """The port, which is known once it listens."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def connections(self) -> int:
        """The number of connections now."""
        return len(self._connections)

    async def start(self) -> None:
        """Start to listen. Raises `OSError` if the port is in use."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: FrameConnection(self._connect, self._connections, self._closed, self._max_connections),
            self._host,
            self._port,
            ssl=self._tls,
        )

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for connection in list(self._connections):
                connection.abort()
            await self._server.wait_closed()
