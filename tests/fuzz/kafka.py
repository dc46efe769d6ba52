"""What Kafka's clients send, for the table of `tests.fuzz.targets`: requests that are cut by hand, those that kio
reads, and record batches.

The first two bytes of the input choose the request and its version, where there are several.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from functools import cache
from typing import Any

from crc32c import crc32c
from kio.serial import entity_writer

from metatxn.wire.frames import MAX_PAYLOAD_BYTES
from metatxn.wire.record_batches import CHECKED_FROM, CRC_OFFSET, LENGTH_OFFSET, KafkaRecord, decode_columns
from metatxn_gateways.kafka import fetch, produce
from metatxn_gateways.kafka.codes import KafkaError
from metatxn_gateways.kafka.cutting import Cutter
from metatxn_gateways.kafka.produce import checked, cut_produce
from metatxn_gateways.kafka.requests import OFFERED, KafkaRequest
from metatxn_gateways.kafka.schemas import CallRequest, read_call
from metatxn_gateways.listener import MalformedRequest
from participants.messages.batches import encode_batch
from tests.gateways.asking import framed, made

BY_HAND = (KafkaRequest.PRODUCE, KafkaRequest.FETCH)
CALLS = tuple(sorted(OFFERED.keys() - set(BY_HAND)))
BATCH = encode_batch([KafkaRecord(b"k", b"v", (("h", b"x"),), 5), KafkaRecord(None, None)])


def check_produce(data: bytes) -> None:
    for flexible in (False, True):
        with suppress(MalformedRequest):
            asked = cut_produce(Cutter(memoryview(data), flexible=flexible))
            assert sum(len(part.batch or b"") for part in asked.parts) <= len(data)
            for part in asked.parts:
                with suppress(KafkaError):
                    checked(part.batch or memoryview(b""))


def check_fetch(data: bytes) -> None:
    for version in fetch.VERSIONS:
        with suppress(MalformedRequest):
            asked = fetch.cut_fetch(version, Cutter(memoryview(data), flexible=version >= fetch.FLEXIBLE))
            assert len(asked.wanted) <= len(data)


def check_call(data: bytes) -> None:
    """What is read is written as what is read again."""
    if len(data) < 2:
        return
    api_key = CALLS[data[0] % len(CALLS)]
    version = OFFERED[api_key][data[1] % len(OFFERED[api_key])]
    with suppress(MalformedRequest):
        entity = _entity_of(read_call(api_key, version, memoryview(data)[2:]))
        head = len(framed(api_key, version, entity)) - len(_body(entity))
        again = read_call(api_key, version, framed(api_key, version, entity)[head:])
        assert _entity_of(again) == entity


def check_sent_batch(data: bytes) -> None:
    """As it is, and with a length and a checksum that fit."""
    fitting = bytearray(data)
    if len(fitting) > CHECKED_FROM:
        struct.pack_into(">i", fitting, LENGTH_OFFSET, len(fitting) - LENGTH_OFFSET - 4)
        struct.pack_into(">I", fitting, CRC_OFFSET, crc32c(bytes(fitting[CHECKED_FROM:])))
    for raw in (data, bytes(fitting)):
        with suppress(KafkaError):
            sent = checked(memoryview(raw))
            assert sent.count > 0 and len(raw) <= MAX_PAYLOAD_BYTES
            if sent.count <= len(raw):
                with suppress(ValueError):
                    assert len(decode_columns(raw, sent.count).keys) == sent.count


def _entity_of(call: CallRequest) -> Any:
    return call._entity


def _body(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


def good_produce() -> list[bytes]:
    return [_body(_produce(version)) for version in (produce.VERSIONS[0], produce.VERSIONS[-1])]


def good_fetch() -> list[bytes]:
    return [_body(_fetch(version)) for version in (4, 7, 11, 12)]


def _produce(version: int) -> Any:
    part = made(0, version, "PartitionProduceData", index=1, records=BATCH)
    data = made(0, version, "TopicProduceData", name="t", partition_data=(part, part))
    fields = {"transactional_id": "x", "acks": -1, "timeout": timedelta(seconds=1), "topic_data": (data,)}
    return made(0, version, "ProduceRequest", **fields)


def _fetch(version: int) -> Any:
    place = {"partition": 1, "fetch_offset": 2, "partition_max_bytes": 3, "current_leader_epoch": -1}
    part = made(1, version, "FetchPartition", **place, log_start_offset=-1, last_fetched_epoch=-1)
    wanted = made(1, version, "FetchTopic", topic="t", partitions=(part,))
    fields = {"max_wait": timedelta(0), "min_bytes": 1, "max_bytes": 9, "isolation_level": 1, "session_id": 0}
    fields |= {"session_epoch": -1, "topics": (wanted,), "forgotten_topics_data": (), "rack_id": ""}
    if version >= 12:
        fields |= {"cluster_id": None, "replica_id": -1}
    return made(1, version, "FetchRequest", **fields)


@cache
def good_calls() -> list[bytes]:
    """Some requests with lists, texts, bytes and times, each behind the two bytes that choose it."""
    return [_chosen(api_key, version) + _body(entity) for api_key, version, entity in _calls()]


def _chosen(api_key: int, version: int) -> bytes:
    return bytes([CALLS.index(KafkaRequest(api_key)), OFFERED[api_key].index(version)])


def _calls() -> Iterator[tuple[int, int, Any]]:
    protocol = made(11, 9, "JoinGroupRequestProtocol", name="range", metadata=b"m")
    fields: dict[str, Any] = {"group_id": "g", "member_id": "", "group_instance_id": None, "protocol_type": "consumer"}
    fields |= {"session_timeout": timedelta(seconds=6), "rebalance_timeout": timedelta(seconds=6), "reason": "x"}
    yield 11, 9, made(11, 9, "JoinGroupRequest", **fields, protocols=(protocol,))
    config = made(19, 5, "CreatableTopicConfig", name="retention.ms", value="1")
    topic = {"name": "t", "num_partitions": 2, "replication_factor": 1, "assignments": (), "configs": (config,)}
    for version in (2, 5):
        config = made(19, version, "CreatableTopicConfig", name="retention.ms", value="1")
        topics = (made(19, version, "CreatableTopic", **topic | {"configs": (config,)}),)
        values = {"topics": topics, "timeout": timedelta(seconds=1), "validate_only": False}
        yield 19, version, made(19, version, "CreateTopicsRequest", **values)
    wanted = made(3, 12, "MetadataRequestTopic", name="t", topic_id=None)
    asking = {"topics": (wanted,), "allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
    yield 3, 12, made(3, 12, "MetadataRequest", **asking)
    holder = {"transactional_id": "x", "producer_id": 5, "producer_epoch": 0}
    yield 26, 3, made(26, 3, "EndTxnRequest", **holder, committed=True)
    for version in (0, 4):
        timeout = {"transaction_timeout": timedelta(seconds=60)}
        yield 22, version, made(22, version, "InitProducerIdRequest", **holder, **timeout)
