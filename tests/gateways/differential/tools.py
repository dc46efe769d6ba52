"""Kafka's shell tools, and a journal of what they print and how they end, as `confluent` has one.

They run one after the other in one process of Java (`Tools.java`), because each takes seconds to start. Numbers of
nodes, ids that are drawn, times, and the texts of errors are left out.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from benchmarks.peers.servers import JARS

PROGRAM = Path(__file__).parent / "Tools.java"
PATIENCE_S = 60
_LEFT_OUT = re.compile(r"\s+at |Caused by|SLF4J|WARN|null$|Tools\$Ended|__")
_DRAWN = re.compile(
    r" synonyms=.*|TopicId: \S+|(?<=topic command) : .*|(?<= args) '.*|(?<=Leader: )\d+|(?<=Replicas: )\d+"
    r"|(?<=Isr: )\d+|127\.\S+ +\(\d+\)|(?<=^tools-id)\s+\S+\s+\S+"
)
"""What differs from run to run, and the texts of errors."""
_OF_KAFKA = re.compile(r"\bElr: .*|min\.insync\.replicas=1,?")
"""What Kafka's own cluster is set to, and the state of its replicas."""
_TRANSACTION = re.compile(r"\d+\s+tools-id\s+\d+\s+\d+\s+(\w+)")
"""A transaction as it is described. Kafka tells when it began as long as it is known, and we while it lasts."""
OF_SHOP = "--entity-type topics --entity-name tools-shop"
TOPICS = (
    "kafka-topics --create --topic tools-shop --partitions 2"
    " --config cleanup.policy=compact --config retention.ms=70000",
    "kafka-topics --create --topic tools-shop",
    "kafka-topics --create --topic wrong --config no.such.setting=1",
    "kafka-topics --create --topic tools-orders --partitions 1",
    "kafka-topics --list",
    "kafka-topics --describe --topic tools-shop",
    "kafka-topics --alter --topic tools-orders --partitions 3",
    "kafka-topics --alter --topic tools-orders --partitions 2",
    "kafka-topics --describe --topic tools-orders",
    f"kafka-configs --alter {OF_SHOP} --add-config retention.ms=80000,delete.retention.ms=5000",
    f"kafka-configs --describe {OF_SHOP}",
    f"kafka-configs --alter {OF_SHOP} --delete-config retention.ms",
    f"kafka-configs --alter {OF_SHOP} --add-config no.such.setting=1",
    f"kafka-configs --describe {OF_SHOP}",
)
RECORDS = (
    "kafka-consumer-groups --list",
    "kafka-consumer-groups --describe --group tools-group",
    "kafka-consumer-groups --describe --group tools-group --state",
    "kafka-consumer-groups --group tools-group --topic tools-orders:0 --reset-offsets --to-earliest --execute",
    "kafka-consumer-groups --group tools-group --topic tools-orders:0 --reset-offsets --to-offset 2 --execute",
    "kafka-consumer-groups --describe --group tools-group",
    "kafka-consumer-groups --group tools-group --topic tools-orders:0 --delete-offsets",
    "kafka-delete-records --offset-json-file {offsets}",
    "kafka-transactions list",
    "kafka-transactions describe --transactional-id tools-id",
    "kafka-transactions describe-producers --topic tools-orders --partition 0",
    "kafka-topics --delete --topic tools-shop",
    "kafka-topics --delete --topic never",
    "kafka-topics --list",
)


async def journal_of(servers: str) -> list[str]:
    return await asyncio.to_thread(_journal_of, servers)


def _journal_of(servers: str) -> list[str]:
    told = _run(servers, TOPICS)
    _write(servers)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as offsets:
        json.dump({"partitions": [{"topic": "tools-orders", "partition": 0, "offset": 2}], "version": 1}, offsets)
        offsets.flush()
        told += [
            line.replace(offsets.name, "FILE")
            for line in _run(servers, [each.format(offsets=offsets.name) for each in RECORDS])
        ]
    return told


def _run(servers: str, commands: Sequence[str]) -> list[str]:
    command = ("java", "-XX:TieredStopAtLevel=1", "-cp", f"{JARS}/*", str(PROGRAM), servers)
    done = subprocess.run(command, input="\n".join(commands), capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return list(_plain(done.stdout))


def _plain(printed: str) -> Iterator[str]:
    """Of the lists only what this program has made, because others may have been here before."""
    lists = False
    for line in printed.splitlines():
        lists = line.endswith("list") if line.startswith("$ ") else lists
        if lists and not line.startswith(("$ ", "= ", "tools-")):
            continue
        if errors := re.findall(r"errors\.(\w+)", line):
            yield errors[-1]
        elif described := _TRANSACTION.match(line):
            yield described[1]
        elif line.strip() and not _LEFT_OUT.match(line):
            yield " ".join(_DRAWN.sub("…", _OF_KAFKA.sub("", line)).split())


def _write(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
    for value in ("a", "b", "c"):
        producer.produce("tools-orders", value, partition=0)
        assert producer.flush(PATIENCE_S) == 0
    transactional = Producer({"bootstrap.servers": servers, "transactional.id": "tools-id"})
    transactional.init_transactions(PATIENCE_S)
    transactional.begin_transaction()
    transactional.produce("tools-shop", "a", key="k", partition=0)
    transactional.commit_transaction(PATIENCE_S)
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "tools-group", "enable.auto.commit": False})
    while True:
        try:
            consumer.commit(offsets=[TopicPartition("tools-orders", 0, 1)], asynchronous=False)
            break
        except KafkaException as error:  # Kafka's own coordinator takes some time to be there
            if error.args[0].code() != KafkaError.NOT_COORDINATOR:
                raise
            consumer.poll(0.1)
    consumer.close()
