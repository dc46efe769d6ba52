"""Goal: a program that begins one transaction after another gets transactions that were begun ahead. Each of them is as
good as one that is begun at that moment (DESIGN §5.1), and what is not needed is aborted.

Method: the simulator's event loop, whose time jumps, and a fake cluster whose answers take as long as the test says.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from random import Random
from typing import Any

import httpx
import pytest

import metatxn
from metatxn.ahead import AHEAD_S, FEWEST, LEAST_TIMEOUT_MS, MOST
from metatxn.wire.errors import ErrorCode
from tests.metatxn.fake_cluster import COORDINATOR, FakeCluster, Outcome, answering
from tests.simulation.loop import SimulationLoop

SINGLE, BATCH = "POST /v1/txns", "POST /v1/txns/batch"
PAUSE_S = 0.01


class Timed:
    """A cluster that answers after `answer_s`, and remembers the deadline of each transaction: of those that are begun
    several at once it is counted from when the request came."""

    def __init__(self, answer_s: float = 0.005) -> None:
        self.cluster = FakeCluster()
        self.answer_s = answer_s
        self.deadlines: dict[str, float] = {}
        self.cluster.before = [("/v1/txns", self._came)] * 10_000

    async def _came(self, request: httpx.Request) -> Outcome:
        came, asked = asyncio.get_running_loop().time(), json.loads(request.content)
        await asyncio.sleep(self.answer_s)
        number = len(self.cluster.transactions)
        if request.url.path.endswith("/txns"):
            self.deadlines[f"{number + 1:032x}"] = came + self.answer_s + asked["timeout_ms"] / 1000
        for item in asked.get("items", ()):
            if item["op"] == "begin":
                number += 1
                self.deadlines[f"{number:032x}"] = came + item["timeout_ms"] / 1000
        return None

    def count(self, what: str) -> int:
        return sum(request == what for request in self.cluster.requests)

    @property
    def open(self) -> set[str]:
        return {name for name, header in self.cluster.transactions.items() if header["state"] == "OPEN"}


def run(story: Callable[[metatxn.AsyncClient], Coroutine[Any, Any, None]], timed: Timed) -> None:
    loop = SimulationLoop(Random(1), 1, lambda: 0.0)

    async def inside() -> None:
        await story(metatxn.connect_async(COORDINATOR, transport=timed.cluster.transport, randomness=Random(1)))

    try:
        loop.run_until_complete(inside())
    finally:
        loop.close()


async def begin_each(client: metatxn.AsyncClient, count: int, **options: Any) -> list[str]:
    found = []
    for _ in range(count):
        found.append((await client.begin(**options)).id)
        await asyncio.sleep(PAUSE_S)
    return found


def test_each_is_handed_out_once_and_is_open_for_its_timeout() -> None:
    timed, found = Timed(), list[str]()

    async def story(client: metatxn.AsyncClient) -> None:
        for _ in range(300):
            begun = await client.begin(timeout_ms=20_000)
            found.append(begun.id)
            assert timed.deadlines[begun.id] >= asyncio.get_running_loop().time() + 20
            await asyncio.sleep(PAUSE_S)
        await client.close()

    run(story, timed)
    assert len(set(found)) == 300
    assert timed.count(SINGLE) + timed.count(BATCH) < 30
    assert timed.open == set(found), "and the others are aborted when the client is closed"


def test_they_are_not_kept_for_longer_than_promised_however_late_the_answer_came() -> None:
    timed = Timed()

    async def story(client: metatxn.AsyncClient) -> None:
        await begin_each(client, 100)
        timed.answer_s = 0.9 * AHEAD_S
        requests = timed.count(BATCH)
        await begin_each(client, 30)
        assert timed.count(BATCH) > requests, "more are on their way"
        await asyncio.sleep(1.2 * AHEAD_S)
        begun = await client.begin(timeout_ms=60_000)
        assert timed.deadlines[begun.id] >= asyncio.get_running_loop().time() + 60

    run(story, timed)


def test_what_is_not_needed_is_aborted_in_time() -> None:
    timed = Timed()

    async def story(client: metatxn.AsyncClient) -> None:
        found = await begin_each(client, 100)
        assert timed.open > set(found)
        await asyncio.sleep(AHEAD_S + 0.1)
        assert timed.open == set(found)
        requests = len(timed.cluster.requests)
        await asyncio.sleep(100)
        assert len(timed.cluster.requests) == requests, "a client that does nothing asks for nothing"

    run(story, timed)


@pytest.mark.parametrize(
    ("count", "options"),
    [
        (FEWEST - 1, {}),
        (50, {"key": "k", "epoch": 0}),
        (50, {"key": "k", "epoch": 0, "version": 1}),
        (50, {"properties": {"a": "b"}}),
        (50, {"owner": "o"}),
        (50, {"timeout_ms": LEAST_TIMEOUT_MS - 1}),
        (50, {"timeout_ms": 86_400_000}),
    ],
)
def test_others_are_begun_when_they_are_asked_for(count: int, options: dict[str, Any]) -> None:
    timed = Timed()

    async def story(client: metatxn.AsyncClient) -> None:
        await begin_each(client, count, **options)
        await client.close()

    run(story, timed)
    assert (timed.count(SINGLE), timed.count(BATCH)) == (count, 0)


def test_those_of_another_timeout_are_aborted() -> None:
    timed = Timed()

    async def story(client: metatxn.AsyncClient) -> None:
        found = await begin_each(client, 50)
        found += await begin_each(client, 1, timeout_ms=30_000)
        await asyncio.sleep(0.1)
        assert timed.open == set(found)

    run(story, timed)


def test_many_at_once_share_requests_and_their_number_is_bounded() -> None:
    timed, found = Timed(), set[str]()

    async def story(client: metatxn.AsyncClient) -> None:
        for _ in range(20):
            found.update(txn.id for txn in await asyncio.gather(*[client.begin() for _ in range(MOST)]))
            assert len(timed.open) - len(found) <= MOST
        await client.close()

    run(story, timed)
    assert len(found) == 20 * MOST and timed.open == found
    assert timed.count(SINGLE) + timed.count(BATCH) < 8 * MOST


@pytest.mark.parametrize("close", [True, False])
def test_who_waits_is_told_by_a_begin_of_its_own_what_is_wrong(close: bool) -> None:
    timed = Timed()

    async def story(client: metatxn.AsyncClient) -> None:
        await begin_each(client, 50)
        await asyncio.sleep(AHEAD_S / 4)
        limited = answering(ErrorCode.NOT_ALLOWED)
        timed.cluster.before = [("/v1/txns", limited)] * 1000
        failures = [await failure_of(client.begin()) for _ in range(MOST)]
        assert failures[-1] is metatxn.NotAllowed
        await (client.close() if close else client.let_go())

    run(story, timed)


async def failure_of(call: Awaitable[object]) -> type[BaseException] | None:
    try:
        await call
    except metatxn.MetatxnError as error:
        return type(error)
    return None


def test_who_stops_waiting_takes_nothing_along() -> None:
    timed = Timed(answer_s=0.2)

    async def story(client: metatxn.AsyncClient) -> None:
        waiting = [asyncio.create_task(client.begin()) for _ in range(3 * MOST)]
        await asyncio.sleep(0.1)
        for task in waiting[::2]:
            task.cancel()
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        found = {end.id for end in ends if isinstance(end, metatxn.AsyncTransaction)}
        assert len(found) == len(waiting) // 2
        begun_by_themselves = timed.count(SINGLE)
        await client.close()
        assert len(timed.open - found) <= begun_by_themselves, "only an own begin that was cancelled leaves something"

    run(story, timed)
