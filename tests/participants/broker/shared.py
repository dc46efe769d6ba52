"""Brokers that share an object store, each with its own faults on the way to the metadata store and to the objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager

import httpx
from obstore.store import MemoryStore

from metastore.api import Ephemeral
from metastore.txn import paths
from metastore.txn.records.segments import OwnerRecord
from metatxn.service.quotas.quotas import Quotas
from participants.broker.broker import Broker
from participants.common.metrics import BrokerMetrics
from participants.ledger.object_storage import ObjectStorage
from participants.segment.segment import Segment
from participants.topic.layout import LayoutUpkeep
from tests.over_httpx import OverHttpx
from tests.participants.broker.applications import Application
from tests.participants.broker.process import NEVER_MS, SETTLE_MS
from tests.participants.ledger.faulty_bucket import FaultyBucket
from tests.participants.segment.faulty_store import FaultyStore
from tests.participants.segment.world import World


class SharedBroker:
    """Made by `start`. `freeze` takes its announcement and its watch events away, and leaves it running: what a
    process does that was stopped for longer than its lease, in the moment in which it goes on."""

    def __init__(self, world: World, bucket: FaultyBucket, storage: ObjectStorage, url: str) -> None:
        self.world = world
        self.url = url
        self.bucket = bucket
        self.storage = storage
        self.store = FaultyStore(world.store.inner)
        self.quotas = Quotas(self.store)
        metrics = BrokerMetrics()
        self.broker = Broker(
            self.store,
            storage,
            url,
            clock=world.now_ms,
            metrics=metrics,
            reconcile_interval_ms=NEVER_MS,
            settle_ms=SETTLE_MS,
        )
        self.layout = LayoutUpkeep(self.broker)
        app = world.borrow(Application.borrow(self.broker, self.layout, metrics)).app
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app, raise_app_exceptions=False), base_url=url, follow_redirects=False
        )

    def can_reach(self, others: Iterable[SharedBroker]) -> None:
        self.broker.peers = OverHttpx(mounts={other.url: other.http._transport for other in others})

    @classmethod
    async def start(cls, world: World, objects: MemoryStore, url: str) -> SharedBroker:
        bucket = FaultyBucket(objects)
        process = cls(world, bucket, await ObjectStorage.open(bucket), url)
        await process.broker.start()
        await process.announce()
        return process

    @property
    def announcement(self) -> Ephemeral:
        announcement = self.broker.announcement._record
        assert announcement is not None
        return announcement

    async def announce(self) -> None:
        await self.broker.announcement.start()

    async def freeze(self) -> None:
        self.store.events_flow.clear()
        await self.announcement.close()

    def thaw(self) -> None:
        self.store.events_flow.set()

    async def stop(self) -> None:
        self.thaw()
        await self.broker.announcement.stop()
        await self.http.aclose()
        await self.broker.stop()
        await self.storage.close()

    async def serving(self, segment_id: str) -> Segment:
        """The segment, once it serves here."""
        while segment_id not in self.broker.served:
            await asyncio.sleep(0.001)
        return self.broker.served[segment_id]


async def owner_of(world: World, segment_id: str) -> OwnerRecord | None:
    record = await world.store.inner.get(paths.segment_owner(segment_id))
    return OwnerRecord.decode(record.value) if record else None


Start = Callable[[], Awaitable[SharedBroker]]


@asynccontextmanager
async def shared_brokers(world: World) -> AsyncIterator[Start]:
    """Starts one broker with each call, and stops them all at the end. They share the objects, and reach each other."""
    started: list[SharedBroker] = []
    objects = MemoryStore()

    async def start() -> SharedBroker:
        broker = await SharedBroker.start(world, objects, f"http://broker-{len(started)}")
        started.append(broker)
        for each in started:
            each.can_reach(started)
        return broker

    yield start
    await asyncio.gather(*(broker.stop() for broker in started))
