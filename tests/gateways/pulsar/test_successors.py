"""Goal: stream consumers process each message in one committed transaction, and those of a key in their order, no
matter which of them dies inside a transaction, while the topic is split and merged and the broker is killed.

Method: a small client of the protocol that does what a V5 program has to do, over loopback against a broker in this
process; a seed draws what befalls it. A transaction that a dead program has left open is aborted later, in place of its
timeout, also between what its successor receives and what it acknowledges. DESIGN §5.10, §5.25.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from itertools import count
from random import Random

import pytest

from metatxn.wire.names import SegmentParts
from metatxn_gateways.pulsar.codes import PulsarCode
from tests.extent import usually
from tests.gateways.pulsar.client import Delivered, PulsarClient, Refused, entry
from tests.gateways.pulsar.conftest import PulsarGateway
from tests.gateways.pulsar.test_ordered import joined, named

KEYS = 4
STEPS = 40
SEEDS = usually(range(6), range(60))


class Program:
    """One life of a stream consumer: it takes messages in the order in which they come, and forgets those of segments
    that others have now."""

    def __init__(self, client: PulsarClient, name: str) -> None:
        self._client = client
        self._name = name
        self._numbers = count(1)
        self._segments: dict[int, str] = {}
        self.ended = False

    async def open(self) -> None:
        await self._assigned(await joined(self._client, self._name))

    async def _assigned(self, segments: list[str]) -> None:
        self._segments = {number: name for number, name in self._segments.items() if name in segments}
        for name in sorted({*segments} - {*self._segments.values()}):
            number = next(self._numbers)
            await self._client.subscribe(name, number, kind=0, consumer_name=f"{self._name}-{number}")
            self._segments[number] = name

    async def waiting(self) -> bool:
        """Whether a message has come. Everything that it was told has been heard by then."""
        await self._client.ask("lookup", topic="topic://public/default/t")
        while self._client.waiting("scalable_topic_assignment_update"):
            await self._assigned(named((await self._client.next("scalable_topic_assignment_update")).assignment))
        return self._client.waiting("message") > 0

    async def hear(self) -> None:
        """Wait for whatever comes next, directly after nothing was `waiting`."""
        await self._client.until_heard(len(self._client.heard) + 1)

    async def take(self) -> Delivered | None:
        """The next message; None if it was one of a segment that it does not have any more."""
        (message,) = await self._client.messages(1)
        return message if message.consumer in self._segments else None

    async def acknowledge(self, given: list[Delivered], txn: dict[str, int]) -> None:
        last = {message.consumer: message.place for message in given}
        for consumer, place in last.items():
            await self._client.ack(place, number=consumer, cumulative=True, txn=txn)


class Story:
    def __init__(self, gateway: PulsarGateway, seed: int) -> None:
        self._gateway = gateway
        self._dice = Random(seed)
        self._names = count()
        self._values = count()
        self._client: PulsarClient | None = None
        self._left_open: list[dict[str, int]] = []
        self.sent: defaultdict[int, list[int]] = defaultdict(list)
        self.processed: list[int] = []

    async def run(self) -> None:
        await self._gateway.create("t")
        self._operator = await self._connected()
        try:
            for _ in range(STEPS):
                await self._dice.choice([self._send, self._send, self._process, self._process, self._befall])()
            while len(self.processed) < sum(map(len, self.sent.values())):
                await self._process()
        finally:
            await self._die()
            await self._operator.close()

    async def _active(self) -> list[str]:
        segments = (await self._gateway.http.get("/v1/topics/t")).json()["segments"]
        names = [each["segment"] for each in segments if each["state"] == "active"]
        return sorted(names, key=lambda name: SegmentParts.parse(name).range)

    async def _send(self) -> None:
        for key in self._dice.sample(range(KEYS), self._dice.randint(1, KEYS)):
            at = key * (1 << 16) // KEYS
            (segment,) = [
                name
                for name in await self._active()
                if SegmentParts.parse(name).range[0] <= at <= SegmentParts.parse(name).range[1]
            ]
            await self._operator.producer(segment)
            value = next(self._values)
            self._operator.produce(entry(b"%d" % value), 0)
            await self._operator.receipts(1)
            self.sent[key].append(value)

    async def _befall(self) -> None:
        active = await self._active()
        match self._dice.choice(["split", "merge", "kill", "die", "die"]):
            case "split" if len(active) < KEYS:
                await self._gateway.split(self._dice.choice(active))
            case "merge" if len(active) > 1:
                first = self._dice.randrange(len(active) - 1)
                await self._gateway.merge(active[first : first + 2])
            case "kill":
                await self._gateway.crash()
                await self._operator.close()
                self._operator = await self._connected()
                await self._die()
            case "die":
                await self._die()

    async def _connected(self) -> PulsarClient:
        client = await PulsarClient.opened(self._gateway.listener.url)
        client.send("connect", client_version="test", protocol_version=21)
        await client.next("connected")
        return client

    async def _die(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _begin(self) -> None:
        """Another one is refused a segment until the broker knows that the one before is gone."""
        while self._client is None:
            client = await self._connected()
            self._program = Program(client, f"program-{next(self._names)}")
            try:
                await self._program.open()
                self._client = client
            except Refused as refused:
                if refused.code != PulsarCode.SERVICE_NOT_READY:
                    raise
            finally:
                if self._client is None:
                    await client.close()

    async def _give_up_one(self) -> None:
        """What a dead program has left open times out."""
        if self._left_open:
            txn = self._left_open.pop(self._dice.randrange(len(self._left_open)))
            await self._operator.end(txn, commit=False)

    async def _process(self) -> None:
        if self._client is None:
            await self._begin()
        assert self._client is not None
        given: list[Delivered] = []
        for _ in range(self._dice.randint(1, 4)):
            try:
                waiting = await self._program.waiting()
            except Refused:  # a segment that another one still has, or that is not there any more
                await self._die()
                return
            if waiting and (message := await self._program.take()) is not None:
                given.append(message)
        if given:
            await self._transact(given)
        elif self._left_open:
            await self._give_up_one()
        elif len(self.processed) < sum(map(len, self.sent.values())) and not waiting:
            await self._program.hear()

    async def _transact(self, given: list[Delivered]) -> None:
        """After everything but a commit the program begins anew."""
        assert self._client is not None
        txn = await self._client.begin()
        if self._dice.random() < 0.4:
            await self._give_up_one()
            await self._program.waiting()
        end = self._dice.choice(["commit", "commit", "commit", "abort", "die"])
        with suppress(Refused):
            await self._program.acknowledge(given, txn)
            if end == "commit":
                await self._client.end(txn, commit=True)
                self.processed += [int(message.value or b"-1") for message in given]
                return
        if end == "die":
            self._left_open.append(txn)
        else:
            await self._client.end(txn, commit=False)
        await self._die()


@pytest.mark.parametrize("seed", SEEDS)
async def test_each_message_is_processed_once_and_in_order_whoever_dies(gateway: PulsarGateway, seed: int) -> None:
    story = Story(gateway, seed)
    await story.run()
    assert sorted(story.processed) == sorted(value for values in story.sent.values() for value in values)
    for values in story.sent.values():
        assert [value for value in story.processed if value in values] == values
