"""Goal: consumers share a subscription by key: the messages of a key are at one of them at a time, in their order, and
what others wait for is named.

Method: as in `test_individual_acks`. A random story in which everything happens is judged by a model (`by_key.Model`).
DESIGN §5.10.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from urllib.parse import quote

import pytest

from metastore.txn import paths
from metatxn.wire.ids import TxnId
from participants.subscription import keyed_deliveries
from participants.subscription.assignment import POINTS, assignment
from tests.extent import usually
from tests.participants.segment.faulty_store import Fault, puts
from tests.participants.subscription.by_key import Model, key_of, put
from tests.participants.subscription.consuming import Consuming
from tests.simulation.memory import transactions_in


async def blocking(consuming: Consuming) -> tuple[str | None, str | None] | None:
    """The consumer and the transaction that others wait for."""
    found = (await consuming.shown())["blocking"]
    return None if found is None else (found["consumer"], found["txn_id"])


def test_only_the_ranges_of_who_comes_or_goes_change_their_consumer() -> None:
    keys = range(0, 65536, 7)
    before, after = assignment((1, 2, 3)), assignment((1, 2, 3, 4))
    moved = {key for key in keys if before.consumer_of(key) != after.consumer_of(key)}
    assert {after.consumer_of(key) for key in moved} == {4}
    assert len(keys) / 8 < len(moved) < len(keys) / 2
    assert len(set(after.points)) == len(after.points) > 3 * POINTS
    assert assignment(()).consumer_of(0) is None
    assert {assignment((9,)).consumer_of(key) for key in keys} == {9}


async def test_consumers_get_different_keys_and_each_gets_its_own_in_order(consuming: Consuming) -> None:
    await consuming.subscribe(kind="key_shared")
    for number in range(4):
        await put(consuming, *((f"k{key}", number) for key in range(40)))
    found = {}
    for consumer in ("a", "b", "c"):
        await consuming.receive(consumer=consumer, limit=0)
    for consumer in ("a", "b", "c"):
        found[consumer] = await consuming.receive(consumer=consumer)
    keys = {consumer: {each["key"] for each in messages} for consumer, messages in found.items()}
    assert all(keys.values()) and sum(map(len, keys.values())) == 40, "each key is at one of them"
    for messages in found.values():
        for key in {each["key"] for each in messages}:
            assert [each["value"] for each in messages if each["key"] == key] == [0, 1, 2, 3]
    assert (await consuming.shown())["unacked"] == 160


async def test_a_key_stays_where_it_is_until_its_messages_are_acknowledged(consuming: Consuming) -> None:
    """A new consumer is due for it, and waits; it is named for whom."""
    await consuming.subscribe(kind="key_shared")
    key = key_of(2, (1, 2))
    ids = await put(consuming, (key, 0), (key, 1))
    assert await consuming.values(consumer="old") == [0, 1]
    ids += await put(consuming, (key, 2))
    waiting = asyncio.create_task(consuming.values(consumer="new", wait_ms=60_000))
    while (shown := await blocking(consuming)) is None:
        await asyncio.sleep(0)
    assert shown == ("old", None)
    assert await consuming.values(consumer="old") == [], "the key is to leave it"
    await consuming.acked(ids[:1])
    assert not waiting.done()
    await consuming.acked(ids[1:2])
    async with asyncio.timeout(20):  # and not when the request ends
        assert await waiting == [2]
    assert await blocking(consuming) is None


async def test_what_is_acknowledged_in_an_open_transaction_holds_its_key_also_when_the_segment_is_opened_again(
    consuming: Consuming,
) -> None:
    await consuming.subscribe(kind="key_shared")
    ids = [(await put(consuming, each))[0] for each in (("k", 0), ("k", 1), ("other", 2))]
    txn = await consuming.world.begin()
    assert await consuming.values(consumer="a", limit=2) == [0, 1]
    await consuming.acked(ids[1:2], txn)
    await consuming.asked("DELETE", "/subscriptions/s/consumers/a")
    for _ in range(2):
        assert await consuming.values(consumer="b") == [2]
        assert await blocking(consuming) == (None, str(txn))
        await consuming.crash()
    await consuming.receive(consumer="b", limit=0)
    waiting = asyncio.create_task(consuming.values(consumer="c", wait_ms=60_000))
    await consuming.abort(txn)
    found = [*await waiting, *await consuming.values(consumer="b"), *await consuming.values(consumer="c")]
    assert sorted(found) == [0, 1, 2] and found.index(0) < found.index(1)


@pytest.mark.parametrize("commits", [True, False])
async def test_a_transaction_that_held_keys_is_forgotten_though_nobody_asks_for_messages(
    consuming: Consuming, commits: bool
) -> None:
    """Found by the simulation."""
    await consuming.subscribe(kind="key_shared")
    ids = await put(consuming, ("k", 0))
    txn = await consuming.world.begin()
    assert await consuming.values() == [0]
    await consuming.acked(ids, txn)
    await consuming.crash()
    assert await consuming.values() == []
    assert transactions_in(consuming.process.broker, [str(txn)])
    await (consuming.commit if commits else consuming.abort)(txn)
    found = transactions_in(consuming.process.broker, [str(txn)])
    assert not [place for place in found if "attached" in place]


async def test_what_returns_takes_the_later_ones_of_its_key_along(consuming: Consuming) -> None:
    """They are named, count as not returned themselves, and can be acknowledged in transactions only once they were
    delivered again."""
    await consuming.subscribe(kind="key_shared", dead_letter_topic="dead", max_redeliveries=1)
    ids = await put(consuming, ("k", 0), ("k", 1), ("other", 2), ("k", 3))
    for values in ([0, 1, 2, 3], [0, 1, 3]):
        assert await consuming.values() == values
        answer = await consuming.asked("POST", "/subscriptions/s/redeliver", {"message_ids": ids[:1]})
        assert answer == {"redelivered": 3, "withdrawn": [ids[1], ids[3]]}
        refused = await consuming.ack(ids[1:2], await consuming.world.begin(), for_all=False)
        assert refused.json()["never_given"] and refused.status_code == 409
    await consuming.idle()
    again = await consuming.receive()
    assert [(each["value"], each["redelivery_count"]) for each in again] == [(1, 2), (3, 2)], "0 is a dead letter"
    await consuming.acked(ids[1:])
    assert (await consuming.shown())["backlog"] == 0


async def test_a_child_waits_until_the_acknowledgements_of_its_parent_are_durable(consuming: Consuming) -> None:
    """Its broker may live longer than that of the parent, which would then be delivered again."""
    await consuming.subscribe(kind="key_shared")
    ids = await put(consuming, ("k", 0))
    assert await consuming.values() == [0]
    path = f"/v1/segments/{quote(consuming.segments[0], safe='')}/split"
    assert (await consuming.process.http.post(path, json={})).status_code == 200
    await put(consuming, ("k", 1))
    held = consuming.world.store.fault(Fault(puts(paths.CURSORS), hold_before=True))
    acknowledging = asyncio.create_task(consuming.acked(ids))
    await held.reached.wait()
    receiving = asyncio.create_task(consuming.values())
    for _ in range(300):
        await asyncio.sleep(0)
    assert not receiving.done()
    held.go.set()
    await acknowledging
    assert await receiving == [1]


@pytest.mark.parametrize("asks", ["to redeliver", "to acknowledge"])
async def test_an_abort_of_which_the_broker_has_not_heard_lets_no_later_message_pass(
    consuming: Consuming, asks: str
) -> None:
    """Found by the simulation: the second message was committed before the first one came again."""
    await consuming.subscribe(kind="key_shared")
    ids = await put(consuming, ("k", 0), ("k", 1))
    txn, later = await consuming.world.begin(), await consuming.world.begin()
    assert await consuming.values() == [0, 1]
    await consuming.acked(ids[:1], txn, for_all=False)
    consuming.world.store.events_flow.clear()
    await consuming.world.abort(txn)
    if asks == "to redeliver":
        assert await consuming.redeliver(ids) == 0, "both have returned with the abort"
    else:
        assert (await consuming.ack(ids[1:], later, for_all=False)).json()["never_given"]
    assert await consuming.values() == [0, 1]
    await consuming.acked(ids, later, for_all=False)
    consuming.world.store.events_flow.set()


async def test_cumulative_acknowledgements_are_refused_as_on_a_shared_one(consuming: Consuming) -> None:
    await consuming.subscribe(kind="key_shared")
    ids = await put(consuming, ("k", 0), ("k", 1))
    await consuming.receive()
    for txn in (None, await consuming.world.begin()):
        answer = await consuming.ack(ids[1:], txn, kind="cumulative", for_all=False)
        assert (answer.status_code, answer.json()["field"]) == (422, "kind")
    assert (await consuming.shown())["unacked"] == 2


async def test_messages_without_a_key_follow_each_other_within_their_entry_only(consuming: Consuming) -> None:
    await consuming.subscribe(kind="key_shared")
    for consumer in ("a", "b"):
        await consuming.receive(consumer=consumer, limit=0)
    for number in range(20):
        await put(consuming, (None, (number, 0)), (None, (number, 1)))
    found = {consumer: await consuming.values(consumer=consumer) for consumer in ("a", "b")}
    entries = {consumer: {number for number, _ in values} for consumer, values in found.items()}
    assert all(entries.values()) and not entries["a"] & entries["b"]
    for values in found.values():
        assert values == sorted(values)


async def test_no_more_is_read_ahead_than_the_bound_allows_and_what_fills_it_is_named(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed_deliveries, "LOOK_AHEAD", 3)
    await consuming.subscribe(kind="key_shared")
    slow, quick = key_of(1, (1, 2)), key_of(2, (1, 2))
    await consuming.receive(consumer="slow", limit=0)
    ids = await put(consuming, *((slow, number) for number in range(5)), (quick, "behind"))
    assert await consuming.values(consumer="quick") == []
    shown = await consuming.shown()
    assert (shown["backlog"], shown["unacked"], shown["blocking"]["consumer"]) == (6, 0, "slow")
    waiting = asyncio.create_task(consuming.values(consumer="quick", wait_ms=60_000))
    assert await consuming.values(consumer="slow", limit=3) == [0, 1, 2]
    async with asyncio.timeout(20):
        assert await waiting == ["behind"]
    await consuming.acked(ids)
    assert await blocking(consuming) is None


@pytest.mark.parametrize("seed", range(usually(2, 30)))
async def test_whatever_happens_a_key_is_at_one_consumer_and_in_order(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)
    monkeypatch.setattr(keyed_deliveries, "LOOK_AHEAD", random.choice((1, 3, 2_000)))
    await consuming.subscribe(kind="key_shared")
    story = Story(consuming, random)
    for _ in range(120):
        await random.choice(story.steps)()
    await story.end()


class Story:
    """What may happen, and what the model says of it."""

    def __init__(self, consuming: Consuming, random: Random) -> None:
        self._consuming = consuming
        self._random = random
        self._model = Model()
        self._open: list[TxnId] = []
        self._number = 0
        self.steps: list[Callable[[], Awaitable[object]]] = [
            *(self._publish, self._publish, self._receive, self._receive, self._receive, self._receive),
            *(self._acknowledge, self._acknowledge, self._acknowledge, self._acknowledge_inside, self._decide),
            *(self._decide, self._return, self._leave, self._crash),
        ]

    async def _publish(self) -> None:
        keys = [f"k{self._random.randrange(6)}" for _ in range(self._random.randrange(1, 5))]
        ids = await put(self._consuming, *((key, self._number) for key in keys))
        for key, message_id in zip(keys, ids, strict=True):
            self._model.published(key, message_id)

    async def _receive(self, limit: int | None = None) -> int:
        consumer = self._random.choice("abcd")
        limit = limit or self._random.choice((1, 2, 5))
        messages = await self._consuming.receive(consumer=consumer, limit=limit)
        self._model.given(consumer, messages)
        return len(messages)

    def _some(self) -> list[str]:
        held = sorted(self._model.held)
        return self._random.sample(held, min(len(held), self._random.choice((1, 1, 3))))

    async def _acknowledge(self) -> None:
        if ids := self._some():
            await self._consuming.acked(ids, for_all=False)
            for message_id in ids:
                self._model.acknowledged(message_id)

    async def _acknowledge_inside(self) -> None:
        if ids := self._some():
            if not self._open or self._random.random() < 0.5:
                self._open.append(await self._consuming.world.begin())
            txn = self._random.choice(self._open)
            await self._consuming.acked(ids, txn, for_all=False)
            for message_id in ids:
                self._model.acknowledged(message_id, txn)

    async def _decide(self) -> None:
        if self._open:
            txn = self._open.pop(self._random.randrange(len(self._open)))
            commit = self._random.random() < 0.5
            await (self._consuming.commit(txn) if commit else self._consuming.abort(txn))
            self._model.decided(txn, commit=commit)

    async def _return(self) -> None:
        if ids := self._some():
            self._model.returned(ids)
            await self._consuming.redeliver(ids)

    async def _leave(self) -> None:
        consumer = self._random.choice("abcd")
        await self._consuming.asked("DELETE", f"/subscriptions/s/consumers/{consumer}")
        self._model.left(consumer)

    async def _crash(self) -> None:
        if self._random.random() < 0.4:
            await self._consuming.crash()
            self._model.opened_again()

    async def end(self) -> None:
        """Everything is delivered and acknowledged in the end, and nothing is blocked."""
        while self._open:
            await self._decide()
        left = len(self._model.key_of)
        while len(self._model.done) < left:
            await self._receive(1000)
            await self._acknowledge()
        assert (await self._consuming.shown())["backlog"] == 0
        assert await self._consuming.findings() == []
