"""A coordinator, a broker and clients of them in this process, on one kind of store and of storage, for many stories.

Time does not pass by itself where a story depends on it: `later` sets the clock of both services ahead, `leap` the
timers of redelivery as well, and policies are looked at only by `passes`. Nothing waits for a decision: `commit`
and `abort` return when the broker has carried it out.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

import pytest

import metatxn
from coordinator.service import CoordinatorService
from metastore.api import MetadataStore
from metastore.check import StoreCheck
from metastore.txn import paths
from metastore.txn.records.segments import SegmentRecord
from metastore.urls import open_store
from metatxn.service.exposure import open_exposure
from metatxn.transport.api import Answer, Request
from metatxn.transport.pool import HttpTransport
from metatxn.wire.broker import SubscriptionSegment
from metatxn.wire.ids import TxnId
from participants.broker.broker import Broker
from participants.ledger.directories import segment_directory
from participants.ledger.local import LocalStorage
from participants.ledger.storage import LedgerStorage
from participants.ledger.watermark import Space
from participants.service import BrokerService
from participants.subscription import dispatch
from participants.subscription.segment_subscriptions import subscriptions_of
from tests.service.security import TokenFile
from tests.services_thread import Loop

E = TypeVar("E", bound=metatxn.MetatxnError)
NEVER_MS = 10**9
QUOTA_TOPIC = "public/default/quotas"
QUOTA_PRINCIPALS = ("bob", "eve")
"""They may use this topic, and nothing else."""
HOUR_MS = 3_600_000
MINUTE_MS = 60_000
LOW, HIGH = "d", "a"
"""Keys in the lower and in the upper half of the hash range."""


class _Ahead:
    """The event loop, for what delivers messages, with a time that may leap."""

    def __init__(self, ahead_s: Callable[[], float]) -> None:
        self._ahead_s = ahead_s

    def time(self) -> float:
        return asyncio.get_running_loop().time() + self._ahead_s()

    def call_at(self, when_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_at(when_s - self._ahead_s(), call)


class _AtOnce(HttpTransport):
    """Anyone who is told to come again later hears that it is no use."""

    async def send(self, request: Request) -> Answer:
        answer = await super().send(request)
        if answer.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.INSUFFICIENT_STORAGE):
            assert answer.json()["retriable"], answer.body
            return replace(answer, body=json.dumps(answer.json() | {"retriable": False}).encode())
        return answer


@dataclass(frozen=True)
class Services:
    stores: list[MetadataStore]
    coordinator: CoordinatorService
    broker: BrokerService


class Running:
    """`client` is an administrator's. Made by `running`."""

    def __init__(self, loop: Loop, tokens: TokenFile) -> None:
        self._loop = loop
        self._token = tokens.add("ada", admin=True)
        self.run = loop.run
        rights = {QUOTA_TOPIC: "consume, produce"}
        self.tokens = {name: tokens.add(name, topics=rights) for name in QUOTA_PRINCIPALS}
        self.ahead_ms = 0
        self._numbers = count()
        self.services: Services
        self.client: metatxn.Client

    def hasty(self, token: str | None = None) -> metatxn.Client:
        """A client, of the administrator or of who has the token, that does not wait until it may publish or read."""
        return metatxn.connect(self.services.coordinator.url, token or self._token, transport=_AtOnce())

    def refused(
        self, kind: type[E], topic: str, key: str | None = None, inside: metatxn.Transaction | None = None
    ) -> E:
        """The error of a client that does not wait until it may publish again."""
        with (
            pytest.raises(kind) as told,
            self.hasty() as hasty,
            hasty.producer(topic) as producer,
        ):
            producer.send("refused", key, hasty.attach(inside.id) if inside else None).result()
        return told.value

    # -- time ------------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms

    def now_s(self) -> float:
        return self.now_ms() / 1000

    def later(self, ms: int) -> None:
        """Set the clock of the services ahead."""
        self.ahead_ms += ms

    def leap(self, ms: int) -> None:
        """The same, and for acknowledgements that somebody waits for, and messages that wait to be redelivered."""

        async def leapt() -> None:
            self.later(ms)
            for segment in self.broker.served.values():
                for part in subscriptions_of(segment):
                    part.dispatch._set_timer()

        self.run(leapt())

    def passes(self, times: int = 2) -> None:
        """Let the broker look at its segments; one pass closes a ledger, the next one may drop it."""
        for _ in range(times):
            self.run(self.broker.reconcile())
            self.settle()

    def settle(self) -> None:
        """Until nothing is left to do in the background of any segment."""

        async def settled() -> None:
            while tasks := [task for segment in self.broker.served.values() for task in segment._tasks]:
                await asyncio.wait(tasks)

        self.run(settled())

    # -- topics ----------------------------------------------------------------------------------------------------

    @property
    def broker(self) -> Broker:
        assert self.services.broker.broker is not None
        return self.services.broker.broker

    @property
    def storage(self) -> LedgerStorage:
        assert self.services.broker._storage is not None
        return self.services.broker._storage

    def name(self, stem: str = "t") -> str:
        """One that no other story has."""
        return f"public/default/{stem}-{next(self._numbers)}"

    def topic(self, stem: str = "t", segments: int = 1, **policy: int | str) -> str:
        """A new one."""
        name = self.name(stem)
        self.client.create_topic(name, segments)
        if policy:
            self.client.set_topic_policy(name, **policy)
        return name

    def delete_topics(self) -> None:
        for topic in self.client.topics():
            self.client.delete_topic(topic.name)

    def segments(self, topic: str) -> list[str]:
        return [each.segment for each in self.client.topic(topic).segments]

    def active(self, topic: str) -> list[str]:
        return [each.segment for each in self.client.topic(topic).segments if each.state == "active"]

    def record(self, segment: str) -> SegmentRecord:
        """What the store has of a segment."""
        found = self.run(self.services.stores[0].get(paths.segment(segment)))
        assert found is not None
        return SegmentRecord.decode(found.value)

    def keys(self, prefix: str) -> list[str]:
        """The keys in the store that begin so."""
        return [record.key for record in self.run(self.services.stores[0].scan(prefix)).records]

    def ledgers(self, segment: str) -> list[int]:
        """The numbers of the ledgers that the storage has of a segment."""
        return self.run(self.storage.numbers(segment_directory(segment)))

    @contextmanager
    def disk_used(self, percent: int) -> Iterator[bool]:
        """A disk that is this full, for the broker; answers whether it has one at all."""
        broker, storage = self.broker, self.storage
        if not isinstance(storage, LocalStorage):
            self.run(broker.measure())
            yield False
            return
        disk = storage._files.disk
        with mock.patch.object(disk, "space", return_value=Space(percent, 100)):
            self.run(broker.measure())
            yield True
        self.run(broker.measure())

    # -- messages --------------------------------------------------------------------------------------------------

    def put(
        self,
        topic: str,
        *values: Any,
        key: str | None = None,
        txn: metatxn.Transaction | None = None,
        **more: Any,
    ) -> list[str]:
        """An entry for each value, in this order. Answers their positions."""
        with self.client.producer(topic, max_entry_messages=1) as producer:
            return [producer.send(value, key, txn, **more).result() for value in values]

    def read(self, topic: str, **options: Any) -> list[Any]:
        """The values that can be read now."""
        return [message.value for message in self.client.reader(topic, **options)]

    def left(self, topic: str, subscription: str = "s") -> list[SubscriptionSegment]:
        return list(self.client.subscription(topic, subscription).segments)

    def backlog(self, topic: str, subscription: str = "s") -> int:
        return sum(each.backlog for each in self.left(topic, subscription))

    # -- decisions -------------------------------------------------------------------------------------------------

    def begin(self, timeout_ms: int = 24 * HOUR_MS) -> metatxn.Transaction:
        """One that no leap of the clock ends."""
        return self.client.begin(timeout_ms)

    def commit(self, txn: metatxn.Transaction) -> int:
        """Answers the revision of the decision."""
        txn.commit()
        return self.carried_out(txn.id)

    def abort(self, txn: metatxn.Transaction) -> int:
        txn.abort()
        return self.carried_out(txn.id)

    def carried_out(self, txn_id: str) -> int:
        """Until the broker has done what the decision asks for."""

        async def heard() -> int:
            broker = self.broker
            header = await self.services.stores[-1].get(paths.header(TxnId.parse(txn_id)))
            assert header is not None
            while broker.mirror_revision < header.version:
                await asyncio.sleep(0.001)
            await broker.decisions_told()
            return header.version

        revision = self.run(heard())
        self.settle()
        return revision

    # -- the whole -------------------------------------------------------------------------------------------------

    def findings(self) -> list[str]:
        """What `metatxn store check` would say."""

        async def found() -> list[str]:
            return [f"{each.key}: {each.problem}" async for each in StoreCheck(self.services.stores[0]).findings()]

        return self.run(found())


@contextmanager
def running(store_url: str, directory: Path, place: Mapping[str, Any]) -> Iterator[Running]:
    """`place` is where the broker has its ledgers."""
    directory.mkdir(parents=True, exist_ok=True)
    tokens = TokenFile(directory)
    with Loop() as loop:
        made = Running(loop, tokens)
        serving = _serving(store_url, place, tokens, made)
        made.services = loop.run(serving.__aenter__())
        try:
            with metatxn.connect(made.services.coordinator.url, made._token) as made.client:
                yield made
        finally:
            loop.run(serving.__aexit__(None, None, None))


@asynccontextmanager
async def _serving(
    store_url: str, place: Mapping[str, Any], tokens: TokenFile, made: Running
) -> AsyncIterator[Services]:
    """Each service has a store of its own, as in a cluster, unless only one process may have it open."""
    alone = store_url.startswith("sqlite:")
    stores = [await open_store(store_url) for _ in range(1 if alone else 2)]
    exposure = open_exposure(token_file=tokens.path)
    clock: Callable[[], int] = made.now_ms
    coordinator = CoordinatorService(stores[0], port=0, exposure=exposure, clock=clock)
    broker = BrokerService(stores[-1], port=0, exposure=exposure, clock=clock, reconcile_interval_ms=NEVER_MS, **place)
    for service in (coordinator, broker):
        service.quotas._clock = made.now_s
    ahead = _Ahead(lambda: made.ahead_ms / 1000)
    delivering = SimpleNamespace(**vars(asyncio) | {"get_running_loop": lambda: ahead})
    with mock.patch.object(dispatch, "asyncio", delivering):
        try:
            await coordinator.start()
            await broker.start()
            yield Services(stores, coordinator, broker)
        finally:
            await coordinator.stop()
            await broker.stop()
            for store in stores:
                await store.close()


def all_of(consumer: metatxn.Consumer | metatxn.TopicsConsumer, count: int) -> list[metatxn.Message]:
    """This many messages, and no more than these are there."""
    found: list[metatxn.Message] = []
    while len(found) < count:
        more = consumer.receive_many(count - len(found), 30)
        assert more, f"{len(found)} of {count} have come: {found}"
        found += more
    assert consumer.receive(0) is None
    return found
