"""One HTTP server on the running event loop, without signal handlers of its own."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any, cast

import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from metatxn.service.process_metrics import LoopLag

HEAD_TIMEOUT_S = 30.0
"""The time from the connection, or from the first byte of a request, to the end of its head."""
MAX_HEAD_BYTES = 256 << 10
"""The size of request line and headers. The URL of a browse token with a place in each of 1,000 segments fits."""
GRACE_S = 5.0
"""How long requests in progress may delay a stop."""
STALL_S = 60.0
"""How long a client may read nothing of an answer before its connection is closed."""
LINGER_S = 5.0
"""How long the rest of an unwanted body is read before the connection is closed."""


class HttpServer:
    """Serve `app` until `stop`. `port` 0 takes a free one; `url` is known once `bind` has returned.

    `advertise_url` is the URL at which others reach this server if it is not `http(s)://<host>:<port>` (containers,
    proxies). `lag` looks how late the event loop is while this serves.
    """

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        advertise_url: str | None = None,
        tls: ssl.SSLContext | None = None,
        *,
        grace_s: float = GRACE_S,
        lag: LoopLag | None = None,
    ) -> None:
        self._lag = lag
        self._grace_s = grace_s
        self._advertise_url = advertise_url
        self._host = host
        self._port = port
        self._scheme = "https" if tls else "http"
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            http=_BoundedHead,
            ws="none",
            log_config=None,
            access_log=False,
            timeout_keep_alive=75,
            lifespan="off",
            proxy_headers=False,  # otherwise a client could choose its counted address by X-Forwarded-For
            server_header=False,
            ssl_context_factory=(lambda *_: tls) if tls else None,
        )
        self._server = _Server(config)
        self._socket: socket.socket | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        if self._advertise_url is not None:
            return self._advertise_url
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{self._scheme}://{host}:{self._port}"

    def bind(self) -> None:
        """Take the port, so that `url` is known before anything is served. Raises `OSError` if it is in use."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        # asyncio sets TCP_NODELAY only where the protocol is named. Without it, the kernel keeps the body of an answer
        # until the client has acknowledged the head, which takes 40 ms.
        bound = self._socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((self._host, self._port))
        except OSError:
            bound.close()
            raise
        self._port = bound.getsockname()[1]

    async def start(self) -> None:
        """Serve on the bound socket; returns once connections are accepted."""
        assert self._socket is not None, "bind first"
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name=f"http {self._port}")
        await self._server.serving.wait()
        if self._lag is not None:
            self._lag.start()

    async def stop(self) -> None:
        """Stop accepting connections, finish the requests in progress (for up to `grace_s`), and close."""
        if self._task is None:
            if self._socket:
                self._socket.close()
            return
        if self._lag is not None:
            self._lag.stop()
        self._server.should_exit = True
        try:
            await asyncio.wait_for(self._task, timeout=self._grace_s)
        except TimeoutError:
            self._server.force_exit = True
        self._task = None


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, and with an event that is set once it accepts connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serving = asyncio.Event()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await self._serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.serving.set()


class _BoundedHead(HttpToolsProtocol):
    """uvicorn's protocol with three limits: on what arrives before the application gets a request, on what arrives
    after it has answered, and on how long a client may leave an answer unread, which takes memory and counts as a
    request in progress.

    uvicorn times idle connections only between two requests, and its parser collects a head of any length. So a head
    has limits of time and size here. The rest of a body whose request is already answered is read only for a short time
    (closing at once would reset the connection before the client has read the answer).

    A request that offers an upgrade is answered as if it did not, which a server may always do (RFC 9110 §7.8). The
    parser treats what follows such a head as another protocol, and uvicorn would serve the request without its body. So
    the head is parsed once more without `Upgrade`, together with the body after it.
    """

    _in_head = True
    _head_bytes = 0
    _arriving = 0
    _timer: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._close_in(HEAD_TIMEOUT_S)

    def connection_lost(self, error: Exception | None) -> None:
        self._keep()
        self._taken()
        super().connection_lost(error)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._taken()
        super().resume_writing()

    def _watch_reader(self, waiting: int) -> None:
        self._taken()
        self._stall = self.loop.call_later(STALL_S, self._cut_unless_taken, waiting)

    def _cut_unless_taken(self, waiting: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left < waiting:
            self._watch_reader(left)
        else:
            self.transport.abort()

    def _taken(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def data_received(self, data: bytes) -> None:
        if self._in_head and self._timer is None:
            self._close_in(HEAD_TIMEOUT_S)
        self._arriving = len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("Invalid HTTP request received.")
            return
        if self._in_head:
            self._head_bytes += self._arriving
            if self._head_bytes > MAX_HEAD_BYTES:
                self.transport.close()

    def _parse(self, data: bytes | memoryview) -> None:
        """Raises `HttpParserError`."""
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as stopped:
                data = memoryview(data)[stopped.args[0] :]
                head = self._head_without_upgrade()
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as in uvicorn
                self.parser.feed_data(head)

    def _head_without_upgrade(self) -> bytes:
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise httptools.HttpParserError("there is no tunnel here")
        lines = [b"%b %b HTTP/%b" % (method, self.url, self.parser.get_http_version().encode())]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._in_head = False
        self._keep()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass on a chunk that the application waits for without copying it; uvicorn would copy it twice."""
        if not self.cycle.body:
            self.cycle.body, body = cast(bytearray, body), b""
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._in_head = True
        self._head_bytes = -self._arriving  # data that came with the end of this request does not count
        self._keep()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._in_head and self.cycle.response_complete:
            self._close_in(LINGER_S)

    def _close_in(self, seconds: float) -> None:
        self._keep()
        self._timer = self.loop.call_later(seconds, self.transport.close)

    def _keep(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
