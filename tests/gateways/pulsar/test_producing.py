"""Goal: what Pulsar's clients send is stored once, in their order, in transactions or outside, and read by all.

Method: a small client of the protocol over loopback against a broker in this process. DESIGN §5.13, §5.14.
"""

from __future__ import annotations

import asyncio
import base64
import zlib
from typing import Any

import pyarrow as pa
import pytest

from metatxn.wire.ids import TxnId
from metatxn_gateways.pulsar.codes import PulsarCode
from tests.gateways.pulsar.client import LATEST_ID, Refused, batch, entry
from tests.gateways.pulsar.conftest import PulsarGateway, values
from tests.participants.broker.stories import quoted

COMPRESSIONS = {
    0: None,
    1: lambda data: pa.Codec("lz4_raw").compress(data, asbytes=True),
    2: zlib.compress,
    3: lambda data: pa.Codec("zstd").compress(data, asbytes=True),
    4: lambda data: pa.Codec("snappy").compress(data, asbytes=True),
}


async def test_messages_are_produced_and_read(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        assert client.features.feature_flags.supports_scalable_topics
        assert (await client.ask("lookup", topic=segment)).broker_url == gateway.listener.url
        created = await client.producer(segment)
        assert created.producer_name and created.last_sequence_id == -1
        for number in range(3):
            client.produce(entry(b"%d" % number), number)
        client.produce(batch([b"3", b"4"]), 3, highest_sequence_id=4, num_messages=2)
        places = await client.receipts(4)
        assert places == sorted(set(places))
        await client.reader(segment)
        assert await values(client, 5) == [b"0", b"1", b"2", b"3", b"4"]
        client.produce(entry(b"5"), 5)
        assert await values(client, 1) == [b"5"]
        last = await client.ask("get_last_message_id", consumer_id=1)
        assert (last.last_message_id.ledger_id, last.last_message_id.entry_id) == (places[0][0], 4)


@pytest.mark.parametrize("compression", COMPRESSIONS)
async def test_rest_reads_batches_in_any_compression(gateway: PulsarGateway, compression: int) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        await client.producer(segment)
        client.produce(batch({"a": b"x" * 100, "b": b"\xff"}, COMPRESSIONS[compression], compression), 0)
        client.produce(entry(b"{}", "c", properties=[{"key": "content-type", "value": "application/json"}]), 1)
        await client.receipts(2)
    found = await gateway.browse("t")
    assert [each["key"] for each in found] == ["a", "b", "c"]
    assert [each["value_base64"] and base64.b64decode(each["value_base64"]) for each in found] == [
        b"x" * 100,
        b"\xff",
        None,
    ]
    assert found[2]["value"] == {}


async def test_json_that_nobody_can_express_is_told_and_not_answered(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    as_json = [{"key": "content-type", "value": "application/json"}]
    async with gateway.client() as client:
        await client.producer(segment)
        for number, value in enumerate((b"NaN", b'"\\ud800"', b"[" * 500 + b"]" * 500, b"{", b"1")):
            client.produce(entry(value, properties=as_json), number)
        await client.receipts(5)
    found = await gateway.browse("t")
    assert ["metatxn.unreadable" in each["properties"] for each in found] == [True, True, True, False, False]
    assert [each["value_base64"] for each in found[3:]] == ["ew==", None] and found[4]["value"] == 1


async def test_pulsar_reads_what_came_by_other_ways(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    sent = [{"key": "k", "value": {"a": 1}, "properties": {"p": "q"}}, {"value_base64": "AP8="}, {"value": None}]
    assert (await gateway.http.post("/v1/topics/t/messages", json={"messages": sent})).status_code == 200
    headers = {"content-type": "application/octet-stream"}
    path = f"/v1/segments/{quoted(segment)}/entries"
    assert (await gateway.http.post(path, content=b"bytes", headers=headers)).status_code == 200
    async with gateway.client() as client:
        await client.reader(segment)
        assert await values(client, 4) == [b'{"a":1}', b"\x00\xff", None, b"bytes"]


async def test_a_topic_that_another_producer_has_for_itself_takes_nothing(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        await client.producer(segment)
        claimed = await gateway.http.post("/v1/topics/t/exclusive-producer", json={"session": "a"})
        client.produce(entry(b"0"), 0)
        assert (await client.next("send_error")).error == PulsarCode.NOT_ALLOWED
        await gateway.http.delete(f"/v1/topics/t/exclusive-producer?epoch={claimed.json()['epoch']}")
        client.produce(entry(b"1"), 1)
        assert len(await client.receipts(1)) == 1


async def test_a_transaction_is_seen_once_it_is_committed(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        await client.producer(segment)
        await client.reader(segment)
        for number, commit in enumerate((True, False)):
            txn = await client.begin()
            client.produce(entry(b"%d" % commit), 2 * number, **txn)
            client.produce(entry(b"plain"), 2 * number + 1)
            await client.receipts(2)
            assert client.waiting("message") == 0
            await client.end(txn, commit=commit)
            assert await values(client, 1 + commit) == [b"1", b"plain"][1 - commit :]
            await client.end(txn, commit=commit)
            with pytest.raises(Refused) as refused:
                await client.end(txn, commit=not commit)
            assert refused.value.code == PulsarCode.INVALID_TXN_STATUS
        client.produce(entry(b"late"), 9, **txn)
        assert (await client.next("send_error")).error == PulsarCode.NOT_ALLOWED
        client.produce(entry(b"behind it"), 10)
        assert await values(client, 1) == [b"behind it"]


async def test_a_transaction_that_an_operator_has_aborted_is_not_committed(gateway: PulsarGateway) -> None:
    async with gateway.client() as client:
        txn = await client.begin()
        await gateway.transactions.abort(TxnId(txn["txnid_most_bits"], txn["txnid_least_bits"]), force=True)
        with pytest.raises(Refused) as refused:
            await client.end(txn, commit=True)
        assert refused.value.code == PulsarCode.INVALID_TXN_STATUS
        with pytest.raises(Refused) as unknown:
            await client.end({"txnid_most_bits": 0, "txnid_least_bits": 99}, commit=True)
        assert unknown.value.code == PulsarCode.TRANSACTION_NOT_FOUND
        with pytest.raises(Refused):
            await client.begin(0)


async def test_a_transaction_goes_on_over_a_split(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        first = await client.layout("topic://public/default/t")
        await client.producer(segment)
        txn = await client.begin()
        client.produce(entry(b"before"), 0, **txn)
        await client.receipts(1)
        await client.reader(segment)
        await gateway.split(segment)
        client.produce(entry(b"refused"), 1, **txn)
        assert (await client.next("send_error")).error == PulsarCode.TOPIC_TERMINATED
        layout = (await client.next("scalable_topic_update")).layout
        assert layout.epoch > first.layout.epoch
        parent, *children = layout.segments
        assert (parent.state, [each.state for each in children]) == (1, [0, 0])
        assert list(parent.child_ids) == [each.segment_id for each in children]
        assert [list(each.parent_ids) for each in children] == [[parent.segment_id]] * 2
        for number, child in enumerate(children, 2):
            name = f"segment://public/default/t/{child.hash_start:04x}-{child.hash_end:04x}-{child.segment_id}"
            await client.producer(name, number)
            client.produce(entry(b"behind %d" % number), 0, number, **txn)
            await client.receipts(1)
            await client.reader(name, number)
        assert client.waiting("message") == 0
        await client.end(txn, commit=True)
        assert set(await values(client, 3)) == {b"before", b"behind 2", b"behind 3"}
        assert (await client.next("reached_end_of_topic")).consumer_id == 1


async def test_a_producer_that_comes_again_is_confirmed_what_it_has_sent(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        name = (await client.producer(segment)).producer_name
        client.produce(entry(b"a"), 0)
        client.produce(batch([b"b", b"c"]), 1, highest_sequence_id=2)
        places = await client.receipts(2)
    await gateway.crash()
    await gateway.split(segment)
    async with gateway.client() as client:
        assert (await client.producer(segment, producer_name=name)).last_sequence_id == 2
        client.produce(entry(b"a"), 0)
        client.produce(batch([b"b", b"c"]), 1, highest_sequence_id=2)
        client.produce(entry(b"d"), 3)
        assert await client.receipts(2) == places
        assert (await client.next("send_error")).error == PulsarCode.TOPIC_TERMINATED
    assert len(await gateway.browse("t")) == 3


async def test_nothing_is_appended_behind_a_send_that_comes_again(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        await client.producer(segment)
        gateway.broker.served[segment].lose("a test")
        client.produce(entry(b"a"), 0)
        assert (await client.next("send_error")).error == PulsarCode.SERVICE_NOT_READY
        client.produce(entry(b"b"), 1)
        while segment not in gateway.broker.served:
            await asyncio.sleep(0)
        await client.producer(segment, producer_name="again")
        for number, value in enumerate((b"a", b"b")):
            client.produce(entry(value), number)
        await client.receipts(2)
        await client.reader(segment)
        assert await values(client, 2) == [b"a", b"b"]


async def test_a_lookup_waits_until_the_segment_is_open(gateway: PulsarGateway) -> None:
    """A client that hears that it is not ready closes its connection, and its consumers lose what they hold."""
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        gateway.broker.served[segment].lose("a test")
        assert (await client.ask("lookup", topic=segment)).broker_url == gateway.listener.url


async def test_a_reader_begins_where_it_says(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        await client.producer(segment)
        for number in range(3):
            client.produce(entry(b"%d" % number), number)
        client.produce(batch([b"3", b"4"]), 3, highest_sequence_id=4)
        places = await client.receipts(4)
        second = {"ledger_id": places[1][0], "entry_id": places[1][1]}
        in_batch = {"ledger_id": places[3][0], "entry_id": places[3][1], "batch_index": 0}
        for number, (start, expected) in enumerate(
            [(second, [b"2", b"3", b"4"]), (in_batch, [b"3", b"4"]), ({**second, "ledger_id": 1 << 40}, [])]
        ):
            await client.reader(segment, number, start)
            assert await values(client, len(expected)) == expected
            await client.ask("close_consumer", consumer_id=number)
        await client.reader(segment, 9, LATEST_ID)
        client.produce(entry(b"5"), 5)
        assert await values(client, 1) == [b"5"]


async def test_a_reader_gets_as_many_messages_as_it_permits(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    async with gateway.client() as client:
        await client.producer(segment)
        for number in range(5):
            client.produce(entry(b"%d" % number), number)
        await client.receipts(5)
        await client.reader(segment, permits=2)
        assert await values(client, 2) == [b"0", b"1"]
        await client.ask("lookup", topic=segment)
        assert client.waiting("message") == 0
        client.send("flow", consumer_id=1, message_permits=3)
        assert await values(client, 3) == [b"2", b"3", b"4"]


async def test_what_is_not_offered_is_refused_by_name(gateway: PulsarGateway) -> None:
    (segment,) = await gateway.create("t")
    (plain,) = await gateway.process.create("plain")
    missing = "segment://public/default/none/0000-ffff-0"

    async def refusal(name: str, **fields: Any) -> tuple[int, str]:
        with pytest.raises(Refused) as refused:
            await client.ask(name, **fields)
        return refused.value.code, str(refused.value)

    async with gateway.client() as client:
        code, message = await refusal("producer", topic=plain, producer_id=1)
        assert code == PulsarCode.NOT_ALLOWED and "--format pulsar" in message
        assert (await refusal("producer", topic=segment, producer_id=1, encrypted=True))[0] == PulsarCode.NOT_ALLOWED
        exclusive = await refusal("producer", topic=segment, producer_id=1, producer_access_mode=1)
        assert exclusive[0] == PulsarCode.NOT_ALLOWED
        assert (await refusal("producer", topic=missing, producer_id=1))[0] == PulsarCode.TOPIC_NOT_FOUND
        assert (await refusal("producer", topic="persistent://public/default/t", producer_id=1))[
            0
        ] == PulsarCode.INVALID_TOPIC_NAME
        assert (await refusal("lookup", topic=missing))[0] == PulsarCode.TOPIC_NOT_FOUND
        assert (await refusal("lookup", topic="non-persistent://a/b/c"))[0] == PulsarCode.INVALID_TOPIC_NAME
        update = await client.layout("topic://public/default/none")
        assert update.error == PulsarCode.TOPIC_NOT_FOUND and "metatxn topic create" in update.message
