"""Goal: what librdkafka wrote is read by every reader of ours as it was written: whole, in order, with its key, headers
and value, whatever the compression.

Method: `metatxn dev` with a port for Kafka's clients, written to by confluent-kafka in every compression and inside a
transaction, and read by the Python client, `read_table`, REST and `metatxn topic consume`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

import metatxn
from metatxn.wire.record_batches import COMPRESSION, HEADER
from tests.gateways.conftest import PATIENCE_S
from tests.metatxn.command_line import run_here
from tests.metatxn.dev_server import DevServer

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TOPIC = "written"
Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]
RECORDS: list[Record] = [
    (b"key", b"value", [("h", b"x"), ("other", b"")]),
    (None, b"no key", []),
    (b"deleted", None, []),
    (b"", b"", [("null", None)]),
    (b"\xff\x00", b"\x00\xff", [("bytes", b"\xff")]),
    (b"json", b'{"a":[1,null]}', [("content-type", b"application/json")]),
    (b"broken", b"{", [("content-type", b"application/json")]),
    (b"long", b"x" * 5_000, []),
]
"""What each producer writes, as one batch."""


def told(record: Record) -> tuple[str | None, Any, dict[str, str]]:
    """The key, value and properties of a record for readers of ours."""
    key, value, headers = record
    properties = {name: (text or b"").decode(errors="backslashreplace") for name, text in headers}
    read: Any = {"a": [1, None]} if key == b"json" else value
    return None if key is None else key.decode(errors="backslashreplace"), read, properties


def read_as_json(messages: list[Any]) -> list[tuple[str | None, Any, dict[str, str]]]:
    """The same of messages of the REST API."""
    encoded = [each.get("value_base64") for each in messages]
    values = [
        each.get("value") if text is None else base64.b64decode(text)
        for each, text in zip(messages, encoded, strict=True)
    ]
    return [(each["key"], value, each["properties"]) for each, value in zip(messages, values, strict=True)]


EXPECTED = [told(record) for _ in range(len(CODECS) + 1) for record in RECORDS]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevServer]:
    with DevServer(tmp_path_factory.mktemp("dev"), "--kafka-port", "0") as server:
        write(server.kafka_address)
        yield server


def write(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(PATIENCE_S)
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": servers, "compression.type": codec, "linger.ms": 200})
        write_all(producer)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "x", "linger.ms": 200})
    producer.init_transactions(PATIENCE_S)
    for commit in (False, True):
        producer.begin_transaction()
        write_all(producer)
        (producer.commit_transaction if commit else producer.abort_transaction)(PATIENCE_S)


def write_all(producer: Producer) -> None:
    for key, value, headers in RECORDS:
        producer.produce(TOPIC, value, key=key, headers=headers, partition=0)
    assert producer.flush(PATIENCE_S) == 0


@pytest.fixture
def client(server: DevServer) -> Iterator[metatxn.Client]:
    with metatxn.connect(server.coordinator_url) as client:
        yield client


def test_the_reader_of_the_client(client: metatxn.Client) -> None:
    found = [(each.key, each.value, each.properties) for each in client.reader(TOPIC)]
    assert found == EXPECTED


def test_a_subscription(client: metatxn.Client) -> None:
    with client.subscribe(TOPIC, "s", initial="earliest") as consumer:
        found = [consumer.receive(timeout_s=PATIENCE_S) for _ in EXPECTED]
        assert [(each.key, each.value, each.properties) for each in found if each is not None] == EXPECTED


def test_a_table(client: metatxn.Client) -> None:
    table = client.read_table(TOPIC, include_metadata=True, on_error="null")
    assert table.column("__key").to_pylist() == [key for key, _, _ in EXPECTED]
    values = [value if value is None or isinstance(value, bytes) else None for _, value, _ in EXPECTED]
    assert table.column("value").to_pylist() == values, "JSON among bytes is none of the column"


def test_the_batches_are_compressed_as_they_were_sent(client: metatxn.Client) -> None:
    (segment,) = client.topic(TOPIC).segments
    frames = list(client.read_segment(segment.segment))
    assert {HEADER.unpack_from(each.payload)[5] & COMPRESSION for each in frames} == set(range(5))
    assert sum(each.count for each in frames) == len(EXPECTED)


def test_rest(server: DevServer) -> None:
    found: list[Any] = []
    after: dict[str, str] = {}
    while True:
        page = httpx.get(f"{server.broker_url}/v1/topics/{TOPIC}/messages", params={"max": "7", **after}).json()
        found += page["messages"]
        if not page["messages"]:
            break
        after = {"after": page["next"]}
    assert read_as_json(found) == EXPECTED


def test_the_command_line(server: DevServer) -> None:
    done = run_here("topic", "consume", TOPIC, "-o", "json", METATXN_URL=server.coordinator_url)
    assert done.returncode == 0, done.stderr
    assert read_as_json(json.loads(done.stdout)) == EXPECTED
