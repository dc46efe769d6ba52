"""A request whose client has hung up is known as such, with a body and without one, and no other is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from metatxn.service.departure import caller_left
from metatxn.service.http import create_app
from metatxn.service.server import HttpServer

BODY = b'{"a": 1}'
REQUESTS = {
    "with a body": b"POST /wait HTTP/1.1\r\nhost: s\r\ncontent-type: application/json\r\ncontent-length: 8\r\n\r\n"
    + BODY,
    "without": b"POST /wait HTTP/1.1\r\nhost: s\r\n\r\n",
}


class Waiting:
    """An endpoint that answers once `hung_up` is set, with whether its client has left by then."""

    def __init__(self) -> None:
        self.answers: list[bool] = []
        self.entered = asyncio.Event()
        self.hung_up = asyncio.Event()
        self.answered = asyncio.Event()

    def add_to(self, app: FastAPI) -> None:
        @app.post("/wait")
        async def wait(body: dict[str, Any] | None = None) -> None:
            self.answers.append(await caller_left())
            self.entered.set()
            await self.hung_up.wait()
            async with asyncio.timeout(60):
                while not await caller_left():  # the server hears of it a moment later
                    await asyncio.sleep(0)
            self.answers.append(True)
            self.answered.set()


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
async def test_a_client_that_hangs_up_has_left(request_: bytes) -> None:
    assert not await caller_left(), "nobody has asked"
    waiting = Waiting()
    app = create_app("a service", "under test", "0", CollectorRegistry())
    waiting.add_to(app)
    http = HttpServer(app, "127.0.0.1", 0)
    http.bind()
    await http.start()
    _, writer = await asyncio.open_connection("127.0.0.1", http.port)
    writer.write(request_)
    await waiting.entered.wait()
    writer.close()
    waiting.hung_up.set()
    await waiting.answered.wait()
    await http.stop()
    assert waiting.answers == [False, True]
