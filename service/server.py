"""One HTTP server on the running event loop, without signal handlers of its own."""

from __future__ import annotations

import asyncio
import socket

import uvicorn
from starlette.types import ASGIApp


class HttpServer:
    """Serve `app` until `stop`. `port` 0 takes a free one; `url` is known once `bind` has returned.

    `advertise_url` is where others reach this server, when that is not `http://<host>:<port>` (containers, proxies).
    """

    def __init__(self, app: ASGIApp, host: str, port: int, advertise_url: str | None = None) -> None:
        self._advertise_url = advertise_url
        self._host = host
        self._port = port
        config = uvicorn.Config(
            app, host=host, port=port, log_config=None, access_log=False, timeout_keep_alive=75, lifespan="off"
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
        return f"http://{host}:{self._port}"

    def bind(self) -> None:
        """Take the port, so that `url` is known before anything is served. Raises `OSError` when it is in use."""
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        bound = self._socket = socket.socket(family, socket.SOCK_STREAM)
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

    async def stop(self) -> None:
        """Stop accepting, finish the requests under way (up to 5 s), close."""
        if self._task is None:
            if self._socket:
                self._socket.close()
            return
        self._server.should_exit = True
        try:
            await asyncio.wait_for(self._task, timeout=5)
        except TimeoutError:
            self._server.force_exit = True
        self._task = None


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers, and with an event for "accepting now"."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.serving = asyncio.Event()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        await self._serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.serving.set()
