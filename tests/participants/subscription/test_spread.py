"""Goal: a subscription is one, wherever the segments of its topic are served: anyone who consumes at any broker gets
the messages of all segments, exclusive, failover and order hold for the whole topic, and nothing is left behind.

Method: three brokers in-process that share an object store; requests go to each one in turn. A frozen broker keeps
running without its announcement and without events. Scenarios 47-52, 54-56, 62, 63, 80, 82, 85; DESIGN §5.2, 5.7, 5.10.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from metastore.txn import paths
from metastore.types import Record
from metatxn.wire.broker import MAX_NAME, hash_of_key
from metatxn.wire.names import MessageId
from participants.subscription import dispatch
from participants.subscription.definitions import Definitions
from participants.subscription.home import Home
from participants.subscription.places import Start
from participants.subscription.segment_subscriptions import subscriptions_of
from participants.topic import subscription
from tests.over_httpx import OverHttpx
from tests.participants.broker.process import BrokerProcess
from tests.participants.broker.shared import SharedBroker
from tests.participants.devices import new_device, only
from tests.participants.segment.world import World
from tests.participants.subscription.consuming import TOPIC, SetClock
from tests.participants.subscription.spreading import Spreading

device = only("objects", "Local files are those of one broker; here several have the same ledgers.")

VALUES = range(60)


@pytest.fixture
async def spreading(world: World) -> AsyncIterator[Spreading]:
    spreading = await Spreading.begin(world)
    yield spreading
    await spreading.stop()


def owner_of(spreading: Spreading, message_id: str) -> SharedBroker:
    segment = MessageId.parse(message_id).segment
    return next(broker for broker in spreading.brokers if segment in broker.broker.served)


async def serving(spreading: Spreading, segment: str) -> SharedBroker:
    """Who serves it, once somebody does."""
    while True:
        for broker in spreading.brokers:
            if segment in broker.broker.served:
                return broker
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("kind", ["shared", "key_shared", "failover", "exclusive"])
async def test_one_consumer_gets_and_acknowledges_what_lies_at_every_broker(spreading: Spreading, kind: str) -> None:
    """Scenarios 47-49, 54, 55, over brokers."""
    await spreading.subscribe(kind=kind)
    ids = await spreading.publish_keys(*VALUES)
    assert len({owner_of(spreading, each).url for each in ids.values()}) == 3, "or this test shows nothing"
    assert await spreading.all_values() == list(VALUES)
    assert await spreading.counts() == (60, 60, {})
    txn, other = await spreading.world.begin(), await spreading.world.begin()
    await spreading.acked([ids[value] for value in range(40)], txn)
    assert await spreading.counts() == (60, 20, {str(txn): 40})
    assert await spreading.conflicts([ids[0], ids[1]], other), "scenario 50"
    assert await spreading.redeliver() == 20 and await spreading.all_values() == list(range(40, 60))
    await spreading.abort(txn)
    assert await spreading.counts() == (60, 60, {})
    assert await spreading.all_values() == list(range(40))
    again = await spreading.world.begin()
    await spreading.acked([ids[value] for value in range(30)], again)
    await spreading.acked([ids[value] for value in range(30, 59)])
    await spreading.commit(again)
    assert await spreading.counts() == (1, 1, {})
    assert await spreading.redeliver(list(ids.values())) == 1
    (last,) = await spreading.receive()
    assert (last["value"], last["redelivery_count"]) == (59, 2)
    await spreading.commit(other)
    assert await spreading.counts() == (1, 1, {}), "what lost a conflict leaves nothing where it lost"


async def test_another_subscription_and_latest_are_not_concerned(spreading: Spreading) -> None:
    """Scenario 52; `latest` begins behind what can be seen, at every broker."""
    old = await spreading.publish_keys(*VALUES)
    for name, initial in (("a", "earliest"), ("b", "earliest"), ("late", "latest")):
        await spreading.subscribe(name, initial=initial)
    new = await spreading.publish_keys(*range(100, 130))
    await spreading.acked(list(old.values()), name="a")
    assert await spreading.all_values("a") == list(range(100, 130))
    assert await spreading.all_values("b") == [*VALUES, *range(100, 130)]
    assert await spreading.all_values("late") == list(range(100, 130))
    assert await spreading.counts("late") == (len(new), len(new), {})


async def test_exclusive_and_failover_hold_for_the_whole_topic(spreading: Spreading) -> None:
    """Whichever brokers the consumers ask."""
    await spreading.publish_keys(*VALUES)
    await spreading.subscribe("one", kind="exclusive")
    await spreading.subscribe("next", kind="failover")
    for name in ("one", "next"):
        assert len(await spreading.receive(name, "a", limit=20)) == 20
    for broker in spreading.brokers:
        answer = await spreading.ask("POST", "/subscriptions/one/receive", {"consumer": "b"}, at=broker)
        assert (answer.status_code, answer.json()["consumer"]) == (409, "a")
        answer = await spreading.ask("POST", "/subscriptions/next/receive", {"consumer": "b"}, at=broker)
        assert answer.json()["messages"] == []
        answer = await spreading.ask("GET", "/subscriptions/next", at=broker)
        assert answer.json()["consumers"] == ["a", "b"]
    waiting = asyncio.create_task(spreading.receive("next", "b", wait_ms=60_000))
    await asyncio.sleep(0)
    for name in ("one", "next"):
        await spreading.asked("DELETE", f"/subscriptions/{name}/consumers/a")
    assert await waiting != []
    rest = [*(await waiting), *(await spreading.receive("next", "b"))]
    assert sorted(each["value"] for each in rest) == list(VALUES), "what a held returns from everywhere"
    assert await spreading.all_values("one", "b") == list(VALUES)


async def test_shared_consumers_never_get_the_same_message_and_what_one_held_goes_to_the_other(
    spreading: Spreading,
) -> None:
    await spreading.subscribe()
    await spreading.publish_keys(*VALUES)
    parts = await asyncio.gather(*(spreading.values(consumer=str(number), limit=7) for number in range(15)))
    assert sorted(value for part in parts for value in part) == list(VALUES)
    for number in range(15):
        await spreading.asked("DELETE", f"/subscriptions/s/consumers/{number}")
    assert await spreading.all_values(consumer="0") == list(VALUES), "the same name, another consumer"


async def test_a_long_poll_hears_of_messages_and_of_returned_ones_at_other_brokers(spreading: Spreading) -> None:
    await spreading.subscribe()
    for number, broker in enumerate(spreading.elsewhere()):
        waiting = asyncio.create_task(spreading.receive(wait_ms=60_000))
        path = f"/v1/segments/{quote(next(iter(broker.broker.served)), safe='')}/entries"
        headers = {"Content-Type": "application/vnd.metatxn.messages+json"}
        answer = await broker.http.post(path, content=b'[{"value": %d}]' % number, headers=headers)
        assert answer.status_code == 200, answer.text
        (message,) = await waiting
        assert message["value"] == number
        waiting = asyncio.create_task(spreading.receive(wait_ms=60_000))
        assert await spreading.redeliver([message["message_id"]]) == 1
        assert (await waiting)[0]["redelivery_count"] == 1


async def test_cumulative_acknowledgements_concern_their_segment_at_its_broker(spreading: Spreading) -> None:
    """Scenarios 62, 63."""
    await spreading.subscribe(kind="failover")
    ids = await spreading.publish_keys(*VALUES)
    last: dict[str, str] = {}
    for message in await spreading.receive():
        last[MessageId.parse(message["message_id"]).segment] = message["message_id"]
    one, two = await spreading.world.begin(), await spreading.world.begin()
    for message_id in last.values():
        await spreading.acked([message_id], one, kind="cumulative")
        assert await spreading.conflicts([message_id], two, kind="cumulative")
    assert await spreading.counts() == (60, 0, {str(one): 60})
    await spreading.abort(one)
    assert await spreading.all_values() == list(VALUES)
    for message_id in last.values():
        await spreading.acked([message_id], two, kind="cumulative")
    await spreading.commit(two)
    assert await spreading.counts() == (0, 0, {})
    assert await spreading.redeliver(list(ids.values())) == 0


async def test_a_childs_messages_wait_for_what_its_parent_still_holds_back(spreading: Spreading) -> None:
    """Where order is promised. Parent and children are at different brokers; the parent's last messages are undecided
    when the children have some already."""
    await spreading.subscribe("ordered", kind="failover")
    parent = spreading.segments[0]
    txn = await spreading.world.begin()
    path = f"/v1/segments/{quote(parent, safe='')}"
    headers = {"Content-Type": "application/vnd.metatxn.messages+json"}

    async def put(segment: str, value: object, **params: str) -> None:
        broker = next(each for each in spreading.brokers if segment in each.broker.served)
        url = f"/v1/segments/{quote(segment, safe='')}/entries"
        content = b'[{"value": "%s"}]' % str(value).encode()
        answer = await broker.http.post(url, params=params, content=content, headers=headers)
        assert answer.status_code == 200, answer.text

    await put(parent, "first")
    await put(parent, "held back", txn_id=str(txn))
    answer = await spreading.home.http.post(f"{path}/split", json={})
    assert answer.status_code == 200, answer.text
    children = answer.json()["children"]
    spreading.segments += children
    await spreading.settled()
    for child in children:
        await put(child, "later")
    assert await spreading.values("ordered") == ["first"]
    waiting = asyncio.create_task(spreading.values("ordered", wait_ms=60_000))
    await spreading.world.commit(txn)
    found = await waiting
    while len(found) < 3:
        found += await spreading.values("ordered", wait_ms=60_000)
    assert found == ["held back", "later", "later"]


async def test_the_next_messages_of_a_key_wait_until_the_segments_before_are_acknowledged(
    spreading: Spreading,
) -> None:
    """By key, behind a split and a merge. Anyone who acknowledges tells only the owner of the segment."""
    await spreading.subscribe(kind="key_shared")
    await spreading.receive(consumer="a", limit=0)
    segment, sent = spreading.segments[-1], count()
    key = next(key for key in map(str, count()) if takes(segment, key))

    async def put() -> str:
        body = {"messages": [{"key": key, "value": next(sent)}]}
        return str((await spreading.asked("POST", "/messages", body))["message_ids"][0])

    async def follows(layout: str, body: object) -> None:
        """A message behind a change of the layout comes only when what is before it is acknowledged."""
        first, txn = await put(), await spreading.world.begin()
        assert len(await spreading.receive(consumer="a")) == 1
        await spreading.acked([first], txn)
        owner = await serving(spreading, segment)
        answer = await owner.http.post(f"/v1/segments/{quote(segment, safe='')}/{layout}", json=body)
        assert answer.status_code == 200, answer.text
        spreading.segments += answer.json().get("children", [answer.json().get("child")])
        await spreading.settled()
        await put()
        waiting = [asyncio.create_task(spreading.receive(consumer=consumer, wait_ms=60_000)) for consumer in ("a", "b")]
        for _ in range(200):
            await asyncio.sleep(0)
        assert not any(each.done() for each in waiting)
        await spreading.world.commit(txn)
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        (message,) = done.pop().result()
        await spreading.acked([message["message_id"]])
        for each in waiting:
            each.cancel()

    await follows("split", {})
    segment, other = spreading.segments[-2:]
    if not takes(segment, key):
        segment, other = other, segment
    await follows("merge", {"with": other})
    assert next(sent) == 4 and await spreading.counts() == (0, 0, {})


async def test_what_another_broker_delivers_later_is_heard_of_though_its_segment_has_ended(
    spreading: Spreading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By key. Nobody asks for it again, until its time has come."""
    monkeypatch.setattr(dispatch, "LOOK_AT_CLOCK_S", 0.01)
    await spreading.subscribe(kind="key_shared")
    segment = next(iter(spreading.elsewhere()[0].broker.served))
    key = next(key for key in map(str, count()) if takes(segment, key))
    clock = SetClock(spreading)
    body = {"key": key, "value": "late", "deliver_at_ms": clock.ms + 3_600_000}
    await spreading.asked("POST", "/messages", {"messages": [body]})
    owner = await serving(spreading, segment)
    answer = await owner.http.post(f"/v1/segments/{quote(segment, safe='')}/split", json={})
    spreading.segments += answer.json()["children"]
    await spreading.settled()
    await spreading.asked("POST", "/messages", {"messages": [{"key": key, "value": "now"}]})
    assert await spreading.values(wait_ms=60_000) == ["now"]
    waiting = asyncio.create_task(spreading.values(wait_ms=60_000))
    for _ in range(200):
        await asyncio.sleep(0)
    clock.ms += 3_600_000
    async with asyncio.timeout(20):
        assert await waiting == ["late"]


def takes(segment: str, key: str) -> bool:
    """Whether the segment takes messages of this key."""
    low, high = (int(part, 16) for part in segment.rpartition("/")[2].split("-")[:2])
    return low <= hash_of_key(key) <= high


async def test_a_new_home_takes_every_key_from_the_consumers_of_the_one_before(spreading: Spreading) -> None:
    """By key: what is acknowledged in an open transaction holds its key at the shares that stay where they are, as well
    as at those that move."""
    await spreading.subscribe(kind="key_shared")
    ids = await spreading.publish_keys(*VALUES)
    assert await spreading.all_values(consumer="a") == list(VALUES)
    txn = await spreading.world.begin()
    await spreading.acked([ids[value] for value in range(20)], txn)
    old = spreading.home
    await old.freeze()
    spreading.brokers.remove(old)
    await spreading.settled()
    messages = [{"key": f"k{value}", "value": value + 100} for value in VALUES]
    await spreading.asked("POST", "/messages", {"messages": messages})
    expected = sorted([*range(20, 60), *range(120, 160)])
    assert await spreading.all_values(consumer="b") == expected, "of each key in order, of none that is pending"
    answer = await old.http.post("/v1/topics/t/subscriptions/s/receive", json={"consumer": "a"})
    assert answer.status_code in (307, 503)
    await spreading.abort(txn)
    assert await spreading.all_values(consumer="b") == [*range(20), *range(100, 120)]
    spreading.brokers.append(old)


async def test_an_empty_answer_tells_whether_others_have_what_is_left(spreading: Spreading) -> None:
    """Consumers, or open transactions, at any broker."""

    async def others_hold(consumer: str, name: str = "s") -> bool | None:
        body = {"consumer": consumer, "max": 1000, "wait_ms": 0}
        answer = await spreading.asked("POST", f"/subscriptions/{name}/receive", body)
        assert bool(answer["messages"]) == (answer["others_hold"] is None)
        return answer["others_hold"]  # type: ignore[no-any-return]

    await spreading.subscribe()
    assert await others_hold("a") is False
    segment = next(iter(spreading.elsewhere()[0].broker.served))
    key = next(key for key in map(str, count()) if takes(segment, key))
    body = {"messages": [{"key": key, "value": 0}]}
    (message_id,) = (await spreading.asked("POST", "/messages", body))["message_ids"]
    assert [await others_hold("a") for _ in range(2)] == [None, False], "it has it itself"
    assert await others_hold("b") is True
    txn = await spreading.world.begin()
    await spreading.acked([message_id], txn)
    await spreading.asked("DELETE", "/subscriptions/s/consumers/a")
    assert await others_hold("b") is True
    await spreading.commit(txn)
    assert await others_hold("b") is False
    await spreading.subscribe("next", kind="failover")
    assert await others_hold("a", "next") is None
    assert await others_hold("b", "next") is True


async def test_a_dead_home_is_succeeded_and_what_it_had_given_returns_once(spreading: Spreading) -> None:
    """Pending acknowledgements stay put, at segments that moved and at those that did not (80, 82)."""
    await spreading.subscribe(kind="exclusive")
    ids = await spreading.publish_keys(*VALUES)
    assert await spreading.all_values(consumer="a") == list(VALUES)
    opened, committed = await spreading.world.begin(), await spreading.world.begin()
    await spreading.acked([ids[value] for value in range(20)], opened)
    await spreading.acked([ids[value] for value in range(20, 40)], committed)
    await spreading.commit(committed)
    old = spreading.home
    alive = [broker for broker in spreading.brokers if broker is not old]
    await old.freeze()
    spreading.brokers.remove(old)
    await spreading.settled(*alive)
    backlog, _, pending = await spreading.counts()
    assert (backlog, pending) == (40, {str(opened): 20})
    assert await spreading.all_values(consumer="b") == list(range(40, 60))
    answer = await old.http.post("/v1/topics/t/subscriptions/s/receive", json={"consumer": "a"})
    assert answer.status_code in (307, 503), "a home that does not know that it is none any more gives nothing"
    await spreading.abort(opened)
    assert await spreading.all_values(consumer="b") == list(range(20))
    assert await spreading.counts() == (40, 40, {})
    spreading.brokers.append(old)


async def test_a_share_that_has_served_a_later_home_refuses_an_earlier_one(spreading: Spreading) -> None:
    """And believes nobody who says that he is a later one."""
    await spreading.subscribe()
    await spreading.publish_keys(*VALUES)
    process = spreading.home.broker
    process.served[spreading.segments[0]].lose("for the test")
    while spreading.segments[0] not in process.served or process.not_ready:
        await process._opened.wait()
    await spreading.receive(consumer="a")
    other = spreading.elsewhere()[0]
    segment = next(iter(other.broker.served))
    home = process.served[spreading.segments[0]].ownership.generation
    taking: dict[str, Any] = {
        "incarnation": 1,
        "session": 1,
        "sessions": [1],
        "newest": 1,
        "segments": [segment],
        "max": 1000,
        "max_bytes": 1 << 20,
    }
    for generation in (home - 1, home + 1):
        answer = await spreading.ask("POST", "/subscriptions/s/share/take", taking | {"home": generation}, at=other)
        assert (answer.status_code, answer.json()["code"]) == (503, "STORE_UNAVAILABLE")
    elsewhere = next(name for name in spreading.segments if name not in other.broker.served)
    for wrong in ({"segments": [elsewhere]}, {"incarnation": 2}):
        answer = await spreading.ask("POST", "/subscriptions/s/share/take", taking | {"home": home} | wrong, at=other)
        assert answer.status_code in (404, 503)
    backlog, unacked, _ = await spreading.counts()
    assert backlog == unacked == 60
    for own in process.served.values():
        (part,) = subscriptions_of(own)
        part.dispatch.serve(Home(0, home + 1), [], 0)  # a successor, of whom this home has not heard
    answer = await spreading.ask("POST", "/subscriptions/s/receive", {"consumer": "a"})
    assert answer.status_code == 503, "what returned is for the successor to give"


async def test_a_request_that_is_overtaken_takes_nothing_from_a_consumer_that_it_does_not_know(
    spreading: Spreading,
) -> None:
    """Of two requests of the home the later one arrives first, and is for a consumer that has just come."""
    await spreading.subscribe()
    await spreading.publish_keys(*VALUES)
    other = spreading.elsewhere()[0]
    home = spreading.home.broker.served[spreading.segments[0]].ownership.generation
    common = {"incarnation": 1, "home": home, "segments": list(other.broker.served), "max_bytes": 1 << 20}
    later = common | {"session": 2, "sessions": [1, 2], "newest": 2, "max": 5}
    earlier = common | {"session": 1, "sessions": [1], "newest": 1, "max": 1000}
    next_one = common | {"session": 1, "sessions": [1], "newest": 2, "max": 1000}
    taken = []
    for taking in (later, earlier, next_one):
        answer = await spreading.ask("POST", "/subscriptions/s/share/take", taking, at=other)
        assert answer.status_code == 200, answer.text
        taken.append({message["message_id"] for message in answer.json()["messages"]})
    assert taken[0] and not taken[0] & taken[1]
    assert taken[2] == taken[0], "the consumer is gone by now"


class Losses(httpx.AsyncBaseTransport):
    """On the ways from the home to other brokers: answers to `take` that carry messages are dropped, `after` this many
    of them have passed."""

    def __init__(self, brokers: Sequence[SharedBroker], after: int) -> None:
        self._ways = {httpx.URL(each.url).host: each.http._transport for each in brokers}
        self._left = after
        self.lost = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self._ways[request.url.host].handle_async_request(request)
        if request.url.path.endswith("/share/take"):
            await answer.aread()
            if found := len(answer.json()["messages"]):
                self._left -= 1
                if self._left < 0:
                    self.lost += found
                    raise httpx.ReadError("the connection broke", request=request)
        return answer


@pytest.mark.parametrize("after", [0, 1], ids=["nothing else was given", "something else was given"])
async def test_messages_in_an_answer_that_was_lost_between_brokers_come_again(spreading: Spreading, after: int) -> None:
    """The consumer is told, at the latest when it asks again: then it leaves, and everything returns."""
    await spreading.subscribe()
    await spreading.publish_keys(*VALUES)
    home = spreading.home
    losses = Losses(spreading.brokers, after)
    home.broker.peers = OverHttpx(losses)
    given, told = 0, False
    while not told:
        lost = losses.lost
        answer = await spreading.ask("POST", "/subscriptions/s/receive", {"consumer": "a", "max": 1000}, at=home)
        told = answer.status_code == 504
        given += 0 if told else len(answer.json()["messages"])
        assert told or not lost, "an answer was lost before, and this one says nothing of it"
    assert "redelivered" in answer.json()["action"]
    assert losses.lost and given + losses.lost <= 60
    home.can_reach(spreading.brokers)
    await spreading.asked("DELETE", "/subscriptions/s/consumers/a")
    assert await spreading.all_values(consumer="b") == list(VALUES)


class DropsOnTheWay(httpx.AsyncBaseTransport):
    """On the ways from the home to other brokers: the subscription is dropped just before the second `take` arrives."""

    def __init__(self, spreading: Spreading) -> None:
        self._spreading = spreading
        self._ways = {httpx.URL(each.url).host: each.http._transport for each in spreading.brokers}
        self.takes = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/share/take"):
            self.takes += 1
            if self.takes == 2:
                other = self._spreading.elsewhere()[0]
                await self._spreading.ask("DELETE", "/subscriptions/s", at=other)
        return await self._ways[request.url.host].handle_async_request(request)


async def test_messages_that_were_taken_before_a_drop_was_noticed_reach_their_consumer(spreading: Spreading) -> None:
    """And the next request is told of the drop."""
    await spreading.subscribe()
    for broker in spreading.elsewhere():
        segment = next(iter(broker.broker.served))
        key = next(key for key in map(str, count()) if takes(segment, key))
        await spreading.asked("POST", "/messages", {"messages": [{"key": key, "value": broker.url}]})
    home = spreading.home
    ways = DropsOnTheWay(spreading)
    home.broker.peers = OverHttpx(ways)
    body = {"consumer": "c", "max": 1000}
    answer = await spreading.ask("POST", "/subscriptions/s/receive", body, at=home)
    assert ways.takes == 2 and answer.status_code == 200, answer.text
    assert len(answer.json()["messages"]) == 1, "that of the broker that was asked first"
    answer = await spreading.ask("POST", "/subscriptions/s/receive", body, at=home)
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")


class RefusesToBeWaitedFor(httpx.AsyncBaseTransport):
    """On the ways to other brokers."""

    def __init__(self, brokers: Sequence[SharedBroker]) -> None:
        self._ways = {httpx.URL(each.url).host: each.http._transport for each in brokers}
        self.refused = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/share/wait"):
            self.refused += 1
            raise httpx.ConnectError("refused", request=request)
        return await self._ways[request.url.host].handle_async_request(request)


async def test_a_broker_that_refuses_to_be_waited_for_is_asked_again_after_a_while(
    spreading: Spreading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And holds back nobody who waits for the messages of others."""
    monkeypatch.setattr(subscription, "RETRY_S", 3_600)
    await spreading.subscribe()
    home = spreading.home
    ways = RefusesToBeWaitedFor(spreading.brokers)
    home.broker.peers = OverHttpx(ways)
    body = {"consumer": "c", "wait_ms": 60_000}
    waiting = asyncio.create_task(spreading.ask("POST", "/subscriptions/s/receive", body, at=home))
    while ways.refused < len(spreading.elsewhere()):
        await asyncio.sleep(0)
    for _ in range(200):
        await asyncio.sleep(0)
    assert ways.refused == len(spreading.elsewhere()) and not waiting.done()
    segment = next(iter(home.broker.served))
    key = next(key for key in map(str, count()) if takes(segment, key))
    await spreading.asked("POST", "/messages", {"messages": [{"key": key, "value": "here"}]})
    assert [message["value"] for message in (await waiting).json()["messages"]] == ["here"]


class LostAnswers(httpx.AsyncBaseTransport):
    """On the ways to other brokers: what is asked at paths that end with `path` is carried out, and its answer lost."""

    def __init__(self, brokers: Sequence[SharedBroker], path: str) -> None:
        self._ways = {httpx.URL(each.url).host: each.http._transport for each in brokers}
        self._path = path

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await self._ways[request.url.host].handle_async_request(request)
        if request.url.path.endswith(self._path):
            raise httpx.ReadError("the connection broke", request=request)
        return answer


@pytest.mark.parametrize("inside", [True, False], ids=["in a transaction", "outside"])
async def test_an_acknowledgement_whose_answer_was_lost_between_brokers_is_unknown(
    spreading: Spreading, inside: bool
) -> None:
    """It was carried out. A caller that is told otherwise commits its transaction without that message."""
    await spreading.subscribe()
    ids = await spreading.publish_keys(*VALUES)
    await spreading.receive()
    asked = spreading.elsewhere()[0]
    far = next(each for each in ids.values() if owner_of(spreading, each) is not asked)
    txn = await spreading.world.begin() if inside else None
    body = {"kind": "individual", "message_ids": [far]} | ({"txn_id": str(txn)} if txn else {})
    asked.broker.peers = OverHttpx(LostAnswers(spreading.brokers, "/share/acks"))
    answer = await spreading.ask("POST", "/subscriptions/s/acks", body, at=asked)
    assert (answer.status_code, answer.json()["code"], answer.json()["definite"]) == (504, "OUTCOME_UNKNOWN", False)
    assert "again" in answer.json()["action"]
    if txn is not None:
        await spreading.commit(txn)
    assert (await spreading.counts())[0] == 59, "it was acknowledged"


async def test_giving_back_whose_answer_was_lost_between_brokers_is_unknown(spreading: Spreading) -> None:
    await spreading.subscribe()
    ids = await spreading.publish_keys(*VALUES)
    await spreading.receive()
    asked = spreading.elsewhere()[0]
    far = next(each for each in ids.values() if owner_of(spreading, each) is not asked)
    asked.broker.peers = OverHttpx(LostAnswers(spreading.brokers, "/share/redeliver"))
    answer = await spreading.ask("POST", "/subscriptions/s/redeliver", {"message_ids": [far]}, at=asked)
    assert (answer.status_code, answer.json()["definite"]) == (504, False)
    assert len(await spreading.receive()) == 1, "it was given back"


async def test_50_a_conflict_at_one_broker_does_not_say_that_others_have_done_nothing(spreading: Spreading) -> None:
    """Anyone who believes so commits the transaction, and with it what the others have taken."""
    await spreading.subscribe()
    ids = await spreading.publish_keys(*VALUES)
    await spreading.receive()
    one, two = await spreading.world.begin(), await spreading.world.begin()
    taken = next(iter(ids.values()))
    others = [each for each in ids.values() if each != taken]
    here = next(each for each in others if owner_of(spreading, each) is owner_of(spreading, taken))
    far = next(each for each in others if owner_of(spreading, each) is not owner_of(spreading, taken))
    await spreading.acked([taken], one)
    for other, definite in ((here, True), (far, False)):
        answer = await spreading.ack([taken, other], two)
        assert (answer.json()["code"], answer.json()["definite"]) == ("TXN_CONFLICT", definite)
    assert (await spreading.counts())[2] == {str(one): 1, str(two): 1}, "the part of the other broker"


async def test_a_home_that_read_the_layout_before_a_split_and_hears_of_it_first_finds_the_children(
    spreading: Spreading,
) -> None:
    """The answer to its reading arrives behind the events of the children: it must not be what is remembered."""
    await spreading.subscribe()
    home, other = spreading.home, spreading.elsewhere()[0]
    topic = "public/default/t"
    home.broker.forget_topic(topic)
    held = home.store.hold_read(lambda keys: list(keys) == [paths.topic(topic)])
    receiving = asyncio.create_task(spreading.ask("POST", "/subscriptions/s/receive", {"consumer": "c"}, at=home))
    await held.reached.wait()
    parent = next(iter(other.broker.served))
    children = (await other.http.post(f"/v1/segments/{quote(parent, safe='')}/split", json={})).json()["children"]
    assert home.broker._placement is not None
    while any(home.broker._placement.owner(child) is None for child in children):
        await asyncio.sleep(0)
    owners = [await serving(spreading, child) for child in children]
    held.go.set()
    assert (await receiving).json()["messages"] == []
    for child, owner in zip(children, owners, strict=True):
        answer = await owner.http.post(
            f"/v1/segments/{quote(child, safe='')}/entries",
            content=b'[{"value": "in a child"}]',
            headers={"Content-Type": "application/vnd.metatxn.messages+json"},
        )
        assert answer.status_code == 200, answer.text
    assert await spreading.all_values() == ["in a child"] * 2


@pytest.mark.parametrize("verb", ["redeliver", "acks"])
async def test_a_broker_that_has_not_heard_of_a_split_takes_what_another_one_gave_of_the_children(
    spreading: Spreading, verb: str
) -> None:
    """It was refused for good, as no message of the topic."""
    await spreading.subscribe()
    topic = "public/default/t"
    before = await spreading.home.broker.topic(topic)
    splitting = spreading.elsewhere()[0]
    parent = next(iter(splitting.broker.served))
    split = await splitting.http.post(f"/v1/segments/{quote(parent, safe='')}/split", json={})
    spreading.segments += split.json()["children"]
    owners = await spreading.settled()
    ids = list((await spreading.publish_keys(*VALUES)).values())
    assert len(await spreading.receive()) == len(VALUES)
    asked = next(each for each in spreading.brokers if each not in [owners[new] for new in split.json()["children"]])
    asked.broker._topic_cache[topic] = before
    body = {"message_ids": ids} | ({"kind": "individual"} if verb == "acks" else {})
    answer = await spreading.ask("POST", f"/subscriptions/s/{verb}", body, at=asked)
    assert answer.status_code == 200, answer.text


async def test_one_broker_that_cannot_be_reached_keeps_the_messages_of_others_from_nobody(
    spreading: Spreading,
) -> None:
    await spreading.subscribe()
    ids = await spreading.publish_keys(*VALUES)
    home, gone = spreading.home, spreading.elsewhere()[0]
    there = [value for value in VALUES if owner_of(spreading, ids[value]) is gone]

    def refused(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    ways: dict[str, httpx.AsyncBaseTransport] = {each.url: each.http._transport for each in spreading.brokers}
    home.broker.peers = OverHttpx(mounts=ways | {gone.url: httpx.MockTransport(refused)})
    assert await spreading.all_values() == [value for value in VALUES if value not in there]
    answer = await spreading.ask("POST", "/subscriptions/s/receive", {"consumer": "c"})
    assert (answer.status_code, answer.json()["code"]) == (503, "STORE_UNAVAILABLE"), "nothing more is not the truth"
    txn = await spreading.world.begin()
    answer = await spreading.ask(
        "POST",
        "/subscriptions/s/acks",
        {"kind": "individual", "message_ids": list(ids.values()), "txn_id": str(txn), "for_all": True},
        at=home,
    )
    assert answer.json()["code"] == "OUTCOME_UNKNOWN", "others have taken their part"
    home.can_reach(spreading.brokers)
    await spreading.acked(list(ids.values()), txn)
    await spreading.commit(txn)
    assert await spreading.counts() == (0, 0, {})


async def test_85_a_dropped_subscription_leaves_no_trace_at_any_broker(spreading: Spreading) -> None:
    """With acknowledgements pending in an open transaction, and fragments in the cursors."""
    await spreading.subscribe()
    ids = await spreading.publish_keys(*VALUES)
    waiting = asyncio.create_task(spreading.ask("POST", "/subscriptions/s/receive", {"consumer": "w", "max": 1}))
    txn = await spreading.world.begin()
    await spreading.acked([ids[value] for value in range(0, 60, 3)], txn)
    await spreading.acked([ids[value] for value in range(1, 60, 3)])
    await waiting
    assert 0 < len(await spreading.world.operations(txn)) <= 20, "those that follow each other share one"
    await spreading.asked("DELETE", "/subscriptions/s")
    for prefix in (paths.CURSORS, paths.ACKS_INDEX, paths.OPS):
        assert await spreading.keys(prefix) == [], prefix
    for broker in spreading.brokers:
        answer = await spreading.ask("POST", "/subscriptions/s/receive", {"consumer": "c"}, at=broker)
        assert answer.status_code == 404
        for segment in broker.broker.served.values():
            assert list(subscriptions_of(segment)) == []
    await spreading.subscribe()
    assert await spreading.all_values() == list(VALUES)
    await spreading.commit(txn)
    assert await spreading.counts() == (60, 60, {})
    assert await spreading.findings() == []


async def test_who_did_not_hear_of_a_drop_finds_it_by_himself(spreading: Spreading) -> None:
    await spreading.subscribe()
    ids = await spreading.publish_keys(*VALUES)
    txn = await spreading.world.begin()
    await spreading.acked([ids[value] for value in range(0, 60, 2)], txn)
    await spreading.acked([ids[value] for value in range(1, 60, 2)])
    # Brokers are named at random, so one may have got a single segment, and that one nothing that was acknowledged.
    deaf = max(spreading.elsewhere(), key=lambda broker: len(broker.broker.served))
    asked = spreading.home
    asked.can_reach([broker for broker in spreading.brokers if broker is not deaf])
    answer = await spreading.ask("DELETE", "/subscriptions/s", at=asked)
    assert answer.status_code == 204
    assert await spreading.keys(paths.CURSORS) != []
    asked.can_reach(spreading.brokers)
    await deaf.broker.reconcile()
    for prefix in (paths.CURSORS, paths.ACKS_INDEX, paths.OPS):
        assert await spreading.keys(prefix) == [], prefix
    await spreading.subscribe()
    assert await spreading.all_values() == list(VALUES)


async def test_several_find_at_once_that_a_subscription_was_dropped(spreading: Spreading) -> None:
    """Found by the simulation, as a 500."""
    asked = spreading.elsewhere()[0]

    async def give_again() -> int:
        return (await spreading.ask("POST", "/subscriptions/s/redeliver", {}, at=asked)).status_code

    await spreading.subscribe()
    assert await give_again() == 200
    await spreading.asked("DELETE", "/subscriptions/s")
    reads = [asked.store.hold_read(lambda keys: keys[0].startswith(paths.TOPICS)) for _ in range(2)]
    answers = asyncio.gather(*(give_again() for _ in reads))
    for held in reads:
        await held.reached.wait()
    for held in reads:
        held.go.set()
    assert await answers == [404, 404]


@pytest.mark.parametrize("name", ["s", "s" * MAX_NAME], ids=["a short name", "the longest name"])
async def test_dead_letters_of_every_broker_arrive_once(spreading: Spreading, name: str) -> None:
    await spreading.subscribe(name, dead_letter_topic="dead", max_redeliveries=0)
    ids = await spreading.publish_keys(*VALUES)
    assert await spreading.all_values(name) == list(VALUES)
    assert await spreading.redeliver(name=name) == 60
    await spreading.idle()
    assert await spreading.counts(name) == (0, 0, {})
    browsed = await spreading._http.get(f"{spreading.home.url}/v1/topics/dead/messages?max=1000")
    letters = browsed.json()["messages"]
    assert sorted(letter["value"] for letter in letters) == list(VALUES)
    origins = {letter["properties"]["metatxn.origin-message-id"] for letter in letters}
    assert origins == set(ids.values())


async def test_with_local_files_any_broker_leads_to_the_one_that_has_the_topic(world: World, tmp_path: Path) -> None:
    """It has all segments of it, and is the home; the other one has nothing but the way there."""
    having = await BrokerProcess(world, new_device("local", tmp_path / "having"), url="http://having").start()
    other = await BrokerProcess(world, new_device("local", tmp_path / "other"), url="http://other").start()
    await having.create("t", segments=3)
    ways = {"http://having": having.http._transport}
    other.broker.peers = OverHttpx(mounts=ways)
    root = "/v1/topics/t/subscriptions/s"
    for method, path, body in (
        ("PUT", "", {"type": "exclusive", "initial": "earliest"}),
        ("GET", "", None),
        ("POST", "/receive", {"consumer": "c"}),
        ("DELETE", "/consumers/c", None),
    ):
        answer = await other.http.request(method, root + path, json=body)
        assert (answer.status_code, answer.headers["Location"]) == (307, f"http://having{root}{path}")
        assert (await having.http.request(method, root + path, json=body)).is_success
    messages = [{"key": str(number), "value": number} for number in range(10)]
    ids = (await having.http.post("/v1/topics/t/messages", json={"messages": messages})).json()["message_ids"]
    assert len((await having.http.post(f"{root}/receive", json={"consumer": "c"})).json()["messages"]) == 10
    assert (await other.http.post(f"{root}/redeliver", json={"message_ids": ids[:4]})).json() == {
        "redelivered": 4,
        "withdrawn": [],
    }
    acks = {"kind": "individual", "message_ids": ids[:7]}
    assert (await other.http.post(f"{root}/acks", json=acks)).json() == {"acknowledged": 7}
    shown = (await having.http.get(root)).json()["segments"]
    assert (sum(part["backlog"] for part in shown), sum(part["unacked"] for part in shown)) == (3, 3)
    assert (await other.http.delete(root)).status_code == 204
    assert (await having.http.get(root)).status_code == 404
    assert (await world.store.inner.scan(paths.CURSORS)).records == []
    await asyncio.gather(having.stop(), other.stop())


async def test_a_seek_moves_all_segments_at_once_whoever_serves_them(spreading: Spreading) -> None:
    await spreading.subscribe()
    ids = await spreading.publish_keys(*range(40))
    assert await spreading.all_values() == list(range(40))
    await spreading.acked([ids[value] for value in range(0, 40, 2)])
    await spreading.asked("POST", "/subscriptions/s/seek", {"to": "earliest"})
    assert await spreading.all_values(consumer="d") == list(range(40))
    assert await spreading.counts() == (40, 40, {})
    await spreading.acked(list(ids.values()))
    assert await spreading.counts() == (0, 0, {})


async def test_brokers_that_have_not_heard_of_a_seek_take_acknowledgements_after_it(spreading: Spreading) -> None:
    """They keep the earlier incarnation in memory until a request or a write tells them."""
    await spreading.subscribe()
    ids = await spreading.publish_keys(*range(40))
    await spreading.all_values()
    await spreading.asked("POST", "/subscriptions/s/seek", {"to": "earliest"})
    for number in range(0, 40, 4):
        some = [ids[each] for each in range(number, number + 4)]
        while (answer := await spreading.ack(some)).status_code != 200:
            assert answer.json()["code"] in ("STORE_UNAVAILABLE", "OUTCOME_UNKNOWN"), "a client sends it again"
    assert await spreading.counts() == (0, 0, {})


async def test_a_seek_whose_answer_was_lost_hides_no_subscription(spreading: Spreading, world: World) -> None:
    """The home and the other brokers keep the earlier incarnation in memory. What they find out in a request is no
    reason to say that there is no subscription: the request can be repeated."""
    await spreading.subscribe()
    ids = await spreading.publish_keys(*range(40))
    await spreading.all_values()
    topics, definitions = spreading.home.broker.topics, Definitions(world.store)

    async def stored() -> Record:
        return (await topics.get(TOPIC)).record

    async def start() -> Mapping[str, Start]:
        return {}

    async def values_in_the_end() -> list[int]:
        body = {"consumer": "c", "max": 1000, "wait_ms": 0}
        while (answer := await spreading.ask("POST", "/subscriptions/s/receive", body)).status_code != 200:
            assert answer.json()["code"] == "STORE_UNAVAILABLE", answer.text
        return [message["value"] for message in answer.json()["messages"]]

    for broken in range(0, 40, 4):  # each time another broker finds it out first
        await definitions.seek(TOPIC, "s", stored, start)
        assert (await spreading.ack([ids[broken]])).status_code in (200, 503)
        found = await values_in_the_end()
        while len(found) < 39:
            found += await values_in_the_end()
        assert sorted(found) in (list(range(40)), sorted({*range(40)} - {broken}))


async def test_a_time_is_found_at_every_broker(spreading: Spreading, world: World) -> None:
    await spreading.subscribe()
    await spreading.publish_keys(*range(20))
    between_ms = world.now_ms()
    await spreading.publish_keys(*range(20, 40))
    told = await spreading.asked("POST", "/subscriptions/s/seek/preview", {"at_ms": between_ms})
    assert [sum(each[name] for each in told["segments"]) for name in ("messages", "again", "skipped")] == [20, 0, 20]
    await spreading.asked("POST", "/subscriptions/s/seek", {"at_ms": between_ms})
    assert await spreading.all_values() == list(range(20, 40))


async def test_a_revision_is_one_cut_through_the_segments_of_every_broker(spreading: Spreading, world: World) -> None:
    await spreading.subscribe()
    first, second = await world.begin(), await world.begin()
    for start in range(0, 40, 10):
        await spreading.publish_keys(*range(start, start + 10), txn_id=(first, second)[start // 10 % 2])
    revision = await world.commit(first)
    await spreading.commit(second)
    place = {"revision": revision}
    told = await spreading.asked("POST", "/subscriptions/s/seek/preview", place)
    complete = False
    while not complete:
        part = await spreading.asked("POST", "/subscriptions/s/seek/preview", place | {"for_ms": 0})
        complete = part["complete"]
    assert part == told
    assert [sum(each[name] for each in told["segments"]) for name in ("messages", "again", "skipped")] == [20, 0, 20]
    await spreading.asked("POST", "/subscriptions/s/seek", {"revision": revision})
    assert await spreading.all_values() == [*range(10, 20), *range(30, 40)]
    await spreading.asked("POST", "/subscriptions/s/seek", {"revision": revision - 1})
    assert await spreading.all_values() == list(range(40))
