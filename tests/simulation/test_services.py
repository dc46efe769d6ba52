"""Goal: nothing of a request leaves the event loop: not for a simulation's sake only, a thread costs each request more
than what it does there.

Method: walk every route of both services, down to the dependencies of dependencies.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from coordinator.service import CoordinatorService
from metastore.backends.memory import MemoryStore
from metastore.txn.store import INDEXES
from participants.api.routes import router
from participants.service import BrokerService
from tests.stand import Stand


def _calls(dependant: Dependant) -> Iterator[object]:
    yield dependant.call
    for other in dependant.dependencies:
        yield from _calls(other)


def _routes() -> Iterator[APIRoute]:
    store = MemoryStore(INDEXES)
    broker, layout = Stand(), Stand()
    broker.stand_for(type("Broker", (), {"store": store}))
    coordinator, service = CoordinatorService(store), BrokerService(store, storage="memory:///")
    for route in (*coordinator.app.routes, *service.app.routes, *router(broker, layout).routes):  # type: ignore[arg-type]
        if isinstance(route, APIRoute):
            yield route


@pytest.mark.parametrize("route", [pytest.param(each, id=f"{each.methods} {each.path}") for each in _routes()])
def test_endpoints_run_on_the_event_loop(route: APIRoute) -> None:
    elsewhere = [call for call in _calls(route.dependant) if not inspect.iscoroutinefunction(call)]
    assert not elsewhere, f"FastAPI runs these in threads: {elsewhere}"
