"""The asynchronous client has no clock, no randomness, no thread and no socket of its own, so a simulation can run it.

Method: the simulator's event loop, whose time jumps and whose order of callbacks a seed decides, and a fake cluster.
"""

from __future__ import annotations

import asyncio
import threading
from random import Random

import httpx
import pytest

import metatxn
from metatxn.wire.errors import ErrorCode
from metatxn.wire.pages import PageHead, encode_head
from tests.metatxn.fake_cluster import COORDINATOR, FakeCluster, Outcome, answering, lost
from tests.simulation.loop import SimulationLoop

REACH = 4


async def story(cluster: FakeCluster, random: Random) -> None:
    client = metatxn.connect_async(COORDINATOR, transport=cluster.transport, randomness=random)
    async with client:
        producer = client.producer("t", linger_ms=20, max_entry_messages=3)
        for round_ in range(5):
            async with client.transaction() as txn:
                for number in range(10):
                    await producer.send([round_, number], key=str(number % 3), txn=txn)
        assert len(cluster.visible()) == 50


def requests_of(seed: int) -> list[str]:
    """All that a story sends while segments are split and answers are lost."""
    cluster = FakeCluster()

    def split(request: httpx.Request) -> None:
        cluster.split("s-0")

    cluster.before = [("POST /v1/txns", answering(ErrorCode.RATE_LIMITED, {"Retry-After": "5"})), ("/commit", lost)]
    cluster.before += [("s-0/entries", lambda _: None)] * 3 + [("s-0/entries", split)]
    cluster.after = [("s-0.a/entries", lost), ("s-0.b/entries", lost)]
    random = Random(seed)
    loop = SimulationLoop(random, REACH, lambda: 0.0)
    try:
        loop.run_until_complete(story(cluster, random))
    finally:
        loop.close()
    return cluster.requests


@pytest.mark.parametrize("seed", range(20))
def test_same_seed_sends_the_same(seed: int) -> None:
    threads, first = threading.active_count(), requests_of(seed)
    assert requests_of(seed) == first
    assert threading.active_count() <= threads, "those of earlier tests may end"
    assert requests_of(seed + 1000) != first


def test_patience_costs_no_time() -> None:
    """A day of retries against a service that holds back every answer: its time is the loop's."""

    async def hold(request: httpx.Request) -> Outcome:
        await asyncio.sleep(10**9)
        return None

    cluster = FakeCluster()
    cluster.before = [("POST /v1/txns", hold)] * 100
    loop = SimulationLoop(Random(0), 1, lambda: 0.0)

    async def begin() -> None:
        client = metatxn.connect_async(COORDINATOR, request_timeout_s=86_400, transport=cluster.transport)
        async with client:
            await client.begin()

    try:
        with pytest.raises(metatxn.OutcomeUnknown):
            loop.run_until_complete(begin())
        assert loop.time() > 86_000
    finally:
        loop.close()


async def test_a_reader_finds_the_end_with_one_request() -> None:
    """However large the topic is: nothing of it is read."""
    cluster = FakeCluster()
    page = httpx.Response(200, content=encode_head(PageHead(parts=[], next="the end")))
    cluster.before = [("GET /v1/topics/t/batches", lambda _: page)]
    async with metatxn.connect_async(COORDINATOR, transport=cluster.transport) as client:
        assert (await client.reader("t", start="latest")).token == "the end"
    (request,) = (each for each in cluster.requests if "/batches" in each)
    assert "start=latest" in request
