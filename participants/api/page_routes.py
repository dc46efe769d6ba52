"""Reading a topic in batches: entries of all of its segments, as they are stored, for readers that decode them."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from metatxn.service.http import problems
from metatxn.wire import errors
from metatxn.wire.broker import Isolation
from metatxn.wire.pages import PAGE_MEDIA_TYPE, PageHead, PagePart, encode_head
from participants.api.frames_response import ANSWER_BYTES, FramesResponse, LargeEntryResponse
from participants.api.queries import MaxBytesQuery, RevisionQuery, StartQuery, TokenQuery, WaitQuery
from participants.api.rights import TopicPath, on_topic
from participants.broker.broker import Broker
from participants.segment.segment import Segment
from participants.topic.messages import BrowsePage, Messages


def add_page_route(api: APIRouter, broker: Broker, messages: Messages) -> None:
    @api.get(
        "/v1/topics/{topic}/batches",
        tags=["messages"],
        response_model_exclude_none=True,
        response_class=Response,
        responses={200: {"content": {PAGE_MEDIA_TYPE: {}}}, **problems(307, 404, 410, 422, 503)},
        dependencies=[on_topic("consume")],
    )
    async def read_batches(
        topic: TopicPath,
        request: Request,
        after: TokenQuery = None,
        max_bytes: MaxBytesQuery = 1 << 20,
        isolation: Isolation = "read_committed",
        revision: RevisionQuery = None,
        wait_ms: WaitQuery = 0,
        start: StartQuery = "earliest",
    ) -> Response:
        """Browse a topic as `GET /v1/topics/{topic}/messages` does, but answer entries as they are stored.

        An answer has as many entries as fit into `max_bytes`, and never many more than 4 MiB; but at least one. It ends
        after two seconds once it has one.
        """
        if after is not None and getattr(after, "ends", None) is not None:
            raise errors.InvalidArgument(
                "after: this position is in a compacted view",
                action="Read its messages until `next` is past the view.",
                field="after",
            )
        page = await messages.browse(
            topic,
            after,
            None,
            isolation,
            revision,
            wait_ms,
            request.headers.get("authorization"),
            max_bytes=min(max_bytes, ANSWER_BYTES),
            latest=start == "latest",
        )
        return _answer(broker, page)


def _answer(broker: Broker, page: BrowsePage) -> Response:
    parts: list[PagePart] = []
    for each in page.found:
        size, skip = each.frame.end - each.frame.start, each.indexes.start
        if parts and parts[-1].segment == each.segment.id:
            parts[-1].bytes += size
        else:
            parts.append(PagePart(segment=each.segment.id, bytes=size, skip=skip))
    head = encode_head(PageHead(parts=parts, next=str(page.next), revision=page.revision, more=page.more))
    frames = [each.frame for each in page.found]
    if len(frames) == 1 and len(frames[0].data) > ANSWER_BYTES:
        segment, position = page.found[0].segment, frames[0].position

        async def read_part(start: int, end: int) -> memoryview:
            return await (await broker.segment(segment.id)).ledgers.read_part(position, start, end)

        if isinstance(segment, Segment):  # what another broker has sent is in memory already
            return LargeEntryResponse(frames[0], read_part, {}, head, PAGE_MEDIA_TYPE)
    return FramesResponse(frames, {}, head, PAGE_MEDIA_TYPE)
