"""The endpoints for other brokers that take part in the delivery of a subscription. Each broker answers for its own
segments and asks no other broker."""

from __future__ import annotations

from itertools import starmap

from fastapi import APIRouter
from fastapi.responses import Response

from metatxn.service.http import Caller, problems
from metatxn.wire import errors
from metatxn.wire.broker import (
    SEEK_PREVIEW_SEGMENT,
    SUBSCRIPTION_SEGMENT,
    AckMessagesAnswer,
    AckMessagesRequest,
    RedeliverAnswer,
    RedeliverRequest,
    SeekPreviewSegment,
    SubscriptionSegment,
)
from metatxn.wire.errors import ErrorCode
from participants.api.rights import TopicPath, check_transaction
from participants.api.subscription_requests import (
    ACK_REFUSALS,
    NamePath,
    ack_answer,
    ack_request,
    places,
    redeliver_answer,
    redelivered,
    subscription_router,
)
from participants.broker.broker import Broker
from participants.subscription.home import Home
from participants.subscription.places import Place, Span, Start
from participants.subscription.share import TakeRequest, WaitRequest
from participants.subscription.taking import Taker
from participants.topic.share_models import SharePreviewRequest, ShareTakeAnswer, ShareTakeRequest, ShareWaitRequest
from participants.topic.subscriptions import Subscriptions

TAG = "between brokers"


def add_share_routes(api: APIRouter, broker: Broker, subscriptions: Subscriptions) -> None:
    consuming = subscription_router(TAG, "consume")
    _add_delivery_routes(consuming, subscriptions)
    _add_acknowledgement_routes(consuming, broker, subscriptions)
    _add_look_route(consuming, subscriptions)
    administering = subscription_router(TAG, "admin")
    _add_drop_route(administering, subscriptions)
    api.routes.extend([*consuming.routes, *administering.routes])


def _add_delivery_routes(api: APIRouter, subscriptions: Subscriptions) -> None:
    @api.post("/share/take", responses=problems(ErrorCode.NOT_FOUND, 422, 503))
    async def take_of_share(topic: TopicPath, subscription: NamePath, request: ShareTakeRequest) -> ShareTakeAnswer:
        """Get messages for a consumer, on behalf of the broker that delivers the subscription."""
        wanted = TakeRequest(
            Home(request.home_segment, request.home),
            request.session,
            request.sessions,
            request.newest,
            request.segments,
            request.max,
            request.max_bytes,
            request.most_held,
        )
        answer = await subscriptions.take(topic, subscription, request.incarnation, wanted)
        messages = [each.message for each in answer.messages]
        return ShareTakeAnswer(
            messages=messages,
            ended=sorted(answer.ended),
            held=answer.held,
            full=answer.full,
            others_hold=answer.others_hold,
        )

    @api.post(
        "/share/wait", status_code=204, response_class=Response, responses=problems(ErrorCode.NOT_FOUND, 422, 503)
    )
    async def wait_for_share(topic: TopicPath, subscription: NamePath, request: ShareWaitRequest) -> Response:
        """Wait until one of the segments has a message to deliver."""
        share = await subscriptions.share(topic, subscription, request.segments, request.incarnation)
        taker = None if request.session is None else Taker(request.session, tuple(request.sessions or ()))
        wanted = WaitRequest(tuple(request.segments), taker, tuple(request.ended or ()))
        await share.wait(wanted, request.wait_ms / 1000)
        return Response(status_code=204)


def _add_acknowledgement_routes(api: APIRouter, broker: Broker, subscriptions: Subscriptions) -> None:
    @api.post("/share/acks", responses=problems(*ACK_REFUSALS))
    async def acknowledge_share(
        topic: TopicPath, subscription: NamePath, request: AckMessagesRequest, caller: Caller
    ) -> AckMessagesAnswer:
        """Acknowledge messages of segments that this broker owns: either all of them, or none if any of them
        conflicts."""
        wanted = ack_request(request)
        await check_transaction(broker, wanted.txn_id, caller)
        share = await subscriptions.share(topic, subscription, sorted(wanted.segments))
        await share.acknowledge(wanted)
        return ack_answer(wanted)

    @api.post("/share/redeliver", responses=problems(ErrorCode.NOT_FOUND, 422, 503))
    async def redeliver_share(
        topic: TopicPath, subscription: NamePath, request: RedeliverRequest | None = None
    ) -> RedeliverAnswer:
        """Redeliver messages of segments that this broker owns."""
        ids = redelivered(request)
        share = await subscriptions.share(topic, subscription, sorted({each.segment for each in ids or ()}))
        return redeliver_answer(await share.redeliver(ids))


def _add_look_route(api: APIRouter, subscriptions: Subscriptions) -> None:
    @api.get(
        "/share",
        responses=problems(ErrorCode.NOT_FOUND, 422, 503)
        | {200: {"content": {"application/json": {"example": [SUBSCRIPTION_SEGMENT]}}}},
    )
    async def get_share(topic: TopicPath, subscription: NamePath) -> list[SubscriptionSegment]:
        """Get the progress of the subscription on the segments that this broker owns."""
        return await (await subscriptions.share(topic, subscription)).look()

    @api.post(
        "/share/preview",
        responses=problems(ErrorCode.NOT_FOUND, 422, 503)
        | {200: {"content": {"application/json": {"example": [SEEK_PREVIEW_SEGMENT]}}}},
    )
    async def preview_share(
        topic: TopicPath, subscription: NamePath, request: SharePreviewRequest
    ) -> list[SeekPreviewSegment]:
        """Get what a seek would do on the segments that this broker owns."""
        within = _windows(request)
        named = sorted({*request.positions, *(within or ())})
        share = await subscriptions.share(topic, subscription, named, request.incarnation)
        return await share.preview(_starts(request), within)


def _starts(request: SharePreviewRequest) -> dict[str, Start]:
    """Raises INVALID_ARGUMENT."""
    try:
        acked = {name: tuple(starmap(_span, ranges)) for name, ranges in request.acked.items()}
    except ValueError as error:
        raise errors.invalid_field("acked", str(error)) from None
    return {
        name: Start(Place.at(position), acked.get(name, ())) for name, position in places(request.positions).items()
    }


def _windows(request: SharePreviewRequest) -> dict[str, Span] | None:
    """Raises INVALID_ARGUMENT."""
    if request.within is None:
        return None
    try:
        return {name: Span(Place.parse(start), Place.parse(end)) for name, (start, end) in request.within.items()}
    except ValueError as error:
        raise errors.invalid_field("within", str(error)) from None


def _span(start: str, end: str) -> Span:
    """Raises `ValueError`, also for a range that contains nothing: a set of ranges cannot have it."""
    found = Span(Place.parse(start), Place.parse(end))
    if found.start >= found.end:
        raise ValueError(f"{start} is not before {end}")
    return found


def _add_drop_route(api: APIRouter, subscriptions: Subscriptions) -> None:
    @api.delete(
        "/share", status_code=204, response_class=Response, responses=problems(ErrorCode.NOT_FOUND, 422, 503, 504)
    )
    async def drop_share(topic: TopicPath, subscription: NamePath) -> Response:
        """Delete the records of a dropped subscription on the segments that this broker owns."""
        await subscriptions.drop_share(topic, subscription)
        return Response(status_code=204)
