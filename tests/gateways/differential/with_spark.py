"""Goal: a Spark job with Spark's own source and sink for Kafka works as docs/kafka.md says, also with a token over TLS,
and while brokers die and partitions move.

Method: the program of the page, a part of the program that `with_kafka` compares, and a query that goes on while
brokers die, come and go; against brokers in this process. Run by `make kafka-test`, which brings a Spark with its
connector for Kafka.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from confluent_kafka import TopicPartition

from examples.flights.processes import ROOT
from metatxn.service.exposure import open_exposure
from tests.certificates import Authority
from tests.documents import examples, outputs
from tests.gateways.conftest import Clients, Gateway, start_gateway
from tests.gateways.differential import spark
from tests.gateways.differential.spark_copying import copying
from tests.gateways.differential.spark_program import Access, printed_with_kafka
from tests.gateways.test_kafka_brokers import PARTITIONS, Brokers
from tests.participants.segment.world import World
from tests.service.security import TokenFile

PARTS = ("streaming_sink", "batch_read")
PATIENCE_S = 60
LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"


async def test_the_program_on_the_page_prints_what_the_page_shows(gateway: Gateway, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "kafka.md").read_text()
    program, printed = examples(page, "python")[1], outputs(page)[1]
    await gateway.create("orders", segments=2)
    assert await printed_with_kafka(tmp_path, "-c", program.replace("127.0.0.1:9092", gateway.servers)) == printed


async def test_it_needs_tokens_that_may_consume_or_produce(gateway: Gateway, tmp_path: Path) -> None:
    authority, tokens = Authority(tmp_path / "authority"), TokenFile(tmp_path)
    certificate = authority.sign("broker")
    exposure = open_exposure(token_file=tokens.path, tls_cert=certificate.cert, tls_key=certificate.key)
    secured = Access(
        client={
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(authority.ca),
            "sasl.mechanism": "PLAIN",
            "sasl.username": "token",
            "sasl.password": tokens.add("admin", admin=True),
        },
        source=_access(authority, tokens.add("reader", topics={"public/default/spark-*": "consume"})),
        sink=_access(authority, tokens.add("writer", topics={"public/default/spark-*": "produce"})),
    )
    (tmp_path / "secured").mkdir()
    async with start_gateway(tmp_path / "secured", exposure) as other:
        told = await spark.journal_of(other.servers, secured, PARTS)
    assert told == await spark.journal_of(gateway.servers, parts=PARTS)


async def test_a_query_goes_on_after_its_broker_has_died(gateway: Gateway, tmp_path: Path) -> None:
    for name in ("in", "out"):
        await gateway.create(name, segments=2)
    writing = Writing(gateway, 2)
    async with copying(gateway.servers, tmp_path / "checkpoint"):
        for _ in range(3):
            await writing.some_more()
            await gateway.crash()
        await writing.some_more()
    await writing.assert_copied_once()


async def test_a_query_goes_on_while_partitions_move(tmp_path: Path) -> None:
    world = World(tmp_path, "objects")
    brokers = Brokers(world)
    for _ in range(2):
        await brokers.start()
    for name in ("out", "in"):
        await brokers.create(name)
    writing = Writing(brokers, PARTITIONS)
    async with copying(brokers.servers, tmp_path / "checkpoint"):
        await writing.some_more()
        third = await brokers.third()
        await writing.some_more()
        await brokers.stop(third)
        await writing.some_more()
        await brokers.again(brokers.members[0])
        await writing.some_more()
    await writing.assert_copied_once()
    for member in list(brokers.members):
        await brokers.stop(member)
    await world.close()


class Writing:
    """What is committed in the topic `in`, between what is aborted there."""

    def __init__(self, clients: Clients, partitions: int) -> None:
        self._clients = clients
        self._producer = clients.producer(**{"transactional.id": "writing"})
        self._written: list[str] = []
        self._partitions = partitions
        self._begun = 0

    async def some_more(self) -> None:
        """Returns as soon as more than before was copied, while there is still something left."""
        before = len(self._written)
        await asyncio.to_thread(self._write)
        await asyncio.to_thread(self._until_copied, before + 1)

    def _write(self) -> None:
        if not self._begun:
            self._producer.init_transactions(PATIENCE_S)
        for _ in range(15):
            self._begun += 1
            commit = self._begun % 3 != 1
            self._producer.begin_transaction()
            values = [f"{self._begun} {each}" for each in range(10)]
            for value in values:
                for partition in range(self._partitions):
                    self._producer.produce("in", value, partition=partition)
            assert self._producer.flush(PATIENCE_S) == 0
            (self._producer.commit_transaction if commit else self._producer.abort_transaction)(PATIENCE_S)
            self._written += values if commit else []

    def _until_copied(self, number: int) -> None:
        consumer = self._clients.consumer("none")
        consumer.assign([TopicPartition("out", 0, 0)])
        while number > 0:
            number -= sum(1 for each in consumer.consume(number, PATIENCE_S) if not each.error())
        consumer.close()

    async def assert_copied_once(self) -> None:
        for partition in range(self._partitions):
            found, _ = await asyncio.to_thread(self._clients.read, "out", "read_committed", 0, partition)
            assert [(value or b"").decode() for _, _, value in found] == self._written


def _access(authority: Authority, token: str) -> dict[str, str]:
    return {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(authority.ca),
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": f'{LOGIN} username="token" password="{token}";',
    }
