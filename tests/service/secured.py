"""A coordinator and a broker on one store behind one exposure, on real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from coordinator.service import CoordinatorService
from metastore.backends.memory import MemoryStore
from metastore.txn.store import INDEXES
from metatxn.service.exposure import open_exposure
from participants.service import BrokerService
from tests.service.security import bearer


@dataclass(frozen=True)
class Secured:
    coordinator_url: str
    broker_url: str

    @asynccontextmanager
    async def caller(self, token: str | None) -> AsyncIterator[Caller]:
        headers = bearer(token) if token else {}
        async with (
            httpx.AsyncClient(base_url=self.coordinator_url, headers=headers, timeout=60) as coordinator,
            httpx.AsyncClient(base_url=self.broker_url, headers=headers, timeout=60) as broker,
        ):
            yield Caller(coordinator, broker)


@dataclass(frozen=True)
class Caller:
    """One principal, at both services."""

    coordinator: httpx.AsyncClient
    broker: httpx.AsyncClient


@asynccontextmanager
async def secured(data_dir: Path, **options: Any) -> AsyncIterator[Secured]:
    """`options` are those of `open_exposure`."""
    exposure = open_exposure(**options)
    async with AsyncExitStack() as stack:
        store = MemoryStore(INDEXES)
        stack.push_async_callback(store.close)
        coordinator = CoordinatorService(store, port=0, exposure=exposure)
        broker = BrokerService(store, data_dir=data_dir, port=0, exposure=exposure)
        for service in (coordinator, broker):
            stack.push_async_callback(service.stop)
            await service.start()
        yield Secured(coordinator.url, broker.url)
