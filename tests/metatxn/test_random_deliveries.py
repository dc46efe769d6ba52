"""Goal: whatever is sent arrives once, in order, and what does not arrive is told: by producers and table writers,
inside transactions and outside, while requests and answers are lost or late and segments are split and merged.

Method: the simulator's event loop and a fake cluster; a seed draws senders, sizes, faults and how long each request is
on its way. Some entries are `refused`, however often they are sent: a future, `flush` and the commit must tell of it,
and nothing else may be missing.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import httpx
import pyarrow as pa
import pytest

import metatxn
from service.problems import ErrorCode
from tests.metatxn.fake_cluster import COORDINATOR, FakeCluster, Fault, answering, lost, problem, proxy
from tests.simulation.loop import SimulationLoop

ITEMS = 60
KEYS = [str(number) for number in range(5)]
FAULTS: list[Fault] = [
    lost,
    proxy(502),
    answering(ErrorCode.STORE_UNAVAILABLE),
    answering(ErrorCode.OUTCOME_UNKNOWN),
    answering(ErrorCode.RATE_LIMITED, {"Retry-After": "1"}),
]


@dataclass
class Story:
    """Two senders, one after the other. `sent`: what each of them was given, by key; `told`: the failures it raised."""

    random: Random
    cluster: FakeCluster
    sent: list[dict[str, list[int]]] = field(default_factory=list)
    told: list[metatxn.MetatxnError | None] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    futures: list[tuple[int, str, int, asyncio.Future[str]]] = field(default_factory=list)

    async def run(self) -> None:
        client = metatxn.connect_async(COORDINATOR, transport=self.cluster.transport, randomness=self.random)
        async with client:
            for number in range(2):
                self.sent.append({key: [] for key in KEYS})
                self.kinds.append(self.random.choice(["producer", "producer in", "table", "table in"]))
                self.told.append(await self._one(client, number))

    async def _one(self, client: metatxn.AsyncClient, number: int) -> metatxn.MetatxnError | None:
        kind = self.kinds[number]
        txn = await client.begin() if kind.endswith(" in") else None
        try:
            await (self._produce if kind.startswith("producer") else self._write)(client, number, txn)
            if txn is not None:
                await txn.commit()
        except metatxn.MetatxnError as failure:
            if txn is not None:
                with pytest.raises(metatxn.MetatxnError):
                    await txn.commit()
            return failure
        return None

    async def _produce(self, client: metatxn.AsyncClient, number: int, txn: metatxn.AsyncTransaction | None) -> None:
        size = self.random.choice([1, 1, 2, 7, 1000])
        producer = client.producer("t", max_entry_messages=size, linger_ms=self.random.choice([0, 30]))
        for key, item in self._items(number):
            value = {"k": key, "n": item, "by": number}
            self.futures.append((number, key, item, await producer.send(value, key=key, txn=txn)))
        await producer.flush()

    async def _write(self, client: metatxn.AsyncClient, number: int, txn: metatxn.AsyncTransaction | None) -> None:
        size = self.random.choice([1, 300, 100_000])
        async with client.table_writer("t", txn, key_column="k", max_entry_bytes=size) as writer:
            for key, item in self._items(number):
                await writer.write(pa.table({"k": [key], "n": [item], "by": [number]}))
                if self.random.random() < 0.05:
                    await writer.flush()

    def _items(self, number: int) -> Iterator[tuple[str, int]]:
        for item in range(ITEMS):
            key = self.random.choice(KEYS)
            self.sent[number][key].append(item)
            yield key, item

    # -- what must be true -------------------------------------------------------------------------------------

    def check(self, refusals: int) -> None:
        arrived = [self._arrived(number) for number in range(len(self.sent))]
        for number, kind in enumerate(self.kinds):
            failure, sent, found = self.told[number], self.sent[number], arrived[number]
            if failure is None:
                assert found == sent, f"{kind}: nothing failed"
            elif kind.endswith(" in"):
                assert not any(found.values()), f"{kind}: it was not committed"
            for key in KEYS:
                assert found[key] == sorted(set(found[key])), f"{kind}, key {key}: each once, and in order"
                if kind == "table":
                    assert found[key] == sent[key][: len(found[key])], f"{kind}, key {key}: nothing behind a failure"
        assert refusals or self.told == [None] * len(self.kinds), "every failure has a reason"
        for number, key, item, future in self.futures:
            failed = future.exception()
            if self.kinds[number] == "producer":
                assert (failed is None) == (item in arrived[number][key]), f"{key} {item}: {failed}"
            assert failed is None or self.told[number] is not None, "the flush, or the commit, tells of it"

    def _arrived(self, number: int) -> dict[str, list[int]]:
        found: defaultdict[str, list[int]] = defaultdict(list)
        for row in self.cluster.visible():
            if row["by"] == number:
                found[row["k"]].append(row["n"])
        return {key: found[key] for key in KEYS}


class Changing(FakeCluster):
    """Every request with an entry takes its time to arrive, and meets the next of some faults; so many entries are
    `refused` for good."""

    def __init__(self, random: Random, refusals: int) -> None:
        super().__init__()
        self._random = random
        # Six faults do not use up the patience of one request.
        self._ahead = [random.choice([*FAULTS, self._change]) for _ in range(6)]
        self._behind = random.choices(FAULTS, k=6)
        self._to_refuse = refusals
        self._refused: dict[str, bool] = {}

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST" and request.url.path.endswith("/entries"):
            self._draw(self.before, self._ahead)
            self._draw(self.after, self._behind)
            await asyncio.sleep(self._random.choice([0, 0.01, 0.3]))
            if self._refuses(request.url.params["producer"] + request.url.params["sequence"]):
                return problem(ErrorCode.PAYLOAD_TOO_LARGE)
        return await super()._handle(request)

    def _refuses(self, entry: str) -> bool:
        if entry not in self._refused:
            self._refused[entry] = self._to_refuse > 0 and self._random.random() < 0.1
            self._to_refuse -= self._refused[entry]
        return self._refused[entry]

    def _draw(self, faults: list[tuple[str, Fault]], left: list[Fault]) -> None:
        if left and self._random.random() < 0.4:
            faults.append(("/entries", left.pop()))

    def _change(self, request: httpx.Request) -> None:
        """Only one at a time."""
        leaves = sorted((each for each in self.segments.items() if not each[1].children), key=lambda each: each[1].low)
        if any(segment.merging for _, segment in leaves):
            return
        if len(leaves) > 1 and self._random.random() < 0.5:
            at = self._random.randrange(len(leaves) - 1)
            low, high = leaves[at][0], leaves[at + 1][0]
            self.begin_merge(self._random.choice([low, high]))
            asyncio.get_running_loop().call_later(self._random.choice([0, 1]), self.end_merge, low, high)
        else:
            self.split(self._random.choice(leaves)[0])


def told(seed: int, refusals: int) -> Story:
    random = Random(seed)
    loop = SimulationLoop(random, 4, lambda: 0.0)
    cluster = Changing(random, refusals)
    story = Story(random, cluster)
    try:
        loop.run_until_complete(story.run())
    finally:
        loop.close()
    return story


@pytest.mark.parametrize("refusals", [0, 1])
@pytest.mark.parametrize("seed", range(20))
def test_what_is_sent_arrives_once_or_is_told_of(seed: int, refusals: int) -> None:
    told(seed, refusals).check(refusals)
