"""Goal: the stream consumers of a subscription share the segments of a topic, and read children after their parents.

Method: a small client of the protocol over loopback against a broker in this process.
"""

from __future__ import annotations

from typing import Any

import pytest

from metastore.txn.records.segments import LedgerRecord, SegmentRecord
from metatxn_gateways.pulsar import ordered
from metatxn_gateways.pulsar.codes import PulsarCode
from metatxn_gateways.pulsar.ordered import end_of_sealed, shared_out
from participants.subscription.places import Place
from tests.gateways.pulsar.client import PulsarClient, Refused, entry
from tests.gateways.pulsar.conftest import PulsarGateway
from tests.gateways.pulsar.test_consuming import produced

TOPIC = "topic://public/default/t"


@pytest.fixture(autouse=True)
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is told is told at once."""
    monkeypatch.setattr(ordered, "LOOK_EVERY_S", 1_000.0)


async def joined(
    client: PulsarClient, name: str = "a", number: int = 100, topic: str = TOPIC, kind: int = 0
) -> list[str]:
    """The segments that a stream consumer has at first."""
    about = {"topic": topic, "subscription": "s", "consumer_name": name, "consumer_id": number, "consumer_type": kind}
    return named((await client.ask("scalable_topic_subscribe", **about)).assignment)


async def told(client: PulsarClient) -> list[str]:
    return named((await client.next("scalable_topic_assignment_update")).assignment)


def named(assignment: Any) -> list[str]:
    assert assignment.layout_epoch > 0
    return [each.segment_topic for each in assignment.segments]


async def test_children_are_assigned_once_everything_in_their_parents_is_acknowledged(gateway: PulsarGateway) -> None:
    (parent,) = await gateway.create("t")
    async with gateway.client() as client:
        layout = (await client.layout(TOPIC)).layout
        assert layout.controller_url == gateway.listener.url
        places = await produced(client, parent, entry(b"0"), entry(b"1"))
        children = await gateway.split(parent)
        assert await joined(client) == [parent]
        await client.subscribe(parent, kind=0, consumer_name="a-seg-0")
        await client.messages(2)
        await client.ack(places[0], cumulative=True)
        txn = await client.begin()
        await client.ack(places[1], cumulative=True, txn=txn)
        grandchild = await gateway.merge(children)
        await client.ask("lookup", topic=TOPIC)
        assert not client.waiting("scalable_topic_assignment_update")
        await client.end(txn, commit=True)
        assert await told(client) == grandchild, "there is nothing in the children"
        assert (await client.next("reached_end_of_topic")).consumer_id == 1


async def test_a_grandchild_waits_for_all_that_is_before_it(gateway: PulsarGateway) -> None:
    """Also if there is nothing in its parent, or it was acknowledged by another consumer."""
    (parent,) = await gateway.create("t")
    async with gateway.client() as client:
        await produced(client, parent, entry(b"0"))
        children = await gateway.split(parent)
        await gateway.merge(children)
        assert await joined(client) == [parent]


async def test_the_members_share_the_segments_evenly(gateway: PulsarGateway) -> None:
    segments = await gateway.create("t", 3)
    async with gateway.client() as one, gateway.client() as other:
        assert await joined(one) == segments
        of_other = await joined(other, "b")
        of_one = await told(one)
        assert len(of_one) == 2 and sorted(of_one + of_other) == segments
        async with gateway.client() as third:
            of_third = await joined(third, "c")
            assert sorted(of_other + of_third + await told(one)) == segments


async def test_a_member_that_comes_again_has_what_it_had(gateway: PulsarGateway) -> None:
    segments = await gateway.create("t", 2)
    async with gateway.client() as one, gateway.client() as other:
        await joined(one)
        of_other = await joined(other, "b")
        of_one = await told(one)
        async with gateway.client() as again:
            assert await joined(again, "b", topic="t") == of_other
            await other.close()
            assert await joined(one) == of_one
        assert await told(one) == segments


async def test_a_member_goes_when_its_connection_ends_or_all_of_it_is_closed(gateway: PulsarGateway) -> None:
    segments = await gateway.create("t", 2)
    async with gateway.client() as one:
        assert await joined(one) == segments
        async with gateway.client() as other:
            assert len(await joined(other, "b")) == len(await told(one)) == 1
        assert await told(one) == segments
        (of_second,) = await joined(one, "c", 200)
        assert len(await told(one)) == 1
        for name, segment, number in (("a", of_second, 1), ("c", of_second, 2)):
            await one.subscribe(segment, number, kind=0, consumer_name=f"{name}-seg-{segment.rpartition('-')[2]}")
            await one.ask("close_consumer", consumer_id=number)
        assert await told(one) == segments, "closing what was taken from it does not end a member, closing its own does"


async def test_a_segment_goes_from_one_member_to_another(gateway: PulsarGateway) -> None:
    segments = await gateway.create("t", 2)
    async with gateway.client() as one, gateway.client() as other:
        await joined(one)
        for number, segment in enumerate(segments):
            await produced(one, segment, entry(b"%d" % number))
            await one.subscribe(segment, number, kind=0, consumer_name=f"a-seg-{number}")
        await one.messages(2)
        (moved,) = await joined(other, "b")
        (kept,) = await told(one)
        with pytest.raises(Refused):
            await other.subscribe(moved, kind=0)
        await one.ask("close_consumer", consumer_id=segments.index(moved))
        await other.subscribe(moved, kind=0)
        assert [each.times for each in await other.messages(1)] == [1]
        assert await joined(one, "a", 100) == [kept]


async def test_a_segment_that_comes_back_may_still_be_closed(gateway: PulsarGateway) -> None:
    """It was taken from a consumer and given back, and only then the consumer closes it, for the first of both."""
    segments = await gateway.create("t", 2)
    async with gateway.client() as one:
        await joined(one)
        async with gateway.client() as other:
            (moved,) = await joined(other, "b")
            number = segments.index(moved)
            assert len(await told(one)) == 1
        assert await told(one) == segments
        await one.subscribe(moved, kind=0, consumer_name=f"a-seg-{number}")
        await one.ask("close_consumer", consumer_id=1)
        async with gateway.client() as other:
            await joined(other, "b")
            assert len(await told(one)) == 1, "it is still a member"


async def test_checkpoint_consumers_of_a_group_share_all_segments_at_once(gateway: PulsarGateway) -> None:
    (parent,) = await gateway.create("t")
    children = await gateway.split(parent)
    async with gateway.client() as client:
        assert sorted(await joined(client, kind=1)) == sorted([parent, *children])


async def test_a_broker_that_is_not_the_home_assigns_nothing(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        assert await joined(client) == [segment]
        gateway.broker.served[segment].lose("a test")
        gateway.listener._context.ordered.acknowledged("s", segment)
        await client.until_closed()
    async with gateway.client() as client:
        await gateway.broker.drop(segment)
        with pytest.raises(Refused) as refused:
            await joined(client)
        assert refused.value.code == PulsarCode.SERVICE_NOT_READY


async def test_who_asks_for_what_is_not_there_is_told(gateway: PulsarGateway) -> None:
    await gateway.create("t")
    async with gateway.client() as client:
        for about, code in (
            ({"topic": "topic://public/default/none"}, PulsarCode.TOPIC_NOT_FOUND),
            ({"name": ""}, PulsarCode.NOT_ALLOWED),
            ({"kind": 2}, PulsarCode.NOT_ALLOWED),
        ):
            with pytest.raises(Refused) as refused:
                await joined(client, **about)
            assert refused.value.code == code
    assert not gateway.listener._context.ordered._groups


def test_segments_are_shared_out_evenly_and_stay() -> None:
    assert shared_out(["1"], [], {}) == {}
    assert shared_out("1234", "a", {}) == dict.fromkeys("1234", "a")
    assert shared_out("1234", "abc", dict.fromkeys("1234", "a")) == {"1": "a", "2": "a", "3": "b", "4": "c"}
    assert shared_out("12345", "ab", {"1": "b", "2": "b", "3": "b", "4": "b", "5": "b"}) == {
        **dict.fromkeys("123", "b"),
        **dict.fromkeys("45", "a"),
    }
    assert shared_out("12", "abc", {"2": "c"}) == {"1": "a", "2": "c"}
    assert shared_out("12", "b", {"1": "a", "2": "b"}) == {"1": "b", "2": "b"}


def test_the_end_of_a_segment_is_known_once_it_is_sealed() -> None:
    def record(state: Any, *entries: int | None) -> SegmentRecord:
        ledgers = tuple(LedgerRecord(id=number, storage="s", entries=each) for number, each in enumerate(entries, 1))
        return SegmentRecord(topic="t", range=(0, 1), storage="s", state=state, ledgers=ledgers)

    assert end_of_sealed(record("active", 3)) is None
    assert end_of_sealed(record("sealed", 3, None)) is None
    assert end_of_sealed(record("sealed", 3, 0)) == Place(1, 3, 0)
    assert end_of_sealed(record("sealed")) == end_of_sealed(record("sealed", 0)) == Place(0, 0, 0)
