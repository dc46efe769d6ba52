"""Goal: what a request needed is free as soon as it is answered, not when Python's garbage collector runs next.

Method: a server's part of a request, which holds the scope, and whose `send` is a method of it, as uvicorn's is. It has
to be gone when nobody refers to it any more, without the collector.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest
from fastapi import APIRouter
from prometheus_client import CollectorRegistry
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Scope

from metatxn.service.direct import DirectRoute, add_routes
from metatxn.service.exposure import Exposure
from metatxn.service.http import create_app
from metatxn.service.request_metrics import RequestMetrics
from metatxn.wire import errors

BODY = b"x" * 10_000


class Exchange:
    """One request, and its answer."""

    def __init__(self, path: str) -> None:
        headers = [(b"host", b"here"), (b"content-length", b"%d" % len(BODY))]
        self.scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }
        self.status = 0

    async def receive(self) -> Message:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(self, message: Message) -> None:
        self.status = message.get("status", self.status)


async def serve(app: ASGIApp, exchange: Exchange) -> None:
    """In a task, and so in a context of its own."""
    await app(exchange.scope, exchange.receive, exchange.send)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(("path", "status"), [("/v1/taken", 204), ("/v1/refused", 404), ("/v1/unknown", 404)])
async def test_a_request_is_gone_with_its_answer(no_collector: None, path: str, status: int) -> None:
    registry = CollectorRegistry()
    app = create_app("a service", "under test", "1.2", registry, Exposure(), RequestMetrics(registry))
    router = APIRouter(route_class=DirectRoute)

    @router.post("/v1/taken", response_model_exclude_none=True)
    async def taken() -> Response:
        return Response(status_code=204)

    @router.post("/v1/refused", response_model_exclude_none=True)
    async def refused() -> None:
        raise errors.NotFound("nothing is here")

    add_routes(app, router, first=True)
    exchange = Exchange(path)
    await asyncio.create_task(serve(app, exchange))
    await asyncio.sleep(0)  # until then, what has woken this task refers to the other one
    assert exchange.status == status
    assert BODY not in exchange.scope.values(), "a connection that is idle keeps the scope"
    gone = weakref.ref(exchange)
    del exchange
    assert gone() is None
