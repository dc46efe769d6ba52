"""Topics that are deleted while transactions write to them and acknowledge in them.

Each transaction writes to such a topic and to one that lasts. A deleted topic takes its operations with it: what is
still on its way to the store then must not arrive, or nobody would ever clean it up. The transactions go on, and the
topic that lasts keeps what it promises. A topic of the same name is made again and again; sometimes it is only its
subscription that goes. In half of the seeds no subscription has the name of an earlier one, because who has that name
again cleans up; in the others names come back, and their counters must go on.
"""

from __future__ import annotations

import asyncio

from metastore.txn import paths
from tests.simulation.client import Refused
from tests.simulation.workloads.base import Actor, Workload, whatever_comes

WRITERS = 3
NAMES = 2
MOVING = 0.4
DROPPED_MEANWHILE = 0.2
TIMEOUT_MS = (3_000, 15_000)


class Passing(Workload):
    name = "passing"
    aims = (paths.TOPICS, paths.SUBSCRIPTIONS, ":w:", ":a:")

    async def set_up(self) -> None:
        random = self.world.generator("passing")
        self.lasting = await self.create_topic("lasting", random)
        self.subscriptions = {f"public/default/passing-{number}": "first" for number in range(NAMES)}
        """Of each topic that passes the subscription that it has, if it is there."""
        self.names_come_back = random.random() < 0.5

    def start(self) -> None:
        for number in range(WRITERS):
            self.employ(f"writer-{number}", Writer)
        self.employ("caretaker", Caretaker)


class Writer(Actor):
    async def act(self) -> None:
        assert isinstance(self.workload, Passing)
        random = self.random
        passing = random.choice(list(self.workload.subscriptions))
        txn_id = await self.client.begin(random.choice(TIMEOUT_MS))
        works = [self._write(topic, txn_id) for topic in (self.workload.lasting, passing, passing)]
        works += [self._acknowledge(topic, name, txn_id) for topic, name in self.workload.subscriptions.items()]
        await whatever_comes(*works)
        if random.random() < 0.5:
            await asyncio.sleep(random.uniform(0, 3))
        fate = random.random()
        if fate < 0.9:
            await self.end(txn_id, commit=fate < 0.6)

    async def _write(self, topic: str, txn_id: str) -> None:
        key = f"key-{self.random.randrange(9)}"
        try:
            await self.write(topic, key, 0, txn_id=txn_id)
        except Refused as refused:
            if refused.code == "NOT_FOUND":
                self.client.layouts.pop(topic, None)
            raise

    async def _acknowledge(self, topic: str, subscription: str, txn_id: str) -> None:
        given = await self.client.receive(topic, subscription, self.name, 3)
        if not given:
            return
        works = [self.client.acknowledge(topic, subscription, [each["message_id"] for each in given], txn_id)]
        if self.random.random() < DROPPED_MEANWHILE:
            works.append(self.client.drop_subscription(topic, subscription))
        await whatever_comes(*works)


class Caretaker(Actor):
    """Deletes a topic or its subscription, whether or not it is there, and makes it again; or only moves the
    subscription."""

    pause_s = 1.2
    _made = 0

    async def act(self) -> None:
        assert isinstance(self.workload, Passing)
        subscriptions = self.workload.subscriptions
        topic = self.random.choice(list(subscriptions))
        if self.random.random() < MOVING:
            force = self.random.random() < 0.7
            await self.client.seek(topic, subscriptions[topic], self.random.choice(("earliest", "latest")), force=force)
            return
        if self.random.random() < 0.5:
            await self.client.drop_subscription(topic, subscriptions[topic])
        else:
            await self.client.delete_topic(topic)
        broker = self.random.choice(self.workload.cluster.broker_urls)
        await self.client.create_topic(broker, topic, self.random.choice((1, 2)))
        self._made += 1
        number = self._made % NAMES if self.workload.names_come_back else self._made
        subscriptions[topic] = f"subscription-{number}"
        await self.client.subscribe(topic, subscriptions[topic], "shared")
