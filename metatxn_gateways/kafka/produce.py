"""Produce, versions 3 to 11, cut by hand: a batch is a view into the request, and is appended without a copy.

transactional id · acks · timeout · [topic · [partition · record batch]]
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

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
from metatxn_gateways.kafka.codes import REFUSALS, TRANSACTION_ENDED, KafkaCode, KafkaError, as_known, code_of
from metatxn_gateways.kafka.cutting import Cutter, ReplyWriter
from metatxn_gateways.kafka.partitions import Partitions, require_right
from metatxn_gateways.kafka.producers import EPOCH, Producers, TransactionalProducer
from metatxn_gateways.listener import MalformedRequest, Reply
from participants.segment.dedup import Scope
from participants.segment.segment import Segment

VERSIONS = range(3, 12)
FLEXIBLE = 9
_ZSTD = 4
_SEQUENCES = 1 << 31


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


def sequence_in_epoch(epoch: int, sequence: int) -> int:
    """The sequence of an entry: in Kafka each epoch of a producer has its own sequences, which begin at 0."""
    return epoch * _SEQUENCES + sequence


def epoch_and_sequence(sequence: int) -> tuple[int, int]:
    return divmod(sequence, _SEQUENCES)


def _behind(sequence: int, count: int) -> int:
    """The sequence of the next batch in the same epoch."""
    epoch, first = epoch_and_sequence(sequence)
    return sequence_in_epoch(epoch, (first + count) % _SEQUENCES)


def cut_produce(cutter: Cutter) -> _Asked:
    """Cut a request. Raises `MalformedRequest`."""
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


class Turns:
    """The partitions of one connection. Each one's lock is held from the arrival of a batch until its publish has
    begun; it is fair, so the publishes begin in the order in which the requests came."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, int], asyncio.Lock] = WeakValueDictionary()

    def of(self, topic: str, partition: int) -> asyncio.Lock:
        return self._locks.setdefault((topic, partition), asyncio.Lock())


class Produce:
    def __init__(self, partitions: Partitions, producers: Producers) -> None:
        self._partitions = partitions
        self._producers = producers

    async def answer(self, version: int, cutter: Cutter, head: bytes, turns: Turns, caller: Principal) -> Reply | None:
        """The answer, or None if the client wants none. Then an error closes the connection, because nothing else can
        report it.

        Nothing is awaited before the tasks of the batches are made, so these take their turns in the order of arrival.
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
            return await self._appended(part, transactional_id, turns, caller)
        except REFUSALS as error:
            return _Result(as_known(code_of(error), known=False))

    async def _appended(self, part: _Part, transactional_id: str | None, turns: Turns, caller: Principal) -> _Result:
        require_right(caller, "produce", part.topic)
        batch = checked(part.batch or memoryview(b""))
        assert part.batch is not None
        async with turns.of(part.topic, part.partition):
            segment = await self._partitions.segment(part.topic, part.partition)
            await self._require_keys(segment, batch, part.batch)
            producer = await self._producer_of(batch, transactional_id, caller)
            txn_id = None if producer is None else await self._producers.open_transaction(producer)
            idempotent = batch.producer_id >= 0
            if idempotent and (batch.producer_epoch < EPOCH or (batch.transactional and batch.producer_epoch > EPOCH)):
                raise KafkaError(KafkaCode.INVALID_PRODUCER_EPOCH)
            entry = Entry(
                part.batch,
                PayloadKind.KAFKA,
                batch.count,
                txn_id,
                producer=f"kafka/{batch.producer_id}" if idempotent else None,
                sequence=sequence_in_epoch(batch.producer_epoch, batch.sequence) if idempotent else None,
            )
            publish = self._in_sequence(segment, entry, batch, producer) if idempotent else self._plain(segment, entry)
            begun = asyncio.ensure_future(publish)  # tasks begin in the order in which they are made
        return _Result(KafkaCode.NONE, await begun, await self._partitions.start_of(segment))

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

    async def _plain(self, segment: Segment, entry: Entry) -> int:
        return await _first_offset(segment, await self._published(segment, entry, None))

    async def _in_sequence(
        self, segment: Segment, entry: Entry, batch: SentBatch, producer: TransactionalProducer | None
    ) -> int:
        """Publish one batch after the other, so that none is appended after one that is missing.

        What was appended before is in the table of the segment, also after a restart. A producer that is not in it may
        begin anywhere. One that gave up a batch increments its epoch by itself, and then begins with sequence 0: so the
        epoch is a part of the sequence.
        """
        assert entry.producer is not None and entry.sequence is not None
        sequences = self._producers.sequences(segment, batch.producer_id)
        async with sequences.lock:
            if sequences.following is None and (last := segment.dedup.last_of(entry.producer)) is not None:
                sequences.following = _behind(*last)
            known_epoch = None if sequences.following is None else epoch_and_sequence(sequences.following)[0]
            if known_epoch is not None and batch.producer_epoch < known_epoch:
                raise KafkaError(KafkaCode.INVALID_PRODUCER_EPOCH)
            if known_epoch is not None and batch.producer_epoch > known_epoch and batch.sequence == 0:
                sequences.following = entry.sequence
            scope = Scope(entry.txn_id, entry.writer, entry.producer)
            repeated = segment.dedup.find(scope, entry.sequence, None)
            if not repeated and sequences.following not in (None, entry.sequence):
                if producer is not None:  # with its transaction the segment forgets what was sent before
                    await self._producers.open_transaction(producer, refused=entry.txn_id)
                await segment.reader.assert_owned()  # a successor may have appended what is missing here
                raise KafkaError(KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
            position = await self._published(segment, entry, producer)
            if sequences.following in (None, entry.sequence):  # also if it was appended, and the answer got lost
                sequences.following = _behind(entry.sequence, batch.count)
            return await _first_offset(segment, position)

    async def _published(self, segment: Segment, entry: Entry, producer: TransactionalProducer | None) -> Position:
        """Publish a batch. Another broker may have ended the transaction that this one knows, and begun the next
        one."""
        try:
            return (await segment.publish(entry))[0]
        except errors.NotAllowed:  # the topic has an exclusive producer
            raise KafkaError(KafkaCode.TOPIC_AUTHORIZATION_FAILED) from None
        except TRANSACTION_ENDED:
            if producer is None:
                raise
            following = await self._producers.open_transaction(producer, refused=entry.txn_id)
            if following == entry.txn_id:
                raise
            return (await segment.publish(replace(entry, txn_id=following)))[0]


async def _first_offset(segment: Segment, position: Position) -> int:
    """The offset of a batch. Raises DUPLICATE_SEQUENCE_NUMBER for one that was sent again, and of which only the table
    of sequences knows: it was trimmed or compacted away. Clients take that for a success without an offset."""
    first = await segment.offsets.first_of(position)
    if first is None:
        raise KafkaError(KafkaCode.DUPLICATE_SEQUENCE_NUMBER)
    return first


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
            out.number(4, part.partition)
            out.number(2, result.code)
            out.number(8, result.base_offset)
            out.number(8, -1)  # the time of the append, where the topic sets it
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
