"""Goal: consumers with a subscription get what is due, once, in transactions or outside, whatever comes in between.

Method: a small client of the protocol over loopback against a broker in this process; what is acknowledged is also
looked at over REST. DESIGN §5.10.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metastore.check import StoreCheck
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from metatxn_gateways.pulsar.acks import MAX_IDS, ack_set_of, acked_runs
from metatxn_gateways.pulsar.codes import PulsarCode
from participants.subscription.segment_subscription import SegmentSubscription
from tests.gateways.pulsar.client import PATIENCE_S, Delivered, PulsarClient, Refused, batch, entry
from tests.gateways.pulsar.conftest import PulsarGateway


async def produced(client: PulsarClient, segment: str, *contents: bytes, first: int = 0) -> list[tuple[int, int]]:
    """The positions of these entries."""
    await client.producer(segment, 1_000, producer_name="test")
    for number, content in enumerate(contents, first):
        client.produce(content, number, 1_000)
    return await client.receipts(len(contents))


def entries(*values: int) -> Iterable[bytes]:
    return (entry(b"%d" % value) for value in values)


def shown(messages: Iterable[Delivered]) -> list[tuple[int, int]]:
    """The values, and how often they were delivered before."""
    return [(int(each.value or b"-1"), each.times) for each in messages]


async def backlog(gateway: PulsarGateway, name: str = "s", topic: str = "t") -> int:
    answer = await gateway.http.get(f"/v1/topics/{topic}/subscriptions/{name}")
    assert answer.status_code == 200, answer.text
    return sum(each["backlog"] for each in answer.json()["segments"])


async def nothing_comes(client: PulsarClient, segment: str) -> bool:
    """Whether nothing is delivered at this moment: what the broker does at once, it has done before it answers this."""
    await client.ask("lookup", topic=segment)
    return client.waiting("message") == 0


# -- shared --------------------------------------------------------------------------------------------------------


async def test_consumers_share_messages_and_what_one_holds_returns_when_it_goes(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as one:
        places = await produced(one, segment, *entries(0, 1, 2))
        await one.subscribe(segment, permits=2)
        assert shown(await one.messages(2)) == [(0, 0), (1, 0)]
        async with gateway.client() as other:
            await other.subscribe(segment)
            assert shown(await other.messages(1)) == [(2, 0)]
            await other.ack(places[2])
            await one.ack(places[0])
            await one.ask("close_consumer", consumer_id=1)
            assert shown(await other.messages(1)) == [(1, 1)]
        await one.subscribe(segment, 2)
        assert shown(await one.messages(1)) == [(1, 2)], "the connection of the other one has ended"
    assert await backlog(gateway) == 1


async def test_permits_count_messages_and_an_entry_is_not_cut(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        await produced(client, segment, batch([b"0", b"1", b"2"]), entry(b"3"), entry(b"4"))
        await client.subscribe(segment, permits=2)
        assert shown(await client.messages(3)) == [(0, 0), (1, 0), (2, 0)]
        client.send("flow", consumer_id=1, message_permits=1)
        assert await nothing_comes(client, segment), "three were sent for the three that were permitted"
        client.send("flow", consumer_id=1, message_permits=1)
        assert shown(await client.messages(1)) == [(3, 0)]
        assert await nothing_comes(client, segment)


async def test_single_messages_of_a_batch_are_acknowledged(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        (place,) = await produced(client, segment, batch([b"%d" % value for value in range(70)]))
        await client.subscribe(segment)
        assert len(await client.messages(70)) == 70
        await client.ack(place, ack_set=ack_set_of([1, 63, 64, 69], 70))
        await client.ask("close_consumer", consumer_id=1)
        await client.subscribe(segment, 2)
        assert shown(await client.messages(4)) == [(value, 1) for value in (1, 63, 64, 69)]
        await client.ack(place, number=2)
    assert await backlog(gateway) == 0


def test_bits_of_a_batch_are_words_of_64() -> None:
    assert ack_set_of([0, 1, 2], 3) == [], "all of them: as if there were no batch"
    assert ack_set_of([0, 63], 65) == [1 - (1 << 63)]
    assert ack_set_of([64], 200) == [0, 1]
    assert acked_runs([], 3) == [range(3)]
    assert acked_runs([1 - (1 << 63)], 66) == [range(1, 63), range(64, 66)]
    assert acked_runs([-1, -1], 66) == acked_runs([-1, -1, 7], 66) == []
    assert acked_runs([6], 1) == [range(1)], "what is behind the last message does not count"


@given(st.data())
def test_runs_of_bits_are_what_the_bits_say(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 300))
    left = data.draw(st.sets(st.integers(0, size - 1), max_size=size - 1))
    runs = acked_runs(ack_set_of(sorted(left), size) if left else [], size)
    assert [index for run in runs for index in run] == [index for index in range(size) if index not in left]
    assert all(before.stop < after.start for before, after in pairwise(runs))


async def test_what_is_given_back_comes_again(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        places = await produced(client, segment, entry(b"0"), batch([b"1", b"2"]), entry(b"3"))
        await client.subscribe(segment)
        assert len(await client.messages(4)) == 4
        await client.ack(places[1], ack_set=ack_set_of([1], 2))
        ids = [{"ledger_id": ledger, "entry_id": number} for ledger, number in (places[1], places[2], (9, 9))]
        client.send("redeliver", consumer_id=1, message_ids=ids)
        assert shown(await client.messages(2)) == [(2, 1), (3, 1)]
        client.send("redeliver", consumer_id=1)
        assert shown(await client.messages(3)) == [(0, 1), (2, 2), (3, 2)]
        client.send("redeliver", consumer_id=9)


async def test_acknowledgements_last_and_count_after_the_connection_has_ended(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        places = await produced(client, segment, *entries(0, 1, 2))
        await client.subscribe(segment)
        assert len(await client.messages(3)) == 3
        ids = [{"ledger_id": ledger, "entry_id": number} for ledger, number in places[:2]]
        client.send("ack", consumer_id=1, ack_type=0, message_ids=ids)
    while await backlog(gateway) > 1:
        await asyncio.sleep(0)
    await gateway.crash()
    async with gateway.client() as client:
        await client.subscribe(segment)
        assert [each.value for each in await client.messages(1)] == [b"2"]


async def test_an_acknowledgement_goes_on_when_its_connection_ends(
    gateway: PulsarGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here while the broker looks how many messages the entry has."""
    (segment,) = await gateway.create("t")
    looking, look_on, size_of = asyncio.Event(), asyncio.Event(), SegmentSubscription.size_of

    async def slow(part: SegmentSubscription, position: Position) -> int:
        looking.set()
        await look_on.wait()
        return await size_of(part, position)

    monkeypatch.setattr(SegmentSubscription, "size_of", slow)
    async with gateway.client() as client:
        ((ledger, number),) = await produced(client, segment, *entries(0))
        await client.subscribe(segment)
        await client.messages(1)
        client.send("ack", consumer_id=1, ack_type=0, message_ids=[{"ledger_id": ledger, "entry_id": number}])
        await looking.wait()
    while gateway.listener._server.connections:
        await asyncio.sleep(0)
    look_on.set()
    async with asyncio.timeout(PATIENCE_S):
        while await backlog(gateway):
            await asyncio.sleep(0)


async def test_what_is_not_there_is_not_acknowledged(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        places = await produced(client, segment, *entries(0, 1))
        await client.subscribe(segment)
        await client.messages(2)
        for place in ((places[0][0], 99), (1 << 60, 0), ((1 << 64) - 1, (1 << 64) - 1)):
            with pytest.raises(Refused) as refused:
                await client.ack(place)
            assert refused.value.code == PulsarCode.NOT_ALLOWED
        with pytest.raises(Refused, match="shared") as refused:
            await client.ack(places[1], cumulative=True)
        assert refused.value.code == PulsarCode.NOT_ALLOWED
        with pytest.raises(Refused) as gone:
            await client.ack(places[0], number=7)
        assert gone.value.code == PulsarCode.SERVICE_NOT_READY
        client.send("ack", consumer_id=1, ack_type=0, message_ids=[{"ledger_id": 1, "entry_id": 0}] * (MAX_IDS + 1))
        await client.until_closed()
    assert await backlog(gateway) == 2


async def test_what_compaction_has_left_out_is_acknowledged_with_all_before_it(
    gateway: PulsarGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        places = await produced(client, segment, *entries(0, 1, 2))
        await client.subscribe(segment, kind=0)
        await client.messages(3)

        async def unknown(part: SegmentSubscription, position: Position) -> int:
            return 0

        monkeypatch.setattr(SegmentSubscription, "size_of", unknown)
        with pytest.raises(Refused):
            await client.ack(places[1], cumulative=True)
        monkeypatch.setattr(SegmentSubscription, "_is_left_out", lambda part, position: True)
        await client.ack(places[1], cumulative=True)
    assert await backlog(gateway) == 1


async def test_what_was_trimmed_needs_no_acknowledgement(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        places = await produced(client, segment, *entries(0, 1))
        await client.subscribe(segment)
        await client.messages(2)
        ledger, number = places[1]
        path = f"/v1/segments/{segment.replace('/', '%2F')}/trim"
        answer = await gateway.http.post(path, json={"before": f"{ledger}:{number}"})
        assert answer.status_code == 200, answer.text
        await client.ack(*places)
    assert await backlog(gateway) == 0


# -- in transactions -----------------------------------------------------------------------------------------------


async def test_a_transaction_acknowledges_if_it_commits(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        places = await produced(client, segment, entry(b"0"), batch([b"1", b"2"]), entry(b"3"))
        await client.subscribe(segment)
        await client.messages(4)
        for commit in (False, True):
            txn = await client.begin()
            await client.ask("add_subscription_to_txn", **txn)
            await client.ack(places[0], txn=txn)
            await client.ack(places[1], ack_set=ack_set_of([1], 2), txn=txn)
            await client.ack(places[1], ack_set=ack_set_of([1], 2), txn=txn)
            other = await client.begin()
            with pytest.raises(Refused) as conflict:
                await client.ack(places[1], txn=other)
            assert conflict.value.code == PulsarCode.TRANSACTION_CONFLICT
            await client.end(other, commit=False)
            assert await nothing_comes(client, segment)
            await client.end(txn, commit=commit)
            if not commit:
                assert shown(await client.messages(2)) == [(0, 1), (1, 1)], "the abort has woken the delivery"
    while await backlog(gateway) > 2:
        await asyncio.sleep(0)
    async with gateway.client() as client:
        await client.subscribe(segment)
        assert [each.value for each in await client.messages(2)] == [b"2", b"3"]
    assert not [each async for each in StoreCheck(gateway.world.store.inner).findings()]


async def test_an_acknowledgement_of_a_transaction_that_is_over_is_refused(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        places = await produced(client, segment, *entries(0))
        await client.subscribe(segment)
        await client.messages(1)
        txn = await client.begin()
        await gateway.transactions.abort(TxnId(txn["txnid_most_bits"], txn["txnid_least_bits"]), force=True)
        for over, code in (
            (txn, PulsarCode.TRANSACTION_CONFLICT),
            ({"txnid_most_bits": 0, "txnid_least_bits": 99}, PulsarCode.TRANSACTION_NOT_FOUND),
            ({"txnid_most_bits": 7, "txnid_least_bits": 1}, PulsarCode.TRANSACTION_NOT_FOUND),
        ):
            with pytest.raises(Refused) as refused:
                await client.ack(places[0], txn=over)
            assert refused.value.code == code
        assert shown(await client.messages(1)) == [(0, 1)], "a late acknowledgement returns like an early one"
    assert await backlog(gateway) == 1


async def test_a_message_that_was_not_delivered_is_not_acknowledged_in_a_transaction(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        places = await produced(client, segment, *entries(0, 1))
        await client.subscribe(segment, permits=1)
        await client.messages(1)
        txn = await client.begin()
        with pytest.raises(Refused) as refused:
            await client.ack(places[1], txn=txn)
        assert refused.value.code == PulsarCode.TRANSACTION_CONFLICT


# -- one consumer at a time ----------------------------------------------------------------------------------------


async def test_a_segment_has_one_exclusive_consumer(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client, gateway.client() as other:
        places = await produced(client, segment, batch([b"0", b"1"]), entry(b"2"), entry(b"3"))
        await client.subscribe(segment, kind=0)
        assert shown(await client.messages(4)) == [(0, 0), (1, 0), (2, 0), (3, 0)]
        with pytest.raises(Refused) as busy:
            await other.subscribe(segment, kind=0)
        assert busy.value.code == PulsarCode.SERVICE_NOT_READY, "so that its client tries again"
        await client.ack(places[0], cumulative=True, ack_set=ack_set_of([1], 2))
        await client.ask("close_consumer", consumer_id=1)
        await other.subscribe(segment, kind=0)
        assert shown(await other.messages(3)) == [(1, 1), (2, 1), (3, 1)]
        await other.ack(places[1], cumulative=True)
    assert await backlog(gateway) == 1


async def test_a_cumulative_acknowledgement_in_a_transaction(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        places = await produced(client, segment, *entries(0, 1, 2))
        await client.subscribe(segment, kind=0)
        await client.messages(3)
        txn = await client.begin()
        await client.ack(places[1], cumulative=True, txn=txn)
        with pytest.raises(Refused) as conflict:
            await client.ack(places[0], txn=await client.begin())
        assert conflict.value.code == PulsarCode.TRANSACTION_CONFLICT
        await client.end(txn, commit=False)
        assert shown(await client.messages(2)) == [(0, 1), (1, 1)]
        txn = await client.begin()
        await client.ack(places[2], cumulative=True, txn=txn)
        await client.end(txn, commit=True)
    while await backlog(gateway):
        await asyncio.sleep(0)


@pytest.mark.parametrize("commit", [True, False])
async def test_what_the_consumer_before_has_acknowledged_in_an_open_transaction_comes_first_or_never(
    gateway: PulsarGateway, commit: bool
) -> None:
    """Otherwise it would come behind what follows it. An acknowledgement of that, by a consumer that knows nothing of
    the abort, would cover it, and it would be lost."""
    (segment,) = await gateway.create("t")
    async with gateway.client() as client, gateway.client() as other:
        places = await produced(client, segment, *entries(0, 1, 2))
        await client.subscribe(segment, kind=0)
        await client.messages(3)
        txn = await client.begin()
        await client.ack(places[1], cumulative=True, txn=txn)
        await client.ask("close_consumer", consumer_id=1)
        await other.subscribe(segment, kind=0)
        assert await nothing_comes(other, segment)
        await client.end(txn, commit=commit)
        expected = [(2, 1)] if commit else [(0, 1), (1, 1), (2, 1)]
        assert shown(await other.messages(len(expected))) == expected


async def test_a_consumer_that_begins_again_is_told_what_is_new(gateway: PulsarGateway) -> None:
    """The client drops what was sent to it before it asked for everything again."""
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        await produced(client, segment, *entries(0, 1))
        await client.subscribe(segment, kind=0, consumer_epoch=3)
        assert [(await client.next("message"))[0].consumer_epoch for _ in range(2)] == [3, 3]
        client.send("redeliver", consumer_id=1, consumer_epoch=4)
        assert [(await client.next("message"))[0].consumer_epoch for _ in range(2)] == [4, 4]


# -- what comes in between -----------------------------------------------------------------------------------------


async def test_the_end_of_a_sealed_segment_is_told_once_everything_is_acknowledged(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        places = await produced(client, segment, *entries(0, 1))
        await client.subscribe(segment)
        await client.messages(2)
        await gateway.split(segment)
        await client.ack(places[0])
        txn = await client.begin()
        await client.ack(places[1], txn=txn)
        await nothing_comes(client, "topic://public/default/t")
        assert not client.waiting("reached_end_of_topic")
        await client.end(txn, commit=True)
        assert (await client.next("reached_end_of_topic")).consumer_id == 1


async def test_a_seek_by_an_operator_closes_consumers_which_come_again(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        places = await produced(client, segment, *entries(0, 1))
        await client.subscribe(segment)
        await client.messages(2)
        await client.ack(*places)
        answer = await gateway.http.post("/v1/topics/t/subscriptions/s/seek", json={"to": "earliest"})
        assert answer.status_code == 200, answer.text
        assert (await client.next("close_consumer")).consumer_id == 1
        await client.subscribe(segment)
        assert shown(await client.messages(2)) == [(0, 0), (1, 0)]
        with pytest.raises(Refused, match="metatxn subscription seek") as refused:
            await client.ask("seek", consumer_id=1, message_id={"ledger_id": 1, "entry_id": 0})
        assert refused.value.code == PulsarCode.NOT_ALLOWED


async def test_a_subscription_is_created_as_asked_and_shared_with_ours(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        await produced(client, segment, *entries(0, 1))
        await client.subscribe(segment, name="late", initial_position=0)
        await client.subscribe(segment, 2, name="ordered", kind=2)
        assert shown(await client.messages(2)) == [(0, 0), (1, 0)]
        listed = (await gateway.http.get("/v1/topics/t/subscriptions")).json()["items"]
        found = {each["name"]: each for each in listed}
        assert [(found[each]["type"], found[each]["initial"]) for each in ("late", "ordered")] == [
            ("shared", "latest"),
            ("failover", "earliest"),
        ]
        body = {"type": "key_shared", "initial": "earliest"}
        await gateway.http.put("/v1/topics/t/subscriptions/keyed", json=body)
        refusals = [("keyed", 1), ("late", 0), ("ordered", 1), ("new", 3), ("", 1), ("x" * 257, 1), ("a\nb", 1)]
        for name, kind in refusals:
            with pytest.raises(Refused) as refused:
                await client.subscribe(segment, 9, name=name, kind=kind)
            assert refused.value.code == PulsarCode.NOT_ALLOWED


async def test_messages_that_are_delivered_too_often_become_dead_letters(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    body = {"type": "shared", "initial": "earliest", "dead_letter_topic": "dead", "max_redeliveries": 1}
    assert (await gateway.http.put("/v1/topics/t/subscriptions/s", json=body)).status_code == 200
    async with gateway.client() as client:
        await produced(client, segment, *entries(0))
        await client.subscribe(segment)
        for times in range(2):
            assert shown(await client.messages(1)) == [(0, times)]
            client.send("redeliver", consumer_id=1)
        while not await gateway.browse("dead"):
            await asyncio.sleep(0)
    while await backlog(gateway):
        await asyncio.sleep(0)


async def test_a_reader_moves(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        places = await produced(client, segment, *entries(0, 1, 2))
        await client.reader(segment)
        assert shown(await client.messages(3)) == [(0, 0), (1, 0), (2, 0)]
        await client.ask("seek", consumer_id=1, message_id={"ledger_id": places[0][0], "entry_id": places[0][1]})
        client.send("flow", consumer_id=1, message_permits=9)
        assert shown(await client.messages(2)) == [(1, 0), (2, 0)]
        with pytest.raises(Refused):
            await client.ask("seek", consumer_id=1, message_publish_time=1)


async def test_the_last_message_is_told_to_every_consumer(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        places: list[Any] = await produced(client, segment, *entries(0, 1))
        await client.subscribe(segment)
        last = (await client.ask("get_last_message_id", consumer_id=1)).last_message_id
        assert (last.ledger_id, last.entry_id) == places[1]


async def test_the_last_message_is_one_that_can_be_read_after_compaction_too(gateway: PulsarGateway) -> None:
    """It was a deletion, and is gone: a reader that reads up to it would wait forever."""
    (segment_id,) = await gateway.create("t")
    answer = await gateway.http.patch("/v1/topics/t", json={"cleanup": "compact", "delete_retention_ms": 0})
    assert answer.status_code == 200, answer.text
    async with gateway.client() as client:
        await client.reader(segment_id)
        sent = [entry(b"1", "b"), entry(b"1", "a"), entry(b"", "a")]
        places = await produced(client, segment_id, *sent)
        assert await last_told(client) == places[2]
        segment = gateway.broker.served[segment_id]
        assert segment.on_full is not None
        await segment.on_full()
        for _ in range(3):
            await gateway.broker.reconcile()
            while segment._tasks:
                await asyncio.wait(segment._tasks)
        assert segment.ledgers.is_left_out(Position(*places[2]))
        assert await last_told(client) == places[0]
        await client.reader(segment_id, number=2)
        (message,) = await client.messages(1)
        assert (message.value, await last_told(client, 2)) == (b"1", places[0])


async def last_told(client: PulsarClient, consumer: int = 1) -> tuple[int, int]:
    last = (await client.ask("get_last_message_id", consumer_id=consumer)).last_message_id
    return last.ledger_id, last.entry_id
