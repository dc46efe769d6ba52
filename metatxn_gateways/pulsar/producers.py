"""The producers of one connection: what they send is appended in their order, and confirmed in it.

    SEND ─▶ entry cut, checksum checked ─▶ publish begun ─▶ … ─▶ durable ─▶ receipts, in the order of the sends

After a send that failed and will be sent again, nothing is appended: the client looks its segment up again, creates its
producer anew, and sends everything that was not confirmed once more, in its order. What was appended before is found by
its sequence (DESIGN §5.13).
"""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from metatxn.wire.frames import Entry, PayloadKind
from metatxn.wire.ids import TxnId
from metatxn.wire.position import Position
from metatxn_gateways.listener import Reply
from metatxn_gateways.pulsar.codes import REFUSALS, PulsarCode, PulsarError, explained, send_code_of
from metatxn_gateways.pulsar.commands import command
from metatxn_gateways.pulsar.entries import ChecksumMismatch, metadata_of
from metatxn_gateways.pulsar.names import message_id, segment_parts, txn_id_of
from metatxn_gateways.pulsar.session import BegunCommand, PulsarSession, refused
from metatxn_gateways.pulsar.topic_schemas import assert_writable, version_bytes
from participants.segment.dedup import AppendedBefore
from participants.segment.segment import Segment

SHARED = 0
MAX_NAME_BYTES = 256
MAX_PRODUCERS = 10_000
"""The most producers of a connection: one for each segment that its programs write to."""
MAX_PENDING = 1_000
MAX_PENDING_BYTES = 32 << 20
"""If a connection has sent more messages, or bytes of them, that are not answered, no more are received."""
_GIVEN_UP = (PulsarCode.NOT_ALLOWED, PulsarCode.CHECKSUM)
"""After these errors the client goes on after the message."""


def new_name() -> str:
    """A name for a producer without one. It is never reused, so its sequences begin anew."""
    return uuid.uuid4().hex


@dataclass(slots=True)
class _Sent:
    sequence: int
    highest: int
    size: int
    appending: asyncio.Task[Position | None]
    began: BegunCommand


@dataclass(slots=True)
class PulsarProducer:
    """A producer that a client has created on a segment. `name` is unique, or the client has chosen it."""

    id: int
    segment: Segment
    name: str
    session: PulsarSession
    sent: deque[_Sent] = field(default_factory=deque)
    failed: bool = False
    """Whether what arrives now is ignored: the client sends it again, through another producer."""

    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """The lock that the send holds whose transaction is being looked at; those after it wait, to stay in order."""

    @property
    def known_as(self) -> str:
        """The producer's name in the segment."""
        return f"pulsar/{self.name}"

    @property
    def last_sequence(self) -> int:
        """Its highest sequence in the segment, or -1."""
        last = self.segment.dedup.last_of(self.known_as)
        return -1 if last is None else last[0]

    def send(self, request: Any, entry: memoryview) -> _Sent | None:
        """Begin to append an entry, whose bytes are kept. Raises `MalformedRequest`."""
        if self.failed:
            return None
        highest = request.highest_sequence_id if request.HasField("highest_sequence_id") else request.sequence_id
        try:
            appending = asyncio.ensure_future(self._append(self._checked(request, highest, entry)))
        except REFUSALS as error:
            appending = asyncio.ensure_future(_refused(error))
        sent = _Sent(request.sequence_id, highest, len(entry), appending, self.session.began)
        self.sent.append(sent)
        return sent

    def _checked(self, request: Any, highest: int, entry: memoryview) -> Entry:
        if not self.session.principal.may("produce", self.segment.record.topic):
            raise PulsarError(PulsarCode.NOT_ALLOWED, "the right to produce is missing")
        try:
            metadata = metadata_of(entry)
        except ChecksumMismatch:
            raise PulsarError(PulsarCode.CHECKSUM, "the message does not match its checksum") from None
        if metadata.HasField("marker_type"):
            raise PulsarError(PulsarCode.NOT_ALLOWED, "markers are not accepted: decisions are in the metadata store")
        if metadata.HasField("encryption_algo"):
            raise PulsarError(PulsarCode.NOT_ALLOWED, "encrypted messages are not accepted")
        txn_id: TxnId | None = None
        if request.HasField("txnid_least_bits"):
            txn_id = txn_id_of(request.txnid_most_bits, request.txnid_least_bits)
            if txn_id is None:
                raise PulsarError(PulsarCode.NOT_ALLOWED, "no transaction of this cluster has this id")
        return Entry(
            entry,
            PayloadKind.PULSAR,
            metadata.num_messages_in_batch,
            txn_id,
            producer=self.known_as,
            sequence=highest,
        )

    async def _append(self, entry: Entry) -> Position | None:
        """Append an entry. Returns None for one that is in a segment from which this one has taken over."""
        if self.failed:
            raise PulsarError(PulsarCode.SERVICE_NOT_READY, "a message before this one is sent again first")
        try:
            position, _ = await self._publish(entry)
        except AppendedBefore as before:
            if not before.complete:
                raise
            return None
        except REFUSALS as error:
            self.failed |= send_code_of(error) not in _GIVEN_UP
            raise
        return position

    async def _publish(self, entry: Entry) -> tuple[Position, bool]:
        if self.session.context.authenticator is None:
            return await self.segment.publish(entry)
        async with self._turn:
            await self.session.check_transaction(entry.txn_id)
            publishing = asyncio.ensure_future(self.segment.publish(entry))  # begun before that of the next one
        return await publishing

    def confirmed(self) -> tuple[list[Reply], int]:
        """The answers to the sends that are over, up to the first one that is not, and the bytes of these sends."""
        answers: list[Reply] = []
        size = 0
        while self.sent and self.sent[0].appending.done():
            sent = self.sent.popleft()
            self.session.answered(sent.began)
            answers.append([self._answer(sent)])
            size += sent.size
        return answers, size

    def _answer(self, sent: _Sent) -> bytes:
        about = {"producer_id": self.id, "sequence_id": sent.sequence}
        try:
            position = sent.appending.result()
        except REFUSALS as error:
            return command("send_error", **about, error=int(send_code_of(error)), message=explained(error))
        place = None if position is None else message_id(position)
        return command("send_receipt", **about, message_id=place, highest_sequence_id=sent.highest)


async def _refused(error: Exception) -> Position | None:
    raise error


class PulsarProducers:
    """The producers of one connection."""

    def __init__(self, session: PulsarSession) -> None:
        self._session = session
        self._producers: dict[int, PulsarProducer] = {}
        self._pending = 0
        self._pending_bytes = 0

    def create(self, request: Any) -> None:
        self._session.answer(self._created(request), partial(refused, request))

    async def _created(self, request: Any) -> bytes:
        """Create a producer, also on a segment that takes nothing more: what was sent to it may have to be
        confirmed."""
        if request.encrypted:
            raise PulsarError(PulsarCode.NOT_ALLOWED, "encrypted messages are not accepted")
        if request.producer_access_mode != SHARED:
            raise PulsarError(PulsarCode.NOT_ALLOWED, "only producers with shared access are supported")
        name = request.producer_name or new_name()
        if len(name.encode()) > MAX_NAME_BYTES:
            raise PulsarError(PulsarCode.NOT_ALLOWED, f"the name of a producer has at most {MAX_NAME_BYTES} bytes")
        broker, parts = self._session.context.broker, segment_parts(request.topic)
        self._session.require("produce", parts.topic)
        segment = await broker.in_layout(parts.topic, lambda: broker.segment(request.topic))
        assert_writable(parts.topic, (await broker.topic(parts.topic)).format)
        version = None
        if request.HasField("schema"):
            async with self._session.schemas:
                version = await self._session.context.schemas.version_of(parts.topic, request.schema)
        self._session.require("produce", parts.topic)
        if request.producer_id not in self._producers and len(self._producers) >= MAX_PRODUCERS:
            raise PulsarError(PulsarCode.NOT_ALLOWED, f"a connection has at most {MAX_PRODUCERS} producers")
        self._session.context.metrics.producers += request.producer_id not in self._producers
        producer = self._producers[request.producer_id] = PulsarProducer(
            request.producer_id, segment, name, self._session
        )
        return command(
            "producer_success",
            request_id=request.request_id,
            producer_name=name,
            last_sequence_id=producer.last_sequence,
            schema_version=version_bytes(version) if version is not None else None,
            producer_ready=True,
        )

    def send(self, request: Any, entry: memoryview) -> None:
        """Pass on a send. What arrives for a producer that is not there, or failed, is sent again through another
        one."""
        producer = self._producers.get(request.producer_id)
        sent = producer.send(request, entry) if producer is not None else None
        if producer is None or sent is None:
            return
        self._count(1, sent.size)
        sent.appending.add_done_callback(partial(self._over, producer))

    def _count(self, more: int, bytes_more: int) -> None:
        """What is over and waits for the answer to one before it counts, too."""
        self._pending += more
        self._pending_bytes += bytes_more
        self._session.hold("sends", self._pending >= MAX_PENDING or self._pending_bytes > MAX_PENDING_BYTES)

    def _over(self, producer: PulsarProducer, appending: asyncio.Task[Position | None]) -> None:
        if appending.cancelled():
            return
        if (error := appending.exception()) is not None and not isinstance(error, REFUSALS):
            self._session.failed(error)
            return
        answers, size = producer.confirmed()
        self._count(-len(answers), -size)
        if answers:
            self._session.link.send(*answers)

    def close(self, request: Any) -> None:
        """Close a producer, once everything that it has sent is settled."""
        producer = self._producers.pop(request.producer_id, None)
        self._session.context.metrics.producers -= producer is not None
        self._session.answer(self._closed(request, producer), partial(refused, request))

    def end(self) -> None:
        """The connection has ended."""
        self._session.context.metrics.producers -= len(self._producers)
        self._producers.clear()

    async def _closed(self, request: Any, producer: PulsarProducer | None) -> bytes:
        if producer is not None:
            await asyncio.gather(*(each.appending for each in producer.sent), return_exceptions=True)
        return command("success", request_id=request.request_id)
