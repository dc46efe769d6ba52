"""The broker's REST endpoints of subscriptions: create, receive, acknowledge, give again, look, drop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

from fastapi import APIRouter
from fastapi.responses import Response
from pydantic import AfterValidator

from metastore.txn.ids import TxnId
from metastore.txn.records import SubscriptionRecord
from participants.api.models import (
    DEFAULT_MAX_REDELIVERIES,
    AckMessagesAnswer,
    AckMessagesRequest,
    ReceiveAnswer,
    ReceivedMessage,
    ReceiveRequest,
    RedeliverAnswer,
    RedeliverRequest,
    SubscriptionInfo,
    SubscriptionRequest,
    SubscriptionSegment,
)
from participants.api.rights import TopicPath, check_transaction, on_topic
from participants.broker.broker import Broker
from participants.broker.messages import Messages
from participants.broker.names import MessageId, topic_name
from participants.ledger.position import Position
from participants.subscription.subscription import AckRequest, Subscription
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

    @api.put(
        ROOT,
        tags=["subscriptions"],
        responses=problems(ErrorCode.NOT_FOUND, ErrorCode.ALREADY_EXISTS, 307, 422, 503, 504),
        dependencies=[on_topic("consume")],
    )
    async def create_subscription(
        topic: TopicPath, subscription: NamePath, request: SubscriptionRequest, caller: Caller
    ) -> SubscriptionInfo:
        """Create a subscription, or find it as it is asked for. Its dead-letter topic is created when it is missing."""
        record = await _record(broker, topic, request, caller)
        return await _info(await subscriptions.create(topic, subscription, record))

    @api.get(
        ROOT,
        tags=["subscriptions"],
        responses=problems(ErrorCode.NOT_FOUND, 307, 422, 503),
        dependencies=[on_topic("consume")],
    )
    async def get_subscription(topic: TopicPath, subscription: NamePath) -> SubscriptionInfo:
        """How far a subscription is on every segment, and what is pending in which transaction."""
        return await _info(await subscriptions.get(topic, subscription))

    @api.delete(
        ROOT,
        status_code=204,
        response_class=Response,
        tags=["subscriptions"],
        responses=problems(ErrorCode.NOT_FOUND, 422, 503, 504),
        dependencies=[on_topic("admin")],
    )
    async def drop_subscription(topic: TopicPath, subscription: NamePath) -> Response:
        """Drop a subscription and every trace of it. Open transactions lose their acknowledgements on it."""
        await subscriptions.drop(topic, subscription)
        return Response(status_code=204)

    @api.post(
        f"{ROOT}/receive",
        tags=["subscriptions"],
        responses=problems(ErrorCode.NOT_FOUND, ErrorCode.ALREADY_EXISTS, 307, 422, 503),
        dependencies=[on_topic("consume")],
    )
    async def receive(topic: TopicPath, subscription: NamePath, request: ReceiveRequest) -> ReceiveAnswer:
        """Messages for a consumer: they are its own until they are acknowledged, returned, or the consumer is gone."""
        served = await subscriptions.get(topic, subscription)
        given = await served.receive(request.consumer, request.max, request.wait_ms)
        return ReceiveAnswer(
            messages=[
                ReceivedMessage(**each.message.model_dump(), redelivery_count=each.redelivery_count) for each in given
            ]
        )

    @api.delete(
        f"{ROOT}/consumers/{{consumer}}",
        status_code=204,
        response_class=Response,
        tags=["subscriptions"],
        responses=problems(ErrorCode.NOT_FOUND, 422, 503),
        dependencies=[on_topic("consume")],
    )
    async def leave(topic: TopicPath, subscription: NamePath, consumer: NamePath) -> Response:
        """A consumer leaves: its messages return at once, and another one may take its place."""
        (await subscriptions.get(topic, subscription)).leave(consumer)
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
        topic: TopicPath, subscription: NamePath, request: AckMessagesRequest, caller: Caller
    ) -> AckMessagesAnswer:
        """Acknowledge messages, inside a transaction or for good: all of them, or none when any conflicts."""
        txn_id = _txn_id(request.txn_id)
        ids = _message_ids(request.message_ids or ())
        places = _places(request.positions or {})
        await check_transaction(broker, txn_id, caller)
        served = await subscriptions.get(topic, subscription)
        await served.acknowledge(AckRequest(ids, request.kind == "cumulative", txn_id, request.writer, places))
        return AckMessagesAnswer(acknowledged=len(set(ids)) + len(places))

    @api.post(
        f"{ROOT}/redeliver",
        tags=["subscriptions"],
        responses=problems(ErrorCode.NOT_FOUND, 307, 422, 503),
        dependencies=[on_topic("consume")],
    )
    async def redeliver(
        topic: TopicPath, subscription: NamePath, request: RedeliverRequest | None = None
    ) -> RedeliverAnswer:
        """Negative acknowledgement: give these messages again, or all that consumers hold. Messages with a pending
        acknowledgement stay put."""
        wanted = request.message_ids if request is not None else None
        ids = None if wanted is None else _message_ids(wanted)
        served = await subscriptions.get(topic, subscription)
        return RedeliverAnswer(redelivered=await served.redeliver(ids))


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


async def _info(subscription: Subscription) -> SubscriptionInfo:
    definition = subscription.definition
    return SubscriptionInfo(
        topic=definition.topic,
        name=definition.name,
        initial=definition.record.initial,
        type=definition.record.type,
        dead_letter_topic=definition.record.dead_letter_topic,
        max_redeliveries=definition.record.max_redeliveries,
        consumers=subscription.consumers,
        segments=[
            SubscriptionSegment(
                segment=part.segment.id,
                mark_delete=str(part.segment.ledgers.shown(counts.mark_delete)),
                backlog=counts.backlog,
                unacked=counts.unacked,
                pending_acks={str(txn_id): number for txn_id, number in counts.pending.items()},
            )
            for part, counts in await subscription.counts()
        ],
    )


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
