"""Goal: librdkafka's consumers share the partitions of a topic in a group, and a program that consumes, transforms and
produces in transactions handles every input exactly once, also when the broker dies in between and the program begins
anew.

Method: confluent-kafka over loopback against a broker in this process, which dies and comes again. DESIGN §5.21.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.gateways.conftest import PATIENCE_S, Gateway, send

INPUTS = 40
AT_ONCE = 5


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

    def offsets_sent() -> None:
        loop.call_soon_threadsafe(sent.set)
        again.wait(PATIENCE_S)

    def work() -> None:
        producer = gateway.producer()
        for number in range(INPUTS):
            producer.produce("in", str(number), partition=number % 2)
        assert producer.flush(PATIENCE_S) == 0
        program = Transformer(gateway)
        program.offsets_sent = offsets_sent
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


class Transformer:
    """Consumes "in", and produces to "out" in the transaction that commits its offsets. It begins anew where the group
    is."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.offsets_sent: Callable[[], None] = lambda: None
        self._steps = 0
        self._begin()

    def _begin(self) -> None:
        options = {"transactional.id": "transformer", "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100}
        self._producer: Producer = self._gateway.producer(**options)
        self._producer.init_transactions(PATIENCE_S)
        self._consumer: Consumer = self._gateway.consumer("transformers")
        self._consumer.subscribe(["in"])

    @property
    def reached(self) -> int:
        """The inputs that the group has passed."""
        places = [TopicPartition("in", partition) for partition in range(2)]
        return sum(max(each.offset, 0) for each in self._consumer.committed(places, PATIENCE_S))

    def step(self) -> None:
        messages = self._consumer.consume(AT_ONCE, 0.5)
        if not messages or any(each.error() for each in messages):
            return
        self._steps += 1
        try:
            self._producer.begin_transaction()
            for each in messages:
                self._producer.produce("out", each.value(), partition=0)
            places = self._consumer.position(self._consumer.assignment())
            group = self._consumer.consumer_group_metadata()
            self._producer.send_offsets_to_transaction(places, group, PATIENCE_S)
            if self._steps == 2:
                self.offsets_sent()
            self._producer.commit_transaction(PATIENCE_S)
        except KafkaException:
            self._steps = 2
        if self._steps == 2:  # the broker has died: the program begins anew, too
            self.close()
            self._begin()

    def close(self) -> None:
        self._consumer.close()


def consumed(consumer: Consumer) -> str:
    message = consumer.poll(PATIENCE_S)
    assert message is not None and message.error() is None, message and message.error()
    value: bytes = message.value()
    return value.decode()
