"""As `consume`, with a subscription that consumers share by key: each has keys of its own, while others come and go.

The orders have keys, and few of them, so that many wait for each other. Some are to be delivered later. What every
consumer was given, and what it has acknowledged and returned, is written down, and when.
"""

from __future__ import annotations

import math
from typing import Any

from metastore.txn import paths
from tests.simulation.client import PATIENCE_S, Refused
from tests.simulation.history import Delivered, Outcome, Returned
from tests.simulation.processes import EPOCH_MS
from tests.simulation.workloads.base import PUBLISH_PATIENCE_S, Actor
from tests.simulation.workloads.consume import CONSUMERS, Consume, Packer

SHOPS = 2
KEYS = 8
DELAYED = 0.3
MOST_DELAY_S = 15.0


class ByKey(Consume):
    name = "by_key"
    aims = (paths.CURSORS, ":a:")
    kinds = ("key_shared",)
    letters_rate = 0.0

    async def set_up(self) -> None:
        await super().set_up()
        self.history.clocks_differ_s = self.cluster.most_ms / 1000

    def start(self) -> None:
        for number in range(SHOPS):
            self.employ(f"shop-{number}", KeyedShop)
        for number in range(CONSUMERS):
            self.employ(f"packer-{number}", KeyedPacker)

    def last_packer(self) -> Packer:
        return KeyedPacker(self, "last packer", self.world.generator("last packer"))


class KeyedShop(Actor):
    async def act(self) -> None:
        assert isinstance(self.workload, ByKey)
        write = self.note(self.workload.orders, f"key-{self.random.randrange(KEYS)}", 0, None, None)
        message: dict[str, Any] = {"key": write.key, "value": {"id": write.id, "key": write.key, "amount": 0}}
        if self.random.random() < DELAYED:
            due_s = self.workload.world.loop.time() + self.random.uniform(0, MOST_DELAY_S)
            self.history.due_s[write.id] = due_s
            message["deliver_at_ms"] = EPOCH_MS + math.ceil(due_s * 1000)
        try:
            (told,) = await self.client.publish_to_topic(
                write.topic, [message], self.name, self._numbers, PUBLISH_PATIENCE_S
            )
        except Refused as refused:
            write.outcome = Outcome.UNKNOWN if refused.doubtful else Outcome.FAILED
            raise
        write.segment, write.position = told.segment, (told.position.ledger, told.position.entry)
        write.outcome, write.ended = Outcome.OK, self.workload.world.loop.time()


class KeyedPacker(Packer):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._copies: dict[str, int] = {}
        """How many copies of requests the network had made when a consumer first asked."""

    async def receive(self, consumer: str) -> list[dict[str, Any]]:
        cluster, now = self.workload.cluster, self.workload.world.loop.time
        store, network = cluster.store, cluster.network
        copies = self._copies.setdefault(consumer, network.copies)
        floor, asked = store.revision, now()
        given = await super().receive(consumer)
        if given:
            ids = [message["message_id"] for message in given]
            keys = [message["key"] for message in given]
            keyed = dict(zip(ids, keys, strict=True))
            copied = network.copies > copies
            self.history.delivered.append(Delivered(consumer, floor, store.revision, asked, now(), keyed, copied))
        return given

    async def give_back(self, given: list[dict[str, Any]]) -> None:
        returned = Returned([message["message_id"] for message in given], self.workload.world.loop.time())
        self.history.returned.append(returned)
        await super().give_back(given)
        returned.answered = self.workload.world.loop.time()

    async def take(self, txn_id: str, ids: list[str], patience_s: float = PATIENCE_S) -> None:
        attempts = self.history.taken.setdefault(txn_id, {})
        attempts.update(dict.fromkeys(ids))
        await super().take(txn_id, ids, patience_s)
        attempts.update(dict.fromkeys(ids, self.workload.world.loop.time()))
