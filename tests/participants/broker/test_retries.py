"""Goal: messages that are published again under their producer and sequence are appended once and answered with the ids
of where they lie, no matter who is asked, whatever became of their segments meanwhile, and whatever part was there
already.

Method: several brokers in-process over one object store; segments are split and merged between a publish and its retry.
That only a part was carried out is brought about by an owner that cannot be reached for a moment. DESIGN §5.13.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from obstore.store import MemoryStore

from metastore.errors import StoreUnavailable
from metatxn.wire.batches import pack_batch, packed_message
from metatxn.wire.broker import BATCH_MEDIA_TYPE, MESSAGES_MEDIA_TYPE, hash_of_key
from metatxn.wire.names import MessageId
from tests.over_httpx import OverHttpx
from tests.participants.broker.shared import SharedBroker
from tests.participants.broker.stories import quoted
from tests.participants.broker.test_placement import create, spread
from tests.participants.devices import only
from tests.participants.segment.world import World

device = only("objects", "Local files are those of one broker; here several have the same ledgers.")

QUARTERS = ("f", "d", "a", "b")
"""Keys whose hashes lie in one quarter of the range each."""
assert [hash_of_key(key) >> 14 for key in QUARTERS] == [0, 1, 2, 3]


class Brokers:
    def __init__(self, started: list[SharedBroker]) -> None:
        self.started = started

    async def owner(self, segment: str) -> SharedBroker:
        while True:
            for broker in self.started:
                if segment in broker.broker.served and not broker.broker.served[segment].lost:
                    return broker
            await asyncio.sleep(0.001)

    async def stranger(self, *segments: str) -> SharedBroker:
        """One that owns none of them."""
        owners = [await self.owner(segment) for segment in segments]
        return next(broker for broker in self.started if broker not in owners)

    async def change(self, segment: str, verb: str, **body: Any) -> list[str]:
        """Split or merge; answers the children once they are served."""
        while True:
            answer = await (await self.owner(segment)).http.post(f"/v1/segments/{quoted(segment)}/{verb}", json=body)
            if answer.status_code == 200:
                break
            assert answer.status_code in (307, 503), answer.text
        await self.settled()
        children: list[str] = answer.json()["children"]
        return children

    async def create(self, segments: int = 1) -> list[str]:
        names = await create(self.started[0], segments)
        await self.settled()
        return names

    async def settled(self) -> None:
        """Until every segment is served where it stays."""
        await spread(self.started, [each["segment"] for each in await self.segments()])

    async def segments(self) -> list[dict[str, Any]]:
        segments: list[dict[str, Any]] = (await self.started[0].http.get("/v1/topics/t")).json()["segments"]
        return segments

    async def read(self) -> list[Any]:
        """Every message that is there, with its id."""
        answer = await self.started[0].http.get("/v1/topics/t/messages", params={"max": 1000})
        return [(message["value"], message["message_id"]) for message in answer.json()["messages"]]

    async def assert_once(self, keys: tuple[str, ...], ids: list[str]) -> None:
        assert sorted(await self.read()) == sorted(zip(keys, ids, strict=True))


@pytest.fixture
async def brokers(world: World) -> AsyncIterator[Brokers]:
    objects = MemoryStore()
    started = [await SharedBroker.start(world, objects, f"http://broker-{number}") for number in range(3)]
    for broker in started:
        broker.can_reach(started)
    yield Brokers(started)
    await asyncio.gather(*(broker.stop() for broker in started))


async def publish(
    broker: SharedBroker, keys: tuple[str, ...], sequence: int = 7, txn: str | None = None
) -> httpx.Response:
    body = {"messages": [{"key": key, "value": key} for key in keys], "producer": "p", "sequence": sequence}
    return await broker.http.post("/v1/topics/t/messages", json=body, params={"txn_id": txn} if txn else {})


async def ids_of(broker: SharedBroker, keys: tuple[str, ...], txn: str | None = None) -> list[str]:
    answer = await publish(broker, keys, txn=txn)
    assert answer.status_code == 200, answer.text
    found: list[str] = answer.json()["message_ids"]
    return found


async def append(broker: SharedBroker, segment: str, media_type: str) -> httpx.Response:
    """To the segment itself, as the client library does, or in JSON."""
    as_json = json.dumps([{"key": key, "value": key} for key in QUARTERS]).encode()
    batch, _ = pack_batch(packed_message(key, key, None) for key in QUARTERS)
    return await broker.http.post(
        f"/v1/segments/{quoted(segment)}/entries",
        params={"producer": "p", "sequence": 7, "count": 4},
        content=batch if media_type == BATCH_MEDIA_TYPE else as_json,
        headers={"Content-Type": media_type},
    )


async def _reset() -> None:
    raise httpx.ReadError("reset")


class Cut(httpx.AsyncBaseTransport):
    """To one segment nothing gets through, or only after something else has happened."""

    def __init__(self, brokers: Brokers, segment: str, before: Callable[[], Awaitable[None]] = _reset) -> None:
        self._ways = {other.url: other.http._transport for other in brokers.started}
        self._segment = quoted(segment)
        self._before = before

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._segment in request.url.raw_path.decode():
            await self._before()
        return await self._ways[f"http://{request.url.host}"].handle_async_request(request)


async def publish_without(brokers: Brokers, keys: tuple[str, ...], unreached: str) -> None:
    """Only `unreached` does not get its messages: nobody knows whether it did."""
    here = await brokers.stranger(unreached)
    here.broker.peers, way = OverHttpx(Cut(brokers, unreached)), here.broker.peers
    answer = await publish(here, keys)
    here.broker.peers = way
    assert answer.status_code == 504 and "Send the whole request again" in answer.json()["action"]


async def test_a_part_that_was_taken_is_not_denied_when_the_children_of_the_other_one_are_not_found(
    brokers: Brokers,
) -> None:
    """Its segment is split between the look at the topic and the append, and then the broker loses the store."""
    names = await brokers.create(2)
    here = await brokers.stranger(names[1])

    async def split() -> None:
        await brokers.change(names[1], "split")
        here.store.away = StoreUnavailable("gone")

    here.broker.peers, way = OverHttpx(Cut(brokers, names[1], split)), here.broker.peers
    answer = await publish(here, QUARTERS)
    here.broker.peers, here.store.away = way, None
    assert answer.status_code == 504 and "Send the whole request again" in answer.json()["action"]
    await brokers.assert_once(QUARTERS, await ids_of(here, QUARTERS))


@pytest.mark.parametrize("transactional", [False, True])
async def test_what_was_acknowledged_is_found_after_a_merge_by_a_broker_that_owns_nothing_of_it(
    brokers: Brokers, world: World, transactional: bool
) -> None:
    names = await brokers.create(2)
    txn = str(await world.begin()) if transactional else None
    first = await ids_of(brokers.started[0], QUARTERS, txn)
    (merged,) = await brokers.change(names[0], "merge", **{"with": names[1]})
    for broker in (await brokers.stranger(merged), await brokers.owner(merged)):
        assert await ids_of(broker, QUARTERS, txn) == first
    if not transactional:
        await brokers.assert_once(QUARTERS, first)


async def test_the_ids_of_a_retry_name_the_segment_in_which_the_messages_lie(brokers: Brokers) -> None:
    """The one that was split, also once its children were split and pieces merged, which inherit of it twice."""
    (parent,) = await brokers.create()
    keys = (*QUARTERS, *reversed(QUARTERS))
    first = await ids_of(brokers.started[0], keys)
    assert {MessageId.parse(each).segment for each in first} == {parent}
    low, high = await brokers.change(parent, "split")
    for broker in brokers.started:
        assert await ids_of(broker, keys) == first
    _, one = await brokers.change(low, "split")
    other, _ = await brokers.change(high, "split")
    (merged,) = await brokers.change(one, "merge", **{"with": other})
    for broker in (await brokers.stranger(merged), await brokers.owner(merged)):
        assert await ids_of(broker, keys) == first
    await brokers.assert_once(keys, first)


async def test_a_publish_in_part_is_completed_by_its_retry_after_a_merge(brokers: Brokers) -> None:
    """And from then on every retry is answered alike: also after the child has moved, and after it was split."""
    names = await brokers.create(2)
    await publish_without(brokers, QUARTERS, names[1])
    (merged,) = await brokers.change(names[0], "merge", **{"with": names[1]})
    first = await ids_of(await brokers.stranger(merged), QUARTERS)
    assert [MessageId.parse(each).segment for each in first] == [names[0]] * 2 + [merged] * 2
    assert await ids_of(await brokers.owner(merged), QUARTERS) == first
    (await brokers.owner(merged)).broker.served[merged].lose("it is opened again")
    assert await ids_of(await brokers.stranger(merged), QUARTERS) == first
    low, _ = await brokers.change(merged, "split")
    assert await ids_of(await brokers.stranger(low), QUARTERS) == first
    await brokers.assert_once(QUARTERS, first)


async def test_every_hash_of_a_retry_is_looked_at(brokers: Brokers) -> None:
    """Those of the quarters on both sides were taken, that in the middle was not: the lowest and the highest say
    nothing of it."""
    names = await brokers.create(4)
    keys = (QUARTERS[0], QUARTERS[1], QUARTERS[2])
    await publish_without(brokers, keys, names[1])
    (low,) = await brokers.change(names[0], "merge", **{"with": names[1]})
    (high,) = await brokers.change(names[2], "merge", **{"with": names[3]})
    (merged,) = await brokers.change(low, "merge", **{"with": high})
    first = await ids_of(await brokers.stranger(merged), keys)
    assert [MessageId.parse(each).segment for each in first] == [names[0], merged, names[2]]
    assert await ids_of(await brokers.stranger(merged), keys) == first
    await brokers.assert_once(keys, first)


async def test_another_request_under_a_sequence_that_was_used_is_refused(brokers: Brokers) -> None:
    """It may be told by their number, also after a split."""
    (parent,) = await brokers.create()
    await ids_of(brokers.started[0], QUARTERS)
    for keys in (QUARTERS[:3], (*QUARTERS, QUARTERS[0])):
        for broker in brokers.started:
            answer = await publish(broker, keys)
            assert answer.status_code == 422 and "was used for an entry of 4" in answer.json()["detail"]
        if len(keys) == 3:
            await brokers.change(parent, "split")
    assert len(await brokers.read()) == 4


@pytest.mark.parametrize("media_type", [MESSAGES_MEDIA_TYPE, BATCH_MEDIA_TYPE])
async def test_an_entry_that_is_sent_again_to_the_child_of_a_merge_is_told_what_is_there(
    brokers: Brokers, media_type: str
) -> None:
    """As other brokers do, and clients that route by themselves."""
    names = await brokers.create(2)
    first = await ids_of(brokers.started[0], QUARTERS)
    (merged,) = await brokers.change(names[0], "merge", **{"with": names[1]})
    answer = (await append(await brokers.owner(merged), merged, media_type)).json()
    places = [MessageId.parse(each) for each in (first[0], first[2])]
    assert answer["duplicate"] and answer["position"] == str(places[0].position)
    assert [(each["segment"], each["position"], each["count"]) for each in answer["appended"]] == [
        (place.segment, str(place.position), 2) for place in places
    ]


@pytest.mark.parametrize("media_type", [MESSAGES_MEDIA_TYPE, BATCH_MEDIA_TYPE])
async def test_an_entry_of_which_a_part_is_there_is_refused_by_the_segment(brokers: Brokers, media_type: str) -> None:
    names = await brokers.create(2)
    await publish_without(brokers, QUARTERS, names[1])
    (merged,) = await brokers.change(names[0], "merge", **{"with": names[1]})
    answer = await append(await brokers.owner(merged), merged, media_type)
    assert answer.status_code == 422 and answer.json()["definite"]
    assert [(part["segment"], part["ranges"]) for part in answer.json()["appended"]] == [(names[0], [[0, 0x7FFF]])]
    assert len(await brokers.read()) == 2
