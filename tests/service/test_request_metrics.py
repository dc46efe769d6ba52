"""The metrics that both services have: of their requests, of the store's calls, and of the process.

Method: an application with a route of each kind, called in-process, and the parts alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import APIRouter, FastAPI
from prometheus_client import CollectorRegistry
from pydantic import BaseModel

from metastore.backends.memory import MemoryStore
from metastore.errors import CheckFailed, StoreWentBack
from metastore.measured import MeasuredStore
from metatxn.service import process_metrics
from metatxn.service.direct import DirectRoute, add_routes
from metatxn.service.durations import BOUNDS
from metatxn.service.exposure import Exposure
from metatxn.service.http import create_app
from metatxn.service.limits import Limits
from metatxn.service.process_metrics import LoopLag
from metatxn.service.request_metrics import REQUEST, RequestMetrics
from metatxn.service.store_metrics import StoreMetrics
from metatxn.wire import errors


class Named(BaseModel):
    name: str


def application(registry: CollectorRegistry, limits: Limits | None = None) -> FastAPI:
    app = create_app(
        "a service", "under test", "1.2", registry, Exposure(limits=limits or Limits()), RequestMetrics(registry)
    )
    direct = APIRouter(route_class=DirectRoute)

    @direct.get("/v1/direct/{name}", response_model_exclude_none=True)
    async def asked(name: str) -> Named:
        if name == "nobody":
            raise errors.NotFound("nobody has this name")
        return Named(name=name)

    add_routes(app, direct, first=True)

    @app.get("/v1/framework/{name}")
    async def told(name: str) -> Named:
        return Named(name=name)

    @app.get("/v1/broken")
    async def broken() -> None:
        raise RuntimeError("a bug")

    return app


class Called:
    def __init__(self, registry: CollectorRegistry, http: httpx.AsyncClient) -> None:
        self.registry = registry
        self.http = http

    def requests(self) -> dict[tuple[str, str, str], float]:
        """The number of requests by method, route and status."""
        return {
            (sample.labels["method"], sample.labels["route"], sample.labels["status"]): sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == "metatxn_requests_total"
        }


@pytest.fixture
async def called() -> AsyncIterator[Called]:
    registry = CollectorRegistry()
    transport = httpx.ASGITransport(application(registry), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
        yield Called(registry, http)


async def test_requests_are_counted_by_route_and_status(called: Called) -> None:
    """On both ways to an endpoint, and however it ends."""
    for path in ("/v1/direct/a", "/v1/direct/b", "/v1/direct/nobody", "/v1/framework/a", "/v1/broken", "/v1/lost"):
        await called.http.get(path)
    await called.http.post("/v1/framework/a")
    assert called.requests() == {
        ("GET", "/v1/direct/{name}", "200"): 2,
        ("GET", "/v1/direct/{name}", "404"): 1,
        ("GET", "/v1/framework/{name}", "200"): 1,
        ("GET", "/v1/broken", "500"): 1,
        ("other", "none", "404"): 1,
        ("other", "/v1/framework/{name}", "405"): 1,
    }
    count = called.registry.get_sample_value
    assert count("metatxn_request_seconds_count", {"method": "GET", "route": "/v1/direct/{name}"}) == 3
    assert count("metatxn_requests_in_progress") == 0


async def test_a_client_cannot_make_series(called: Called) -> None:
    """Neither by paths nor by methods that do not exist."""
    for number in range(5):
        await called.http.get(f"/v1/lost/{number}")
        await called.http.request(f"VERB{number}", "/v1/direct/a")
    assert {key[:2] for key in called.requests()} == {("other", "none"), ("other", "/v1/direct/{name}")}


async def test_what_the_gate_refuses_is_counted() -> None:
    registry = CollectorRegistry()
    transport = httpx.ASGITransport(application(registry, Limits(max_headers=1)))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
        assert (await http.get("/v1/direct/a")).status_code == 431
        assert Called(registry, http).requests() == {("other", "none", "431"): 1}


async def test_a_request_without_an_answer_is_counted_as_such() -> None:
    """Its client was gone before the body had arrived. While it lasts, it is in progress."""
    registry = CollectorRegistry()
    app = application(registry)
    seen: list[float | None] = []

    async def gone() -> dict[str, Any]:
        seen.append(registry.get_sample_value("metatxn_requests_in_progress"))
        return {"type": "http.disconnect"}

    async def unused(_: Any) -> None:
        raise AssertionError

    scope = {"type": "http", "method": "GET", "path": "/v1/direct/a", "headers": [(b"content-length", b"3")]}
    await app(scope, gone, unused)
    assert seen == [1]
    (status,) = [key[2] for key in Called(registry, None).requests()]  # type: ignore[arg-type]
    assert status == "499"


def test_the_time_of_a_request_falls_into_its_bucket() -> None:
    """A bound belongs to its bucket, and what is above all of them is still counted."""
    now = [0.0]
    registry = CollectorRegistry()
    metrics = RequestMetrics(registry, lambda: now[0])
    for seconds in (0.001, 0.003, BOUNDS[-1] + 1):
        scope: dict[str, Any] = {}
        request = metrics.begin(scope)
        assert scope[REQUEST] is request
        now[0] += seconds
        metrics.end(request, "GET")
    labels = {"method": "other", "route": "none"}
    found = {
        le: registry.get_sample_value("metatxn_request_seconds_bucket", {**labels, "le": le})
        for le in ("0.0005", "0.001", "0.0025", "0.005", str(BOUNDS[-1]), "+Inf")
    }
    assert found == {"0.0005": 0, "0.001": 1, "0.0025": 1, "0.005": 2, str(BOUNDS[-1]): 2, "+Inf": 3}


async def test_the_calls_of_a_store_are_measured_with_their_failures() -> None:
    registry = CollectorRegistry()
    now = [0.0]

    def clock() -> float:
        now[0] += 0.25
        return now[0]

    inner = MemoryStore()
    store = MeasuredStore(inner, StoreMetrics(registry).observe, clock)
    await store.apply(store.batch().create("/a", b"1"))
    with pytest.raises(CheckFailed):
        await store.apply(store.batch().create("/a", b"2"))
    assert (await store.get("/a")) == (await inner.get("/a"))
    await store.scan("/")
    value = registry.get_sample_value
    assert value("metatxn_store_seconds_count", {"operation": "apply"}) == 2
    assert value("metatxn_store_seconds_sum", {"operation": "apply"}) == 0.5
    assert value("metatxn_store_seconds_count", {"operation": "get_many"}) == 1
    assert value("metatxn_store_seconds_count", {"operation": "range"}) == 1
    assert value("metatxn_store_errors_total", {"operation": "apply", "error": "CheckFailed"}) == 1
    store.refuse("it is older than what was read")
    assert inner.refusal == store.refusal == "it is older than what was read"
    with pytest.raises(StoreWentBack):
        await store.get("/a")


def test_the_process_says_what_it_is_and_uses() -> None:
    registry = CollectorRegistry()
    process_metrics.add_process_metrics(registry, "1.2")
    (built,) = [each for family in registry.collect() for each in family.samples if "build" in each.name]
    assert built.labels["version"] == "1.2" and built.value == 1
    assert (registry.get_sample_value("process_resident_memory_bytes") or 0) > 1 << 20
    assert registry.get_sample_value("process_cpu_seconds_total") is not None


class Loop:
    """The clock of a loop, and what was asked of it."""

    def __init__(self) -> None:
        self.now = 10.0
        self.due: list[tuple[float, Any, tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, call: Any, *arguments: Any) -> Loop:
        self.due.append((when, call, arguments))
        return self

    def cancel(self) -> None:
        self.due.clear()

    def run(self, late: float) -> None:
        when, call, arguments = self.due.pop()
        self.now = when + late
        call(*arguments)


def test_a_loop_that_is_late_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    registry = CollectorRegistry()
    lag = LoopLag(registry)
    lag.start()
    for late in (0, 0.3, 0):
        loop.run(late)
    assert registry.get_sample_value("metatxn_event_loop_lag_seconds_count") == 3
    assert registry.get_sample_value("metatxn_event_loop_lag_seconds_sum") == pytest.approx(0.3)
    lag.stop()
    assert loop.due == []
