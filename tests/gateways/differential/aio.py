"""A program of aiokafka, and a journal of all that it is told, as `confluent` has one."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

PLACE = TopicPartition("aio", 0)


async def journal_of(servers: str) -> list[str]:
    told: list[str] = []

    def tell(what: str, value: Any) -> None:
        told.append(f"{what}: {json.dumps(value)}")

    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    await admin.create_topics([NewTopic("aio", 1, 1)])
    async with AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True) as producer:
        sent = [await producer.send_and_wait("aio", b"%d" % number, key=b"k", partition=0) for number in range(3)]
        tell("sent", [each.offset for each in sent])
    tell("read", await _read(servers, "read_committed", 3))
    producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id="aio")
    async with producer:
        for value, commit in ((b"kept", True), (b"dropped", False), (b"kept too", True)):
            await producer.begin_transaction()
            await producer.send_and_wait("aio", value, partition=0)
            await (producer.commit_transaction() if commit else producer.abort_transaction())
        await producer.begin_transaction()
        await producer.send_offsets_to_transaction({PLACE: 2}, "aio")
        await producer.commit_transaction()
        rival = AIOKafkaProducer(bootstrap_servers=servers, transactional_id="aio")
        await rival.start()
        try:
            async with producer.transaction():
                await producer.send_and_wait("aio", b"fenced", partition=0)
            tell("fenced", None)
        except KafkaError as error:
            tell("fenced", type(error).__name__)
        await rival.stop()
    tell("committed", await _read(servers, "read_committed", 5))
    tell("not committed, too", await _read(servers, "read_uncommitted", 6))
    consumer = AIOKafkaConsumer(
        "aio", bootstrap_servers=servers, group_id="aio", enable_auto_commit=False, isolation_level="read_committed"
    )
    async with consumer:
        message = await consumer.getone()
        tell("goes on at", [message.offset, message.value.decode()])
        await consumer.commit({PLACE: 1})
        tell("goes back to", await consumer.committed(PLACE))
    groups = await admin.describe_consumer_groups(["aio"])
    tell("the group", groups[0].to_object()["groups"][0]["state"])
    await admin.delete_topics(["aio"])
    await admin.close()
    return told


async def _read(servers: str, isolation: str, number: int) -> list[str]:
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, isolation_level=isolation, group_id=None)
    async with consumer:
        consumer.assign([PLACE])
        await consumer.seek_to_beginning()
        return [(await asyncio.wait_for(consumer.getone(), 60)).value.decode() for _ in range(number)]
