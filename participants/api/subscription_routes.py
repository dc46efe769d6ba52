"""The broker's REST endpoints of subscriptions: create, receive, acknowledge, give again, look, drop; and what brokers
ask each other for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import AfterValidator

from metastore.txn.ids import TxnId
from metastore.txn.records import SubscriptionRecord
from participants.api.models import (
    DEFAULT_MAX_REDELIVERIES,
    SUBSCRIPTION_SEGMENT,
    AckMessagesAnswer,
    AckMessagesRequest,
    ReceiveAnswer,
    ReceiveRequest,
    RedeliverAnswer,
    RedeliverRequest,
    SubscriptionInfo,
    SubscriptionPage,
    SubscriptionRequest,
    SubscriptionSegment,
    SubscriptionSummary,
)
from participants.api.queries import PageTokenQuery
from participants.api.rights import Shown, TopicPath, check_transaction, on_topic
from participants.api.share_models import ShareTakeAnswer, ShareTakeRequest, ShareWaitRequest
from participants.broker import names
from participants.broker.broker import Broker
from participants.broker.messages import Messages
from participants.broker.names import MessageId, topic_name
from participants.ledger.position import Position
from participants.subscription.definitions import Definition, Definitions
from participants.subscription.share import AckRequest, Taking
from participants.subscription.subscription import Subscription
from participants.subscription.subscriptions import Subscriptions
from service.http import Caller, PathText, problems
from service.problems import ErrorCode, ServiceError
from service.security.principal import Principal


def _short(name: str) -> str:
    if not 0 < len(name) <= 256:
        raise ValueError("must have 1 to 256 characters")
    return name


NamePath = Annotated[PathText, AfterValidator(_short)]
ROOT = "/v1/topics/{topic}/subscriptions/{subscription}"


def add_subscription_routes(api: APIRouter, broker: Broker) -> None:
    subscriptions = Subscriptions(broker, Messages(broker))

    definitions = Definitions(broker.store)

    @api.get(
        "/v1/topics/{topic}/subscriptions",
        tags=["subscriptions"],
        responses=problems(404, 422, 503),
        dependencies=[on_topic("consume")],
    )
    async def list_subscriptions(
        topic: TopicPath, limit: Annotated[int, Query(ge=1, le=1000)] = 100, page_token: PageTokenQuery = None
    ) -> SubscriptionPage:
        """A topic's subscriptions by name. A page may hold fewer than `limit` and have a next."""
        await broker.topics.get(topic)
        found, more = await definitions.page(topic, page_token, limit)
        items = [_summary(each) for each in found if not each.record.deleted]
        return SubscriptionPage(items=items, next_page_token=names.page_token(found[-1].name) if more else None)

    @api.put(
        ROOT,
        tags=["subscriptions"],
        responses=problems(ErrorCode.NOT_FOUND, ErrorCode.ALREADY_EXISTS, 307, 422, 503, 504),
        dependencies=[on_topic("consume")],
    )
    async def create_subscription(
        topic: TopicPath, subscription: NamePath, request: SubscriptionRequest, caller: Caller, shown: Shown
    ) -> SubscriptionInfo:
        """Create a subscription, or find it as it is asked for. Its dead-letter topic is created when it is missing."""
        await subscriptions.assert_home(topic)
        record = await _record(broker, topic, request, caller)
        return await _info(await subscriptions.create(topic, subscription, record, shown), shown)

    @api.get(
        ROOT,
        tags=["subscriptions"],
        responses=problems(ErrorCode.NOT_FOUND, 307, 422, 503),
        dependencies=[on_topic("consume")],
    )
    async def get_subscription(topic: TopicPath, subscription: NamePath, shown: Shown) -> SubscriptionInfo:
        """How far a subscription is on every segment, and what is pending in which transaction."""
        return await _info(await subscriptions.at_home(topic, subscription), shown)

    @api.delete(
        ROOT,
        status_code=204,
        response_class=Response,
        tags=["subscriptions"],
        responses=problems(ErrorCode.NOT_FOUND, 422, 503, 504),
        dependencies=[on_topic("admin")],
    )
    async def drop_subscription(topic: TopicPath, subscription: NamePath, shown: Shown) -> Response:
        """Drop a subscription and every trace of it. Open transactions lose their acknowledgements on it."""
        await subscriptions.drop(topic, subscription, shown)
        return Response(status_code=204)

    @api.post(
        f"{ROOT}/receive",
        tags=["subscriptions"],
        responses=problems(ErrorCode.NOT_FOUND, ErrorCode.ALREADY_EXISTS, 307, 422, 503, 504),
        dependencies=[on_topic("consume")],
    )
    async def receive(topic: TopicPath, subscription: NamePath, request: ReceiveRequest, shown: Shown) -> ReceiveAnswer:
        """Messages for a consumer: they are its own until they are acknowledged, returned, or the consumer is gone."""
        served = await subscriptions.at_home(topic, subscription)
        given = await served.receive(request.consumer, request.max, request.wait_ms, shown)
        return ReceiveAnswer(messages=[each.message for each in given])

    @api.delete(
        f"{ROOT}/consumers/{{consumer}}",
        status_code=204,
        response_class=Response,
        tags=["subscriptions"],
        responses=problems(ErrorCode.NOT_FOUND, 307, 422, 503),
        dependencies=[on_topic("consume")],
    )
    async def leave(topic: TopicPath, subscription: NamePath, consumer: NamePath) -> Response:
        """A consumer leaves: its messages return at once, and another one may take its place."""
        (await subscriptions.at_home(topic, subscription)).leave(consumer)
        return Response(status_code=204)

    @api.post(
        f"{ROOT}/acks",
        tags=["subscriptions"],
        responses=problems(
            ErrorCode.NOT_FOUND,
            ErrorCode.TXN_NOT_FOUND,
            ErrorCode.TXN_CONFLICT,
            ErrorCode.EXPIRED_TRANSACTION,
            307,
            422,
            503,
            504,
            507,
        ),
        dependencies=[on_topic("consume")],
    )
    async def acknowledge(
        topic: TopicPath, subscription: NamePath, request: AckMessagesRequest, caller: Caller, shown: Shown
    ) -> AckMessagesAnswer:
        """Acknowledge messages, inside a transaction or for good. Of the messages that one broker owns all are, or none
        when any conflicts."""
        wanted = _ack_request(request)
        await check_transaction(broker, wanted.txn_id, caller)
        await subscriptions.acknowledge(topic, subscription, wanted, shown)
        return _acknowledged(wanted)

    @api.post(
        f"{ROOT}/redeliver",
        tags=["subscriptions"],
        responses=problems(ErrorCode.NOT_FOUND, 307, 422, 503),
        dependencies=[on_topic("consume")],
    )
    async def redeliver(
        topic: TopicPath, subscription: NamePath, shown: Shown, request: RedeliverRequest | None = None
    ) -> RedeliverAnswer:
        """Negative acknowledgement: give these messages again, or all that consumers hold. Messages with a pending
        acknowledgement stay put."""
        return RedeliverAnswer(
            redelivered=await subscriptions.redeliver(topic, subscription, _redelivered(request), shown)
        )

    _add_share_routes(api, broker, subscriptions)


def _add_share_routes(api: APIRouter, broker: Broker, subscriptions: Subscriptions) -> None:
    """What a broker has of a subscription; it never asks another one for more."""

    @api.post(
        f"{ROOT}/share/take",
        tags=["between brokers"],
        responses=problems(ErrorCode.NOT_FOUND, 422, 503),
        dependencies=[on_topic("consume")],
    )
    async def take_of_share(topic: TopicPath, subscription: NamePath, request: ShareTakeRequest) -> ShareTakeAnswer:
        """Messages for a consumer, for the broker that hands the subscription out."""
        wanted = Taking(
            request.home,
            request.session,
            request.sessions,
            request.newest,
            request.segments,
            request.max,
            request.max_bytes,
        )
        taken = await subscriptions.take(topic, subscription, request.incarnation, wanted)
        return ShareTakeAnswer(messages=[each.message for each in taken.given], ended=sorted(taken.ended))

    @api.post(
        f"{ROOT}/share/wait",
        status_code=204,
        response_class=Response,
        tags=["between brokers"],
        responses=problems(ErrorCode.NOT_FOUND, 422, 503),
        dependencies=[on_topic("consume")],
    )
    async def wait_for_share(topic: TopicPath, subscription: NamePath, request: ShareWaitRequest) -> Response:
        """Answered once one of the segments has something to give."""
        share = await subscriptions.share(topic, subscription, request.segments, request.incarnation)
        await share.wait(request.segments, request.wait_ms / 1000)
        return Response(status_code=204)

    @api.post(
        f"{ROOT}/share/acks",
        tags=["between brokers"],
        responses=problems(
            ErrorCode.NOT_FOUND,
            ErrorCode.TXN_NOT_FOUND,
            ErrorCode.TXN_CONFLICT,
            ErrorCode.EXPIRED_TRANSACTION,
            422,
            503,
            504,
            507,
        ),
        dependencies=[on_topic("consume")],
    )
    async def acknowledge_share(
        topic: TopicPath, subscription: NamePath, request: AckMessagesRequest, caller: Caller
    ) -> AckMessagesAnswer:
        """Acknowledge messages that this broker owns: all of them, or none when any conflicts."""
        wanted = _ack_request(request)
        await check_transaction(broker, wanted.txn_id, caller)
        share = await subscriptions.share(topic, subscription, sorted(wanted.segments))
        await share.acknowledge(wanted)
        return _acknowledged(wanted)

    @api.post(
        f"{ROOT}/share/redeliver",
        tags=["between brokers"],
        responses=problems(ErrorCode.NOT_FOUND, 422, 503),
        dependencies=[on_topic("consume")],
    )
    async def redeliver_share(
        topic: TopicPath, subscription: NamePath, request: RedeliverRequest | None = None
    ) -> RedeliverAnswer:
        """Give messages again that this broker owns."""
        ids = _redelivered(request)
        share = await subscriptions.share(topic, subscription, sorted({each.segment for each in ids or ()}))
        return RedeliverAnswer(redelivered=await share.redeliver(ids))

    @api.get(
        f"{ROOT}/share",
        tags=["between brokers"],
        responses=problems(ErrorCode.NOT_FOUND, 422, 503)
        | {200: {"content": {"application/json": {"example": [SUBSCRIPTION_SEGMENT]}}}},
        dependencies=[on_topic("consume")],
    )
    async def get_share(topic: TopicPath, subscription: NamePath) -> list[SubscriptionSegment]:
        """How far the subscription is on the segments that this broker owns."""
        return await (await subscriptions.share(topic, subscription)).look()

    @api.delete(
        f"{ROOT}/share",
        status_code=204,
        response_class=Response,
        tags=["between brokers"],
        responses=problems(ErrorCode.NOT_FOUND, 422, 503, 504),
        dependencies=[on_topic("admin")],
    )
    async def drop_share(topic: TopicPath, subscription: NamePath) -> Response:
        """Delete what a subscription that was dropped has left on the segments that this broker owns."""
        await subscriptions.drop_share(topic, subscription)
        return Response(status_code=204)


async def _record(broker: Broker, topic: str, request: SubscriptionRequest, caller: Principal) -> SubscriptionRecord:
    """What is to be stored, its incarnation aside. Whoever sends messages elsewhere needs the right to."""
    dead_letter_topic, max_redeliveries = request.dead_letter_topic, request.max_redeliveries
    if dead_letter_topic is None:
        if max_redeliveries is not None:
            raise _invalid("max_redeliveries", "needs a dead_letter_topic")
    else:
        dead_letter_topic = _parsed("dead_letter_topic", dead_letter_topic)
        if dead_letter_topic == topic:
            raise _invalid("dead_letter_topic", "is the topic itself")
        caller.require("produce", dead_letter_topic)
        await _assure_topic(broker, dead_letter_topic, caller)
        max_redeliveries = DEFAULT_MAX_REDELIVERIES if max_redeliveries is None else max_redeliveries
    return SubscriptionRecord(
        incarnation=1,
        type=request.type,
        initial=request.initial,
        created_ms=broker.clock(),
        dead_letter_topic=dead_letter_topic,
        max_redeliveries=max_redeliveries,
    )


async def _assure_topic(broker: Broker, name: str, caller: Principal) -> None:
    try:
        await broker.topics.get(name)
    except ServiceError:
        caller.require("admin", name)
        try:
            created = await broker.topics.create(name, 1, None, broker.storage.storage_id, broker.clock())
        except ServiceError as error:
            if error.code is not ErrorCode.ALREADY_EXISTS:
                raise
        else:
            await broker.open_all(created.segments)


def _summary(definition: Definition) -> SubscriptionSummary:
    record = definition.record
    return SubscriptionSummary(
        name=definition.name,
        initial=record.initial,
        type=record.type,
        dead_letter_topic=record.dead_letter_topic,
        max_redeliveries=record.max_redeliveries,
        created_ms=record.created_ms,
    )


async def _info(subscription: Subscription, shown: str | None) -> SubscriptionInfo:
    definition = subscription.definition
    return SubscriptionInfo(
        topic=definition.topic,
        name=definition.name,
        initial=definition.record.initial,
        type=definition.record.type,
        dead_letter_topic=definition.record.dead_letter_topic,
        max_redeliveries=definition.record.max_redeliveries,
        consumers=subscription.consumers,
        segments=await subscription.segments(shown),
    )


def _ack_request(request: AckMessagesRequest) -> AckRequest:
    return AckRequest(
        _message_ids(request.message_ids or ()),
        request.kind == "cumulative",
        _txn_id(request.txn_id),
        request.writer,
        _places(request.positions or {}),
    )


def _acknowledged(wanted: AckRequest) -> AckMessagesAnswer:
    return AckMessagesAnswer(acknowledged=len(set(wanted.ids)) + len(wanted.up_to))


def _redelivered(request: RedeliverRequest | None) -> list[MessageId] | None:
    return None if request is None or request.message_ids is None else _message_ids(request.message_ids)


def _txn_id(text: str | None) -> TxnId | None:
    try:
        return None if text is None else TxnId.parse(text)
    except ValueError as error:
        raise _invalid("txn_id", str(error)) from None


def _message_ids(texts: Iterable[str]) -> list[MessageId]:
    try:
        return [MessageId.parse(text) for text in texts]
    except (ValueError, AssertionError) as error:
        raise _invalid("message_ids", str(error)) from None


def _places(texts: Mapping[str, str]) -> dict[str, Position]:
    try:
        return {segment_id: Position.parse(text) for segment_id, text in texts.items()}
    except ValueError as error:
        raise _invalid("positions", str(error)) from None


def _parsed(field: str, name: str) -> str:
    try:
        return topic_name(name)
    except ValueError as error:
        raise _invalid(field, str(error)) from None


def _invalid(field: str, problem: str) -> ServiceError:
    return ServiceError(ErrorCode.INVALID_ARGUMENT, f"{field}: {problem}", field=field)
