"""Goal: several brokers answer Pulsar's clients as one: a client of any of them finds the one that serves a segment.

Method: listeners over brokers that share an object store, in this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from itertools import count
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from metastore.txn import paths
from metastore.txn.records.processes import BrokerRecord
from metatxn_gateways.pulsar import lookups
from metatxn_gateways.pulsar.codes import PulsarCode
from metatxn_gateways.pulsar.service import PulsarListener
from tests.gateways.pulsar.client import PATIENCE_S, PulsarClient, Refused, entry
from tests.gateways.pulsar.test_consuming import produced
from tests.participants.broker.shared import SharedBroker
from tests.participants.segment.world import World

SEGMENTS = 8


class PulsarMember:
    """A broker with its listener."""

    def __init__(self, process: SharedBroker) -> None:
        self.process = process
        self.listener = PulsarListener(process.store, service=process, port=0)

    async def stop(self) -> None:
        await self.listener.stop()
        await self.process.stop()


class PulsarPair:
    """Two brokers that share the segments of a topic."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.objects = MemoryStore()
        self.members: list[PulsarMember] = []
        self.topic = ""
        self.segments: list[str] = []

    async def start(self) -> None:
        url = f"http://127.0.0.1:{len(self.members) + 1}"
        member = PulsarMember(await SharedBroker.start(self.world, self.objects, url))
        self.members.append(member)
        await member.listener.start()
        for each in self.members:
            each.process.can_reach(one.process for one in self.members)

    async def create(self) -> None:
        """A topic of which each broker serves some segments. Which one serves a segment is drawn by its name."""
        for number in count():
            await self._create(f"t{number}")
            if None not in map(self.segment_at, self.members):
                return

    async def _create(self, topic: str) -> None:
        self.topic = topic
        body = {"name": topic, "segments": SEGMENTS, "format": "pulsar"}
        answer = await self.members[0].process.http.post("/v1/topics", json=body)
        assert answer.status_code == 201, answer.text
        self.segments = [each["segment"] for each in answer.json()["segments"]]
        async with asyncio.timeout(PATIENCE_S):
            for segment in self.segments:
                while self.url_of(segment) is None:
                    await asyncio.sleep(0)

    def url_of(self, segment: str) -> str | None:
        found = [each.listener.url for each in self.members if each.process.broker.serving(segment) is not None]
        return found[0] if found else None

    def segment_at(self, member: PulsarMember) -> str | None:
        return next((each for each in self.segments if member.process.broker.serving(each) is not None), None)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[PulsarPair]:
    world = World(tmp_path, "local")
    pair = PulsarPair(world)
    try:
        for _ in range(2):
            await pair.start()
        await pair.create()
        yield pair
    finally:
        for member in pair.members:
            await member.stop()
        await world.close()


async def looked_up(client: PulsarClient, segment: str, expected: str | None) -> None:
    """Look a segment up until its broker is found: the announcements are followed."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(Refused):
                assert (await client.ask("lookup", topic=segment)).broker_url == expected
                return


async def test_every_broker_tells_who_serves_a_segment(pair: PulsarPair) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(PulsarClient.connected(each.listener.url)) for each in pair.members]
        for client in clients:
            for segment in pair.segments:
                await looked_up(client, segment, pair.url_of(segment))
        home = pair.url_of(min(pair.segments, key=lambda each: int(each.rpartition("-")[2])))
        for number, client in enumerate(clients):
            assert (await client.layout(pair.topic, number)).layout.controller_url == home
        about = {"topic": pair.topic, "subscription": "s", "consumer_name": "a", "consumer_id": 100}
        answers = []
        for client in clients:
            try:
                answers.append(len((await client.ask("scalable_topic_subscribe", **about)).assignment.segments))
            except Refused as refused:
                answers.append(refused.code)
        assert sorted(answers) == [PulsarCode.SERVICE_NOT_READY, SEGMENTS], "only the home assigns"


async def test_a_segment_is_consumed_at_its_broker_in_one_transaction_with_others(pair: PulsarPair) -> None:
    urls = [each.listener.url for each in pair.members]
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(PulsarClient.connected(url)) for url in urls]
        txn = await clients[0].begin()
        for client, segment in zip(clients, map(pair.segment_at, pair.members), strict=True):
            assert segment is not None
            (place,) = await produced(client, segment, entry(b"0"))
            await client.subscribe(segment)
            await client.messages(1)
            await client.ack(place, txn=txn)
        await clients[1].end(txn, commit=True)
    home = next(each for each in pair.members if each.listener.url == pair.url_of(pair.segments[0]))
    backlog = 1
    while backlog:
        answer = await home.process.http.get(f"/v1/topics/{pair.topic}/subscriptions/s")
        assert answer.status_code in (200, 503), answer.text
        if answer.status_code == 200:
            backlog = sum(each["backlog"] for each in answer.json()["segments"])


async def test_a_broker_without_a_listener_is_not_named(pair: PulsarPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookups, "WAIT_S", 0.0)
    one, other = pair.members
    segment = pair.segment_at(other)
    await other.listener.stop()
    async with PulsarClient.connected(one.listener.url) as client:
        async with asyncio.timeout(PATIENCE_S):
            code = 0
            while code != PulsarCode.SERVICE_NOT_READY:
                try:
                    await client.ask("lookup", topic=segment)
                except Refused as refused:
                    code = refused.code
    records = await pair.world.store.scan(paths.BROKERS)
    assert [BrokerRecord.decode(each.value).pulsar for each in records.records].count(None) == 1
