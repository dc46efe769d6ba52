"""Goal: what a program of confluent-kafka is told by us is what Apache Kafka 4.4 tells it.

Method: the program runs against a broker in this process. `kafka.journal` is what it was told by Kafka itself; `make
kafka-test` compares that again, and writes it anew where it differs.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.gateways.conftest import Gateway
from tests.gateways.differential.confluent import Program

RECORDED = Path(__file__).parent / "kafka.journal"


async def test_a_program_is_told_what_kafka_tells_it(gateway: Gateway) -> None:
    told = await asyncio.to_thread(Program(gateway.servers).run)
    assert told == RECORDED.read_text().splitlines()
