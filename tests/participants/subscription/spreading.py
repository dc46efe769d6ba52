"""Brokers that share an object store, one topic of many segments spread over them, and its subscriptions.

Every request goes to the next broker in turn and follows where it is sent, as clients do.
"""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import httpx
from obstore.store import MemoryStore

from metastore.txn import paths
from metatxn.wire.ids import TxnId
from tests.participants.broker.process import in_process
from tests.participants.broker.shared import SharedBroker
from tests.participants.broker.test_placement import create, spread
from tests.participants.segment.world import World
from tests.participants.subscription.consuming import Consuming


class Spreading(Consuming):
    """Made by `begin`. Of `Consuming` everything but what concerns one process."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.segments: list[str] = []
        self.brokers: list[SharedBroker] = []
        self._objects = MemoryStore()
        self._turns = count()
        self._http = httpx.AsyncClient(timeout=60, verify=False)

    @classmethod
    async def begin(cls, world: World, brokers: int = 3, segments: int = 24) -> Spreading:
        found = cls(world)
        for _ in range(brokers):
            await found.join()
        found.segments = await create(found.brokers[0], segments)
        await found.settled()
        await world.store.lease_ids(paths.id_sequence(1), 1000)
        return found

    async def join(self) -> SharedBroker:
        url = f"http://broker-{len(self.brokers)}"
        self.brokers.append(await SharedBroker.start(self.world, self._objects, url))
        self._connect(self.brokers)
        return self.brokers[-1]

    def _connect(self, alive: list[SharedBroker]) -> None:
        for broker in alive:
            broker.can_reach(alive)
        self._http = in_process({broker.url: broker.http for broker in alive}, follow_redirects=True, timeout=60)

    async def stop(self) -> None:
        await self._http.aclose()
        await asyncio.gather(*(broker.stop() for broker in self.brokers))

    # -- who has what --------------------------------------------------------------------------------------------------

    async def settled(self, *alive: SharedBroker) -> dict[str, SharedBroker]:
        """Who serves which segment, once all is where it belongs."""
        return await spread(list(alive) or self.brokers, self.segments)

    @property
    def home(self) -> SharedBroker:
        """The broker that hands out the subscriptions."""
        return next(broker for broker in self.brokers if self.segments[0] in broker.broker.served)

    def elsewhere(self) -> list[SharedBroker]:
        return [broker for broker in self.brokers if broker is not self.home and broker.broker.served]

    # -- requests ------------------------------------------------------------------------------------------------------

    async def ask(self, method: str, path: str, body: object = None, at: SharedBroker | None = None) -> httpx.Response:
        broker = at or self.brokers[next(self._turns) % len(self.brokers)]
        return await self._http.request(method, f"{broker.url}/v1/topics/t{path}", json=body)

    async def publish_keys(self, *values: Any, txn_id: TxnId | None = None) -> dict[Any, str]:
        """Each under a key of its own, so all over the segments. Answers the message ids."""
        inside = f"?txn_id={txn_id}" if txn_id else ""
        messages = [{"key": f"k{value}", "value": value} for value in values]
        answer = await self.asked("POST", f"/messages{inside}", {"messages": messages})
        return dict(zip(values, answer["message_ids"], strict=True))

    async def all_values(self, name: str = "s", consumer: str = "c", **options: Any) -> list[Any]:
        """In order of value; they come from many segments."""
        return sorted(await self.values(name, consumer, **options))

    async def counts(self, name: str = "s") -> tuple[int, int, dict[str, int]]:
        """Backlog, unacked and pending of the whole topic."""
        parts = (await self.asked("GET", f"/subscriptions/{name}"))["segments"]
        assert [part["segment"] for part in parts] == self.segments
        pending: dict[str, int] = {}
        for part in parts:
            for txn_id, number in part["pending_acks"].items():
                pending[txn_id] = pending.get(txn_id, 0) + number
        return sum(part["backlog"] for part in parts), sum(part["unacked"] for part in parts), pending

    # -- decisions -----------------------------------------------------------------------------------------------------

    async def carried_out(self, revision: int) -> None:
        for broker in self.brokers:
            while broker.announcement is not None and broker.broker._mirror.revision < revision:
                await asyncio.sleep(0)
        await self.idle()

    async def idle(self) -> None:
        for broker in self.brokers:
            for segment in broker.broker.served.values():
                while segment._tasks:
                    await asyncio.wait(segment._tasks)
