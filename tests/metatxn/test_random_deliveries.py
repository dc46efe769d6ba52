"""Goal: whatever is sent arrives once, in order, and what does not arrive is told: by producers, one by one or
together, and by table writers, inside transactions and outside, while requests and answers are lost or late and
segments are split and merged.

Method: the simulator's event loop and a fake cluster; a seed draws senders, sizes, faults and how long each request is
on its way. Some entries are `refused`, however often they are sent: a future, `flush` and the commit must tell of it,
and nothing else may be missing.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from unittest import mock

import httpx
import pyarrow as pa
import pytest

import metatxn
from metatxn import delivery, publishing, together
from metatxn.wire.errors import ErrorCode
from tests.metatxn.fake_cluster import COORDINATOR, FakeCluster, Fault, answering, lost, problem, proxy
from tests.simulation.loop import SimulationLoop

ITEMS = 60
KEYS = [str(number) for number in range(9)]
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
    cluster: Changing
    of: Sequence[str] = ("producer", "producer in", "many", "many in", "table", "table in")
    sizes: Sequence[int] = (1, 1, 2, 7, 1000)
    sent: list[dict[str, list[int]]] = field(default_factory=list)
    told: list[metatxn.MetatxnError | None] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    futures: list[tuple[int, str, int, asyncio.Future[str]]] = field(default_factory=list)
    lumps: list[tuple[int, list[tuple[str, int]], asyncio.Future[list[str]]]] = field(default_factory=list)

    async def run(self) -> None:
        client = metatxn.connect_async(COORDINATOR, transport=self.cluster.transport, randomness=self.random)
        async with client:
            for number in range(2):
                self.sent.append({key: [] for key in KEYS})
                self.kinds.append(self.random.choice(self.of))
                self.told.append(await self._one(client, number))

    async def _one(self, client: metatxn.AsyncClient, number: int) -> metatxn.MetatxnError | None:
        kind = self.kinds[number]
        txn = await client.begin() if kind.endswith(" in") else None
        try:
            produce = {"producer": self._produce, "many": self._produce_many, "table": self._write}
            await produce[kind.removesuffix(" in")](client, number, txn)
            if txn is not None:
                await txn.commit()
        except metatxn.MetatxnError as failure:
            if txn is not None:
                with pytest.raises(metatxn.MetatxnError):
                    await txn.commit()
            return failure
        return None

    async def _produce(self, client: metatxn.AsyncClient, number: int, txn: metatxn.AsyncTransaction | None) -> None:
        producer = client.producer(
            "t", max_entry_messages=self.random.choice(self.sizes), linger_ms=self.random.choice([0, 30])
        )
        for key, item in self._items(number):
            value = {"k": key, "n": item, "by": number}
            self.futures.append((number, key, item, await producer.send(value, key=key, txn=txn)))
            if txn is not None and self.random.random() < 0.1:
                await producer.flush()
        await producer.flush()

    async def _produce_many(
        self, client: metatxn.AsyncClient, number: int, txn: metatxn.AsyncTransaction | None
    ) -> None:
        producer = client.producer("t", max_entry_messages=self.random.choice(self.sizes))
        items = list(self._items(number))
        while items:
            count = self.random.choice([1, 5, ITEMS])
            some, items = items[:count], items[count:]
            values = [{"k": key, "n": item, "by": number} for key, item in some]
            if count == 1:
                (key, item), value = some[0], values[0]
                self.futures.append((number, key, item, await producer.send(value, key=key, txn=txn)))
            else:
                self.lumps.append((number, some, await producer.send_many(values, [key for key, _ in some], txn)))
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
            if self.kinds[number] in ("producer", "many"):
                assert (failed is None) == (item in arrived[number][key]), f"{key} {item}: {failed}"
            assert failed is None or self.told[number] is not None, "the flush, or the commit, tells of it"
        for number, items, lump in self.lumps:
            if (failed := lump.exception()) is not None:
                assert self.told[number] is not None, "the flush, or the commit, tells of it"
                continue
            assert len(lump.result()) == len(items)
            if self.kinds[number] == "many" or self.told[number] is None:
                assert all(item in arrived[number][key] for key, item in items)

    def _arrived(self, number: int) -> dict[str, list[int]]:
        found: defaultdict[str, list[int]] = defaultdict(list)
        for row in self.cluster.visible():
            if row["by"] == number:
                found[row["k"]].append(row["n"])
        return {key: found[key] for key in KEYS}


class Changing(FakeCluster):
    """Every request with entries takes its time to arrive, and meets the next of some faults; so do single entries of a
    group. This many entries are `refused` for good."""

    def __init__(self, random: Random, refusals: int) -> None:
        super().__init__()
        self._random = random
        # Six faults do not use up the patience of one request.
        self._ahead = [random.choice([*FAULTS, self._change]) for _ in range(6)]
        self._behind = random.choices(FAULTS, k=6)
        self._to_refuse = refusals
        self._refused: dict[str, bool] = {}
        self.groups = 0
        self._in_group = False
        for _ in range(random.choice([0, 3])):
            self.split(next(name for name, segment in self.segments.items() if not segment.children))

    async def _handle(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST" and request.url.path.endswith("/entries"):
            self._draw(self.before, self._ahead)
            self._draw(self.after, self._behind)
            await asyncio.sleep(self._random.choice([0, 0.01, 0.3]))
        return await super()._handle(request)

    def _append_group(self, txn_id: str, body: bytes) -> httpx.Response:
        self.groups += 1
        self._in_group = True
        try:
            return super()._append_group(txn_id, body)
        finally:
            self._in_group = False

    def _append(self, segment_id: str, request: httpx.Request) -> httpx.Response:
        if self._refuses(request.url.params["producer"] + request.url.params["sequence"]):
            return problem(ErrorCode.PAYLOAD_TOO_LARGE)
        chance = self._random.random() if self._in_group else 1
        if chance < 0.1:
            return problem(ErrorCode.STORE_UNAVAILABLE)
        answer = super()._append(segment_id, request)
        return problem(ErrorCode.OUTCOME_UNKNOWN) if chance < 0.2 else answer

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
    story = Story(random, Changing(random, refusals))
    with (
        mock.patch.object(publishing, "GATHERING_MS", random.choice([0, 20])),
        mock.patch.object(together, "LEAST_PORTION", random.choice([1, 3])),
    ):
        in_virtual_time(random, story.run())
    return story


def in_virtual_time(random: Random, story: Coroutine[Any, Any, None]) -> None:
    loop = SimulationLoop(random, 4, lambda: 0.0)
    try:
        loop.run_until_complete(story)
    finally:
        loop.close()


@pytest.mark.parametrize("refusals", [0, 1])
@pytest.mark.parametrize("seed", range(20))
def test_what_is_sent_arrives_once_or_is_told_of(seed: int, refusals: int) -> None:
    told(seed, refusals).check(refusals)


def test_some_of_it_travels_in_groups() -> None:
    assert sum(told(seed, 0).cluster.groups for seed in range(20)) > 20


@pytest.mark.parametrize("seed", range(10))
def test_a_retry_finds_what_it_has_appended(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where brokers remember few sequences, and the client knows it: besides the entry itself one that was sent before
    it and lands behind it, and one that was sent after it."""
    monkeypatch.setattr(delivery, "MAX_AHEAD", 2)
    random = Random(seed)
    cluster = Changing(random, 0)
    cluster.memory = 3
    story = Story(random, cluster, of=["producer"], sizes=[1])
    in_virtual_time(random, story.run())
    story.check(0)


def sent_beside(keys: Sequence[str | None]) -> int:
    """One message for each entry, of which the first is held back: how many are sent without waiting for it."""
    cluster, beside = FakeCluster(), []

    async def hold(request: httpx.Request) -> httpx.Response | None:
        await asyncio.sleep(1)  # nothing else takes any time
        beside.append(len(cluster.visible()))
        return None

    async def story() -> None:
        cluster.before = [("/entries", hold)]
        async with metatxn.connect_async(COORDINATOR, transport=cluster.transport) as client:
            producer = client.producer("t", max_entry_messages=1)
            for number, key in enumerate(keys):
                await producer.send([key, number], key=key)

    in_virtual_time(Random(0), story())
    for key in set(keys):
        numbers = [number for other, number in cluster.visible() if other == key]
        assert numbers == [number for number, other in enumerate(keys) if other == key]
    return beside[0]


def test_full_entries_without_a_key_in_common_are_in_flight_together() -> None:
    assert sent_beside(list("abcdef")) == 5


@pytest.mark.parametrize("keys", [list("aab"), [None, None, "a"]], ids=["a key", "none"])
def test_a_key_waits_for_its_entry_in_flight(keys: list[str | None]) -> None:
    """And so does what is behind it: an entry takes what is in front."""
    assert sent_beside(keys) == 0


def test_nothing_is_sent_too_far_ahead_of_an_entry_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry must come while brokers remember what it has appended."""
    monkeypatch.setattr(delivery, "MAX_AHEAD", 4)
    assert sent_beside(list("abcdefgh")) == 3


def test_a_flush_waits_for_what_newer_messages_have_overtaken() -> None:
    cluster, story = FakeCluster(), []

    async def hold(request: httpx.Request) -> httpx.Response | None:
        await asyncio.sleep(1)
        return None

    async def flushing() -> None:
        cluster.before = [("/entries", hold)]
        async with metatxn.connect_async(COORDINATOR, transport=cluster.transport) as client:
            producer = client.producer("t", max_entry_messages=1)
            await producer.send("old", key="a")
            flush = asyncio.create_task(producer.flush())
            await asyncio.sleep(0.1)
            await (await producer.send("new", key="b"))
            story.append((cluster.visible(), flush.done()))
            await flush
            story.append((cluster.visible(), True))

    in_virtual_time(Random(0), flushing())
    assert story == [(["new"], False), (["new", "old"], True)]
