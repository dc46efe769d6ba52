"""Goal: an answer that comes late has a line in the log, no matter who asks, and a flood of them has few.

Method: an application whose endpoints move the clock of its metrics, called in-process.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from prometheus_client import CollectorRegistry

from metatxn.service.exposure import Exposure
from metatxn.service.http import create_app
from metatxn.service.lifecycle import Lifecycle
from metatxn.service.limits import Limits
from metatxn.service.request_metrics import RequestMetrics
from tests.log_lines import EVENTS, SCHEMA, told

SLOW_MS = 1_000


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def application(clock: Clock) -> FastAPI:
    registry = CollectorRegistry()
    limits = Exposure(limits=Limits(slow_request_ms=SLOW_MS))
    app = create_app("a service", "under test", "1.2", registry, limits, RequestMetrics(registry, clock))

    @app.get("/v1/after/{seconds}")
    async def after(seconds: float, wait_ms: str = "0") -> None:
        clock.now += seconds

    @app.post("/v1/after/{seconds}")
    async def after_a_wait(seconds: float, body: dict[str, Any]) -> None:
        clock.now += seconds

    @app.get("/v1/large")
    async def large() -> StreamingResponse:
        async def slowly_taken() -> AsyncIterator[bytes]:
            yield b"x"
            clock.now += 60

        return StreamingResponse(slowly_taken())

    return app


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def http(clock: Clock) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(application(clock)), base_url="http://b") as client:
        yield client


async def test_only_slow_requests_have_a_line(http: httpx.AsyncClient, clock: Clock) -> None:
    with told() as lines:
        await http.get("/v1/after/0.9")
        await http.get("/v1/after/1.5")
        await http.get("/v1/large")  # its reader took a minute
    assert lines == [
        {
            "event": Lifecycle.SLOW_REQUEST,
            "level": "warning",
            "timestamp": lines[0]["timestamp"],
            "method": "GET",
            "route": "/v1/after/{seconds}",
            "status": 200,
            "seconds": 1.5,
            "principal": None,
            "unlisted": 0,
        }
    ]


async def test_the_time_that_was_asked_for_does_not_count(http: httpx.AsyncClient, clock: Clock) -> None:
    with told() as lines:
        await http.get("/v1/after/30.5?wait_ms=30000")
        await http.post("/v1/after/10.5", json={"wait_ms": 10_000})
        await http.get("/v1/after/31.5?wait_ms=30000")
        clock.now += 1
        await http.post("/v1/after/12", json={"wait_ms": 10_000})
    assert [(line["method"], line["seconds"]) for line in lines] == [("GET", 31.5), ("POST", 12.0)]


@pytest.mark.parametrize("asked", ["-99999", "1e9", "9" * 10, "²", ""])
async def test_a_nonsensical_wait_hides_nothing(http: httpx.AsyncClient, clock: Clock, asked: str) -> None:
    with told() as lines:
        await http.get("/v1/after/2", params={"wait_ms": asked})
        clock.now += 1
        await http.post("/v1/after/2", json={"wait_ms": asked})
    assert [line["seconds"] for line in lines] == [2.0, 2.0]


async def test_what_has_no_line_is_counted_by_the_next_one(http: httpx.AsyncClient, clock: Clock) -> None:
    with told() as lines:
        for _ in range(5):
            await http.get("/v1/after/1")
            clock.now -= 1  # they were all under way at once
        clock.now += 1
        await http.get("/v1/after/1")
        clock.now += 1
        await http.get("/v1/after/1")
    assert [line["unlisted"] for line in lines] == [0, 4, 0]


def test_the_schema_has_every_event_and_no_other() -> None:
    assert {branch["title"] for branch in SCHEMA["oneOf"]} == EVENTS
    assert all(branch["properties"]["event"]["const"] == branch["title"] for branch in SCHEMA["oneOf"])
