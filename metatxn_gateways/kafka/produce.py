"""Produce, versions 3 to 11, cut by hand: a batch is a view into the request, and is appended without a copy.

transactional id · acks · timeout · [topic · [partition · record batch]]
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass

from crc32c import crc32c

from metatxn.service.security.principal import Principal
from metatxn.wire import errors
from metatxn.wire.broker import MAX_ENTRY_MESSAGES
from metatxn.wire.frames import MAX_PAYLOAD_BYTES, Entry, PayloadKind
from metatxn.wire.position import Position
from metatxn.wire.record_batches import (
    CHECKED_FROM,
    COMPRESSION,
    CONTROL,
    HEADER,
    LENGTH_OFFSET,
    MAGIC,
    TRANSACTIONAL,
    decode_columns,
)
from metatxn_gateways.kafka.codes import REFUSALS, KafkaCode, KafkaError, as_known, code_of
from metatxn_gateways.kafka.cutting import Cutter, ReplyWriter
from metatxn_gateways.kafka.partitions import Partitions, own_name, require_right
from metatxn_gateways.kafka.producers import EPOCH, Producers, TransactionalProducer
from metatxn_gateways.kafka.sequences import Arrived, NotTheFollowing, sequence_in_epoch
from metatxn_gateways.kafka.turns import Turns
from metatxn_gateways.kafka.waves import Waves
from metatxn_gateways.listener import MalformedRequest, Reply
from participants.segment.segment import Segment

VERSIONS = range(3, 12)
FLEXIBLE = 9
_ZSTD = 4
_PLACE = struct.Struct(">ihqq")
"""Partition, error code, first offset, and the time of the append, where the topic sets it."""


@dataclass(frozen=True, slots=True)
class _Part:
    topic: str
    partition: int
    batch: memoryview | None


@dataclass(frozen=True, slots=True)
class _Asked:
    transactional_id: str | None
    acks: int
    parts: list[_Part]


@dataclass(frozen=True, slots=True)
class _Result:
    code: KafkaCode
    base_offset: int = -1
    start_offset: int = -1


@dataclass(frozen=True, slots=True)
class SentBatch:
    """The header of a batch that may be appended."""

    count: int
    transactional: bool
    producer_id: int
    producer_epoch: int
    sequence: int


def cut_produce(cutter: Cutter) -> _Asked:
    """Cut a request. Raises `MalformedRequest`, also if it names a partition twice: one batch after the other could
    fail then, each time with all of those behind it, and nothing else would be done."""
    transactional_id = cutter.text()
    acks = cutter.number(2)
    cutter.number(4)
    parts = []
    for _ in cutter.items():
        topic = cutter.name()
        for _ in cutter.items():
            parts.append(_Part(topic, cutter.number(4), cutter.blob()))
            cutter.tags()
        cutter.tags()
    cutter.tags()
    if len({(part.topic, part.partition) for part in parts}) < len(parts):
        raise MalformedRequest("a request to append names a partition twice")
    return _Asked(transactional_id, acks, parts)


def checked(payload: memoryview) -> SentBatch:
    """The header. Raises `KafkaError` for anything other than one whole batch of records, as a producer sends it."""
    if len(payload) < HEADER.size:
        raise KafkaError(KafkaCode.CORRUPT_MESSAGE)
    _, length, _, magic, crc, attributes, last, _, _, producer, epoch, sequence, count = HEADER.unpack_from(payload)
    if magic != MAGIC:
        raise KafkaError(KafkaCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise KafkaError(KafkaCode.MESSAGE_TOO_LARGE)
    if length != len(payload) - LENGTH_OFFSET - 4:
        raise KafkaError(KafkaCode.INVALID_RECORD)
    if crc32c(payload[CHECKED_FROM:]) != crc:
        raise KafkaError(KafkaCode.CORRUPT_MESSAGE)
    if count < 1 or last != count - 1 or attributes & CONTROL or attributes & COMPRESSION > _ZSTD:
        raise KafkaError(KafkaCode.INVALID_RECORD)
    if producer >= 0 and (sequence < 0 or epoch < 0):
        raise KafkaError(KafkaCode.INVALID_RECORD)
    return SentBatch(count, bool(attributes & TRANSACTIONAL), producer, epoch, sequence)


def identity(payload: memoryview) -> tuple[int, int] | None:
    """The producer id of a batch and its sequence, which includes the epoch, as its header says, whatever else is wrong
    with it. None if it has none."""
    if len(payload) < HEADER.size:
        return None
    _, _, _, magic, _, _, _, _, _, producer, epoch, sequence, _ = HEADER.unpack_from(payload)
    known = magic == MAGIC and producer >= 0 and epoch >= 0 and sequence >= 0
    return (producer, sequence_in_epoch(epoch, sequence)) if known else None


class Produce:
    def __init__(self, partitions: Partitions, producers: Producers) -> None:
        self._partitions = partitions
        self._producers = producers
        self._waves = Waves(producers)

    async def answer(self, version: int, cutter: Cutter, head: bytes, turns: Turns, caller: Principal) -> Reply | None:
        """The answer, or None if the client wants none. Then an error closes the connection, because nothing else can
        report it.

        Nothing is awaited before the tasks of the batches are made, so these take their turns in the order of arrival.
        A single batch has a task as well: it would begin before those of an earlier request.
        """
        asked = cut_produce(cutter)
        results = await asyncio.gather(
            *(self._result(part, asked.transactional_id, turns, caller) for part in asked.parts)
        )
        if asked.acks == 0:
            if any(result.code for result in results):
                raise MalformedRequest("a batch was refused, and its producer does not wait for an answer")
            return None
        return _encoded(version, asked.parts, results, head)

    async def _result(self, part: _Part, transactional_id: str | None, turns: Turns, caller: Principal) -> _Result:
        try:
            require_right(caller, "produce", part.topic)
            found = identity(part.batch or memoryview(b""))
            if found is None:
                return await self._appended(part, turns)
            return await self._appended_in_order(part, found, transactional_id, turns, caller)
        except REFUSALS as error:
            return _Result(as_known(code_of(error), known=False))

    async def _appended(self, part: _Part, turns: Turns) -> _Result:
        """Append the batch of a producer that has no id."""
        async with turns.of(own_name(part.topic), part.partition):
            batch, payload, segment = await self._checked(part)
            if batch.transactional:
                raise KafkaError(KafkaCode.INVALID_TXN_STATE)
            publish = _published(segment, Entry(payload, PayloadKind.KAFKA, batch.count))
            begun = asyncio.ensure_future(publish)  # tasks begin in the order in which they are made
        return await self._placed(segment, await begun)

    async def _appended_in_order(
        self, part: _Part, found: tuple[int, int], transactional_id: str | None, turns: Turns, caller: Principal
    ) -> _Result:
        """Append the batch of an idempotent producer, whose id and sequence are `found`, behind the one before it.

        What was appended before is in the table of the segment, also after a restart. A producer that is not in it may
        begin anywhere. One that gave up a batch increments its epoch by itself, and then begins with sequence 0: so the
        epoch is a part of the sequence.
        """
        sequences = self._waves.sequences(own_name(part.topic), part.partition, found[0])
        async with turns.of(own_name(part.topic), part.partition):
            try:
                segment, arrived = await self._arrived(part, transactional_id, caller)
            except BaseException:
                sequences.refused(found[1], turns)
                raise
            try:
                self._waves.begin(segment, sequences, arrived, turns)
                out_of_order = False
            except NotTheFollowing:
                out_of_order = True
        if out_of_order:
            return await self._placed(segment, await self._retried(segment, arrived))
        return await self._placed(segment, await self._waves.place_of(sequences, arrived))

    async def _arrived(self, part: _Part, transactional_id: str | None, caller: Principal) -> tuple[Segment, Arrived]:
        batch, payload, segment = await self._checked(part)
        producer = await self._producer_of(batch, transactional_id, caller)
        txn_id = None if producer is None else await self._producers.open_transaction(producer)
        if batch.producer_epoch < EPOCH or (batch.transactional and batch.producer_epoch > EPOCH):
            raise KafkaError(KafkaCode.INVALID_PRODUCER_EPOCH)
        entry = Entry(
            payload,
            PayloadKind.KAFKA,
            batch.count,
            txn_id=txn_id,
            producer=f"kafka/{batch.producer_id}",
            sequence=sequence_in_epoch(batch.producer_epoch, batch.sequence),
        )
        return segment, Arrived(entry, producer)

    async def _retried(self, segment: Segment, arrived: Arrived) -> Position:
        """The place of a batch that seems to be out of order, if it was appended in a transaction that this process had
        not heard of. Raises OUT_OF_ORDER_SEQUENCE_NUMBER if it was not, and as `Producers.open_transaction`, because
        with a transaction that was lost the segment forgets what was sent before."""
        if arrived.producer is not None:
            following = await self._producers.open_transaction(arrived.producer, refused=arrived.entry.txn_id)
            if (position := arrived.appended_before(segment, following)) is not None:
                return position
        await segment.reader.assert_owned()  # a successor may have appended what is missing here
        raise KafkaError(KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER)

    async def _placed(self, segment: Segment, position: Position) -> _Result:
        """The answer for a batch that is durable. What was appended long ago may be gone, and its offset with it."""
        offset = await segment.offsets.first_of(position)
        if offset is None:
            return _Result(KafkaCode.DUPLICATE_SEQUENCE_NUMBER)
        return _Result(KafkaCode.NONE, offset, await self._partitions.start_of(segment))

    async def _checked(self, part: _Part) -> tuple[SentBatch, memoryview, Segment]:
        """A batch that may be appended, and where."""
        batch = checked(part.batch or memoryview(b""))
        assert part.batch is not None
        segment = await self._partitions.segment(part.topic, part.partition)
        await self._require_keys(segment, batch, part.batch)
        return batch, part.batch, segment

    async def _require_keys(self, segment: Segment, batch: SentBatch, payload: memoryview) -> None:
        """In a topic that is compacted every record has a key: one without could never be removed. Only there are the
        records read as they arrive. The policy that is remembered may be that of a topic before, or of a moment ago, so
        a refusal asks for it again. Raises `KafkaError`."""
        topic = segment.record.topic
        if batch.count > MAX_ENTRY_MESSAGES or not await self._partitions.compacts(topic):
            return
        try:
            if None not in decode_columns(payload, batch.count).keys:
                return
        except ValueError:  # they cannot be read, so nobody knows their keys
            pass
        if await self._partitions.compacts(topic, surely=True):
            raise KafkaError(KafkaCode.INVALID_RECORD)

    async def _producer_of(
        self, batch: SentBatch, transactional_id: str | None, caller: Principal
    ) -> TransactionalProducer | None:
        """The producer of a batch, or None outside transactions."""
        if not batch.transactional:
            return None
        if transactional_id is None:
            raise KafkaError(KafkaCode.INVALID_TXN_STATE)
        return await self._producers.transactional(transactional_id, batch.producer_id, batch.producer_epoch, caller)


async def _published(segment: Segment, entry: Entry) -> Position:
    try:
        return (await segment.publish(entry))[0]
    except errors.NotAllowed:  # the topic has an exclusive producer
        raise KafkaError(KafkaCode.TOPIC_AUTHORIZATION_FAILED) from None


def _encoded(version: int, parts: list[_Part], results: list[_Result], head: bytes) -> Reply:
    out = ReplyWriter(flexible=version >= FLEXIBLE)
    by_topic: dict[str, list[tuple[_Part, _Result]]] = {}
    for part, result in zip(parts, results, strict=True):
        by_topic.setdefault(part.topic, []).append((part, result))
    out.length(len(by_topic))
    for topic, found in by_topic.items():
        out.text(topic)
        out.length(len(found))
        for part, result in found:
            out.numbers(_PLACE, part.partition, result.code, result.base_offset, -1)
            if version >= 5:
                out.number(8, result.start_offset)
            if version >= 8:
                out.length(0)  # errors of single records
                out.length(None, 2)  # a message
            out.tags()
        out.tags()
    out.number(4, 0)
    out.tags()
    return [head, *out.finished()]
