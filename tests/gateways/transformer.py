"""A program of confluent-kafka that consumes, transforms and produces in transactions, as its manual says."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.gateways.conftest import PATIENCE_S, Clients

INPUTS = 40
AT_ONCE = 5


def fill(clients: Clients) -> None:
    """The inputs, in the two partitions of "in"."""
    producer = clients.producer()
    for number in range(INPUTS):
        producer.produce("in", str(number), partition=number % 2)
    assert producer.flush(PATIENCE_S) == 0


class Transformer:
    """Consumes "in", and produces to "out" in the transaction that commits its offsets. It begins anew where the group
    is."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self.offsets_sent: Callable[[int], None] = lambda step: None
        """Called with the number of the step, before its transaction is decided."""
        self.begins_anew_after = 0
        self._steps = 0
        self._begin()

    def _begin(self) -> None:
        options = {"transactional.id": "transformer", "reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": 100}
        self._producer: Producer = self._clients.producer(**options)
        self._producer.init_transactions(PATIENCE_S)
        self._consumer: Consumer = self._clients.consumer("transformers")
        self._consumer.subscribe(["in"])

    def hear_of_brokers(self, urls: set[str]) -> None:
        """Its clients ask until they know these. A client that has only heard of brokers that are gone has nobody to
        ask for others."""
        for client in (self._producer, self._consumer):
            known: set[str] = set()
            while not urls <= known:
                told = client.list_topics(timeout=PATIENCE_S).brokers.values()
                known = {f"{each.host}:{each.port}" for each in told}

    @property
    def reached(self) -> int:
        """The inputs that the group has passed, as far as that can be asked now."""
        places = [TopicPartition("in", partition) for partition in range(2)]
        try:
            return sum(max(each.offset, 0) for each in self._consumer.committed(places, PATIENCE_S))
        except KafkaException:
            return 0

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
            self.offsets_sent(self._steps)
            self._producer.commit_transaction(PATIENCE_S)
            failed = False
        except KafkaException:
            failed = True
        if failed or self._steps == self.begins_anew_after:
            self.close()
            self._begin()

    def close(self) -> None:
        self._consumer.close()
