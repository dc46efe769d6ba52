"""The broker's REST endpoints. Each one checks its input, calls the broker, and builds the answer."""

from __future__ import annotations

import asyncio
import heapq
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response

from metastore.txn.records.topics import TopicRecord
from metastore.types import Revision
from metatxn.service.audited import audited
from metatxn.service.direct import DirectRoute
from metatxn.service.http import Caller, PathText, problems
from metatxn.service.listeners import UsedListener
from metatxn.wire import errors, names
from metatxn.wire.broker import (
    END_HEADER,
    FRAMES_MEDIA_TYPE,
    MAX_REVISION,
    MAX_TIME_MS,
    NEXT_HEADER,
    REVISION_HEADER,
    CreateTopicRequest,
    CutAnswer,
    Isolation,
    OpenTransaction,
    PositionAnswer,
    PublishMessagesAnswer,
    PublishMessagesRequest,
    ReadMessagesAnswer,
    SegmentDetail,
    TopicInfo,
    TopicPage,
)
from metatxn.wire.frames import RawFrame
from metatxn.wire.listeners import address_for
from metatxn.wire.names import ReadPlace, ReadTime, topic_name
from metatxn.wire.position import Position
from participants.api.append_routes import add_append_routes
from participants.api.broker_routes import add_broker_routes
from participants.api.exclusive_producer_routes import add_exclusive_producer_routes
from participants.api.frames_response import ANSWER_BYTES, FramesResponse, LargeEntryResponse
from participants.api.horizon_routes import add_horizon_routes
from participants.api.large_answers import LargeAnswerRoute
from participants.api.layout_routes import add_layout_routes
from participants.api.page_routes import add_page_route
from participants.api.policy_routes import add_policy_routes
from participants.api.queries import (
    MAX_ENTRIES_BACK,
    ColumnsQuery,
    MaxBytesQuery,
    PageTokenQuery,
    PlaceQuery,
    RevisionQuery,
    StartQuery,
    TextQuery,
    TokenQuery,
    TxnIdQuery,
    WaitQuery,
    parsed_by,
)
from participants.api.read_hold_routes import add_read_hold_routes
from participants.api.rights import Shown, TopicPath, check_transaction, on_segment, on_topic, seeing_topic
from participants.api.schema_routes import add_schema_routes
from participants.api.subscription_routes import add_consumer_routes, add_subscription_routes
from participants.api.transaction_routes import add_transaction_routes
from participants.broker.broker import Broker
from participants.broker.draining import assert_takes_topics
from participants.messages import schemas
from participants.messages.payloads import read_bytes, with_json
from participants.messages.projection import with_columns
from participants.messages.topics import segment_not_found
from participants.segment.reading import Page
from participants.segment.segment import Segment
from participants.topic.layout import LayoutUpkeep
from participants.topic.messages import Messages, PublishOptions
from participants.topic.reading import from_chosen, read_page, snapshot_revision
from participants.topic.subscriptions import Subscriptions

MOST_TOPICS = 1_000
"""The most topics that one request lists, or looks through for a text."""
MOST_COUNTED = 20_000
"""The most records of topics that one request counts: reading and parsing 10,000 takes about 0.1 s."""
MaxOpenQuery = Annotated[
    int | None,
    Query(
        ge=0,
        le=100_000,
        description="At most this many of the open transactions: those that hold readers back at the lowest positions.",
    ),
]


def router(broker: Broker, layout: LayoutUpkeep) -> APIRouter:
    api = APIRouter(route_class=LargeAnswerRoute)
    _topic_routes(api, broker)
    messages = Messages(broker)
    _segment_routes(api, broker, messages)
    subscriptions = Subscriptions(broker, messages)
    add_consumer_routes(api, broker, subscriptions)
    add_horizon_routes(api, broker)
    add_layout_routes(api, broker, layout)
    add_exclusive_producer_routes(api, broker)
    add_read_hold_routes(api, broker)
    add_policy_routes(api, broker)
    add_broker_routes(api, broker)
    add_transaction_routes(api, broker)
    add_schema_routes(api, broker)
    _message_routes(api, broker, messages)
    add_subscription_routes(api, broker, subscriptions)
    return api


def _topic_routes(api: APIRouter, broker: Broker) -> None:
    @api.post("/v1/topics", status_code=201, tags=["topics"], responses=problems(307, 409, 422, 503, 504))
    @audited("topic.create", body=("segments", "format"), topic="name")
    async def create_topic(request: CreateTopicRequest, caller: Caller, listener: UsedListener) -> TopicInfo:
        """Create a topic of one or more hash-range segments, in the storage of this broker."""
        try:
            name = topic_name(request.name)
        except ValueError as error:
            raise errors.InvalidArgument(f"name: {error}", field="name") from None
        caller.require("admin", name)
        await assert_takes_topics(broker, name)
        schema = schemas.from_wire(request.topic_schema) if request.topic_schema else None
        topic = await broker.topics.create(
            name, request.segments, schema, broker.storage.storage_id, broker.clock(), request.format
        )
        await broker.until_opened(topic.segments)
        return await broker.topics.describe(topic, listener)

    @api.get("/v1/topics", tags=["topics"], responses=problems(422, 503))
    async def list_topics(
        caller: Caller,
        listener: UsedListener,
        limit: Annotated[int, Query(ge=1, le=MOST_TOPICS)] = 100,
        page_token: PageTokenQuery = None,
        text: TextQuery = None,
        count: Annotated[bool, Query(description="Also count all topics of the list.")] = False,
    ) -> TopicPage:
        """List the topics on which the caller has a right, by name. A page may have fewer than `limit` items although
        there is a next page."""
        wanted = (text or "").casefold()

        def is_listed(topic: TopicRecord) -> bool:
            return not topic.deleted and wanted in topic.name.casefold() and caller.may_see(topic.name)

        topics, more = await broker.topics.page(page_token, limit if text is None else MOST_TOPICS)
        seen = [*filter(is_listed, topics)]
        shown = seen[:limit]
        items = await broker.topics.describe_each(shown, listener)
        last = shown[-1] if len(seen) > limit else topics[-1] if more else None
        return TopicPage(
            items=items,
            next_page_token=names.page_token(last.name) if last else None,
            count=await broker.topics.count(is_listed, MOST_COUNTED) if count else None,
        )

    @api.get(
        "/v1/topics/{topic}",
        tags=["topics"],
        responses=problems(404, 422, 503),
        dependencies=[Depends(seeing_topic)],
    )
    async def get_topic(topic: TopicPath, listener: UsedListener) -> TopicInfo:
        """Get a topic's schema and segments."""
        return await broker.topics.describe((await broker.topics.get(topic)).topic, listener)


def _segment_routes(api: APIRouter, broker: Broker, messages: Messages) -> None:
    _look_route(api, broker)
    _position_route(api, broker)
    quick = APIRouter(route_class=DirectRoute)
    add_append_routes(quick, broker)
    _read_route(quick, broker)
    add_page_route(quick, broker, messages)
    api.routes.extend(quick.routes)


def _look_route(api: APIRouter, broker: Broker) -> None:
    @api.get(
        "/v1/segments/{segment}",
        tags=["segments"],
        responses=problems(307, 404, 422, 503),
        dependencies=[on_segment("consume")],
    )
    async def get_segment(segment: PathText, listener: UsedListener, max_open: MaxOpenQuery = None) -> SegmentDetail:
        """Get the contents of a segment, how far it can be read, and which transactions hold readers back."""
        found = await broker.segment(segment)
        owner = address_for(listener, broker.url, broker.listeners)
        return _detail(found, await found.reader.last_visible(), owner, max_open)


def _position_route(api: APIRouter, broker: Broker) -> None:
    @api.get(
        "/v1/segments/{segment}/position",
        tags=["segments"],
        responses=problems(307, 404, 422, 503),
        dependencies=[on_segment("consume")],
    )
    async def get_position(
        segment: PathText,
        at_ms: Annotated[
            int | None, Query(ge=0, le=MAX_TIME_MS, description="Milliseconds since 1970-01-01 UTC.")
        ] = None,
        before: Annotated[Any, parsed_by(Position.parse), Query(description="A position, exclusive")] = None,
        entries: Annotated[int, Query(ge=1, le=MAX_ENTRIES_BACK, description="How many entries before it.")] = 1,
    ) -> PositionAnswer:
        """Find the first entry that was published at a time or later, or count entries backwards from a position."""
        if (at_ms is None) == (before is None):
            raise errors.InvalidArgument("at_ms: give either at_ms or before", field="at_ms")
        reader = (await broker.segment(segment)).reader
        found = await (reader.position_at(at_ms) if at_ms is not None else reader.position_before(before, entries))
        return PositionAnswer(position=str(found), after=str(found.before))

    @api.get(
        "/v1/segments/{segment}/cut",
        tags=["segments"],
        responses=problems(307, 404, 410, 422, 503),
        dependencies=[on_segment("consume")],
    )
    async def get_cut(
        segment: PathText,
        revision: Annotated[int, Query(ge=0, le=MAX_REVISION, description="A revision of the store.")],
        after: Annotated[Any, parsed_by(Position.parse), Query(description="A position, exclusive")] = None,
    ) -> CutAnswer:
        """Say which of the next entries belong to transactions that were decided at a revision. Other brokers ask this
        to move a subscription there."""
        found = await broker.segment(segment)
        page = await found.reader.read_cut(after or found.ledgers.start, revision)
        runs = [(str(run.first), str(run.last), run.decided) for run in page.runs]
        return CutAnswer(runs=runs, next=str(page.next), end=page.end)


def _read_route(api: APIRouter, broker: Broker) -> None:
    @api.get(
        "/v1/segments/{segment}/entries",
        tags=["segments"],
        response_model_exclude_none=True,
        response_class=Response,
        responses={200: {"content": {FRAMES_MEDIA_TYPE: {}}}, **problems(307, 404, 410, 422, 503)},
        dependencies=[on_segment("consume")],
    )
    async def read_entries(
        segment: PathText,
        after: PlaceQuery = None,
        max_bytes: MaxBytesQuery = 1 << 20,
        isolation: Isolation = "read_committed",
        revision: RevisionQuery = None,
        wait_ms: WaitQuery = 0,
        batches: Annotated[bool, Query(description="The reader knows the payload kind 4")] = False,
        columns: ColumnsQuery = None,
    ) -> Response:
        """Read the visible frames after `after`, in the format of the ledger format page, one after another.

        Without `batches`, batches of messages are sent as JSON messages. With `columns`, other columns of tables may be
        left out, except the one with the keys of the rows.

        The answer contains as many whole frames as fit into `max_bytes`, and never many more than 4 MiB; but at least
        one.
        """
        place = after if isinstance(after, ReadPlace) else None
        deadline_s = asyncio.get_running_loop().time() + wait_ms / 1000
        revision = snapshot_revision(isolation, revision, place.revision if place else None)
        try:
            target = await broker.segment(segment)

            async def read(at: Position) -> Page:
                size = min(max_bytes, ANSWER_BYTES)
                return await _page_within(deadline_s, broker, target, at, size, isolation, revision)

            if place is not None:
                page = await read(place.position)
            elif isinstance(after, ReadTime):
                page = await from_chosen((await target.reader.position_at(after.at_ms)).before, read)
            else:
                page = await from_chosen(target.ledgers.start, read)
            frames = page.frames
            target.traffic.went_out(
                sum(frame.count for frame in frames), sum(frame.end - frame.start for frame in frames), len(frames)
            )
        except errors.NotFound:
            page = await _page_of_removed(broker, segment, place, isolation, revision)
        if not batches:
            page = _within_answer(page)
        headers = {NEXT_HEADER: str(ReadPlace(page.next, page.revision)), END_HEADER: "true" if page.end else "false"}
        if page.revision is not None:
            headers[REVISION_HEADER] = str(page.revision)
        frames = page.frames if batches else list(map(with_json, page.frames))
        if columns:
            frames = await _with_columns(frames, columns)
        return _answer(page, frames, broker, segment, headers)


async def _page_of_removed(
    broker: Broker, segment_id: str, place: ReadPlace | None, isolation: Isolation, revision: Revision | None
) -> Page:
    """The page after a place in a segment that was removed: the end of the segment, unless something was missed. A read
    without a place begins with what is left. Raises NOT_FOUND and POSITION_TRIMMED."""
    removed = await broker.removed(segment_id)
    if removed is None:
        raise segment_not_found(segment_id)
    if place is not None and not removed.is_passed(place.position):
        raise removed.trimmed()
    if isolation == "snapshot" and revision is None:
        revision = await broker.store.current_revision()
    return Page([], place.position if place is not None else removed.end or Position(0, -1), True, revision)


def _within_answer(page: Page) -> Page:
    """The page as far as it has `ANSWER_BYTES` when batches in it are decompressed, but at least one entry."""
    room = ANSWER_BYTES
    for number, frame in enumerate(page.frames):
        room -= read_bytes(frame)
        if number and room < 0:
            return replace(page, frames=page.frames[:number], next=page.frames[number - 1].position, end=False)
    return page


async def _with_columns(frames: list[RawFrame], columns: list[str]) -> list[RawFrame]:
    """The frames with these columns only; but as they are if they are one large entry and would be one still, because
    only what is stored can be sent piece by piece."""
    projected = await with_columns(frames, columns)
    return projected if sum(len(frame.data) for frame in projected) <= ANSWER_BYTES else frames


def _answer(page: Page, frames: list[RawFrame], broker: Broker, segment_id: str, headers: dict[str, str]) -> Response:
    """The answer with a page's frames, in the form that the reader wants."""
    first = frames[0] if frames else None
    if first is None or len(first.data) <= ANSWER_BYTES or first is not page.frames[0]:
        return FramesResponse(frames, headers)
    assert len(page.frames) == 1, "a page above the bound is one entry"
    position = first.position

    async def read_part(start: int, end: int) -> memoryview:
        return await (await broker.segment(segment_id)).ledgers.read_part(position, start, end)

    return LargeEntryResponse(first, read_part, headers)


async def _page_within(
    deadline_s: float,
    broker: Broker,
    segment: Segment,
    at: Position,
    max_bytes: int,
    isolation: Isolation,
    revision: Revision | None,
) -> Page:
    """The first page after `at` that is not empty, or an empty one at `deadline_s` or when nothing more will come."""
    while True:
        changes = segment.next_changes(isolation)
        page = await read_page(segment, at, max_bytes, isolation, revision)
        left = deadline_s - asyncio.get_running_loop().time()
        at = page.next
        if page.frames or left <= 0 or isolation == "snapshot" or segment.ended_at(at):
            return page
        if page.end:
            await asyncio.wait(changes, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            segment = await broker.segment(segment.id)


def _message_routes(api: APIRouter, broker: Broker, messages: Messages) -> None:
    @api.post(
        "/v1/topics/{topic}/messages",
        tags=["messages"],
        responses=problems(307, 404, 409, 413, 422, 503, 504, 507),
        dependencies=[on_topic("produce")],
    )
    async def publish_messages(
        topic: TopicPath,
        request: PublishMessagesRequest,
        caller: Caller,
        shown: Shown,
        txn_id: TxnIdQuery = None,
    ) -> PublishMessagesAnswer:
        """Publish JSON messages, which are routed by key, inside or outside a transaction."""
        if request.sequence is not None and request.producer is None:
            raise errors.InvalidArgument("sequence: needs a `producer`", field="sequence")
        await check_transaction(broker, txn_id, caller)
        options = PublishOptions(txn_id, request.producer, request.sequence, request.producer_epoch, shown)
        now_ms = broker.clock()
        sent = [message.at(now_ms) for message in request.messages]
        return PublishMessagesAnswer(message_ids=await messages.publish(topic, sent, options))

    @api.get(
        "/v1/topics/{topic}/messages",
        tags=["messages"],
        responses=problems(307, 404, 422, 503),
        dependencies=[on_topic("consume")],
    )
    async def browse_messages(
        topic: TopicPath,
        shown: Shown,
        after: TokenQuery = None,
        max: Annotated[int, Query(ge=1, le=1000)] = 100,
        isolation: Isolation = "read_committed",
        revision: RevisionQuery = None,
        wait_ms: WaitQuery = 0,
        compacted: Annotated[bool, Query(description="Begin with the latest value per key")] = False,
        start: StartQuery = "earliest",
    ) -> ReadMessagesAnswer:
        """Browse a topic without a subscription. If `messages` is empty, nothing more is readable now.

        `start=latest` returns at once and without messages; `next` is then the place after everything that is readable
        now.

        With `compacted` the first answers are the compacted view: the latest readable value of each key, without keys
        that were deleted by a null or empty value, and without messages that have no key. After that, new messages
        follow. `next` contains the kind of view, so `compacted` has an effect only without `after`.
        """
        latest = start == "latest"
        if compacted and latest:
            raise errors.InvalidArgument("start: the compacted view has only one beginning", field="start")
        page = await messages.browse(
            topic, after, max, isolation, revision, wait_ms, shown, compacted=compacted, latest=latest
        )
        return page.in_json()


def _detail(segment: Segment, last_visible: Position | None, owner: str, max_open: int | None = None) -> SegmentDetail:
    buffer, horizon = segment.buffer, segment.buffer.max_read_position
    pinned_by = buffer.pinned_by
    # Those without a pin were announced, and have written nothing.
    waiting = [each for each in buffer.tracked() if not each.released and each.pin is not None]
    count = len(waiting)
    if max_open is not None:
        waiting = heapq.nsmallest(max_open, waiting, key=lambda each: each.pin or buffer.last_durable)
    return SegmentDetail(
        segment=segment.id,
        topic=segment.record.topic,
        state=segment.record.state,
        owner=owner,
        generation=segment.ownership.generation,
        first_position=str(segment.ledgers.start.next),
        last_position=str(segment.ledgers.shown(buffer.last_durable)),
        max_read_position=str(segment.ledgers.shown(horizon)),
        last_visible_position=str(last_visible) if last_visible is not None else None,
        pinned_by=str(pinned_by.txn_id) if pinned_by else None,
        open_transactions=[
            OpenTransaction(
                txn_id=str(transaction.txn_id),
                max_read_position=str(segment.ledgers.shown(transaction.pin or buffer.last_durable)),
                since_ms=transaction.since_ms,
            )
            for transaction in waiting
        ],
        open_count=count,
        waiting_entries=segment.ledgers.entries_between(horizon, buffer.last_durable),
        waiting_bytes=segment.ledgers.bytes_between(horizon, buffer.last_durable),
        aborted_count=buffer.aborted_count,
        entries=segment.ledgers.entries,
        size_bytes=segment.ledgers.size_bytes,
        rates=segment.traffic.rates(),
    )
