"""Goal: programs of Kafka's clients are told the same by Apache Kafka and by us.

Method: a program of confluent-kafka, one of aiokafka, one of kafka-clients, Kafka's shell tools, and a program of Spark
with its own source and sink for Kafka each run against a broker of Kafka's in a process of its own, and against one of
ours; their journals are equal. Run by `make kafka-test`, which brings Kafka, and not by `make test`: that compares ours
with the journal that is recorded here (`test_recorded`). With `KAFKA_JOURNAL=record` it writes that anew.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from benchmarks.peers.servers import JARS, Kafka
from tests.gateways.conftest import Gateway
from tests.gateways.differential import aio, spark, tools
from tests.gateways.differential.confluent import Program
from tests.gateways.differential.test_recorded import RECORDED

JAVA_PROGRAM = Path(__file__).parent / "Program.java"
SETTINGS = {"auto.create.topics.enable": "false", "group.initial.rebalance.delay.ms": "0"}

Client = Callable[[str], Awaitable[list[str]]]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of Kafka itself."""
    kafka = Kafka("Kafka", tmp_path_factory.mktemp("kafka"), **SETTINGS)
    kafka.start()
    try:
        yield kafka.address
    finally:
        kafka.stop()


async def confluent(servers: str) -> list[str]:
    return await asyncio.to_thread(Program(servers).run)


async def java(servers: str) -> list[str]:
    command = ("java", "-cp", f"{JARS}/*", str(JAVA_PROGRAM), servers)
    pipe = asyncio.subprocess.PIPE
    program = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    told, complaints = await program.communicate()
    assert program.returncode == 0, complaints.decode()
    return told.decode().splitlines()


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(confluent, id="confluent-kafka"),
        pytest.param(aio.journal_of, id="aiokafka"),
        pytest.param(java, id="java"),
        pytest.param(tools.journal_of, id="shell tools"),
        *(
            pytest.param(partial(spark.journal_of, parts=parts), id=f"spark {does}")
            for does, parts in spark.PARTS.items()
        ),
    ],
)
async def test_it_is_told_the_same(
    kafka: str, gateway: Gateway, program: Callable[[str], Awaitable[list[str]]]
) -> None:
    expected = await program(kafka)
    if program is confluent and os.environ.get("KAFKA_JOURNAL") == "record":
        RECORDED.write_text("".join(f"{line}\n" for line in expected))
    assert await program(gateway.servers) == expected
    if program is confluent:
        assert RECORDED.read_text().splitlines() == expected, "Kafka tells something else than when it was recorded"
