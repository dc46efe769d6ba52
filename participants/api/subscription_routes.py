"""The broker's REST endpoints of subscriptions: create, list, get, receive, acknowledge, redeliver, drop."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from metastore.txn.records.subscriptions import SubscriptionRecord
from metatxn.service.audited import audited
from metatxn.service.direct import DirectRoute
from metatxn.service.http import Caller, problems
from metatxn.service.security.principal import Principal
from metatxn.wire import errors, names
from metatxn.wire.broker import (
    DEFAULT_MAX_REDELIVERIES,
    AckMessagesAnswer,
    AckMessagesRequest,
    ReceiveAnswer,
    ReceiveRequest,
    RedeliverAnswer,
    RedeliverRequest,
    SeekAnswer,
    SeekPlace,
    SeekPreview,
    SeekPreviewRequest,
    SeekRequest,
    SubscriptionInfo,
    SubscriptionPage,
    SubscriptionRequest,
    SubscriptionSummary,
)
from metatxn.wire.errors import ErrorCode
from participants.api.large_answers import messages_response
from participants.api.queries import PageTokenQuery, PairTokenQuery, TextQuery
from participants.api.rights import Shown, TopicPath, check_transaction, on_topic
from participants.api.share_routes import add_share_routes
from participants.api.subscription_requests import (
    ACK_REFUSALS,
    NamePath,
    ack_answer,
    ack_request,
    parsed_topic,
    places,
    redeliver_answer,
    redelivered,
    subscription_router,
)
from participants.broker.broker import Broker
from participants.subscription.definitions import SETTINGS, Definition, Definitions
from participants.topic.seeking import Target
from participants.topic.subscription import Subscription
from participants.topic.subscriptions import Subscriptions

MOST_LISTED = 1_000
"""The most subscriptions that one request lists, or looks through for a text."""


def add_consumer_routes(api: APIRouter, broker: Broker, subscriptions: Subscriptions) -> None:
    """The routes that a consumer calls all the time."""
    quick = subscription_router("subscriptions", "consume", DirectRoute)
    _add_receive_route(quick, subscriptions)
    _add_acknowledge_route(quick, broker, subscriptions)
    api.routes.extend(quick.routes)


def add_subscription_routes(api: APIRouter, broker: Broker, subscriptions: Subscriptions) -> None:
    _add_list_route(api, broker)
    consuming = subscription_router("subscriptions", "consume")
    _add_definition_routes(consuming, broker, subscriptions)
    _add_seek_route(consuming, subscriptions)
    _add_return_routes(consuming, subscriptions)
    administering = subscription_router("subscriptions", "admin")
    _add_drop_route(administering, subscriptions)
    api.routes.extend([*consuming.routes, *administering.routes])
    add_share_routes(api, broker, subscriptions)


def _add_list_route(api: APIRouter, broker: Broker) -> None:
    definitions = Definitions(broker.store)

    @api.get(
        "/v1/topics/{topic}/subscriptions",
        tags=["subscriptions"],
        responses=problems(404, 422, 503),
        dependencies=[on_topic("consume")],
    )
    async def list_subscriptions(
        topic: TopicPath, limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 100, page_token: PageTokenQuery = None
    ) -> SubscriptionPage:
        """List a topic's subscriptions by name. A page may have fewer than `limit` items although there is a next
        page."""
        await broker.topics.get(topic)
        found, more = await definitions.page(topic, page_token, limit)
        items = [_summary(each) for each in found if not each.record.deleted]
        return SubscriptionPage(items=items, next_page_token=names.page_token(found[-1].name) if more else None)

    @api.get("/v1/subscriptions", tags=["subscriptions"], responses=problems(422, 503))
    async def list_all_subscriptions(
        caller: Caller,
        limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 100,
        page_token: PairTokenQuery = None,
        text: TextQuery = None,
    ) -> SubscriptionPage:
        """List the subscriptions of all topics that the caller may consume, by topic and name. A page may have fewer
        than `limit` items although there is a next page."""
        wanted = (text or "").casefold()

        def is_listed(each: Definition) -> bool:
            has_text = wanted in each.topic.casefold() or wanted in each.name.casefold()
            return has_text and not each.record.deleted and caller.may("consume", each.topic)

        found, more = await definitions.page_of_all(page_token, limit if text is None else MOST_LISTED)
        seen = [*filter(is_listed, found)]
        last = seen[limit - 1] if len(seen) > limit else found[-1] if more else None
        token = names.pair_token(last.topic, last.name) if last is not None else None
        return SubscriptionPage(items=[_summary(each) for each in seen[:limit]], next_page_token=token)


def _add_definition_routes(api: APIRouter, broker: Broker, subscriptions: Subscriptions) -> None:
    @api.put("", responses=problems(ErrorCode.NOT_FOUND, ErrorCode.ALREADY_EXISTS, 307, 422, 503, 504))
    @audited("subscription.create")
    async def create_subscription(
        topic: TopicPath, subscription: NamePath, request: SubscriptionRequest, caller: Caller, shown: Shown
    ) -> SubscriptionInfo:
        """Create a subscription, or find an existing one with the same options. Its dead-letter topic is created if it
        does not exist."""
        await subscriptions.assert_home(topic)
        record = await _record(broker, topic, request, caller)
        return await _info(await subscriptions.create(topic, subscription, record, shown), shown)

    @api.get("", responses=problems(ErrorCode.NOT_FOUND, 307, 422, 503))
    async def get_subscription(topic: TopicPath, subscription: NamePath, shown: Shown) -> SubscriptionInfo:
        """Get the progress of a subscription on every segment, and what is pending in which transaction."""
        return await _info(await subscriptions.at_home(topic, subscription), shown)


def _add_seek_route(api: APIRouter, subscriptions: Subscriptions) -> None:
    @api.post(
        "/seek",
        responses=problems(ErrorCode.NOT_FOUND, ErrorCode.TXN_CONFLICT, ErrorCode.POSITION_TRIMMED, 307, 422, 503, 504),
    )
    @audited("subscription.seek", body=("to", "at_ms", "positions", "revision", "force"))
    async def seek_subscription(
        topic: TopicPath, subscription: NamePath, request: SeekRequest, caller: Caller, shown: Shown
    ) -> SeekAnswer:
        """Move a subscription, on all segments at once: everything before the new position is acknowledged, and
        everything after it is delivered, again or for the first time."""
        if request.force:
            caller.require("admin", topic)
        target, force = _target(request), request.force
        moved, aborted = await subscriptions.seek(topic, subscription, target, force=force, authorization=shown)
        return SeekAnswer(**(await _info(moved, shown)).model_dump(), aborted=aborted)

    @api.post("/seek/preview", responses=problems(ErrorCode.NOT_FOUND, ErrorCode.POSITION_TRIMMED, 307, 422, 503))
    async def preview_seek(
        topic: TopicPath, subscription: NamePath, request: SeekPreviewRequest, shown: Shown
    ) -> SeekPreview:
        """Say what a seek would do now, and change nothing: what would be delivered again, what never, and which open
        transactions it would be refused for."""
        for_s = request.for_ms / 1000 if request.for_ms is not None else None
        return await subscriptions.preview(topic, subscription, _target(request), shown, for_s=for_s)


def _target(request: SeekPlace) -> Target:
    positions = places(request.positions) if request.positions else None
    return Target(request.to, request.at_ms, positions, request.revision)


def _add_drop_route(api: APIRouter, subscriptions: Subscriptions) -> None:
    @api.delete("", status_code=204, response_class=Response, responses=problems(ErrorCode.NOT_FOUND, 422, 503, 504))
    @audited("subscription.drop")
    async def drop_subscription(topic: TopicPath, subscription: NamePath, shown: Shown) -> Response:
        """Drop a subscription and all of its records. Open transactions lose their acknowledgements on it."""
        await subscriptions.drop(topic, subscription, shown)
        return Response(status_code=204)


def _add_receive_route(api: APIRouter, subscriptions: Subscriptions) -> None:
    @api.post(
        "/receive",
        response_model=ReceiveAnswer,
        response_model_exclude_none=True,
        responses=problems(ErrorCode.NOT_FOUND, ErrorCode.ALREADY_EXISTS, 307, 422, 503, 504),
    )
    async def receive(topic: TopicPath, subscription: NamePath, body: ReceiveRequest, request: Request) -> Response:
        """Receive messages for a consumer. They belong to it until they are acknowledged or returned, or the consumer
        is gone."""
        served = await subscriptions.at_home(topic, subscription)
        shown = request.headers.get("authorization")
        given = await served.receive(
            body.consumer, body.max, body.wait_ms, shown, session_timeout_ms=body.session_timeout_ms
        )
        return messages_response(
            ReceiveAnswer.model_construct(
                messages=[each.message for each in given.messages],
                others_hold=given.others_hold,
                ack_timeout_ms=served.definition.record.ack_timeout_ms,
            )
        )


def _add_acknowledge_route(api: APIRouter, broker: Broker, subscriptions: Subscriptions) -> None:
    @api.post("/acks", response_model_exclude_none=True, responses=problems(*ACK_REFUSALS, 307))
    async def acknowledge(
        topic: TopicPath, subscription: NamePath, body: AckMessagesRequest, caller: Caller, request: Request
    ) -> AckMessagesAnswer:
        """Acknowledge messages, inside a transaction or immediately. For each broker, either all messages of its
        segments are acknowledged, or none if any of them conflicts."""
        wanted = ack_request(body)
        await check_transaction(broker, wanted.txn_id, caller)
        await subscriptions.acknowledge(topic, subscription, wanted, request.headers.get("authorization"))
        return ack_answer(wanted)


def _add_return_routes(api: APIRouter, subscriptions: Subscriptions) -> None:
    @api.delete(
        "/consumers/{consumer}",
        status_code=204,
        response_class=Response,
        responses=problems(ErrorCode.NOT_FOUND, 307, 422, 503),
    )
    async def leave(topic: TopicPath, subscription: NamePath, consumer: NamePath) -> Response:
        """Remove a consumer. Its messages return at once, and another consumer may take its place."""
        (await subscriptions.at_home(topic, subscription)).leave(consumer)
        return Response(status_code=204)

    @api.post("/redeliver", responses=problems(ErrorCode.NOT_FOUND, 307, 422, 503, 504))
    async def redeliver(
        topic: TopicPath, subscription: NamePath, shown: Shown, request: RedeliverRequest | None = None
    ) -> RedeliverAnswer:
        """Redeliver these messages, or all that consumers hold (negative acknowledgement). Messages with a pending
        acknowledgement are not affected."""
        return redeliver_answer(await subscriptions.redeliver(topic, subscription, redelivered(request), shown))


async def _record(broker: Broker, topic: str, request: SubscriptionRequest, caller: Principal) -> SubscriptionRecord:
    """The record to be stored, except for its incarnation. To name a dead-letter topic, the caller needs the right to
    produce to it."""
    dead_letter_topic, max_redeliveries = request.dead_letter_topic, request.max_redeliveries
    if dead_letter_topic is None:
        if max_redeliveries is not None:
            raise errors.invalid_field("max_redeliveries", "needs a dead_letter_topic")
    else:
        dead_letter_topic = parsed_topic("dead_letter_topic", dead_letter_topic)
        if dead_letter_topic == topic:
            raise errors.invalid_field("dead_letter_topic", "is the topic itself")
        caller.require("produce", dead_letter_topic)
        await _assure_topic(broker, dead_letter_topic, caller)
        max_redeliveries = DEFAULT_MAX_REDELIVERIES if max_redeliveries is None else max_redeliveries
    delay_ms, max_delay_ms = request.redelivery_delay_ms, request.max_redelivery_delay_ms
    if max_delay_ms is not None and (delay_ms is None or max_delay_ms < delay_ms):
        raise errors.invalid_field("max_redelivery_delay_ms", "needs a redelivery_delay_ms, and is at least as long")
    return SubscriptionRecord(
        incarnation=1,
        type=request.type,
        initial=request.initial,
        created_ms=broker.clock(),
        dead_letter_topic=dead_letter_topic,
        max_redeliveries=max_redeliveries,
        ack_timeout_ms=request.ack_timeout_ms,
        redelivery_delay_ms=delay_ms,
        max_redelivery_delay_ms=max_delay_ms,
        isolation=None if request.isolation == "read_committed" else request.isolation,
    )


async def _assure_topic(broker: Broker, name: str, caller: Principal) -> None:
    try:
        await broker.topics.get(name)
    except errors.MetatxnError:
        caller.require("admin", name)
        try:
            created = await broker.topics.create(name, 1, None, broker.storage.storage_id, broker.clock())
        except errors.AlreadyExists:
            pass
        else:
            await broker.open_all(created.segments)


def _summary(definition: Definition) -> SubscriptionSummary:
    record = definition.record
    of_creation = {"created_ms": record.created_ms} | _settings(definition)
    return SubscriptionSummary(topic=definition.topic, name=definition.name, **of_creation)


def _settings(definition: Definition) -> dict[str, Any]:
    found = {field: getattr(definition.record, field) for field in SETTINGS}
    return found | {"isolation": definition.record.isolation or "read_committed"}


async def _info(subscription: Subscription, shown: str | None) -> SubscriptionInfo:
    definition, most_held = subscription.definition, await subscription.most_held()
    segments = await subscription.segments(shown)
    held: Counter[str] = Counter()
    attached = sorted({name for segment in segments for name in segment.attached})
    for segment in segments:
        held.update(segment.held)
        held.update(segment.attached)
    return SubscriptionInfo(
        topic=definition.topic,
        name=definition.name,
        **_settings(definition),
        consumers=(consumers := [*subscription.consumers, *attached]),
        blocked=[name for name in consumers if most_held is not None and held[name] >= most_held],
        segments=segments,
    )
