"""Parts that the endpoints of subscriptions share: their paths, and the conversion of their requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated

from fastapi import APIRouter
from pydantic import AfterValidator

from metatxn.service.http import PathText
from metatxn.service.strict import StrictRoute
from metatxn.wire import errors
from metatxn.wire.access import Right
from metatxn.wire.broker import MAX_NAME, AckMessagesAnswer, AckMessagesRequest, RedeliverAnswer, RedeliverRequest
from metatxn.wire.errors import ErrorCode
from metatxn.wire.ids import TxnId
from metatxn.wire.names import MessageId, parse_message_ids, topic_name
from metatxn.wire.position import Position
from participants.api.large_answers import LargeAnswerRoute
from participants.api.rights import on_topic
from participants.subscription.dispatch import Redelivered
from participants.subscription.share import AckRequest

MAX_WITHDRAWN = 10_000
ACK_REFUSALS = (
    *(ErrorCode.NOT_FOUND, ErrorCode.TXN_NOT_FOUND, ErrorCode.TXN_CONFLICT, ErrorCode.EXPIRED_TRANSACTION),
    *(422, 503, 504, 507),
)


def _short(name: str) -> str:
    if not 0 < len(name) <= MAX_NAME:
        raise ValueError(f"must have 1 to {MAX_NAME} characters")
    return name


NamePath = Annotated[PathText, AfterValidator(_short)]


def subscription_router(tag: str, right: Right, route_class: type[StrictRoute] = LargeAnswerRoute) -> APIRouter:
    """A router for the endpoints of one subscription, for callers that have this right on its topic."""
    return APIRouter(
        prefix="/v1/topics/{topic}/subscriptions/{subscription}",
        tags=[tag],
        dependencies=[on_topic(right)],
        route_class=route_class,
    )


def ack_request(request: AckMessagesRequest) -> AckRequest:
    return AckRequest(
        _message_ids(request.message_ids or ()),
        request.kind == "cumulative",
        _txn_id(request.txn_id),
        request.writer,
        places(request.positions or {}),
        request.for_all,
    )


def ack_answer(wanted: AckRequest) -> AckMessagesAnswer:
    return AckMessagesAnswer(acknowledged=len(set(wanted.ids)) + len(wanted.up_to))


def redelivered(request: RedeliverRequest | None) -> list[MessageId] | None:
    return None if request is None or request.message_ids is None else _message_ids(request.message_ids)


def redeliver_answer(found: Redelivered) -> RedeliverAnswer:
    return RedeliverAnswer(redelivered=found.count, withdrawn=list(found.withdrawn[:MAX_WITHDRAWN]))


def _txn_id(text: str | None) -> TxnId | None:
    try:
        return None if text is None else TxnId.parse(text)
    except ValueError as error:
        raise errors.invalid_field("txn_id", str(error)) from None


def _message_ids(texts: Iterable[str]) -> list[MessageId]:
    try:
        return parse_message_ids(texts)
    except (ValueError, AssertionError) as error:
        raise errors.invalid_field("message_ids", str(error)) from None


def places(texts: Mapping[str, str]) -> dict[str, Position]:
    try:
        return {segment_id: Position.parse(text) for segment_id, text in texts.items()}
    except ValueError as error:
        raise errors.invalid_field("positions", str(error)) from None


def parsed_topic(field: str, name: str) -> str:
    try:
        return topic_name(name)
    except ValueError as error:
        raise errors.invalid_field(field, str(error)) from None
