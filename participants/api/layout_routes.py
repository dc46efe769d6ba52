"""The administration of a topic's segments: split, merge, seal, trim, and delete the topic."""

from __future__ import annotations

from fastapi import APIRouter

from metatxn.service.audited import audited
from metatxn.service.http import Caller, PathText, problems
from metatxn.wire import errors
from metatxn.wire.broker import (
    ChildrenAnswer,
    MergeRequest,
    SealRequest,
    SplitRequest,
    TrimAnswer,
    TrimRequest,
)
from metatxn.wire.names import topic_of_segment
from metatxn.wire.position import Position
from participants.api.rights import TopicPath, on_segment, on_topic
from participants.broker.broker import Broker
from participants.segment.trimming import trim
from participants.topic.layout import LayoutUpkeep


def add_layout_routes(api: APIRouter, broker: Broker, layout: LayoutUpkeep) -> None:
    @api.delete(
        "/v1/topics/{topic}",
        status_code=204,
        tags=["topics"],
        responses=problems(404, 422, 503, 504),
        dependencies=[on_topic("admin")],
    )
    @audited("topic.delete")
    async def delete_topic(topic: TopicPath) -> None:
        """Delete a topic with all of its messages, subscriptions and pending operations. Transactions that wrote there
        end as if they had not."""
        await layout.deletion.delete(topic)

    _add_successions(api, layout)

    @api.delete(
        "/v1/segments/{segment}",
        status_code=204,
        tags=["segments"],
        responses=problems(307, 404, 409, 422, 503, 504),
        dependencies=[on_segment("admin")],
    )
    @audited("segment.delete")
    async def delete_segment(segment: PathText) -> None:
        """Drop what is left in a sealed segment that has children, and remove it from the topic. It is refused while
        something needs the segment: a subscription that has not acknowledged all of it, a transaction with operations
        on it, or a segment that came before it."""
        await layout.removal.delete(segment)

    @api.post(
        "/v1/segments/{segment}/trim",
        tags=["segments"],
        responses=problems(307, 404, 422, 503, 504),
        dependencies=[on_segment("admin")],
    )
    @audited("segment.trim", body=("before",))
    async def trim_segment(segment: PathText, request: TrimRequest) -> TrimAnswer:
        """Drop the entries below a position and what is remembered of their transactions. Entries that readers could
        not see yet (above `max_read_position`) are never dropped."""
        try:
            before = Position.parse(request.before)
        except ValueError as error:
            raise errors.InvalidArgument(f"before: {error}", field="before") from None
        target = await broker.segment(segment)
        await trim(target, broker.store, broker.storage, before)
        return TrimAnswer(first_position=str(target.ledgers.start.next))


def _add_successions(api: APIRouter, layout: LayoutUpkeep) -> None:
    """The routes that seal segments, with children or without."""

    @api.post(
        "/v1/segments/{segment}/split",
        tags=["segments"],
        responses=problems(307, 404, 409, 422, 503, 504),
        dependencies=[on_segment("admin")],
    )
    @audited("segment.split", body=("at",))
    async def split_segment(segment: PathText, request: SplitRequest) -> ChildrenAnswer:
        """Seal a segment and replace it by two children that divide its hash range. Its messages stay readable."""
        return ChildrenAnswer(children=list(await layout.split(segment, request.at)))

    @api.post(
        "/v1/segments/{segment}/merge",
        tags=["segments"],
        responses=problems(307, 404, 409, 422, 503, 504),
        dependencies=[on_segment("admin")],
    )
    @audited("segment.merge", body=("with",))
    async def merge_segments(segment: PathText, request: MergeRequest, caller: Caller) -> ChildrenAnswer:
        """Seal a segment and its neighbour and replace them by one child. Their messages stay readable."""
        caller.require("admin", topic_of_segment(request.other))
        return ChildrenAnswer(children=list(await layout.merge(segment, request.other)))

    @api.post(
        "/v1/segments/{segment}/seal",
        tags=["segments"],
        responses=problems(307, 404, 409, 422, 503, 504),
        dependencies=[on_segment("admin")],
    )
    @audited("segment.seal")
    async def seal_segment(segment: PathText, request: SealRequest) -> ChildrenAnswer:
        """Seal a segment permanently: it accepts no more messages, and no segment takes over. Its messages stay
        readable."""
        return ChildrenAnswer(children=list(await layout.seal(segment)))
