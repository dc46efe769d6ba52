"""Goal: librdkafka, which knows nothing of us, produces, consumes and commits transactions, and meets our own clients.

Method: confluent-kafka over loopback against a broker in this process. DESIGN §5.20.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from metatxn.wire.ids import TxnId
from tests.documents import examples, outputs
from tests.gateways.conftest import PATIENCE_S, Gateway, send


async def test_messages_are_found_by_the_times_that_their_producer_gave_them(gateway: Gateway) -> None:
    await gateway.create("t", segments=2)

    def work() -> None:
        producer = gateway.producer(**{"linger.ms": 50})
        for number, time_ms in enumerate((1_000, 3_000, 2_000, 4_000)):
            producer.produce("t", f"{number}", partition=0, timestamp=time_ms)
        assert producer.flush(PATIENCE_S) == 0
        send(producer, "t", "old", timestamp=1_500)
        admin = AdminClient({"bootstrap.servers": gateway.servers})

        def found(spec: OffsetSpec, partition: int = 0) -> tuple[int, int]:
            place = TopicPartition("t", partition)
            answer = admin.list_offsets({place: spec})[place].result(PATIENCE_S)
            return answer.offset, answer.timestamp

        for asked, expected in (
            *((0, (0, 1_000)), (1_000, (0, 1_000)), (1_001, (1, 3_000)), (3_001, (3, 4_000))),
            (4_001, (-1, -1)),
        ):
            assert found(OffsetSpec.for_timestamp(asked)) == expected
            assert found(OffsetSpec.for_timestamp(asked), 1) == (-1, -1)
        assert found(OffsetSpec.max_timestamp()) == (3, 4_000)
        consumer = gateway.consumer("g")
        (place,) = consumer.offsets_for_times([TopicPartition("t", 0, 2_500)], PATIENCE_S)
        assert place.offset == 1
        consumer.close()

    await asyncio.to_thread(work)


async def test_messages_are_produced_and_consumed(gateway: Gateway) -> None:
    def work() -> None:
        admin = AdminClient({"bootstrap.servers": gateway.listener.url})
        (created,) = admin.create_topics([NewTopic("t", 2, 1)]).values()
        created.result(PATIENCE_S)
        assert len(admin.list_topics(timeout=PATIENCE_S).topics["t"].partitions) == 2
        producer = gateway.producer()
        assert send(producer, "t", "a", "b") == [0, 1]
        assert send(producer, "t", "c", key="k") == [2]
        assert gateway.read("t", "read_committed") == ([(0, None, b"a"), (1, None, b"b"), (2, b"k", b"c")], 3)
        assert gateway.read("t", "read_committed", 2) == ([(2, b"k", b"c")], 3)
        assert gateway.read("t", "read_uncommitted", 0, partition=1) == ([], 0)
        (deleted,) = admin.delete_topics(["t"]).values()
        deleted.result(PATIENCE_S)
        assert "t" not in admin.list_topics(timeout=PATIENCE_S).topics

    await asyncio.to_thread(work)


async def test_an_idempotent_producer_goes_on_behind_a_message_that_it_gave_up(gateway: Gateway) -> None:
    """Its timeout ends the message, and it goes on in the next epoch. What it gave up was on its way, and is there."""
    await gateway.create("t")
    options = {"enable.idempotence": True, "message.timeout.ms": 1_500, "socket.timeout.ms": 1_000}
    producer = gateway.producer(**options)
    told: list[tuple[bytes, str | int]] = []

    def sent(value: str) -> None:
        def on_delivery(error: Any, message: Any) -> None:
            told.append((message.value(), error.name() if error else message.offset()))

        producer.produce("t", value, partition=0, on_delivery=on_delivery)
        assert producer.flush(PATIENCE_S) == 0

    await asyncio.to_thread(sent, "a")
    gateway.process.device.hold()
    await asyncio.to_thread(sent, "b")
    gateway.process.device.go()
    for value in ("c", "d"):
        await asyncio.to_thread(sent, value)
    assert [value for value, _ in told] == [b"a", b"b", b"c", b"d"]
    assert [what for _, what in told] == [0, "_MSG_TIMED_OUT", 2, 3]
    assert [each["value_base64"] for each in await gateway.browse("t")] == ["YQ==", "Yg==", "Yw==", "ZA=="]


async def test_changes_of_topics_are_in_the_audit_log(gateway: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "metatxn.audit")

    def work() -> None:
        admin = AdminClient({"bootstrap.servers": gateway.listener.url})
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(PATIENCE_S)
        admin.delete_topics(["t"])["t"].result(PATIENCE_S)
        with pytest.raises(KafkaException):
            admin.delete_topics(["t"])["t"].result(PATIENCE_S)

    await asyncio.to_thread(work)
    lines: list[Any] = [each.msg for each in caplog.records if each.name == "metatxn.audit"]
    topic = {"topic": "public/default/t"}
    assert [(line["verb"], line["object"], line["outcome"]) for line in lines] == [
        ("topic.create", topic, "allowed"),
        ("topic.delete", topic, "allowed"),
        ("topic.delete", topic, "failed"),
    ]


async def test_rest_reads_what_librdkafka_wrote(gateway: Gateway) -> None:
    await gateway.create("t")
    values = [f"value {number % 3}" for number in range(5)]

    def work() -> None:
        for compression in ("none", "gzip", "snappy", "lz4", "zstd"):
            producer = gateway.producer(**{"compression.type": compression, "linger.ms": 20})
            send(producer, "t", *values, key=compression, headers={"h": b"x"})

    await asyncio.to_thread(work)
    found = await gateway.browse("t")
    assert len(found) == 25 and {each["key"] for each in found} == {"none", "gzip", "snappy", "lz4", "zstd"}
    assert all(each["properties"] == {"h": "x"} for each in found)
    assert [each["value_base64"] for each in found[1::5]] == ["dmFsdWUgMQ=="] * 5


async def test_librdkafka_reads_what_rest_wrote(gateway: Gateway) -> None:
    await gateway.create("t")
    sent = [{"key": "k", "value": {"a": 1}}, {"value_base64": "AP8="}, {"value": None}]
    assert (await gateway.http.post("/v1/topics/t/messages", json={"messages": sent})).status_code == 200
    found, end = await asyncio.to_thread(gateway.read, "t", "read_committed")
    assert found == [(0, b"k", b'{"a":1}'), (1, None, b"\x00\xff"), (2, None, None)] and end == 3


async def test_offsets_count_records_and_no_ends_of_transactions(gateway: Gateway) -> None:
    """So a group behind the last record has no lag, which is what exporters and Kafka's tools compute."""
    await gateway.create("t")

    def work() -> None:
        producer = gateway.producer(**{"transactional.id": "x"})
        producer.init_transactions(PATIENCE_S)
        for number in range(3):
            producer.begin_transaction()
            assert send(producer, "t", "a", "b") == [2 * number, 2 * number + 1]
            producer.commit_transaction(PATIENCE_S)
        consumer = gateway.consumer("g")
        place = TopicPartition("t", 0, 0)
        consumer.assign([place])
        for _ in range(6):
            message = consumer.poll(PATIENCE_S)
            assert message is not None and message.error() is None
        consumer.commit(message, asynchronous=False)
        (committed,) = consumer.committed([place], PATIENCE_S)
        assert committed.offset == consumer.get_watermark_offsets(place, PATIENCE_S)[1] == 6
        consumer.close()

    await asyncio.to_thread(work)


async def test_a_committed_read_moves_on_behind_aborted_records(gateway: Gateway) -> None:
    await gateway.create("t")

    def work() -> None:
        producer = gateway.producer(**{"transactional.id": "x"})
        producer.init_transactions(PATIENCE_S)
        for value, commit in (("a", True), ("b", False), ("c", True), ("d", False)):
            producer.begin_transaction()
            send(producer, "t", value, value)
            (producer.commit_transaction if commit else producer.abort_transaction)(PATIENCE_S)
        committed = [(0, None, b"a"), (1, None, b"a"), (4, None, b"c"), (5, None, b"c")]
        assert gateway.read("t", "read_committed") == (committed, 8)
        producer.begin_transaction()
        send(producer, "t", "e")
        assert gateway.read("t", "read_committed", 6) == ([], 8), "it is open"
        found, end = gateway.read("t", "read_uncommitted")
        assert ([offset for offset, _, _ in found], end) == (list(range(9)), 9)

    await asyncio.to_thread(work)


async def test_a_second_producer_of_a_transactional_id_fences_the_first(gateway: Gateway) -> None:
    await gateway.create("t")

    def work() -> None:
        first = gateway.producer(**{"transactional.id": "x"})
        first.init_transactions(PATIENCE_S)
        first.begin_transaction()
        send(first, "t", "lost")
        second = gateway.producer(**{"transactional.id": "x"})
        second.init_transactions(PATIENCE_S)
        with pytest.raises(KafkaException):
            first.commit_transaction(PATIENCE_S)
        second.begin_transaction()
        send(second, "t", "kept")
        second.commit_transaction(PATIENCE_S)
        assert gateway.read("t", "read_committed") == ([(1, None, b"kept")], 2)

    await asyncio.to_thread(work)


async def test_a_transaction_that_an_operator_aborts_is_not_confirmed(gateway: Gateway) -> None:
    await gateway.create("t")
    producer = gateway.producer(**{"transactional.id": "x"})

    def begin() -> None:
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        send(producer, "t", "a")

    await asyncio.to_thread(begin)
    held = await gateway.transactions.keys.get("kafka:x")
    assert held.txn_id is not None
    await gateway.transactions.abort(TxnId.parse(held.txn_id))
    with pytest.raises(KafkaException):
        await asyncio.to_thread(producer.commit_transaction, PATIENCE_S)
    assert await gateway.browse("t") == []


async def test_the_program_on_the_page_prints_what_the_page_shows(gateway: Gateway) -> None:
    page = (Path(__file__).parents[2] / "docs" / "kafka.md").read_text()
    (program, _), (printed, _) = examples(page, "python"), outputs(page)  # the others are of Spark
    program = program.replace("127.0.0.1:9092", gateway.listener.url)
    command = [sys.executable, "-c", program]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout == printed, done.stderr
