"""Which right an endpoint asks for: a dependency of its route, so that it is refused before anything is done."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic import AfterValidator

from metatxn.service.http import Caller, PathText
from metatxn.service.security.principal import Principal, Right
from metatxn.wire import errors
from metatxn.wire.ids import TxnId
from metatxn.wire.names import topic_name, topic_of_segment
from participants.broker.broker import Broker
from participants.txn.refusals import refusal

TopicPath = Annotated[PathText, AfterValidator(topic_name)]


async def _authorization(request: Request) -> str | None:
    """A coroutine, although it waits for nothing: FastAPI sends every other dependency to a thread."""
    return request.headers.get("authorization")


Shown = Annotated[str | None, Depends(_authorization)]
"""What the caller showed, to be passed on to the owners of segments that are not here."""


def on_topic(right: Right) -> Any:
    """The caller has `right` on the topic of the path, else NOT_ALLOWED."""

    async def require(topic: TopicPath, caller: Caller) -> None:
        caller.require(right, topic)

    return Depends(require)


def on_segment(right: Right) -> Any:
    """The caller has `right` on the topic that the segment of the path belongs to, else NOT_ALLOWED.

    By the name alone: whoever has no right does not learn whether there is such a segment.
    """

    async def require(segment: PathText, caller: Caller) -> None:
        if not caller.superuser:
            caller.require(right, topic_of_segment(segment))

    return Depends(require)


async def seeing_topic(topic: TopicPath, caller: Caller) -> None:
    """The caller has any right on the topic of the path, else NOT_ALLOWED."""
    if not caller.may_see(topic):
        raise caller.lacks(f"any right on topic {topic}", topic=topic)


async def check_transaction(broker: Broker, txn_id: TxnId | None, caller: Principal) -> None:
    """Raises NOT_ALLOWED when `txn_id` was begun by another principal (scenario B14), TXN_NOT_FOUND for an unknown one.

    The owner of a header never changes, so the mirror's word is as good as the store's, and usually there. An unknown
    one is not left to the guard of its intent: ids can be foreseen, and another may begin it in between.
    """
    if txn_id is None or caller.superuser:
        return
    header = await broker.header(txn_id)
    if header is None:
        raise refusal(txn_id, None)
    if not caller.owns(header.owner):
        raise errors.NotAllowed(
            f"transaction {txn_id} was begun by another principal than {caller.name!r}",
            action="Write with the token of the principal that began the transaction.",
            txn_id=str(txn_id),
        )
