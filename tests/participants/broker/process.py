"""A whole broker without its HTTP server: the application is called in-process, path for path as it was sent."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import httpx

from participants.api.routes import router
from participants.broker.broker import Broker
from participants.ledger.local import LocalStorage
from participants.metrics import BrokerMetrics
from service.http import create_app
from tests.participants.ledger.faults import FaultyDisk
from tests.participants.segment.world import World

URL = "http://broker"
NEVER_MS = 10**9


def in_process(brokers: Mapping[str, httpx.AsyncClient], **options: Any) -> httpx.AsyncClient:
    """A client to brokers by their URLs, given those to each: their applications are called."""
    return httpx.AsyncClient(mounts={url: client._transport for url, client in brokers.items()}, **options)


class BrokerProcess:
    def __init__(self, world: World, data_dir: Path, url: str = URL) -> None:
        self.world = world
        self.data_dir = data_dir
        self.disk = FaultyDisk()
        self.metrics = BrokerMetrics()
        self.storage = LocalStorage.open(data_dir, disk=self.disk)
        self.broker = Broker(
            world.store,
            self.storage,
            url,
            clock=world.now_ms,
            metrics=self.metrics,
            reconcile_interval_ms=NEVER_MS,
        )
        app = create_app("broker", "under test", "0", self.metrics.registry)
        app.include_router(router(self.broker))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url=URL)
        self._stopped = False

    async def start(self) -> BrokerProcess:
        await self.broker.start()
        return self

    def can_reach(self, others: Iterable[BrokerProcess]) -> None:
        self.broker.peers = in_process({other.broker.url: other.http for other in others})

    async def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self.disk.may_sync.set()
            await self.http.aclose()
            await self.broker.stop()
            await self.storage.close()

    async def crash(self) -> BrokerProcess:
        """Die now; the next life finds the directory as it lies on the disk, and opens everything in it."""
        copy = self.data_dir.with_name(self.data_dir.name + "+")
        shutil.copytree(self.data_dir, copy)
        await self.stop()
        after = await BrokerProcess(self.world, copy).start()
        await after.serving()
        return after

    async def serving(self) -> None:
        """Until every owned segment is open, or has failed once."""
        await self.broker.open_all(list(self.broker._keepers))

    async def create(self, name: str, segments: int = 1, **more: Any) -> list[str]:
        """A topic; answers the ids of its segments."""
        answer = await self.http.post("/v1/topics", json={"name": name, "segments": segments, **more})
        assert answer.status_code == 201, answer.text
        return [segment["segment"] for segment in answer.json()["segments"]]
