"""What the programs have in common that use confluent-kafka: a journal of what they are told, and their clients."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

PATIENCE_S = 60
FAST = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "topic.metadata.refresh.fast.interval.ms": 10,
}


class KafkaProgram:
    def __init__(self, servers: str, **settings: str) -> None:
        self.settings = {"bootstrap.servers": servers, **FAST, **settings}
        self.journal: list[str] = []
        self.admin = AdminClient(self.settings)

    @property
    def parts(self) -> Sequence[Callable[[], None]]:
        raise NotImplementedError

    def run(self) -> list[str]:
        for part in self.parts:
            self.journal.append(f"# {part.__name__.strip('_')}")
            part()
        return self.journal

    # -- telling -----------------------------------------------------------------------------------------------

    def tell(self, what: str, *values: Any) -> None:
        self.journal.append(f"{what}: {json.dumps(values if len(values) != 1 else values[0])}")

    def attempt(self, what: str, action: Callable[[], Any]) -> None:
        """Tell the result, or the name of the error."""
        try:
            found = action()
        except KafkaException as error:
            found = error.args[0].name()
        self.tell(what, found)

    # -- clients -----------------------------------------------------------------------------------------------

    def create(self, *names: str, partitions: int = 1) -> None:
        for created in self.admin.create_topics([NewTopic(each, partitions, 1) for each in names]).values():
            created.result(PATIENCE_S)

    def producer(self, **options: Any) -> Producer:
        return Producer({**self.settings, "linger.ms": 0, **options})

    def consumer(self, group: str, **options: Any) -> Consumer:
        settings = {**self.settings, "group.id": group, "enable.auto.commit": False, "fetch.wait.max.ms": 10}
        return Consumer({**settings, "heartbeat.interval.ms": 100, "auto.offset.reset": "earliest", **options})

    def send(self, producer: Producer, topic: str, value: str | None, **options: Any) -> int | str:
        """The offset, or the name of the error."""
        answers: list[int | str] = []

        def delivered(error: Any, message: Any) -> None:
            answers.append(message.offset() if error is None else error.name())

        producer.produce(topic, value, **{"partition": 0, **options}, on_delivery=delivered)
        assert producer.flush(PATIENCE_S) == 0
        return answers[0]

    def read(self, topic: str, isolation: str, offset: int = 0, partition: int = 0) -> tuple[list[Any], int]:
        """All messages, and the position at the end."""
        consumer = self.consumer("none", **{"isolation.level": isolation, "enable.partition.eof": True})
        consumer.assign([TopicPartition(topic, partition, offset)])
        found: list[Any] = []
        try:
            while True:
                message = consumer.poll(PATIENCE_S)
                assert message is not None, "nothing came"
                if (error := message.error()) is not None:
                    if error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    return found, message.offset()
                found.append(message)
        finally:
            consumer.close()
