"""Goal: a topic that Kafka's clients ask to be compacted is compacted: the latest record of each key stays, with its
offset, and anyone who asks for a setting gets it or is refused.

Method: requests given to the listener's handler, and librdkafka; a pass over the policies is `reconcile`, and a ledger
is closed by hand. DESIGN §5.19, §5.20.
"""

from __future__ import annotations

import asyncio
import random
import struct
import zlib
from itertools import count
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from crc32c import crc32c

from metastore.check import StoreCheck
from metatxn.wire.broker import hash_of_key
from metatxn.wire.frames import Frame, PayloadKind
from metatxn.wire.policies import DEFAULTS, PolicySettings
from metatxn.wire.position import Position
from metatxn.wire.record_batches import KafkaRecord
from metatxn_gateways.kafka.codes import KafkaCode
from metatxn_gateways.kafka.settings import FIXED, LAYOUT, SETTINGS, InvalidConfig, policy_of
from participants.messages.batches import encode_batch
from participants.messages.payloads import key_hashes
from participants.segment.segment import Segment
from participants.segment.trimming import trim
from tests.extent import usually
from tests.gateways.asking import PRODUCER, TIMEOUT, TRANSACTIONAL, Asking, Holder, asked, made
from tests.gateways.conftest import PATIENCE_S, Gateway, Record

Pair = tuple[bytes | None, bytes | None]
HOUR_MS = 3_600_000


def records(*pairs: Pair, holder: Holder | None = None, sequence: int = 0) -> bytes:
    draft = bytearray(encode_batch([KafkaRecord(key, value) for key, value in pairs]))
    if holder is not None:
        PRODUCER.pack_into(draft, 43, holder.producer_id, 0, sequence)
        struct.pack_into(">h", draft, 21, TRANSACTIONAL)
    struct.pack_into(">I", draft, 17, crc32c(draft[21:]))
    return bytes(draft)


def numbered(*pairs: Pair, sequence: int) -> bytes:
    """A batch of an idempotent producer outside transactions."""
    draft = bytearray(records(*pairs))
    PRODUCER.pack_into(draft, 43, 7, 0, sequence)
    struct.pack_into(">I", draft, 17, crc32c(draft[21:]))
    return bytes(draft)


class Compacted:
    """A topic `t` of one partition, which is compacted."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.ask = Asking.of(gateway)
        self._sequences = count()

    async def create(self, **configs: str) -> None:
        assert await self.create_topic("t", {"cleanup.policy": "compact", **configs}) == (0, None)

    async def create_topic(self, name: str, configs: dict[str, str], version: int = 5) -> tuple[int, str | None]:
        given = tuple(
            made(19, version, "CreatableTopicConfig", name=each, value=value) for each, value in configs.items()
        )
        topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": given}
        fields = {"topics": (made(19, version, "CreatableTopic", **topic),), "timeout": TIMEOUT, "validate_only": False}
        self.created = (
            await asked(self.gateway, 19, version, made(19, version, "CreateTopicsRequest", **fields))
        ).topics[0]
        return int(self.created.error_code), getattr(self.created, "error_message", None)

    async def put(self, *pairs: Pair, holder: Holder | None = None) -> int:
        """One batch; answers its code."""
        sequence = next(self._sequences) if holder is not None else 0
        return (await self.produce(records(*pairs, holder=holder, sequence=sequence), holder))[0]

    async def produce(self, batch: bytes, holder: Holder | None = None, topic: str = "t") -> tuple[int, int]:
        part = made(0, 8, "PartitionProduceData", index=0, records=batch)
        data = made(0, 8, "TopicProduceData", name=topic, partition_data=(part,))
        name = None if holder is None else holder.transactional_id
        fields = {"transactional_id": name, "acks": -1, "timeout": TIMEOUT, "topic_data": (data,)}
        answer = await self.ask.ask(0, 8, made(0, 8, "ProduceRequest", **fields))
        ((found,),) = [each.partition_responses for each in answer.responses]
        return int(found.error_code), found.base_offset

    async def segment(self) -> Segment:
        (segment,) = self.gateway.broker.served.values()
        return segment

    async def roll(self) -> None:
        segment = await self.segment()
        if segment.on_full is not None and segment.ledgers.open is not None and segment.ledgers.open.entries:
            await segment.on_full()

    async def passes(self, times: int = 4) -> None:
        for _ in range(times):
            await self.gateway.broker.reconcile()
            segment = await self.segment()
            while segment._tasks:
                await asyncio.wait(segment._tasks)

    async def ledger(self, *pairs: Pair) -> None:
        """A ledger with a batch for each record, and closed."""
        for pair in pairs:
            assert await self.put(pair) == 0
        await self.roll()

    def at_hour(self, hour: int) -> None:
        self.gateway.world._time_ms = count(hour * HOUR_MS + 10_000)

    async def read(self, isolation: str = "read_committed", offset: int = 0) -> tuple[list[Record], int]:
        return await asyncio.to_thread(self.gateway.read, "t", isolation, offset)

    async def view(self) -> list[tuple[str, str]]:
        answer = await self.gateway.http.get("/v1/topics/t/messages", params={"compacted": "true"})
        return [(each["key"], each["value_base64"]) for each in answer.json()["messages"]]


@pytest.fixture
def topic(gateway: Gateway) -> Compacted:
    return Compacted(gateway)


# -- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kafka", "ours"),
    [("delete", "delete"), ("compact", "compact"), ("compact,delete", "both"), (" delete , compact", "both")],
)
def test_the_cleanup_policy_is_ours(kafka: str, ours: str) -> None:
    assert policy_of([("cleanup.policy", kafka), ("delete.retention.ms", "5")]) == {
        "cleanup": ours,
        "delete_retention_ms": 5,
    }


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("cleanup.policy", "", "cleanup.policy: '' is neither delete, nor compact, nor both of them"),
        ("cleanup.policy", "compact,archive", "cleanup.policy: .* is neither"),
        ("delete.retention.ms", "-1", "delete.retention.ms: .* greater than or equal to 0"),
        ("message.timestamp.type", "LogAppendTime", "message.timestamp.type is always CreateTime here"),
        ("min.insync.replicas", "2", "min.insync.replicas is always 1 here, and cannot be 2"),
        ("no.such.setting", "1", "no.such.setting is not a setting of topics here; cleanup.policy, "),
    ],
)
def test_what_is_asked_and_not_done_is_refused_by_its_name(name: str, value: str, says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        policy_of([(name, value)])


def test_what_is_done_anyway_may_be_asked() -> None:
    asked_anyway = [*FIXED.items(), *((name, "1") for name in LAYOUT), ("unclean.leader.election.enable", " FALSE")]
    assert policy_of(asked_anyway) == {} == policy_of((name, None) for name in FIXED)
    assert {setting.ours for setting in SETTINGS.values()} <= PolicySettings.model_fields.keys() == DEFAULTS.keys()


async def test_a_topic_is_created_described_and_changed_as_it_was_asked(topic: Compacted) -> None:
    """The check of Kafka Connect, which refuses to share its topics if they are not compacted."""
    gateway = topic.gateway
    configs = {
        "cleanup.policy": "compact",
        "delete.retention.ms": "7",
        "segment.bytes": "5",
        "min.insync.replicas": "1",
    }
    assert await topic.create_topic("t", configs) == (0, None)
    told = {each.name: (each.value, each.read_only, each.config_source) for each in topic.created.configs}
    assert told["cleanup.policy"] == ("compact", False, 1) and told["min.insync.replicas"] == ("1", True, 5)
    for version in (2, 3, 4):
        assert (await topic.create_topic(f"t{version}", configs, version))[0] == 0

    def work() -> None:
        admin = AdminClient({"bootstrap.servers": gateway.servers})
        resource = ConfigResource(ResourceType.TOPIC, "t")

        def described() -> dict[str, str]:
            found = admin.describe_configs([resource])[resource].result(PATIENCE_S)
            assert {name: (found[name].value, found[name].is_read_only, found[name].source) for name in found} == told
            return {name: entry.value for name, entry in found.items()}

        def changed(name: str, value: str | None, operation: AlterConfigOpType = AlterConfigOpType.SET) -> None:
            entry = ConfigEntry(name, value, incremental_operation=operation)
            asked = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=[entry])
            admin.incremental_alter_configs([asked])[asked].result(PATIENCE_S)

        assert described()["cleanup.policy"] == "compact" and described()["delete.retention.ms"] == "7"
        changed("cleanup.policy", "compact,delete")
        told["cleanup.policy"] = ("compact,delete", False, 1)
        assert described()["cleanup.policy"] == "compact,delete"
        changed("cleanup.policy", None, AlterConfigOpType.DELETE)
        changed("message.timestamp.type", "CreateTime")
        told["cleanup.policy"] = ("delete", False, 5)
        assert described()["cleanup.policy"] == "delete"
        for name, value, operation in (
            ("cleanup.policy", "compact", AlterConfigOpType.APPEND),
            ("cleanup.policy", "never", AlterConfigOpType.SET),
            ("max.message.bytes", "5", AlterConfigOpType.SET),
        ):
            with pytest.raises(KafkaException, match=name):
                changed(name, value, operation)
        with pytest.raises(KafkaException, match=r"no\.such\.setting"):
            admin.create_topics([NewTopic("u", 1, 1, config={"no.such.setting": "1"})])["u"].result(PATIENCE_S)
        assert "u" not in admin.list_topics(timeout=PATIENCE_S).topics

    await asyncio.to_thread(work)
    policy = await gateway.broker.policies.of_topic("public/default/t")
    assert (policy.policy.delete_retention_ms, policy.policy.cleanup) == (7, None)


# -- what may be written -------------------------------------------------------------------------------------------


async def test_a_record_without_a_key_is_refused_where_it_could_never_be_removed(topic: Compacted) -> None:
    await topic.create()
    assert await topic.put((b"a", b"1"), (None, b"2")) == KafkaCode.INVALID_RECORD
    assert await topic.produce(records((b"a", b"1"))[:-3] + b"abc") == (KafkaCode.CORRUPT_MESSAGE, -1)
    assert await topic.put((b"", b"1"), (b"a", None)) == 0
    damaged = bytearray(records((b"a", b"1")))
    damaged[61] = 0x7F  # the length of the first record
    struct.pack_into(">I", damaged, 17, crc32c(damaged[21:]))
    assert await topic.produce(bytes(damaged)) == (KafkaCode.INVALID_RECORD, -1)
    many = bytearray(records((b"a", b"1")))
    for place in (23, 57):
        struct.pack_into(">i", many, place, 200_000 - (place == 23))
    struct.pack_into(">I", many, 17, crc32c(many[21:]))
    assert await topic.produce(bytes(many)) == (KafkaCode.MESSAGE_TOO_LARGE, -1)
    found, end = await topic.read()
    assert found == [(0, b"", b"1"), (1, b"a", None)] and end == 2


async def test_the_policy_of_now_decides_what_is_refused(topic: Compacted) -> None:
    """The one that is remembered may be that of a topic that was deleted."""
    await topic.create()
    assert await topic.put((None, b"1")) == KafkaCode.INVALID_RECORD
    assert await topic.ask.delete_topic("t") == 0
    assert await topic.create_topic("t", {}) == (0, None)
    assert await topic.put((None, b"1")) == 0
    await topic.gateway.http.patch("/v1/topics/t", json={"cleanup": "compact"})
    assert await topic.put((None, b"2")) == KafkaCode.INVALID_RECORD
    await topic.gateway.http.patch("/v1/topics/t", json={"cleanup": "delete"})
    assert await topic.put((None, b"2")) == 0


def test_a_subscription_by_key_sees_the_keys() -> None:
    """Those that are not UTF-8, too. Records without a key are as one."""
    pairs = ((b"a", b"1"), (None, b"2"), (b"\xff", b"3"), (b"a", None), (None, b"4"))
    payload = records(*pairs)
    hashes = key_hashes(Frame(payload, PayloadKind.KAFKA, 5, position=Position(1, 2), publish_ms=1))
    assert hashes[0] == hashes[3] == hash_of_key("a") and hashes[2] == zlib.crc32(b"\xff") & 0xFFFF
    assert hashes[1] == hashes[4] not in (hashes[0], hashes[2])


# -- what is left --------------------------------------------------------------------------------------------------


async def test_the_latest_record_of_each_key_stays_with_its_offset(topic: Compacted) -> None:
    await topic.create()
    await topic.ledger((b"a", b"1"), (b"b", b"1"), (b"\xff", b"1"), (b"\\xff", b"1"), (b"a", b"2"))
    await topic.ledger((b"a", b"3"), (b"\xff", b"2"))
    assert await topic.put((b"b", b"8")) == await topic.put((b"d", b"1")) == 0
    await topic.passes()
    kept = [(1, b"b", b"1"), (3, b"\\xff", b"1"), (5, b"a", b"3"), (6, b"\xff", b"2"), (7, b"b", b"8"), (8, b"d", b"1")]
    for isolation in ("read_committed", "read_uncommitted"):
        assert await topic.read(isolation) == (kept, 9), "an open ledger replaces nothing"
        for offset in range(9):
            assert await topic.read(isolation, offset) == ([each for each in kept if each[0] >= offset], 9)
    await topic.roll()
    await topic.passes()
    assert await topic.read() == (kept[1:], 9)
    await topic.gateway.crash()
    assert await topic.read() == (kept[1:], 9)
    assert await topic.put((b"c", b"1")) == 0
    assert await topic.read(offset=8) == ([(8, b"d", b"1"), (9, b"c", b"1")], 10)
    view = [("\\xff", "MQ=="), ("a", "Mw=="), ("\\xff", "Mg=="), ("b", "OA=="), ("d", "MQ=="), ("c", "MQ==")]
    assert await topic.view() == view
    assert not [finding async for finding in StoreCheck(topic.gateway.world.store).findings()]


async def test_a_batch_stays_as_long_as_one_of_its_records_is_the_latest(topic: Compacted) -> None:
    await topic.create()
    assert await topic.put((b"a", b"1"), (b"b", b"1"), (b"a", b"2")) == 0
    assert await topic.put((b"c", b"1"), (b"c", b"2")) == 0
    await topic.roll()
    await topic.ledger((b"a", b"3"), (b"c", b"3"))
    await topic.passes()
    kept = [(0, b"a", b"1"), (1, b"b", b"1"), (2, b"a", b"2"), (5, b"a", b"3"), (6, b"c", b"3")]
    assert await topic.read() == (kept, 7)
    await topic.ledger((b"b", b"2"), (b"d", b"1"))
    await topic.passes()
    assert await topic.read() == ([*kept[3:], (7, b"b", b"2"), (8, b"d", b"1")], 9)


async def test_a_null_value_deletes_its_key_and_an_empty_one_does_not(topic: Compacted) -> None:
    await topic.create(**{"delete.retention.ms": str(24 * HOUR_MS)})
    topic.at_hour(0)
    await topic.ledger((b"a", b"1"), (b"b", b"1"))
    await topic.ledger((b"a", None), (b"b", b""))
    await topic.passes()
    assert await topic.read() == ([(2, b"a", None), (3, b"b", b"")], 4)
    assert await topic.view() == [("b", "")]
    topic.at_hour(30)
    await topic.ledger((b"c", b"1"))
    await topic.passes()
    assert await topic.read() == ([(3, b"b", b""), (4, b"c", b"1")], 5)


@pytest.mark.parametrize("commit", [True, False])
async def test_a_transaction_replaces_what_it_commits_and_nothing_before(topic: Compacted, commit: bool) -> None:
    await topic.create()
    await topic.ledger((b"a", b"1"), (b"a", b"2"))
    holder = Holder("x")
    assert await topic.ask.init(holder) == await topic.ask.add_partitions(holder, ("t", 0)) == 0
    assert await topic.put((b"a", b"3"), holder=holder) == 0
    await topic.ledger((b"b", b"1"), (b"b", b"2"))
    await topic.passes()
    assert await topic.read() == ([(1, b"a", b"2")], 2)
    assert (await topic.read("read_uncommitted"))[1] == 5
    assert await topic.ask.end(holder, commit=commit) == 0
    await topic.passes(6)
    latest = (2, b"a", b"3") if commit else (1, b"a", b"2")
    for isolation in ("read_committed", "read_uncommitted"):
        assert await topic.read(isolation) == ([latest, (4, b"b", b"2")], 5)
    assert await topic.put((b"c", b"1")) == 0
    assert await topic.read(offset=5) == ([(5, b"c", b"1")], 6)


@pytest.mark.parametrize("gone", ["left out of its ledger", "dropped with its ledger", "trimmed"])
async def test_a_batch_that_is_gone_and_sent_again_is_answered_from_the_table_of_sequences(
    topic: Compacted, gone: str
) -> None:
    """It has no offset any more. Clients take the answer for a success; what follows is appended."""
    await topic.create()
    if gone == "dropped with its ledger":
        await topic.ledger((b"z", b"1"))
    first = numbered((b"a", b"1"), sequence=0)
    assert (await topic.produce(first))[0] == 0
    await topic.roll()
    await topic.ledger((b"a", b"2"))
    assert await topic.put((b"b", b"1")) == 0
    segment = await topic.segment()
    if gone == "trimmed":
        await trim(segment, topic.gateway.world.store, topic.gateway.broker.storage, Position(2, 0))
    await topic.passes()
    assert segment.ledgers.ledgers[0].id == (2 if gone == "trimmed" else 1)
    assert (2 in {each.id for each in segment.ledgers.ledgers}) == (gone != "dropped with its ledger")
    assert (b"a", b"1") not in [each[1:] for each in (await topic.read())[0]]
    for _ in range(2):
        assert await topic.produce(first) == (KafkaCode.DUPLICATE_SEQUENCE_NUMBER, -1)
        await topic.gateway.crash()
    _, end = await topic.read()
    assert await topic.produce(numbered((b"a", b"3"), sequence=1)) == (0, end)


async def test_an_offset_in_a_ledger_that_was_dropped_is_passed_over(topic: Compacted) -> None:
    """And the first one stays: a consumer that stands there is not out of range."""
    await topic.create()
    for number in range(4):
        await topic.ledger((b"a", b"%d" % number))
    await topic.passes()
    assert [each.id for each in (await topic.segment()).ledgers.ledgers] == [1, 4, 5]
    for _ in range(2):
        segment = await topic.segment()
        assert await segment.offsets.start() == 0 and segment.offsets.end == 4
        for offset in range(4):
            assert await topic.read(offset=offset) == ([(3, b"a", b"3")], 4)
        found = await segment.record_times.latest()
        assert found is not None and found.offset == 3
        await topic.gateway.crash()


async def test_librdkafka_builds_its_table_from_the_start(topic: Compacted) -> None:
    """Compressed batches of one producer, read by another client while and after they are compacted."""
    await topic.create(**{"delete.retention.ms": "0"})
    topic.at_hour(0)
    latest: dict[bytes, bytes | None] = {}

    def write(number: int) -> None:
        codec = ("gzip", "snappy", "lz4", "zstd", "none")[number % 5]
        producer = topic.gateway.producer(**{"compression.type": codec, "batch.num.messages": 2, "linger.ms": 50})
        for each in range(20):
            key = f"k{(number * 7 + each) % 30}"
            value = None if each == 3 else f"{number}-{each}"
            producer.produce("t", value, key=key, partition=0)
            latest[key.encode()] = None if value is None else value.encode()
        assert producer.flush(PATIENCE_S) == 0

    for number in range(10):
        await asyncio.to_thread(write, number)
        await topic.roll()
        topic.at_hour(number + 1)
        await topic.passes(2)
        found, end = await topic.read()
        table = {key: value for _, key, value in found}
        assert {key: value for key, value in table.items() if value is not None} == {
            key: value for key, value in latest.items() if value is not None
        }
        assert end == 20 * (number + 1)
    assert len(found) < 150


@pytest.mark.parametrize("seed", usually(range(2), range(6)))
async def test_a_random_topic_has_the_values_of_a_dictionary(topic: Compacted, seed: int) -> None:
    draw = random.Random(seed)
    await topic.create(**{"delete.retention.ms": draw.choice(("0", "1000000000"))})
    written: dict[int, Pair] = {}
    latest: dict[bytes, bytes | None] = {}
    end = 0
    for number in range(40):
        pairs: list[Pair] = [
            (bytes([draw.randrange(250, 256)]), None if draw.random() < 0.3 else f"{number}.{each}".encode())
            for each in range(draw.choice((1, 1, 3)))
        ]
        fate = draw.choice(("plain", "plain", "commit", "abort"))
        holder = Holder(f"x{number}") if fate != "plain" else None
        if holder is not None:
            assert await topic.ask.init(holder) == await topic.ask.add_partitions(holder, ("t", 0)) == 0
        assert await topic.put(*pairs, holder=holder) == 0
        if holder is not None:
            assert await topic.ask.end(holder, commit=fate == "commit") == 0
        if fate != "abort":
            latest.update(pairs)  # type: ignore[arg-type]
            written |= dict(enumerate(pairs, end))
        end += len(pairs)
        if draw.random() < 0.3:
            await topic.roll()
            await topic.passes(1)
        if draw.random() < 0.05:
            await topic.gateway.crash()
    await topic.roll()
    await topic.passes()
    found, behind = await topic.read()
    assert behind == end and all(written[offset] == (key, value) for offset, key, value in found)
    live = {key: value for key, value in latest.items() if value is not None}
    table: dict[Any, Any] = {key: value for _, key, value in found}
    assert {key: value for key, value in table.items() if value is not None} == live
