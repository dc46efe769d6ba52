"""Goal: librdkafka's consumers share the partitions of a topic in a group, and a program that consumes, transforms and
produces in transactions handles every input exactly once, also when the broker dies in between and the program begins
anew.

Method: confluent-kafka over loopback against a broker in this process, which dies and comes again. DESIGN §5.21.
"""

from __future__ import annotations

import asyncio
import threading

from confluent_kafka import Consumer, TopicPartition

from tests.gateways.conftest import PATIENCE_S, Gateway, send
from tests.gateways.transformer import INPUTS, Transformer, fill


async def test_two_consumers_share_a_topic_and_go_on_for_each_other(gateway: Gateway) -> None:
    await gateway.create("t", 2)

    def work() -> None:
        producer = gateway.producer()
        for number in range(10):
            producer.produce("t", str(number), partition=number % 2)
        assert producer.flush(PATIENCE_S) == 0
        first, second = gateway.consumer("g"), gateway.consumer("g")
        first.subscribe(["t"])
        seen = [consumed(first) for _ in range(10)]
        assert sorted(seen, key=int) == [str(number) for number in range(10)]
        first.commit(asynchronous=False)
        second.subscribe(["t"])
        while not (len(first.assignment()) == len(second.assignment()) == 1):
            assert first.poll(0.05) is None and second.poll(0.05) is None, "everything was committed"
        for number in (10, 11):
            producer.produce("t", str(number), partition=number % 2)
        assert producer.flush(PATIENCE_S) == 0
        assert {consumed(first), consumed(second)} == {"10", "11"}
        second.commit(asynchronous=False)
        first.close()
        (again,) = {consumed(second)}
        assert again in ("10", "11"), "what the first one has read and not committed"
        places = second.committed([TopicPartition("t", partition) for partition in range(2)], PATIENCE_S)
        assert {each.partition: each.offset for each in places} == {int(again) % 2: 5, 1 - int(again) % 2: 6}
        second.close()

    await asyncio.to_thread(work)


async def test_a_consumer_without_a_group_s_members_commits_any_offset_with_a_text(gateway: Gateway) -> None:
    await gateway.create("t")

    def work() -> None:
        send(gateway.producer(), "t", "a", "b", "c")
        for offset, text in ((3, "three"), (1, None)):
            consumer = gateway.consumer("g")
            consumer.assign([TopicPartition("t", 0)])
            given = TopicPartition("t", 0, offset) if text is None else TopicPartition("t", 0, offset, text)
            consumer.commit(offsets=[given], asynchronous=False)
            (found,) = consumer.committed([TopicPartition("t", 0)], PATIENCE_S)
            assert (found.offset, found.metadata) == (offset, text)
            consumer.close()
        reading = gateway.consumer("g")
        reading.assign([TopicPartition("t", 0)])
        assert consumed(reading) == "b", "it goes on where the group is"
        reading.close()

    await asyncio.to_thread(work)


async def test_every_input_is_transformed_once_although_the_broker_dies(gateway: Gateway) -> None:
    """It dies where the offsets are in the transaction and the decision is not made."""
    await gateway.create("in", 2)
    await gateway.create("out")
    loop = asyncio.get_running_loop()
    sent, again = asyncio.Event(), threading.Event()

    def offsets_sent(step: int) -> None:
        if step == 2:
            loop.call_soon_threadsafe(sent.set)
            again.wait(PATIENCE_S)

    def work() -> None:
        fill(gateway)
        program = Transformer(gateway)
        program.offsets_sent, program.begins_anew_after = offsets_sent, 2
        while program.reached < INPUTS:
            program.step()
        program.close()
        found, _ = gateway.read("out", "read_committed")
        assert sorted(int(value or b"") for _, _, value in found) == list(range(INPUTS))

    working = asyncio.create_task(asyncio.to_thread(work))
    await sent.wait()
    await gateway.crash()
    again.set()
    await working


def consumed(consumer: Consumer) -> str:
    message = consumer.poll(PATIENCE_S)
    assert message is not None and message.error() is None, message and message.error()
    value: bytes = message.value()
    return value.decode()
