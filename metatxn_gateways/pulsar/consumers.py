"""The consumers of one connection."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any

from metatxn_gateways.pulsar.codes import REFUSALS, PulsarCode, PulsarError
from metatxn_gateways.pulsar.commands import command
from metatxn_gateways.pulsar.names import message_id, segment_parts
from metatxn_gateways.pulsar.readers import PulsarReader, reader_start
from metatxn_gateways.pulsar.session import PulsarSession, refused
from participants.segment.segment import Segment

NONE = (1 << 64) - 1
"""The number of the ledger and of the entry in the id of a message that does not exist."""


@dataclass(slots=True)
class _Consumer:
    segment: Segment
    reader: PulsarReader
    running: asyncio.Task[None]


class Consumers:
    def __init__(self, session: PulsarSession) -> None:
        self._session = session
        self._consumers: dict[int, _Consumer] = {}

    def subscribe(self, request: Any) -> None:
        self._session.answer(self._subscribed(request), partial(refused, request))

    async def _subscribed(self, request: Any) -> bytes:
        if request.durable:
            raise PulsarError(PulsarCode.NOT_ALLOWED, "subscriptions are not supported yet: use a checkpoint consumer")
        broker, parts = self._session.context.broker, segment_parts(request.topic)
        segment = await broker.in_layout(parts.topic, lambda: broker.segment(request.topic))
        self._drop(request.consumer_id)
        wanted = request.start_message_id if request.HasField("start_message_id") else None
        reader = PulsarReader(request.consumer_id, segment, reader_start(segment, wanted), self._session.link)
        running = self._session.spawn(self._run(reader))
        self._consumers[request.consumer_id] = _Consumer(segment, reader, running)
        return command("success", request_id=request.request_id)

    async def _run(self, reader: PulsarReader) -> None:
        """Run a reader. Once its segment is no longer served here, the client looks it up again."""
        try:
            await reader.run()
        except REFUSALS:
            self._consumers.pop(reader.id, None)
            self._session.send(command("close_consumer", consumer_id=reader.id, request_id=0))

    def flow(self, request: Any) -> None:
        if (consumer := self._consumers.get(request.consumer_id)) is not None:
            consumer.reader.flow(request.message_permits)

    def ack(self, request: Any) -> None:
        """Answer an acknowledgement. A reader remembers nothing, but its client acknowledges nevertheless."""
        if request.HasField("request_id"):
            self._session.send(command("ack_response", consumer_id=request.consumer_id, request_id=request.request_id))

    def last_message_id(self, request: Any) -> None:
        self._session.answer(self._last_message_id(request), partial(refused, request))

    async def _last_message_id(self, request: Any) -> bytes:
        consumer = self._consumers.get(request.consumer_id)
        if consumer is None:
            raise PulsarError(PulsarCode.SERVICE_NOT_READY, f"there is no consumer {request.consumer_id}")
        last = await consumer.segment.reader.last_visible()
        place = {"ledger_id": NONE, "entry_id": NONE} if last is None else message_id(last)
        return command("get_last_message_id_response", request_id=request.request_id, last_message_id=place)

    def close(self, request: Any) -> None:
        self._drop(request.consumer_id)
        self._session.send(command("success", request_id=request.request_id))

    def _drop(self, consumer_id: int) -> None:
        if (consumer := self._consumers.pop(consumer_id, None)) is not None:
            consumer.running.cancel()
