"""Requests of Kafka's clients, written and read by kio, for tests that say what a client sends and when.

`asked` gives one to the handler of a listener. `Asking` has the calls of a client, over any way to the broker.
"""

from __future__ import annotations

import asyncio
import io
import re
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, cast

from crc32c import crc32c
from kio.index import load_payload_module
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from starlette.types import Message

from metatxn.service.departure import ASKED
from metatxn.wire.record_batches import KafkaRecord, decode_records
from metatxn_gateways.kafka.schemas import _entity
from metatxn_gateways.kafka.service import KafkaListener
from metatxn_gateways.listener import FrameConnection
from participants.messages.batches import encode_batch

PRODUCER = struct.Struct(">qhi")
TRANSACTIONAL = 0x10
TIMEOUT = timedelta(seconds=60)


def batch(*values: bytes, producer: int = -1, sequence: int = -1, attributes: int = 0, epoch: int = 0) -> bytes:
    draft = bytearray(encode_batch([KafkaRecord(None, value) for value in values]))
    PRODUCER.pack_into(draft, 43, producer, epoch if producer >= 0 else -1, sequence)
    struct.pack_into(">h", draft, 21, attributes)
    struct.pack_into(">I", draft, 17, crc32c(draft[21:]))
    return bytes(draft)


def made(api_key: int, version: int, kind: str, **values: Any) -> Any:
    """A structure of a request, without the values that its version does not have."""
    module = load_payload_module(api_key, version, EntityType.request)
    structure = getattr(module, kind)
    known = structure.__dataclass_fields__
    return structure(**{name: value for name, value in values.items() if name in known})


def framed(api_key: int, version: int, entity: Any, correlation: int = 7) -> memoryview:
    """The bytes of a request."""
    body = io.BytesIO()
    entity_writer(type(entity))(body, entity)
    head = struct.pack(">hhih", api_key, version, correlation, -1) + (b"\0" if type(entity).__flexible__ else b"")
    return memoryview(bytearray(head + body.getvalue()))


def read_answer(api_key: int, version: int, answer: bytes, correlation: int = 7) -> Any:
    """To its last byte."""
    response = _entity(api_key, version, EntityType.response)
    flexible = _entity(api_key, version, EntityType.request).__flexible__
    skipped = 5 if flexible and api_key != 18 else 4
    assert answer[:skipped] == struct.pack(">i", correlation) + b"\0" * (skipped - 4)
    found, size = entity_reader(response)(answer[skipped:], 0)
    assert size == len(answer) - skipped
    return found


class HasListener(Protocol):
    listener: KafkaListener


async def asked(gateway: HasListener, api_key: int, version: int, entity: Any) -> Any:
    """The answer of the listener, on a connection of its own. Its client waits for it: what a test has asked of REST
    before, in the same task, is over."""
    ASKED.set(_nothing_more)
    parts = await gateway.listener._connect()(framed(api_key, version, entity))
    assert parts is not None
    return read_answer(api_key, version, b"".join(parts))


async def _nothing_more() -> Message:
    return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]


async def code_in(gateway: HasListener, api_key: int, version: int, kind: str, **values: Any) -> tuple[Any, int]:
    """The answer, and the one error code in it."""
    answer = await asked(gateway, api_key, version, made(api_key, version, kind, **values))
    return answer, worst(answer)


def worst(answer: Any) -> int:
    return max(map(int, re.findall(r"error_code=<ErrorCode\.\w+: (-?\d+)>", repr(answer))))


Ask = Callable[[int, int, Any], Awaitable[Any]]


@dataclass(slots=True)
class Holder:
    """A producer as its client knows it."""

    transactional_id: str
    producer_id: int = -1

    @property
    def fields(self) -> dict[str, Any]:
        return {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": 0 if self.producer_id >= 0 else -1,
        }


class Asking:
    """The calls of a client. Each answers the error code first, unless there is nothing else."""

    def __init__(self, ask: Ask) -> None:
        self.ask = ask

    @classmethod
    def of(cls, gateway: HasListener) -> Asking:
        return cls(lambda api_key, version, entity: asked(gateway, api_key, version, entity))

    # -- transactions ------------------------------------------------------------------------------------------

    async def init(self, holder: Holder, timeout: timedelta = TIMEOUT) -> int:
        """The holder has a new producer id if it succeeds."""
        entity = made(22, 4, "InitProducerIdRequest", **holder.fields, transaction_timeout=timeout)
        answer = await self.ask(22, 4, entity)
        if not answer.error_code:
            holder.producer_id = answer.producer_id
        return int(answer.error_code)

    async def add_partitions(self, holder: Holder, *places: tuple[str, int]) -> int:
        topics = tuple(
            made(24, 3, "AddPartitionsToTxnTopic", name=topic, partitions=(number,)) for topic, number in places
        )
        fields = {f"v3_and_below_{name}": value for name, value in holder.fields.items()}
        return worst(
            await self.ask(24, 3, made(24, 3, "AddPartitionsToTxnRequest", **fields, v3_and_below_topics=topics))
        )

    async def add_offsets(self, holder: Holder, group: str) -> int:
        entity = made(25, 3, "AddOffsetsToTxnRequest", **holder.fields, group_id=group)
        return int((await self.ask(25, 3, entity)).error_code)

    async def commit_offsets_in(
        self, holder: Holder, group: str, offsets: Mapping[tuple[str, int], int], member: str = "", generation: int = -1
    ) -> int:
        topics = _offset_topics(28, 3, "TxnOffsetCommitRequest", offsets)
        fields = {"group_id": group, "member_id": member, "generation_id": generation, "group_instance_id": None}
        return worst(
            await self.ask(28, 3, made(28, 3, "TxnOffsetCommitRequest", **holder.fields, **fields, topics=topics))
        )

    async def end(self, holder: Holder, *, commit: bool) -> int:
        entity = made(26, 3, "EndTxnRequest", **holder.fields, committed=commit)
        return int((await self.ask(26, 3, entity)).error_code)

    # -- records -----------------------------------------------------------------------------------------------

    async def produce(
        self,
        topic: str,
        partition: int,
        *values: bytes,
        holder: Holder | None = None,
        producer: int = -1,
        sequence: int = -1,
        epoch: int = 0,
    ) -> tuple[int, int]:
        """The code, and the offset of the first record. With a holder, inside its transaction."""
        attributes = 0
        if holder is not None:
            producer, attributes = holder.producer_id, TRANSACTIONAL
        records = batch(*values, producer=producer, sequence=sequence, attributes=attributes, epoch=epoch)
        return await self.append(topic, partition, records, holder)

    async def append(self, topic: str, partition: int, records: bytes, holder: Holder | None = None) -> tuple[int, int]:
        """The code, and the offset of the first record, of any bytes in the place of a batch."""
        part = made(0, 8, "PartitionProduceData", index=partition, records=records)
        data = made(0, 8, "TopicProduceData", name=topic, partition_data=(part,))
        name = None if holder is None else holder.transactional_id
        fields = {"transactional_id": name, "acks": -1, "timeout": timedelta(seconds=1), "topic_data": (data,)}
        answer = await self.ask(0, 8, made(0, 8, "ProduceRequest", **fields))
        ((found,),) = [each.partition_responses for each in answer.responses]
        return int(found.error_code), found.base_offset

    async def fetch(
        self, topic: str, partition: int, offset: int, *, committed: bool = True, wait_ms: int = 0
    ) -> tuple[int, list[tuple[int, bytes | None]], int]:
        """The code, records with their offsets, and where to go on."""
        place = {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        place |= {"current_leader_epoch": -1, "log_start_offset": -1}
        part = made(1, 11, "FetchPartition", **place)
        wanted = made(1, 11, "FetchTopic", topic=topic, partitions=(part,))
        fields = {"max_wait": timedelta(milliseconds=wait_ms), "min_bytes": 1, "max_bytes": 1 << 20, "session_id": 0}
        fields |= {"session_epoch": -1, "topics": (wanted,), "forgotten_topics_data": (), "rack_id": ""}
        answer = await self.ask(1, 11, made(1, 11, "FetchRequest", isolation_level=int(committed), **fields))
        ((found,),) = [each.partitions for each in answer.responses]
        records, end = records_in(bytes(found.records or b""), offset)
        return int(found.error_code), records, end

    async def read(self, topic: str, partition: int, end: int, *, committed: bool = True) -> list[bytes | None]:
        """Everything before `end`, once that is reached."""
        found: list[bytes | None] = []
        offset = 0
        while offset < end:
            code, records, offset = await self.fetch(topic, partition, offset, committed=committed, wait_ms=1_000)
            assert not code, code
            found += [value for _, value in records]
        return found

    # -- groups ------------------------------------------------------------------------------------------------

    async def join(
        self,
        group: str,
        member: str = "",
        metadata: bytes = b"m",
        instance: str | None = None,
        session_s: int = 6,
        kind: str = "consumer",
    ) -> Any:
        """The answer, which has the code, the member's id, and for the leader the members."""
        protocol = made(11, 5, "JoinGroupRequestProtocol", name="range", metadata=metadata)
        fields = {"group_id": group, "member_id": member, "group_instance_id": instance, "protocol_type": kind}
        session = timedelta(seconds=session_s)
        times = {"session_timeout": session, "rebalance_timeout": session}
        return await self.ask(11, 5, made(11, 5, "JoinGroupRequest", **fields, **times, protocols=(protocol,)))

    async def sync(
        self, group: str, generation: int, member: str, assignments: Mapping[str, bytes]
    ) -> tuple[int, bytes]:
        given = tuple(
            made(14, 3, "SyncGroupRequestAssignment", member_id=each, assignment=value)
            for each, value in assignments.items()
        )
        fields = {"group_id": group, "generation_id": generation, "member_id": member, "group_instance_id": None}
        answer = await self.ask(14, 3, made(14, 3, "SyncGroupRequest", **fields, assignments=given))
        return int(answer.error_code), answer.assignment

    async def heartbeat(self, group: str, generation: int, member: str) -> int:
        fields = {"group_id": group, "generation_id": generation, "member_id": member, "group_instance_id": None}
        return int((await self.ask(12, 3, made(12, 3, "HeartbeatRequest", **fields))).error_code)

    async def commit_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], int], member: str = "", generation: int = -1
    ) -> int:
        topics = _offset_topics(8, 7, "OffsetCommitRequest", offsets)
        fields = {"group_id": group, "member_id": member, "generation_id_or_member_epoch": generation}
        entity = made(8, 7, "OffsetCommitRequest", **fields, group_instance_id=None, topics=topics)
        return worst(await self.ask(8, 7, entity))

    async def fetch_offset(self, group: str, topic: str, partition: int, *, stable: bool = True) -> tuple[int, int]:
        wanted = made(9, 7, "OffsetFetchRequestTopic", name=topic, partition_indexes=(partition,))
        entity = made(9, 7, "OffsetFetchRequest", group_id=group, topics=(wanted,), require_stable=stable)
        answer = await self.ask(9, 7, entity)
        if answer.error_code or not answer.topics:
            return int(answer.error_code), -1
        ((found,),) = [each.partitions for each in answer.topics]
        return int(found.error_code), found.committed_offset

    async def leave(self, group: str, member: str, instance: str | None = None) -> int:
        leaving = made(13, 3, "MemberIdentity", member_id=member, group_instance_id=instance)
        return worst(await self.ask(13, 3, made(13, 3, "LeaveGroupRequest", group_id=group, members=(leaving,))))

    async def all_offsets(self, group: str) -> Any:
        return await self.ask(9, 7, made(9, 7, "OffsetFetchRequest", group_id=group, topics=None, require_stable=True))

    # -- topics ------------------------------------------------------------------------------------------------

    async def create_partitions(self, name: str, count: int, version: int = 3, **more: Any) -> int:
        topic = made(37, version, "CreatePartitionsTopic", **{"name": name, "count": count, "assignments": None} | more)
        fields = {"topics": (topic,), "timeout": TIMEOUT, "validate_only": more.get("validate_only", False)}
        return worst(await self.ask(37, version, made(37, version, "CreatePartitionsRequest", **fields)))

    async def create_topic(self, name: str, partitions: int = 1) -> int:
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": (), "configs": ()}
        fields = {"topics": (made(19, 5, "CreatableTopic", **topic),), "timeout": TIMEOUT, "validate_only": False}
        return worst(await self.ask(19, 5, made(19, 5, "CreateTopicsRequest", **fields)))

    async def delete_topic(self, name: str) -> int:
        return worst(await self.ask(20, 4, made(20, 4, "DeleteTopicsRequest", topic_names=(name,), timeout=TIMEOUT)))

    async def list_offset(self, topic: str, partition: int, timestamp: int) -> int:
        """The code."""
        place = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}
        wanted = made(2, 5, "ListOffsetsTopic", name=topic, partitions=(made(2, 5, "ListOffsetsPartition", **place),))
        return worst(
            await self.ask(2, 5, made(2, 5, "ListOffsetsRequest", replica_id=-1, isolation_level=0, topics=(wanted,)))
        )

    # -- the cluster -------------------------------------------------------------------------------------------

    async def coordinator(self, name: str, kind: int = 0) -> tuple[int, str]:
        answer = await self.ask(10, 3, made(10, 3, "FindCoordinatorRequest", key=name, key_type=kind))
        return int(answer.error_code), f"{answer.host}:{answer.port}"

    async def all_metadata(self) -> Any:
        return await self.ask(3, 7, made(3, 7, "MetadataRequest", topics=None, allow_auto_topic_creation=False))

    async def metadata(self, *topics: str) -> Any:
        wanted = tuple(made(3, 7, "MetadataRequestTopic", name=each) for each in topics)
        return await self.ask(3, 7, made(3, 7, "MetadataRequest", topics=wanted, allow_auto_topic_creation=False))


class Link:
    """What a listener wants of a connection. `on_lost` closes it."""

    peer = "client:1"

    def __init__(self) -> None:
        self.on_lost: Callable[[], None] = lambda: None


def on_one_connection(gateway: HasListener, link: Link | None = None) -> Asking:
    """Calls on one connection. What is asked for first arrives first."""
    handle = gateway.listener._connect(cast(FrameConnection, link or Link()))

    async def ask(api_key: int, version: int, entity: Any) -> Any:
        parts = await handle(framed(api_key, version, entity))
        assert parts is not None
        return read_answer(api_key, version, b"".join(parts))

    return Asking(ask)


def _offset_topics(api_key: int, version: int, kind: str, offsets: Mapping[tuple[str, int], int]) -> Sequence[Any]:
    topics = []
    for (topic, partition), offset in offsets.items():
        given = {"committed_offset": offset, "committed_leader_epoch": -1, "committed_metadata": None}
        part = made(api_key, version, f"{kind}Partition", partition_index=partition, **given)
        topics.append(made(api_key, version, f"{kind}Topic", name=topic, partitions=(part,)))
    return tuple(topics)


def records_in(answer: bytes, offset: int) -> tuple[list[tuple[int, bytes | None]], int]:
    """As a client sees them: control batches only move it on, and what is before `offset` is dropped."""
    found: list[tuple[int, bytes | None]] = []
    at, end = 0, offset
    while at < len(answer):
        first, length = struct.unpack_from(">qi", answer, at)
        whole = answer[at : at + 12 + length]
        attributes, last = struct.unpack_from(">hi", whole, 21)
        if not attributes & 0x20:
            found += [(first + number, record.value) for number, record in enumerate(decode_records(whole))]
        end, at = first + last + 1, at + len(whole)
    return [(place, value) for place, value in found if place >= offset], end
