"""Goal: Produce and Fetch, which are cut by hand, are what Kafka's schemas say in every version that is offered; a
batch is appended once; and whatever is malformed closes its connection with one line in the log.

Method: requests that kio writes and answers that kio reads, given to the listener's handler; bytes of any kind.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import random
import struct
from datetime import timedelta
from typing import Any

import pytest
import structlog
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.serial import entity_writer

from metatxn.wire.broker import MAX_ENTRY_MESSAGES
from metatxn.wire.frames import Entry, PayloadKind
from metatxn.wire.position import Position
from metatxn.wire.record_batches import HEADER, KafkaRecord, decode_records
from metatxn_gateways.kafka import fetch, produce, service
from metatxn_gateways.kafka.codes import KafkaCode
from metatxn_gateways.kafka.fetch import cover
from metatxn_gateways.kafka.produce import checked
from metatxn_gateways.kafka.requests import OFFERED
from metatxn_gateways.listener import FIRST_BYTES, MAX_REQUEST_BYTES, FrameConnection, MalformedRequest
from participants.messages.batches import encode_batch
from participants.segment.segment import Segment
from tests.fuzz import kafka as kafka_inputs
from tests.fuzz.test_fuzz import changed
from tests.gateways.asking import asked, batch, code_in, framed, made
from tests.gateways.conftest import Gateway


def produce_request(version: int, records: bytes, topic: str = "t") -> Any:
    part = made(0, version, "PartitionProduceData", index=0, records=records)
    data = made(0, version, "TopicProduceData", name=topic, partition_data=(part,))
    return made(
        0, version, "ProduceRequest", transactional_id=None, acks=-1, timeout=timedelta(seconds=1), topic_data=(data,)
    )


async def produced(gateway: Gateway, version: int, records: bytes, topic: str = "t") -> tuple[int, int]:
    answer = await asked(gateway, 0, version, produce_request(version, records, topic))
    ((part,),) = [each.partition_responses for each in answer.responses]
    return int(part.error_code), part.base_offset


def fetch_request(version: int, offset: int, isolation: int = 0, session: int = 0, wait_ms: int = 0) -> Any:
    place = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1}
    part = made(1, version, "FetchPartition", **place)
    topic = made(1, version, "FetchTopic", topic="t", partitions=(part,))
    return made(
        1,
        version,
        "FetchRequest",
        max_wait=timedelta(milliseconds=wait_ms),
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=isolation,
        session_id=session,
        session_epoch=-1,
        topics=(topic,),
        forgotten_topics_data=(),
    )


async def test_produce_is_what_the_schema_says(gateway: Gateway) -> None:
    await gateway.create("t")
    for number, version in enumerate(produce.VERSIONS):
        assert await produced(gateway, version, batch(b"a", b"b")) == (KafkaCode.NONE, 3 * number)
        assert await produced(gateway, version, batch(b"c")) == (KafkaCode.NONE, 3 * number + 2)
        assert (await produced(gateway, version, batch(b"c"), "u"))[0] == KafkaCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_fetch_is_what_the_schema_says(gateway: Gateway) -> None:
    await gateway.create("t")
    await produced(gateway, 3, batch(b"a", b"b"))
    for version in fetch.VERSIONS:
        answer = await asked(gateway, 1, version, fetch_request(version, 1))
        ((part,),) = [each.partitions for each in answer.responses]
        assert (part.error_code, part.high_watermark, part.last_stable_offset) == (0, 2, 2)
        assert bytes(part.records) == batch(b"a", b"b")
        late = await asked(gateway, 1, version, fetch_request(version, 3))
        assert late.responses[0].partitions[0].error_code == KafkaCode.OFFSET_OUT_OF_RANGE
        if version >= 7:
            session = await asked(gateway, 1, version, fetch_request(version, 0, session=5))
            assert session.error_code == KafkaCode.FETCH_SESSION_ID_NOT_FOUND


async def test_a_batch_is_appended_once_and_in_sequence(gateway: Gateway) -> None:
    await gateway.create("t")
    first, second = batch(b"a", b"b", producer=9, sequence=0), batch(b"c", producer=9, sequence=2)
    assert await produced(gateway, 8, first) == (KafkaCode.NONE, 0)
    gap = await produced(gateway, 8, batch(b"x", producer=9, sequence=3))
    assert gap[0] == KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await produced(gateway, 8, second) == (KafkaCode.NONE, 2)
    assert await produced(gateway, 8, first) == (KafkaCode.NONE, 0), "a retry"
    assert await produced(gateway, 8, batch(b"d", producer=9, sequence=3)) == (KafkaCode.NONE, 3)
    assert [each["value_base64"] for each in await gateway.browse("t")] == ["YQ==", "Yg==", "Yw==", "ZA=="]


async def test_a_batch_whose_answer_was_lost_is_followed_by_the_next(gateway: Gateway) -> None:
    await gateway.create("t")
    assert await produced(gateway, 8, batch(b"a", producer=9, sequence=0)) == (KafkaCode.NONE, 0)
    (segment,) = gateway.broker.served.values()
    lost = batch(b"b", producer=9, sequence=1)
    await segment.publish(Entry(lost, PayloadKind.KAFKA, 1, producer="kafka/9", sequence=1))
    assert await produced(gateway, 8, lost) == (KafkaCode.NONE, 1)
    assert await produced(gateway, 8, batch(b"c", producer=9, sequence=2)) == (KafkaCode.NONE, 2)


async def test_after_a_restart_a_producer_goes_on_where_its_durable_batches_end(gateway: Gateway) -> None:
    await gateway.create("t")
    last = batch(b"c", b"d", producer=9, sequence=1)
    assert await produced(gateway, 8, batch(b"a", producer=9, sequence=0)) == (KafkaCode.NONE, 0)
    assert await produced(gateway, 8, last) == (KafkaCode.NONE, 1)
    await gateway.crash()
    early = await produced(gateway, 8, batch(b"x", producer=9, sequence=4))
    assert early[0] == KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await produced(gateway, 8, last) == (KafkaCode.NONE, 1), "a retry"
    assert await produced(gateway, 8, batch(b"e", producer=9, sequence=3)) == (KafkaCode.NONE, 3)
    assert await produced(gateway, 8, batch(b"f", producer=8, sequence=7)) == (KafkaCode.NONE, 4), "nothing is known"


@pytest.mark.parametrize("crash", [False, True])
async def test_a_producer_that_gave_up_a_batch_begins_again_in_the_next_epoch(gateway: Gateway, crash: bool) -> None:
    """Clients outside transactions increment the epoch by themselves. What is late from an earlier one is fenced, also
    after a restart, and each epoch has sequences of its own."""
    await gateway.create("t")
    for number in range(3):
        assert await produced(gateway, 8, batch(b"a", producer=9, sequence=number)) == (KafkaCode.NONE, number)
    gap = await produced(gateway, 8, batch(b"x", producer=9, sequence=1, epoch=1))
    assert gap[0] == KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await produced(gateway, 8, batch(b"a", producer=9, sequence=3)) == (KafkaCode.NONE, 3), "nothing has changed"
    first = batch(b"b", b"c", producer=9, sequence=0, epoch=4)
    assert await produced(gateway, 8, first) == (KafkaCode.NONE, 4)
    if crash:
        await gateway.crash()
    assert await produced(gateway, 8, first) == (KafkaCode.NONE, 4), "a retry"
    for late in (batch(b"x", producer=9, sequence=4), batch(b"x", producer=9, sequence=0, epoch=3)):
        assert (await produced(gateway, 8, late))[0] == KafkaCode.INVALID_PRODUCER_EPOCH
    assert await produced(gateway, 8, batch(b"d", producer=9, sequence=2, epoch=4)) == (KafkaCode.NONE, 6)
    assert [each["value_base64"] for each in await gateway.browse("t")] == ["YQ=="] * 4 + ["Yg==", "Yw==", "ZA=="]


async def test_batches_of_one_connection_are_appended_in_their_order(gateway: Gateway) -> None:
    """Also if what the first one needs to know comes late."""
    await gateway.create("t")
    found, late, calls = gateway.listener._partitions.segment, asyncio.Event(), 0

    async def segment(name: str, partition: int) -> Segment:
        nonlocal calls
        calls += 1
        if calls == 1:
            await late.wait()
        return await found(name, partition)

    gateway.listener._partitions.segment = segment  # type: ignore[method-assign]
    handle = gateway.listener._connect()
    sent = [
        asyncio.ensure_future(handle(framed(0, 8, produce_request(8, batch(value)))))
        for value in (b"first", b"second", b"third")
    ]
    while not calls:
        await asyncio.sleep(0)
    late.set()
    await asyncio.gather(*sent)
    values = [base64.b64decode(each["value_base64"]) for each in await gateway.browse("t")]
    assert values == [b"first", b"second", b"third"]


def test_what_is_no_batch_of_a_producer_is_refused() -> None:
    good = batch(b"a", b"b")
    assert checked(memoryview(good)).count == 2

    def code(payload: bytes) -> KafkaCode:
        with pytest.raises(Exception) as refused:
            checked(memoryview(payload))
        found: KafkaCode = refused.value.code  # type: ignore[attr-defined]
        return found

    assert code(b"") is code(good[:-1] + b"x") is KafkaCode.CORRUPT_MESSAGE
    assert code(good + good) is code(good[:-1]) is KafkaCode.INVALID_RECORD
    assert code(batch(b"a", attributes=0x20)) is code(batch(b"a", attributes=5)) is KafkaCode.INVALID_RECORD
    assert code(good[:16] + b"\1" + good[17:]) is KafkaCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


async def test_a_batch_that_counts_too_many_records_is_refused_unseen(gateway: Gateway) -> None:
    """Anyone who reads it makes as many messages, whatever is in it. A client whose batch has this many divides it."""
    await gateway.create("t")
    for count in (MAX_ENTRY_MESSAGES + 1, (1 << 31) - 1):
        assert await produced(gateway, 8, counting(count)) == (KafkaCode.MESSAGE_TOO_LARGE, -1)
    assert await produced(gateway, 8, counting(MAX_ENTRY_MESSAGES)) == (KafkaCode.NONE, 0)
    assert await produced(gateway, 8, batch(b"a")) == (KafkaCode.NONE, MAX_ENTRY_MESSAGES)
    (segment,) = gateway.broker.served.values()
    page = await segment.reader.read_committed(Position(0, -1), 1 << 20)
    assert [frame.count for frame in page.frames] == [MAX_ENTRY_MESSAGES, 1]


def counting(count: int) -> bytes:
    """A batch of one record that counts as so many."""
    draft = bytearray(batch(b"a"))
    struct.pack_into(">i", draft, 23, count - 1)
    struct.pack_into(">i", draft, 57, count)
    struct.pack_into(">I", draft, 17, crc32c(draft[21:]))
    return bytes(draft)


def test_a_cover_is_a_whole_batch() -> None:
    found = cover(7, 20)
    fields = HEADER.unpack_from(found)
    assert (fields[0], fields[6], fields[1]) == (7, 12, len(found) - 12)
    assert decode_records(found) == [KafkaRecord(None, None)]


def good_frames() -> list[bytes]:
    """Whole requests, without the two bytes of their client's name."""
    frames = [(0, version, body) for version, body in zip((3, 11), kafka_inputs.good_produce(), strict=True)]
    frames += [(1, version, body) for version, body in zip((4, 7, 11, 12), kafka_inputs.good_fetch(), strict=True)]
    frames += [
        (int(kafka_inputs.CALLS[body[0]]), OFFERED[kafka_inputs.CALLS[body[0]]][body[1]], body[2:])
        for body in kafka_inputs.good_calls()
    ]
    return [
        struct.pack(">hhih", api_key, version, 1, -1)
        + (b"\0" if service._is_flexible(api_key, version) else b"")
        + body
        for api_key, version, body in frames
    ]


async def answered_or_malformed(gateway: Gateway, frame: bytes) -> None:
    """A handler that raises anything else would be a bug."""
    with contextlib.suppress(MalformedRequest, TimeoutError):
        await asyncio.wait_for(gateway.listener._connect()(memoryview(bytearray(frame))), 0.05)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changed(good_frames()))
async def test_a_request_with_changed_bytes_is_answered_or_malformed(gateway: Gateway, frame: bytes) -> None:
    await answered_or_malformed(gateway, frame)


async def test_a_list_that_may_not_be_null_is_malformed_if_it_is(gateway: Gateway) -> None:
    group, member, kind = (struct.pack(">h", len(each)) + each for each in (b"g", b"m", b"consumer"))
    body = group + struct.pack(">ii", 6_000, 6_000) + member + kind + struct.pack(">i", -1)
    frame = struct.pack(">hhih", 11, 2, 1, -1) + body  # JoinGroup, without protocols
    with pytest.raises(MalformedRequest, match="protocols is null"):
        await gateway.listener._connect()(memoryview(bytearray(frame)))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(OFFERED)), st.integers(-1, 13), st.binary(max_size=2_000), st.booleans())
async def test_any_bytes_are_answered_or_malformed(
    gateway: Gateway, api_key: int, version: int, body: bytes, named: bool
) -> None:
    await answered_or_malformed(gateway, struct.pack(">hhih", api_key, version, 1, -1 if named else 0) + body)


def cut_frames() -> list[bytes]:
    """Requests that end too early, or whose lists and texts are longer than they are."""
    whole = good_frames()
    cut = [frame[: len(frame) * part // 4] for frame in whole for part in (1, 2, 3)]
    cut += [frame[:8] + b"\x7f" + frame[9:] for frame in whole]  # the name of the client
    return [len(frame).to_bytes(4) + frame for frame in cut]


async def test_a_malformed_frame_closes_its_connection_with_one_line(gateway: Gateway) -> None:
    frames = (b"\xff\xff\xff\xff", struct.pack(">ihhi", 8, 99, 0, 1), b"\0\0\0\2\0\3", *cut_frames())
    for sent in frames:
        with structlog.testing.capture_logs() as lines:
            reader, writer = await asyncio.open_connection(*gateway.listener.url.split(":"))
            writer.write(sent)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
            writer.close()
        assert [line["event"] for line in lines] == ["connection closed: malformed request"], sent


def asking_for(topics: int) -> memoryview:
    """A request for this many topics without a name, in two bytes each."""
    body = struct.pack(">hhih", 3, 9, 7, -1) + b"\0" + _uvarint(topics + 1) + b"\1\0" * topics + b"\0\0\0\0"
    return memoryview(bytearray(body))


def _uvarint(number: int) -> bytes:
    return bytes([number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14])


async def test_others_go_on_while_somebody_asks_for_very_many_topics(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns, over = 0, False

    async def others() -> None:
        nonlocal turns
        while not over:
            turns += 1
            await asyncio.sleep(0)

    counting_turns = asyncio.create_task(others())
    parts = await gateway.listener._connect()(asking_for(3_000))
    over = True
    await counting_turns
    assert parts is not None and turns > 3_000
    monkeypatch.setattr(service, "MAX_CALL_BYTES", 6_000)
    with pytest.raises(MalformedRequest, match="above the limit of 6000"):
        await gateway.listener._connect()(asking_for(3_000))


def test_memory_is_for_what_came_and_not_for_what_was_announced() -> None:
    """Otherwise four bytes on each of a thousand connections would take 64 GiB."""
    received: list[bytes] = []
    connection = FrameConnection(lambda _: lambda request: received.append(bytes(request)), set())
    connection._handle = connection._connect(connection)
    request = random.Random(1).randbytes(5 * FIRST_BYTES + 7)
    left = struct.pack(">i", MAX_REQUEST_BYTES) + bytes(3)
    for sent in (struct.pack(">i", len(request)) + request, struct.pack(">i", 3) + b"abc", left):
        at = 0
        while at < len(sent):
            room = connection.get_buffer(-1)
            assert len(room) <= max(FIRST_BYTES, at)
            taken = min(len(room), len(sent) - at)
            room[:taken] = sent[at : at + taken]
            at += taken
            connection.buffer_updated(taken)
    assert received == [request, b"abc"]


async def test_answers_come_in_the_order_of_the_requests(gateway: Gateway) -> None:
    """Also if a later one is ready first."""
    await gateway.create("t")
    waiting, body = fetch_request(4, 0, wait_ms=100), io.BytesIO()
    entity_writer(type(waiting))(body, waiting)
    first = struct.pack(">hhih", 1, 4, 1, -1) + body.getvalue()
    second = struct.pack(">hhih", 18, 0, 2, -1)
    reader, writer = await asyncio.open_connection(*gateway.listener.url.split(":"))
    writer.writelines(struct.pack(">i", len(each)) + each for each in (first, second))
    for number in (1, 2):
        size = int.from_bytes(await reader.readexactly(4))
        assert int.from_bytes((await reader.readexactly(size))[:4]) == number
    writer.close()


async def test_groups_are_what_the_schemas_say_in_every_version(gateway: Gateway) -> None:
    await gateway.create("t")
    for version in OFFERED[11]:
        group = {"group_id": f"g{version}", "group_instance_id": None}
        second = timedelta(seconds=6)
        protocol = made(11, version, "JoinGroupRequestProtocol", name="range", metadata=b"m")
        wanted = {"session_timeout": second, "rebalance_timeout": second, "protocol_type": "consumer", "reason": None}
        joining = {**group, **wanted, "protocols": (protocol,)}
        joined, code = await code_in(gateway, 11, version, "JoinGroupRequest", member_id="", **joining)
        if version >= 4:
            assert code == KafkaCode.MEMBER_ID_REQUIRED
            joined, code = await code_in(
                gateway, 11, version, "JoinGroupRequest", member_id=joined.member_id, **joining
            )
        assert (code, joined.generation_id, joined.leader) == (0, 1, joined.member_id)
        assert [each.metadata for each in joined.members] == [b"m"]
        member = {**group, "generation_id": 1, "member_id": joined.member_id}
        older = min(version, OFFERED[14][-1])
        part = made(14, older, "SyncGroupRequestAssignment", member_id=joined.member_id, assignment=b"a")
        protocols = {"protocol_type": "consumer", "protocol_name": "range", "assignments": (part,)}
        synced, code = await code_in(gateway, 14, older, "SyncGroupRequest", **member, **protocols)
        assert (code, synced.assignment) == (0, b"a")
        older = min(version, OFFERED[12][-1])
        assert (await code_in(gateway, 12, older, "HeartbeatRequest", **member))[1] == 0
        older = min(version, OFFERED[13][-1])
        leaving: dict[str, Any] = {"group_id": f"g{version}", "member_id": joined.member_id}
        if older >= 3:
            identity = {"member_id": joined.member_id, "group_instance_id": None, "reason": None}
            leaving["members"] = (made(13, older, "MemberIdentity", **identity),)
        assert (await code_in(gateway, 13, older, "LeaveGroupRequest", **leaving))[1] == 0
        assert (await code_in(gateway, 12, 4, "HeartbeatRequest", **member))[1] == KafkaCode.UNKNOWN_MEMBER_ID


def offsets_request(api_key: int, version: int, kind: str, offset: int, partition: int = 0) -> tuple[Any, ...]:
    """The topics of a request that commits."""
    given = {"committed_offset": offset, "committed_leader_epoch": 4, "committed_metadata": "m"}
    part = made(api_key, version, f"{kind}Partition", partition_index=partition, **given)
    return (made(api_key, version, f"{kind}Topic", name="t", partitions=(part,)),)


async def fetched_offset(gateway: Gateway, version: int, *, stable: bool = True) -> tuple[int, int]:
    """The error code and the offset of the one partition of the group."""
    plural = "s" if version >= 8 else ""
    request: dict[str, Any] = {"group_id": "g", "require_stable": stable}
    name = "OffsetFetchRequestTopic" + plural
    request["topics"] = topics = (made(9, version, name, name="t", partition_indexes=(0,)),)
    if version >= 8:
        request["groups"] = (made(9, version, "OffsetFetchRequestGroup", group_id="g", topics=topics),)
    answer, code = await code_in(gateway, 9, version, "OffsetFetchRequest", **request)
    ((part,),) = [each.partitions for each in (answer.groups[0] if version >= 8 else answer).topics]
    return code, part.committed_offset


async def test_offsets_are_what_the_schemas_say_in_every_version(gateway: Gateway) -> None:
    await gateway.create("t")
    alone = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None}
    for version in OFFERED[8]:
        topics = offsets_request(8, version, "OffsetCommitRequest", version)
        values = {**alone, "retention_time": timedelta(milliseconds=-1), "topics": topics}
        assert (await code_in(gateway, 8, version, "OffsetCommitRequest", **values))[1] == 0
        for fetching in OFFERED[9]:
            assert await fetched_offset(gateway, fetching) == (0, version)
        unknown = offsets_request(8, version, "OffsetCommitRequest", 1, partition=9)
        values["topics"] = unknown
        refused = (await code_in(gateway, 8, version, "OffsetCommitRequest", **values))[1]
        assert refused == KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    everything, code = await code_in(
        gateway, 9, 7, "OffsetFetchRequest", group_id="g", topics=None, require_stable=True
    )
    assert (code, [each.name for each in everything.topics]) == (0, ["t"])


async def test_offsets_in_transactions_are_what_the_schemas_say_in_every_version(gateway: Gateway) -> None:
    await gateway.create("t")
    timeout = {"transactional_id": "x", "transaction_timeout": timedelta(seconds=60)}
    begun, _ = await code_in(gateway, 22, 4, "InitProducerIdRequest", **timeout, producer_id=-1, producer_epoch=-1)
    holder = {"transactional_id": "x", "producer_id": begun.producer_id, "producer_epoch": 0, "group_id": "g"}
    for version in OFFERED[28]:
        older = min(version, OFFERED[25][-1])
        assert (await code_in(gateway, 25, older, "AddOffsetsToTxnRequest", **holder))[1] == 0
        topics = offsets_request(28, version, "TxnOffsetCommitRequest", version)
        member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        values = {**holder, **member, "topics": topics}
        assert (await code_in(gateway, 28, version, "TxnOffsetCommitRequest", **values))[1] == 0
        assert await fetched_offset(gateway, 7) == (KafkaCode.UNSTABLE_OFFSET_COMMIT, -1)
        assert await fetched_offset(gateway, 7, stable=False) == (0, version - 1)
        end = {key: holder[key] for key in ("transactional_id", "producer_id", "producer_epoch")}
        assert (await code_in(gateway, 26, 3, "EndTxnRequest", **end, committed=True))[1] == 0
        assert await fetched_offset(gateway, 7) == (0, version)
        if version >= 3:
            values |= {"member_id": "nobody", "generation_id": 7}
            assert (await code_in(gateway, 25, older, "AddOffsetsToTxnRequest", **holder))[1] == 0
            refused = await code_in(gateway, 28, version, "TxnOffsetCommitRequest", **values)
            assert refused[1] == KafkaCode.UNKNOWN_MEMBER_ID
            assert (await code_in(gateway, 26, 3, "EndTxnRequest", **end, committed=False))[1] == 0


async def test_places_are_what_the_schemas_say_in_every_version(gateway: Gateway) -> None:
    await gateway.create("t")
    for times_ms in ((5, 7), (6,)):
        await produced(gateway, 8, encode_batch([KafkaRecord(None, b"a", timestamp_ms=each) for each in times_ms]))
    host, _, port = gateway.listener.address.rpartition(":")
    for version in OFFERED[10]:
        for kind in (0, 1):
            fields = {"key": "x", "key_type": kind, "coordinator_keys": ("x",)}
            answer, code = await code_in(gateway, 10, version, "FindCoordinatorRequest", **fields)
            found = answer.coordinators[0] if version >= 4 else answer
            assert (code, found.host, found.port) == (0, host, int(port))
    assert (await code_in(gateway, 10, 6, "FindCoordinatorRequest", **fields | {"key_type": 2}))[1] == 42
    for version in OFFERED[2]:
        for at_ms, since, expected, time_ms in (
            *((-2, 1, 0, -1), (-1, 1, 3, -1), (1, 1, 0, 5), (6, 1, 1, 7), (8, 1, -1, -1)),
            *((-3, 7, 1, 7), (-4, 8, 0, -1), (-5, 9, -1, -1)),
        ):
            place = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": at_ms}
            part = made(2, version, "ListOffsetsPartition", **place)
            topic = made(2, version, "ListOffsetsTopic", name="t", partitions=(part,))
            wanted = {"replica_id": -1, "isolation_level": 0, "topics": (topic,)}
            answer, code = await code_in(gateway, 2, version, "ListOffsetsRequest", **wanted)
            found = answer.topics[0].partitions[0]
            unsupported = KafkaCode.UNSUPPORTED_VERSION
            assert (code, found.offset) == ((0, expected) if version >= since else (unsupported, -1)), (version, at_ms)
            assert found.timestamp == (time_ms if version >= since else -1)
    for version in OFFERED[3]:
        topic = made(3, version, "MetadataRequestTopic", name="t", topic_id=None)
        asking = {"topics": (topic,), "allow_auto_topic_creation": False}
        asking |= {"include_topic_authorized_operations": False, "include_cluster_authorized_operations": False}
        answer, code = await code_in(gateway, 3, version, "MetadataRequest", **asking)
        (found,) = answer.topics
        assert (code, found.name, found.partitions[0].leader_id) == (0, "t", answer.brokers[0].node_id)


async def test_topics_are_made_and_deleted_as_the_schemas_say_in_every_version(gateway: Gateway) -> None:
    second = timedelta(seconds=1)
    for version in OFFERED[19]:
        wanted = {"name": f"t{version}", "num_partitions": 2, "replication_factor": 1}
        topic = made(19, version, "CreatableTopic", **wanted, assignments=(), configs=())
        fields = {"topics": (topic,), "timeout": second, "validate_only": False}
        for expected in (0, KafkaCode.TOPIC_ALREADY_EXISTS):
            assert (await code_in(gateway, 19, version, "CreateTopicsRequest", **fields))[1] == expected
    for version, name in zip(OFFERED[20], OFFERED[19], strict=True):
        fields = {"topic_names": (f"t{name}",), "timeout": second}
        for expected in (0, KafkaCode.UNKNOWN_TOPIC_OR_PARTITION):
            assert (await code_in(gateway, 20, version, "DeleteTopicsRequest", **fields))[1] == expected
