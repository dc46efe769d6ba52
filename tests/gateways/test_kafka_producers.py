"""Goal: requests of one producer that come at the same time after a restart find one producer, so that a confirmed
commit has everything that was acknowledged before it.

Method: requests given to the listener's handler; one read of the transaction key is late.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from metastore.txn.key_records import read_key
from metatxn_gateways.kafka.codes import KafkaCode
from tests.gateways.conftest import Gateway
from tests.gateways.test_kafka_calls import asked, batch, code_in, made


async def test_requests_at_the_same_time_find_one_producer(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    late, waits, calls = asyncio.Event(), asyncio.Event(), 0

    async def read_late(*place: Any) -> Any:
        nonlocal calls
        calls += 1
        first, found = calls == 1, await read_key(*place)
        if first:
            waits.set()
            await late.wait()
        return found

    await gateway.create("t")
    values = {"transactional_id": "x", "transaction_timeout": timedelta(seconds=60)}
    begun, _ = await code_in(gateway, 22, 4, "InitProducerIdRequest", **values, producer_id=-1, producer_epoch=-1)
    holder = {"transactional_id": "x", "producer_id": begun.producer_id, "producer_epoch": 0}
    await gateway.crash()
    monkeypatch.setattr("metatxn_gateways.kafka.producers.read_key", read_late)
    offsets = asyncio.ensure_future(code_in(gateway, 25, 3, "AddOffsetsToTxnRequest", **holder, group_id="g"))
    await waits.wait()
    topic = made(24, 3, "AddPartitionsToTxnTopic", name="t", partitions=(0,))
    adding = {f"v3_and_below_{name}": value for name, value in holder.items()} | {"v3_and_below_topics": (topic,)}
    assert (await code_in(gateway, 24, 3, "AddPartitionsToTxnRequest", **adding))[1] == KafkaCode.NONE
    records = batch(b"a", producer=begun.producer_id, sequence=0, attributes=0x10)
    part = made(0, 8, "PartitionProduceData", index=0, records=records)
    data = made(0, 8, "TopicProduceData", name="t", partition_data=(part,))
    sent = {"transactional_id": "x", "acks": -1, "timeout": timedelta(seconds=1), "topic_data": (data,)}
    answer = await asked(gateway, 0, 8, made(0, 8, "ProduceRequest", **sent))
    assert answer.responses[0].partition_responses[0].error_code == 0
    late.set()
    assert (await offsets)[1] == KafkaCode.NONE
    _, ended = await code_in(gateway, 26, 3, "EndTxnRequest", **holder, committed=True)
    seen = await gateway.browse("t")
    assert (ended, [each["value_base64"] for each in seen]) == (KafkaCode.NONE, ["YQ=="])
