"""How far segments can be read: one request for any number of segments, which needs no read of the metadata store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from fastapi import APIRouter

from metatxn.service.http import Caller, problems
from metatxn.service.listeners import UsedListener
from metatxn.wire import errors
from metatxn.wire.broker import HorizonPlace, HorizonsAnswer, HorizonsRequest, Isolation, SegmentHorizon
from metatxn.wire.listeners import address_for
from metatxn.wire.names import topic_of_segment
from metatxn.wire.position import Position
from participants.broker.broker import Broker
from participants.messages.payloads import message_count
from participants.messages.removed import RemovedSegment
from participants.segment.segment import Segment
from participants.topic.reading import read_page

SCAN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class HorizonRequest:
    """The request for one segment; see `HorizonPlace`."""

    after: Position | None
    up_to: Position | None
    max_messages: int | None

    @classmethod
    def parse(cls, segment_id: str, place: HorizonPlace) -> Self:
        """Raises INVALID_ARGUMENT."""
        try:
            after = Position.parse(place.after) if place.after is not None else None
            up_to = Position.parse(place.up_to) if place.up_to is not None else None
        except ValueError as error:
            problem = f"segments: {segment_id}: {error}"
            raise errors.InvalidArgument(problem, field="segments") from None
        return cls(after, up_to, place.max_messages)


def add_horizon_routes(api: APIRouter, broker: Broker) -> None:
    @api.post("/v1/horizons", tags=["segments"], responses=problems(422, 503))
    async def look_at_horizons(request: HorizonsRequest, caller: Caller, listener: UsedListener) -> HorizonsAnswer:
        """How far each of these segments can be read, from memory; with `max_messages`, from the headers of the
        entries."""
        for segment_id in request.segments:
            caller.require("consume", topic_of_segment(segment_id))
        wanted = {segment_id: HorizonRequest.parse(segment_id, place) for segment_id, place in request.segments.items()}
        deadline = asyncio.get_running_loop().time() + request.wait_ms / 1000
        while True:
            answer, changes, news = await _look(broker, wanted, request.isolation, listener)
            left = deadline - asyncio.get_running_loop().time()
            if news or left <= 0:
                return answer
            await asyncio.wait(changes, timeout=left, return_when=asyncio.FIRST_COMPLETED)


async def _look(
    broker: Broker, wanted: dict[str, HorizonRequest], isolation: Isolation, listener: str | None
) -> tuple[HorizonsAnswer, Sequence[asyncio.Future[None]], bool]:
    """The current answer, futures that complete when it may change, and whether it contains anything that the caller
    did not know."""
    answer, changes, news = HorizonsAnswer(), [], False
    for segment_id, place in wanted.items():
        try:
            segment = await broker.segment(segment_id)
        except errors.NotOwner as error:
            answer.elsewhere[segment_id] = address_for(listener, error.owner_url, error.listeners)
            news = True
        except errors.NotFound:
            removed = await broker.removed(segment_id)
            if removed is not None and removed.end is not None:
                answer.segments[segment_id] = _horizon_of_removed(removed, removed.end, place)
            else:
                answer.gone.append(segment_id)
            news = True
        else:
            changes += segment.next_changes(isolation)
            horizon = answer.segments[segment_id] = await _horizon(segment, place, isolation)
            news = news or horizon.ended or horizon.end != str(place.after)
    return answer, changes, news


async def _horizon(segment: Segment, wanted: HorizonRequest, isolation: Isolation) -> SegmentHorizon:
    buffer, ledgers = segment.buffer, segment.ledgers
    readable = buffer.max_read_position if isolation == "read_committed" else buffer.last_durable
    end = max(ledgers.start, ledgers.shown(readable))
    if wanted.up_to is not None:
        end = min(end, wanted.up_to)
    after = max(ledgers.start, wanted.after or ledgers.start)
    messages = None
    if wanted.max_messages is not None:
        end, messages = await _reach(segment, after, end, wanted.max_messages, isolation)
    return SegmentHorizon(
        start=str(ledgers.start),
        end=str(max(after, end)),
        messages=messages,
        trimmed=ledgers.trimmed is not None,
        trimmed_up_to=str(ledgers.trimmed) if ledgers.trimmed is not None else None,
        ended=ledgers.open is None and end >= ledgers.shown(ledgers.last_durable),
        children=list(segment.record.children),
    )


def _horizon_of_removed(removed: RemovedSegment, last: Position, wanted: HorizonRequest) -> SegmentHorizon:
    """The horizon of a segment that is trimmed completely. A reader at its end has missed nothing, and goes on in the
    children."""
    end = max(last, wanted.after or last)
    return SegmentHorizon(
        start=str(last),
        end=str(end),
        messages=0 if wanted.max_messages is not None else None,
        trimmed=True,
        trimmed_up_to=str(last),
        ended=True,
        children=list(removed.children),
    )


async def _reach(
    segment: Segment, after: Position, end: Position, max_messages: int, isolation: Isolation
) -> tuple[Position, int]:
    """The furthest position up to `end` with at most `max_messages` visible messages before it, and the number of these
    messages. If there is an entry, at least one is included."""
    at, messages = after, 0
    while at < end:
        try:
            page = await read_page(segment, at, SCAN_BYTES, isolation, None)
        except errors.PositionTrimmed:
            return at, messages  # a read at this place reports it
        for frame in page.frames:
            count = message_count(frame)
            if frame.position > end:
                return end, messages
            if messages and messages + count > max_messages:
                return at, messages
            at, messages = frame.position, messages + count
        at = min(page.next, end)
    return at, messages
