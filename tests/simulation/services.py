"""The production services as simulated processes: their edges replaced, and everything between them as it is.

Making the routes of an application takes longer than a simulated minute, so the applications are made once and serve
one process after another: each stands in front of whatever runs in its place now.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from coordinator.local import local_commits
from coordinator.service import CoordinatorService
from metatxn.service.request_metrics import RequestMetrics
from metatxn.service.server import HttpServer
from participants.api import routes
from participants.broker.broker import Broker
from participants.ledger.append_queue import LedgerMetrics
from participants.ledger.local import LocalStorage
from participants.ledger.object_storage import ObjectStorage
from participants.ledger.storage import LedgerStorage
from participants.service import BrokerService
from participants.topic.layout import LayoutUpkeep
from participants.topic.messages import Messages
from participants.topic.subscriptions import Subscriptions
from tests.simulation.bucket import Objects, SimulatedBucket
from tests.simulation.disk import Device, SimulatedDisk
from tests.simulation.kafka import SimulatedKafkaListener
from tests.simulation.network import Network
from tests.simulation.processes import Process
from tests.simulation.store import SimulatedStore, StoreServer
from tests.simulation.transport import SimulatedTransport
from tests.stand import Stand

DATA_DIR = Path("/data")
MAX_CLOCK_SKEW_MS = 500
TIMEOUT_SWEEP_INTERVAL_MS = 1_000
GC_INTERVAL_MS = 3_000
GC_RETENTION_MS = 8_000
"""Longer than a request to the store can be on its way: a begin that lands late must find its own header."""
SURVEY_INTERVAL_MS = 15_000
RECONCILE_INTERVAL_MS = 5_000
"""Of brokers, at most."""


class Service(Protocol):
    async def start(self) -> None: ...


_STANDS: dict[str, Stand] = {}
_APPS: dict[str, FastAPI] = {}


def _stand(name: str, served: Any, **parts: Stand) -> tuple[Any, bool]:
    """The stand of this name, which stands for `served` now, and whether it is new."""
    new = name not in _STANDS
    stand = _STANDS.setdefault(name, Stand(**parts))
    stand.stand_for(served)
    return stand, new


def _timeless_metrics(registry: CollectorRegistry) -> RequestMetrics:
    """The applications outlive each virtual clock, and by a real one a slow machine would log requests as slow."""
    return RequestMetrics(registry, clock=lambda: 0.0)


class InProcessServer(HttpServer):
    """What a service binds and serves with: a place in the network."""

    def __init__(self, network: Network, process: Process, app: FastAPI, url: str) -> None:
        self._network = network
        self._process = process
        self._app = app
        self._base = url

    @property
    def url(self) -> str:
        return self._base

    def bind(self) -> None:
        """The place is free: the one who had it has died."""

    async def start(self) -> None:
        self._network.listen(self._base, self._process, self._app)

    async def stop(self) -> None:
        self._network.close(self._base, self._process)


class SimulatedCoordinator(CoordinatorService):
    """`skew_ms`: how far the clocks of two processes may be apart."""

    def __init__(
        self,
        server: StoreServer,
        network: Network,
        process: Process,
        skew_ms: int,
        id_block_size: int,
        key_retention_ms: int,
    ) -> None:
        self._name = process.name
        super().__init__(
            SimulatedStore(server, process),
            clock=process.wall_clock_ms,
            max_clock_skew_ms=MAX_CLOCK_SKEW_MS,
            timeout_sweep_interval_ms=TIMEOUT_SWEEP_INTERVAL_MS,
            gc_interval_ms=GC_INTERVAL_MS,
            gc_retention_ms=GC_RETENTION_MS + skew_ms,
            key_retention_ms=key_retention_ms + skew_ms,
            survey_interval_ms=SURVEY_INTERVAL_MS,
            id_block_size=id_block_size,
        )
        self._server = InProcessServer(network, process, self.app, f"http://{process.name}")

    def _create_app(self) -> FastAPI:
        parts = {"_store": Stand(), "transactions": Stand(keys=Stand()), "listings": Stand()}
        stand, new = _stand(self._name, self, **parts)
        if new:
            with mock.patch("coordinator.service.RequestMetrics", _timeless_metrics):
                _APPS[self._name] = CoordinatorService._create_app(stand)
        return _APPS[self._name]


class SimulatedBroker(BrokerService):
    """Its ledgers lie on `place`: a disk of its own, or the objects that brokers share."""

    def __init__(
        self,
        server: StoreServer,
        network: Network,
        process: Process,
        place: Device | Objects,
        max_ledger_bytes: int,
        reconcile_interval_ms: int,
        drain_timeout_ms: int,
        *,
        kafka: bool = False,
    ) -> None:
        """`kafka`: whether it serves clients of Kafka, too."""
        self._process = process
        self._place = place
        self._network = network
        super().__init__(
            SimulatedStore(server, process),
            data_dir=DATA_DIR,
            reconcile_interval_ms=reconcile_interval_ms,
            clock=process.wall_clock_ms,
            max_ledger_bytes=max_ledger_bytes,
            drain_timeout_ms=drain_timeout_ms,
            commits=local_commits,
        )
        self._server = InProcessServer(network, process, self.app, f"http://{process.name}")
        self._kafka = SimulatedKafkaListener(self._store, self, network, process) if kafka else None

    async def start(self) -> None:
        await super().start()
        if self._kafka is not None:
            await self._kafka.start()

    async def stop(self) -> None:
        if self._kafka is not None:
            await self._kafka.stop()
        await super().stop()

    def _create_app(self) -> FastAPI:
        stand, new = _stand(self._process.name, self, _store=Stand())
        if new:
            with mock.patch("participants.service.RequestMetrics", _timeless_metrics):
                _APPS[self._process.name] = BrokerService._create_app(stand)
        return _APPS[self._process.name]

    def _route_to(self, broker: Broker, layout: LayoutUpkeep) -> None:
        broker.peers = SimulatedTransport(self._network)
        stand, new = _stand(f"{self._process.name} routes", broker)
        changes, _ = _stand(f"{self._process.name} layout", layout)
        subscriptions, _ = _stand(f"{self._process.name} subscriptions", Subscriptions(broker, Messages(broker)))
        if new:
            with mock.patch.object(routes, "Subscriptions", return_value=subscriptions):
                super()._route_to(stand, changes)

    async def _open_storage(self, metrics: LedgerMetrics) -> LedgerStorage:
        loop = asyncio.get_running_loop()
        metrics = replace(metrics, clock=loop.time)
        if isinstance(self._place, Objects):
            return await ObjectStorage.open(SimulatedBucket(self._place), metrics=metrics, executor=_IN_THE_LOOP)
        disk = SimulatedDisk(self._place, self._process)
        return await asyncio.to_thread(LocalStorage.open, DATA_DIR, disk=disk, metrics=metrics, executor=_IN_THE_LOOP)


_IN_THE_LOOP = Executor()
"""Never asked: the simulated loop runs what is given to an executor itself."""
