"""Goal: a reconcile of a broker with many segments asks the store little, decodes only what has changed, and keeps no
other work waiting.

Method: a broker in this process, whose calls of the store, decoded records and turns of the event loop are counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from metastore import api
from metastore.errors import StoreUnavailable
from metastore.txn import entries
from metastore.txn.records.json_record import JsonRecord
from metatxn.wire.ids import TxnId
from participants.broker import broker as broker_module
from participants.segment.segment import Segment
from tests.participants.broker.process import BrokerProcess
from tests.participants.segment.world import World, publish

LOOKED_AT = {"PolicyRecord", "SegmentRecord", "SubscriptionRecord", "TopicRecord"}
"""The kinds of records that a reconcile looks at; what decides where segments belong is decoded all the time."""
SUBSCRIBED = {"type": "shared", "initial": "earliest"}


async def topics(process: BrokerProcess, count: int, segments: int = 1, *, first: int = 0) -> list[Segment]:
    """Topics with a subscription each; answers their segments once they serve."""
    names = []
    for number in range(first, first + count):
        names += await process.create(f"t{number}", segments)
        answer = await process.http.put(f"/v1/topics/t{number}/subscriptions/s", json=SUBSCRIBED)
        assert answer.is_success, answer.text
    await process.broker.until_opened(names)
    found = [await process.broker.segment(name) for name in names]
    for number in range(first, first + count):  # the first request opens it everywhere
        await process.http.post(f"/v1/topics/t{number}/subscriptions/s/receive", json={"consumer": "c", "max": 1})
    return found


@pytest.fixture
def calls(process: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """The calls of the store, by name."""
    counted: Counter[str] = Counter()
    monkeypatch.setattr(process.broker.store, "_observe", lambda name, *_: counted.update([name]))
    return counted


@contextmanager
def decoding(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """The records that are decoded in the block, by kind."""
    decoded: Counter[str] = Counter()

    def decode(kind: type[JsonRecord], value: bytes) -> JsonRecord:
        decoded.update([kind.__name__])
        return kind.model_validate_json(value)

    with monkeypatch.context() as patched:
        patched.setattr(JsonRecord, "decode", classmethod(decode))
        yield decoded


async def test_it_asks_the_store_as_often_for_many_segments_as_for_one(
    process: BrokerProcess, world: World, calls: Counter[str]
) -> None:
    asked = []
    for count, segment_count, first in ((1, 1, 0), (8, 3, 1)):
        segments = await topics(process, count, segment_count, first=first)
        txn_id = await world.begin()
        for segment in segments:
            await publish(segment, "x", txn_id)
        for _ in range(2):
            calls.clear()
            await process.broker.reconcile()
        asked.append(dict(calls))
    few, many = asked
    assert few == many, "with transactions on all of them"
    assert sum(few.values()) < 15


async def test_a_record_that_is_the_same_is_not_decoded_again(
    process: BrokerProcess, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await topics(process, 3)
    await process.broker.reconcile()
    with decoding(monkeypatch) as decoded:
        await process.broker.reconcile()
    assert not decoded.keys() & LOOKED_AT

    assert (await process.http.patch("/v1/topics/t1", json={"retention_ms": 7})).is_success
    with decoding(monkeypatch) as decoded:
        await process.broker.policies.of_topics(["public/default/t0"])  # asks for one, and forgets nothing
        [each async for each in process.broker.policies.look([f"public/default/t{number}" for number in range(3)])]
    assert {name: decoded[name] for name in decoded.keys() & LOOKED_AT} == {"TopicRecord": 1}
    assert (await process.broker.policies.recent("public/default/t1")).retention_ms.value == 7


async def test_what_has_changed_counts_from_the_next_look_on(
    process: BrokerProcess, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the topics, too: other brokers change the policies of a namespace and of the cluster."""
    await topics(process, 3)
    assert (await process.http.patch("/v1/topics/t1", json={"ttl_ms": 1_000})).is_success
    await process.broker.reconcile()
    recent = process.broker.policies.recent
    for level, path in (("cluster", "/v1/policies/cluster"), ("namespace", "/v1/policies/namespaces/public/default")):
        assert (await process.http.patch(path, json={"ttl_ms": 2_000, "max_unacked_per_consumer": 5})).is_success
        await process.broker.reconcile()
        for number, ttl_ms in enumerate((2_000, 1_000, 2_000)):
            policy = await recent(f"public/default/t{number}")
            assert (policy.ttl_ms.value, policy.max_unacked_per_consumer.value) == (ttl_ms, 5)
            assert policy.max_unacked_per_consumer.source == level


async def test_a_policy_that_is_changed_while_it_is_looked_at_counts_at_once(process: BrokerProcess) -> None:
    """This broker has answered the change, so it must not go on with what its look had read before."""
    names = [f"public/default/t{number}" for number in range(3)]
    await topics(process, 3)
    async for looked in process.broker.policies.look(names):
        if looked.topic.name == names[0]:
            assert (await process.http.patch("/v1/topics/t0", json={"ttl_ms": 9})).is_success
    assert (await process.broker.policies.recent(names[0])).ttl_ms.value == 9


async def test_the_policies_of_topics_that_are_gone_are_forgotten(process: BrokerProcess) -> None:
    policies = process.broker.policies
    await topics(process, 3)
    await process.broker.reconcile()
    assert len(policies._recent) == len(policies._looked) == 3
    assert (await process.http.delete("/v1/topics/t1")).is_success
    await process.broker.reconcile()
    assert set(policies._recent) == {"public/default/t0", "public/default/t2"} and len(policies._looked) == 2


async def test_other_work_has_its_turn_all_the_time(
    process: BrokerProcess, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of everything that is done for each segment only so much is done in one turn, although this store never lets a
    reader wait."""
    segments = await topics(process, 4, 8)
    for bound in ((api, "_KEYS_PER_PART"), (entries, "PREFIXES_PER_TURN"), (broker_module, "_TENDED_PER_TURN")):
        monkeypatch.setattr(*bound, 2)
    turn = 0
    done: dict[str, Counter[int]] = {}
    ours: asyncio.Task[None] | None = None

    async def count() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def counted(kind: Any, name: str) -> None:
        whole: Callable[..., Any] = getattr(kind, name)

        def counting(*arguments: Any) -> Any:
            if asyncio.current_task() is ours:  # the broker has passes of its own
                done.setdefault(name, Counter()).update([turn])
            return whole(*arguments)

        monkeypatch.setattr(kind, name, counting)

    counted(Segment, "adopt")
    counted(Segment, "tend")
    counted(type(process.broker), "topic_seen")
    counting, ours = asyncio.create_task(count()), asyncio.create_task(process.broker.reconcile())
    await ours
    counting.cancel()
    assert {name: turns.total() for name, turns in done.items()} == {"adopt": 32, "tend": 32, "topic_seen": 4}
    assert all(max(turns.values()) <= 2 for turns in done.values()), done
    assert len(segments) == 32


async def test_a_reconcile_goes_on_with_what_the_store_refused(process: BrokerProcess, world: World) -> None:
    """The next one does what this one could not, and segments are tended whether or not the store answers."""
    (segment,) = await topics(process, 1)
    txn_id = await world.begin()
    await publish(segment, "x", txn_id)
    world.store.dropping = True
    await world.commit(txn_id)
    tended = asyncio.Event()

    async def tend() -> None:
        tended.set()

    segment.on_tend = tend
    world.store.away = StoreUnavailable("away")
    await process.broker.reconcile()
    await tended.wait()
    assert isinstance(txn_id, TxnId) and segment.buffer.undecided()
    world.store.away = None
    await process.broker.reconcile()
    assert not segment.buffer.undecided()
