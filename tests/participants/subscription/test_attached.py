"""Goal: a consumer that is connected to the owner of a segment gets what is due for it, and shares it with consumers of
the home as the type of the subscription says, no matter who comes, goes, and is slow.

Method: attached consumers directly at the segment of a broker, the home's consumers over REST. DESIGN §5.10.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from metastore.errors import StoreUnavailable
from metatxn.wire import errors
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from participants.messages.payloads import read_messages
from participants.segment.reading import Page
from participants.subscription.definitions import Definitions
from participants.subscription.isolated_view import IsolatedView
from participants.subscription.pending_acks import Ack
from participants.subscription.segment_subscription import AckRefused, SegmentSubscription
from participants.subscription.segment_subscriptions import subscriptions_of
from participants.subscription.share import LocalShare, WaitRequest
from participants.subscription.taking import Taker, TakingEntries
from tests.participants.segment.faulty_store import Fault, puts
from tests.participants.subscription.consuming import TOPIC, Consuming

MANY = 1 << 30


async def part_of(consuming: Consuming, name: str = "s", segment: str | None = None) -> SegmentSubscription:
    definition = await Definitions(consuming.world.store).get(TOPIC, name)
    return await subscriptions_of(await consuming.segment(segment)).get(definition)


async def taken(part: SegmentSubscription, number: int, limit: int = 1000, max_bytes: int = MANY) -> list[Any]:
    """The values that the attached consumer gets, with how often they were delivered before."""
    taking = TakingEntries(Taker(number, ()), limit, max_bytes)
    await part.dispatch.deliver(taking)
    return [
        (message.value, entry.times)
        for entry in taking.entries.values()
        for message in read_messages(part.segment.id, entry.frame, entry.indexes)
    ]


async def acknowledged(part: SegmentSubscription, *acks: Ack, txn_id: TxnId | None = None) -> None:
    await LocalShare({part.segment.id: part}).acknowledge_all([(part, list(acks))], txn_id)


async def test_it_gets_entries_whole_and_what_returns_first(consuming: Consuming) -> None:
    await consuming.subscribe()
    await consuming.publish(0, 1, 2)
    await consuming.publish(3, 4)
    await consuming.publish(5)
    part = await part_of(consuming)
    one, other = await part.attached.attach("one"), await part.attached.attach("other")
    assert await taken(part, one, limit=2) == [(0, 0), (1, 0), (2, 0)], "an entry is not cut"
    assert await taken(part, other, max_bytes=1) == [(3, 0), (4, 0)]
    assert await taken(part, one) == [(5, 0)] and await taken(part, one) == []
    await part.attached.detach(one)
    assert await taken(part, one) == [], "it is gone"
    assert await taken(part, other) == [(0, 1), (1, 1), (2, 1), (5, 1)]
    shown = await consuming.shown()
    assert shown["attached"] == {"other": 6} and shown["held"] == {}
    assert (await consuming.asked("GET", "/subscriptions/s"))["consumers"] == ["other"]


async def test_consumers_of_the_home_share_with_it(consuming: Consuming) -> None:
    await consuming.subscribe()
    await consuming.publish_each(*range(4))
    part = await part_of(consuming)
    number = await part.attached.attach("attached")
    assert await taken(part, number, limit=2) == [(0, 0), (1, 0)]
    assert await consuming.values(consumer="a") == [2, 3]
    await consuming.asked("DELETE", "/subscriptions/s/consumers/a")
    assert await consuming.values(consumer="b", limit=1) == [2], "the home takes nothing from an attached consumer"
    assert await taken(part, number) == [(3, 1)]
    await part.attached.detach(number)
    await part.attached.detach(number)
    assert await consuming.values(consumer="b") == [0, 1, 3]


async def test_another_home_takes_nothing_from_it(consuming: Consuming) -> None:
    await consuming.subscribe()
    await consuming.publish_each(0, 1)
    part = await part_of(consuming)
    number = await part.attached.attach("attached")
    assert await taken(part, number, limit=1) == [(0, 0)]
    assert await consuming.values(limit=0) == []
    part.dispatch.serve(part.dispatch._home._replace(generation=99), [], 7)
    assert await taken(part, number) == [(1, 0)] and part.deliveries.number_held(number) == 2


async def test_one_at_a_time_it_has_the_segment_alone(consuming: Consuming) -> None:
    await consuming.subscribe(kind="failover")
    await consuming.publish_each(*range(3))
    assert await consuming.values(consumer="a", limit=2) == [0, 1]
    part = await part_of(consuming)
    number = await part.attached.attach("first")
    with pytest.raises(errors.AlreadyExists, match="first"):
        await part.attached.attach("second")
    assert await consuming.values(consumer="a") == []
    assert await taken(part, number) == [(0, 1), (1, 1), (2, 0)], "what the home's consumer had has returned, in order"
    waiting = asyncio.create_task(consuming.values(consumer="a", wait_ms=60_000))
    await asyncio.sleep(0)
    await acknowledged(part, Ack(Position(1, 0), cumulative=True))
    await part.attached.detach(number)
    assert await waiting == [1, 2]
    assert await part.attached.attach("second")


@pytest.mark.parametrize("kind", ["exclusive", "key_shared"])
async def test_a_subscription_that_only_the_home_can_deliver_refuses_it(consuming: Consuming, kind: str) -> None:
    await consuming.subscribe(kind=kind)
    with pytest.raises(errors.InvalidArgument, match=kind):
        await (await part_of(consuming)).attached.attach("a")


async def test_what_is_under_way_to_a_consumer_of_the_home_returns_when_it_is_attached(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The home has asked, and the entry is still being read."""
    await consuming.subscribe(kind="failover")
    await consuming.publish_each(0, 1)
    part = await part_of(consuming)
    read_on = asyncio.Event()
    monkeypatch.setattr(IsolatedView, "page", slow(read_on))
    receiving = asyncio.create_task(consuming.values(consumer="a"))
    while not part.dispatch.reading.locked():
        await asyncio.sleep(0)
    attaching = asyncio.create_task(part.attached.attach("attached"))
    await asyncio.sleep(0)
    read_on.set()
    await receiving
    assert await taken(part, await attaching) == [(0, 1), (1, 1)]


async def test_what_is_under_way_to_one_that_goes_returns(
    consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    await consuming.subscribe()
    await consuming.publish_each(0, 1)
    part = await part_of(consuming)
    number, other = await part.attached.attach("a"), await part.attached.attach("b")
    read_on = asyncio.Event()
    monkeypatch.setattr(IsolatedView, "page", slow(read_on))
    taking = asyncio.create_task(taken(part, number))
    while not part.dispatch.reading.locked():
        await asyncio.sleep(0)
    detaching = asyncio.create_task(part.attached.detach(number))
    await asyncio.sleep(0)
    read_on.set()
    await asyncio.gather(taking, detaching)
    assert [value for value, _ in await taken(part, other)] == [0, 1]


def slow(read_on: asyncio.Event) -> Callable[..., Awaitable[Page]]:
    page = IsolatedView.page

    async def late(view: IsolatedView, after: Position, max_bytes: int) -> Page:
        await read_on.wait()
        return await page(view, after, max_bytes)

    return late


async def test_only_its_own_messages_are_given_back(consuming: Consuming) -> None:
    await consuming.subscribe()
    await consuming.publish_each(*range(4))
    part = await part_of(consuming)
    one, other = await part.attached.attach("one"), await part.attached.attach("other")
    assert await taken(part, one, limit=2) == [(0, 0), (1, 0)]
    assert await taken(part, other) == [(2, 0), (3, 0)]
    assert part.dispatch.redeliver([(Position(1, 0), 0), (Position(1, 2), 0)], one).count == 1
    assert await taken(part, other) == [(0, 1)]
    assert part.dispatch.redeliver(None, other).count == 3
    assert await taken(part, one) == [(0, 2), (2, 1), (3, 1)]


async def test_what_it_acknowledges_in_a_transaction_returns_when_that_aborts(consuming: Consuming) -> None:
    await consuming.subscribe(kind="failover")
    await consuming.publish_each(*range(3))
    part = await part_of(consuming)
    number = await part.attached.attach("a")
    assert len(await taken(part, number)) == 3
    txn_id, other = await consuming.world.begin(), await consuming.world.begin()
    await acknowledged(part, Ack(Position(1, 1), cumulative=True), txn_id=txn_id)
    with pytest.raises(AckRefused):
        await acknowledged(part, Ack(Position(1, 0)), txn_id=other)
    waiting = asyncio.ensure_future(part.segment.changed.wait())
    await consuming.abort(txn_id)
    await waiting
    assert await taken(part, number) == [(0, 1), (1, 1)]
    again = await consuming.world.begin()
    await acknowledged(part, Ack(Position(1, 2), cumulative=True), txn_id=again)
    await part.attached.detach(number)
    number = await part.attached.attach("b")
    assert await taken(part, number) == [], "what is acknowledged in an open transaction is not delivered"
    await consuming.commit(again)
    assert (await consuming.shown())["backlog"] == 0 and not await consuming.findings()


async def test_what_is_acknowledged_is_known_to_the_next_owner(consuming: Consuming) -> None:
    await consuming.subscribe()
    await consuming.publish_each(0, 1)
    part = await part_of(consuming)
    assert len(await taken(part, await part.attached.attach("a"))) == 2
    await acknowledged(part, Ack(Position(1, 0)))
    await consuming.crash()
    part = await part_of(consuming)
    assert [value for value, _ in await taken(part, await part.attached.attach("a"))] == [1]


async def test_a_home_is_not_told_of_messages_that_only_an_attached_consumer_may_have(consuming: Consuming) -> None:
    """Where one consumer at a time gets the messages of a segment: it would ask for them again and again."""
    await consuming.subscribe(kind="failover")
    await consuming.publish(0)
    part = await part_of(consuming)
    number = await part.attached.attach("a")
    waiting = asyncio.create_task(LocalShare({part.segment.id: part}).wait(WaitRequest((part.segment.id,)), 60))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not waiting.done()
    await part.attached.detach(number)
    await waiting
    assert await consuming.values() == [0]


async def test_an_acknowledgement_that_is_not_stored_is_not_confirmed(consuming: Consuming) -> None:
    await consuming.subscribe()
    await consuming.publish(0)
    part = await part_of(consuming)
    await taken(part, await part.attached.attach("a"))
    consuming.world.store.fault(Fault(puts("/cursor/"), before=StoreUnavailable("away")))
    with pytest.raises(errors.OutcomeUnknown):
        await acknowledged(part, Ack(Position(1, 0)))
