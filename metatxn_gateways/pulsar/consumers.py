"""The consumers of one connection: readers, which have no subscription, and subscribers."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from metatxn.wire import errors
from metatxn_gateways.pulsar.acks import assert_few
from metatxn_gateways.pulsar.codes import REFUSALS, PulsarCode, PulsarError, explained, pulsar_code
from metatxn_gateways.pulsar.commands import command
from metatxn_gateways.pulsar.names import message_id, segment_parts, txn_id_of
from metatxn_gateways.pulsar.readers import PulsarReader, reader_start
from metatxn_gateways.pulsar.session import BegunCommand, PulsarSession, refused
from metatxn_gateways.pulsar.subscribers import Subscriber
from metatxn_gateways.pulsar.subscribing import checked_name
from participants.segment.segment import Segment

NONE = (1 << 64) - 1
"""The number of the ledger and of the entry in the id of a message that does not exist."""
MAX_CONSUMERS = 10_000
"""The most consumers of a connection: one for each segment that its programs read."""


@dataclass(slots=True)
class _Consumer:
    reads: PulsarReader | Subscriber
    running: asyncio.Task[None]

    @property
    def segment(self) -> Segment:
        return self.reads.segment


class Consumers:
    def __init__(self, session: PulsarSession) -> None:
        self._session = session
        self._consumers: dict[int, _Consumer] = {}
        self._opening: set[int] = set()
        """The numbers of those that are being created, unless their clients have closed them meanwhile."""
        self._barred: dict[int, str] = {}
        """The topics of consumers that were closed because the right to consume was lost, until their clients close
        them, too, or subscribe anew."""

    # -- coming and going --------------------------------------------------------------------------------------

    def subscribe(self, request: Any) -> None:
        self._session.answer(self._subscribed(request), partial(refused, request))

    async def _subscribed(self, request: Any) -> bytes:
        broker, parts = self._session.context.broker, segment_parts(request.topic)
        self._session.require("consume", parts.topic)
        segment = await broker.in_layout(parts.topic, lambda: broker.segment(request.topic))
        if request.consumer_id in self._opening:
            raise PulsarError(PulsarCode.SERVICE_NOT_READY, f"consumer {request.consumer_id} is being created")
        await self._drop(request.consumer_id)
        if len(self._consumers) + len(self._opening) + len(self._barred) >= MAX_CONSUMERS:
            raise PulsarError(PulsarCode.NOT_ALLOWED, f"a connection has at most {MAX_CONSUMERS} consumers")
        self._opening.add(request.consumer_id)
        try:
            if request.durable:
                self._begin(await self._attached(segment, request))
            else:
                wanted = request.start_message_id if request.HasField("start_message_id") else None
                self._begin(PulsarReader(request.consumer_id, segment, reader_start(segment, wanted), self._session))
        finally:
            wanted_still = request.consumer_id in self._opening
            self._opening.discard(request.consumer_id)
        try:
            self._session.require("consume", parts.topic)
            if not wanted_still:
                raise PulsarError(PulsarCode.SERVICE_NOT_READY, f"consumer {request.consumer_id} was closed")
        except PulsarError:
            await self._drop(request.consumer_id)
            raise
        return command("success", request_id=request.request_id)

    async def _attached(self, segment: Segment, request: Any) -> Subscriber:
        """A new subscriber. Raises SERVICE_NOT_READY while another one has the segment for itself: that one may just be
        about to close."""
        name = checked_name(request.consumer_name, "consumer")
        part = await self._session.context.subscribing.part(segment, request)
        try:
            number = await part.attached.attach(name)
        except errors.AlreadyExists as busy:
            raise PulsarError(PulsarCode.SERVICE_NOT_READY, explained(busy)) from None
        return Subscriber(request, part, number, self._session)  # nothing is awaited until it runs

    def _begin(self, reads: PulsarReader | Subscriber) -> None:
        running = self._session.spawn(self._run(reads))
        self._consumers[reads.id] = _Consumer(reads, running)
        self._session.context.metrics.consumers += 1
        if isinstance(reads, Subscriber):
            # Also if the connection ends before the task has begun. The work of a segment ends with it.
            running.add_done_callback(lambda _: reads.segment.spawn(reads.detach()))

    async def _run(self, reads: PulsarReader | Subscriber) -> None:
        """Run a consumer. Once its segment or subscription is no longer served here, or the right to consume is lost,
        the client looks it up again, and is refused then."""
        try:
            await reads.run()
        except REFUSALS as error:
            self._give_up(reads, barred=pulsar_code(error) is PulsarCode.AUTHORIZATION)

    def _give_up(self, reads: PulsarReader | Subscriber, *, barred: bool) -> None:
        self._take(reads.id)
        if barred:
            self._barred[reads.id] = reads.segment.record.topic
        self._session.send(command("close_consumer", consumer_id=reads.id, request_id=0))

    def obey(self) -> None:
        """Close the consumers of topics that the principal may not consume any more. What they hold returns."""
        for consumer in list(self._consumers.values()):
            if not self._session.principal.may("consume", consumer.segment.record.topic):
                consumer.running.cancel()
                self._give_up(consumer.reads, barred=True)

    def close(self, request: Any) -> None:
        """Close a consumer. Once that is answered, another one may have its place."""
        self._session.answer(self._closed(request), partial(refused, request))

    async def _closed(self, request: Any) -> bytes:
        await self._drop(request.consumer_id)
        return command("success", request_id=request.request_id)

    async def _drop(self, consumer_id: int) -> None:
        self._barred.pop(consumer_id, None)
        self._opening.discard(consumer_id)
        if (consumer := self._take(consumer_id)) is None:
            return
        consumer.running.cancel()
        reads = consumer.reads
        if isinstance(reads, Subscriber):
            await reads.detach()
            self._session.context.ordered.closed(reads.part.definition.name, reads.segment.id, reads.name)

    def _take(self, consumer_id: int) -> _Consumer | None:
        consumer = self._consumers.pop(consumer_id, None)
        self._session.context.metrics.consumers -= consumer is not None
        return consumer

    def end(self) -> None:
        """The connection has ended."""
        self._session.context.metrics.consumers -= len(self._consumers)
        self._consumers.clear()

    # -- what they ask for -------------------------------------------------------------------------------------

    def flow(self, request: Any) -> None:
        """Let a consumer have more messages."""
        consumer = self._consumers.get(request.consumer_id)
        if consumer is not None:
            consumer.reads.flow(request.message_permits)

    def ack(self, request: Any) -> None:
        """Acknowledge. It is answered if the client asks for that; a reader remembers nothing, but its client
        acknowledges nevertheless. Raises `MalformedRequest`."""
        assert_few(request.message_ids)
        self._session.begin(self._acknowledged(request, self._session.began))

    async def _acknowledged(self, request: Any, began: BegunCommand) -> None:
        about: dict[str, Any] = {"consumer_id": request.consumer_id}
        for name in ("request_id", "txnid_least_bits", "txnid_most_bits"):
            if request.HasField(name):
                about[name] = getattr(request, name)
        try:
            await self._acknowledge(request)
        except REFUSALS as error:
            about |= {"error": int(pulsar_code(error)), "message": explained(error)}
        self._session.answered(began)
        if request.HasField("request_id"):
            self._session.send(command("ack_response", **about))

    async def _acknowledge(self, request: Any) -> None:
        """Acknowledge. Raises as `_reads`."""
        reads = self._reads(request.consumer_id)
        if not isinstance(reads, Subscriber):
            return
        txn_id = None
        if request.HasField("txnid_least_bits"):
            txn_id = txn_id_of(request.txnid_most_bits, request.txnid_least_bits)
            if txn_id is None:
                raise PulsarError(PulsarCode.TRANSACTION_NOT_FOUND, "no transaction of this cluster has this id")
        await self._session.check_transaction(txn_id)
        # It goes on if the connection ends: a client may acknowledge, and close.
        if (refusal := await reads.segment.finish(_refusal(reads.acknowledge(request, txn_id)))) is not None:
            raise refusal

    def redeliver(self, request: Any) -> None:
        """Return messages of a subscriber. Raises `MalformedRequest`."""
        assert_few(request.message_ids)
        consumer = self._consumers.get(request.consumer_id)
        if consumer is not None and isinstance(consumer.reads, Subscriber):
            self._session.begin(consumer.reads.redeliver(request))

    def seek(self, request: Any) -> None:
        self._session.answer(self._sought(request), partial(refused, request))

    async def _sought(self, request: Any) -> bytes:
        """Move a reader. A subscription is moved as a whole, on all segments at once, and not by one of its
        consumers."""
        reads = self._reads(request.consumer_id)
        if isinstance(reads, Subscriber):
            names = reads.segment.record.topic, reads.part.definition.name
            raise PulsarError(
                PulsarCode.NOT_ALLOWED,
                f"a subscription is moved on all segments at once: metatxn subscription seek {shlex.join(names)}",
            )
        if not request.HasField("message_id"):
            raise PulsarError(PulsarCode.NOT_ALLOWED, "a reader is moved to a message, not to a time")
        await self._drop(reads.id)
        self._session.require("consume", reads.segment.record.topic)
        start = reader_start(reads.segment, request.message_id)
        self._begin(PulsarReader(reads.id, reads.segment, start, self._session))
        return command("success", request_id=request.request_id)

    def last_message_id(self, request: Any) -> None:
        self._session.answer(self._last_message_id(request), partial(refused, request))

    async def _last_message_id(self, request: Any) -> bytes:
        segment = self._reads(request.consumer_id).segment
        last = await segment.reader.last_visible()
        self._session.require("consume", segment.record.topic)
        place = {"ledger_id": NONE, "entry_id": NONE} if last is None else message_id(last)
        return command("get_last_message_id_response", request_id=request.request_id, last_message_id=place)

    def _reads(self, consumer_id: int) -> PulsarReader | Subscriber:
        """A consumer that its principal may have. Raises AUTHORIZATION, and SERVICE_NOT_READY for one that is not there
        any more."""
        consumer = self._consumers.get(consumer_id)
        topic = consumer.segment.record.topic if consumer is not None else self._barred.get(consumer_id)
        if topic is not None:
            self._session.require("consume", topic)
        if consumer is None:
            raise PulsarError(PulsarCode.SERVICE_NOT_READY, f"there is no consumer {consumer_id}")
        return consumer.reads


async def _refusal(work: Coroutine[Any, Any, None]) -> Exception | None:
    try:
        await work
    except REFUSALS as error:
        return error
    return None
