"""The metrics of the requests to a service, by the route that they took.

A route is a path of the contract, with the names of its parameters in place of their values, so there are as many
series as the service has endpoints, whatever its clients send.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import Message, Scope, Send

from metatxn.service.durations import Durations

REQUEST = "metatxn.request"
"""The key of the `MeasuredRequest` in the scope of a request. Layers replace the scope, but not this object."""
NO_ROUTE = "none"
"""The route of a request that was refused before one was found for it."""
NO_ANSWER = 499
"""The status of a request whose client was gone before it was answered, as proxies count it."""

INTERNAL_ERROR = 500


class _Route:
    __slots__ = ("durations", "statuses")

    def __init__(self) -> None:
        self.durations = Durations()
        self.statuses: dict[int, int] = {}


class MeasuredRequest:
    """One request in progress.

    It is in the scope of the request, so it must not refer to the server's `send`, which refers to the scope. That
    would be a cycle, and the body of the request would stay in memory until Python's garbage collector runs.
    """

    __slots__ = ("_answered", "_began", "_clock", "route", "status")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._answered: float | None = None
        self.route: Any = None
        """The route that was found; its type is the framework's."""
        self.status = NO_ANSWER

    def measuring(self, send: Send) -> Send:
        """What is to be used in place of the server's `send`."""

        async def measured(message: Message) -> None:
            if "status" in message:
                self.status = message["status"]
                self._answered = self._clock()
            await send(message)

        return measured

    def failed(self) -> None:
        """A bug was raised. The server's answer to it does not pass here."""
        self.status = INTERNAL_ERROR if self.status == NO_ANSWER else self.status

    def seconds(self, now: float) -> float:
        return now - self._began

    def seconds_to_answer(self, now: float) -> float:
        """The seconds until the answer began, or until now if there was none."""
        return (self._answered or now) - self._began


class RequestMetrics(Collector):
    """The metrics of requests. Registers itself. Used only on the event loop of the service."""

    def __init__(self, registry: CollectorRegistry, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = self._clock = clock
        self._under_way = 0
        self._by_route: dict[tuple[str, str], _Route] = {}
        registry.register(self)

    def begin(self, scope: Scope) -> MeasuredRequest:
        self._under_way += 1
        request = scope[REQUEST] = MeasuredRequest(self._clock)
        return request

    def end(self, request: MeasuredRequest, method: str, trace_id: str | None = None) -> None:
        self._under_way -= 1
        path = request.route.path if request.route is not None else NO_ROUTE
        route = self._by_route.get((path, method))
        if route is None:
            route = self._by_route.setdefault((path, _bounded(request.route, method)), _Route())
        route.durations.add(request.seconds(self._clock()), trace_id)
        route.statuses[request.status] = route.statuses.get(request.status, 0) + 1

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("metatxn_requests_in_progress", "Requests that are being answered.", self._under_way)
        requests = CounterMetricFamily("metatxn_requests", "Requests.", labels=["method", "route", "status"])
        durations = HistogramMetricFamily(
            "metatxn_request_seconds",
            "From the head of a request to the end of its answer, with the time that it has asked to wait.",
            labels=["method", "route"],
        )
        for (path, method), route in self._by_route.items():
            route.durations.show(durations, [method, path])
            for status, count in route.statuses.items():
                requests.add_metric([method, path, str(status)], count)
        yield requests
        yield durations


def _bounded(route: Any, method: str) -> str:
    """One name for all methods that the route does not have, because a client may invent any number of them."""
    return method if method in (getattr(route, "methods", None) or ()) else "other"
