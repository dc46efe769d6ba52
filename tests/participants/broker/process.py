"""A whole broker without its HTTP server: the application is called in-process, path for path as it was sent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import httpx

from metastore.api import Ephemeral
from metastore.errors import StoreUnavailable
from metastore.measured import MeasuredStore
from metastore.txn import paths
from metastore.txn.records.processes import BrokerRecord
from participants.broker.broker import Broker
from participants.common.metrics import BrokerMetrics
from participants.ledger.storage import LedgerStorage
from participants.topic.layout import LayoutUpkeep
from tests.over_httpx import OverHttpx
from tests.participants.broker.applications import Application
from tests.participants.devices import Device, OnDevice
from tests.participants.segment.world import World

URL = "http://broker"
NEVER_MS = 10**9
SETTLE_MS = 20


def in_process(brokers: Mapping[str, httpx.AsyncClient], **options: Any) -> httpx.AsyncClient:
    """A client to brokers by their URLs, given those to each: their applications are called."""
    return httpx.AsyncClient(
        mounts={url: client._transport for url, client in brokers.items()}, verify=False, **options
    )


class BrokerProcess(OnDevice):
    """The only one on its device."""

    broker: Broker
    storage: LedgerStorage
    http: httpx.AsyncClient

    def __init__(self, world: World, device: Device, url: str = URL) -> None:
        self.world = world
        self.device = device
        self.url = url
        self.metrics = BrokerMetrics()
        self._announcement: Ephemeral | None = None
        self._stopped = False

    async def start(self) -> BrokerProcess:
        self.storage = await self.device.open()
        self.broker = Broker(
            MeasuredStore(self.world.store, lambda *_: None),
            self.storage,
            self.url,
            clock=self.world.now_ms,
            metrics=self.metrics,
            reconcile_interval_ms=NEVER_MS,
            settle_ms=SETTLE_MS,
        )
        self.layout = LayoutUpkeep(self.broker)
        app = self.world.borrow(Application.borrow(self.broker, self.layout, self.metrics)).app
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url=URL)
        await self.broker.start()
        if not self.storage.exclusive:
            record = BrokerRecord(url=self.url, storage=self.storage.storage_id)
            key = paths.broker_process(self.broker.id)
            self._announcement = await self.world.store.inner.ephemeral(key, record.encode(), 10_000)
            while "announcement" in self.broker.not_ready:
                await asyncio.sleep(0)
        return self

    def can_reach(self, others: Iterable[BrokerProcess]) -> None:
        self.broker.peers = OverHttpx(mounts={other.broker.url: other.http._transport for other in others})

    async def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self.device.go()
            if self._announcement is not None:
                await self._announcement.close()
            await self.http.aclose()
            await self.broker.stop()
            await self.storage.close()

    async def die(self) -> Device:
        """Now, without a word to the store; answers what lies on its device."""
        left = self.device.copy()
        away, self.world.store.away = self.world.store.away, StoreUnavailable("it is dead")
        await self.stop()
        self.world.store.away = away
        return left

    async def crash(self) -> BrokerProcess:
        """Die now; the next life finds what lies on the device, and opens everything in it."""
        after = await BrokerProcess(self.world, await self.die()).start()
        await after.serving()
        return after

    async def again(self) -> BrokerProcess:
        """The next life, with what this one has left when it stopped."""
        return await BrokerProcess(self.world, self.device.again()).start()

    async def serving(self) -> None:
        """Until every owned segment is open, or has failed once."""
        if self.storage.exclusive:
            await self.broker.open_all(list(self.broker._keepers))
            return
        mine = [segment async for segment, record in self.broker._stored_segments() if record.state != "deleted"]
        await self.broker.until_opened(mine)

    async def create(self, name: str, segments: int = 1, **more: Any) -> list[str]:
        """A topic; answers the ids of its segments."""
        answer = await self.http.post("/v1/topics", json={"name": name, "segments": segments, **more})
        assert answer.status_code == 201, answer.text
        return [segment["segment"] for segment in answer.json()["segments"]]
