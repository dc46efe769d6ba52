"""The rights that endpoints require. Each is a dependency of the route, so a request is refused before anything is
done."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic import AfterValidator

from metatxn.service.http import Caller, PathText
from metatxn.service.security.principal import Principal
from metatxn.wire import errors
from metatxn.wire.access import Right
from metatxn.wire.ids import TxnId
from metatxn.wire.names import namespace_part, topic_name, topic_of_segment
from participants.broker.broker import Broker
from participants.txn.refusals import refusal

TopicPath = Annotated[PathText, AfterValidator(topic_name)]
NamespacePart = Annotated[PathText, AfterValidator(namespace_part)]


async def _authorization(request: Request) -> str | None:
    """This is a coroutine although it waits for nothing, because FastAPI runs every other dependency in a thread."""
    return request.headers.get("authorization")


Shown = Annotated[str | None, Depends(_authorization)]
"""The caller's `Authorization`, which is passed on to the owners of segments on other brokers."""


def on_topic(right: Right) -> Any:
    """Requires that the caller has `right` on the topic of the path; raises NOT_ALLOWED."""

    async def require(topic: TopicPath, caller: Caller) -> None:
        caller.require(right, topic)

    return Depends(require)


def on_segment(right: Right) -> Any:
    """Requires that the caller has `right` on the topic of the segment in the path; raises NOT_ALLOWED.

    This depends on the segment's name alone, so a caller without the right does not learn whether the segment exists.
    """

    async def require(segment: PathText, caller: Caller) -> None:
        if not caller.superuser:
            caller.require(right, topic_of_segment(segment))

    return Depends(require)


async def administering_namespace(tenant: NamespacePart, namespace: NamespacePart, caller: Caller) -> None:
    """Requires that the caller administers every topic of the namespace in the path; raises NOT_ALLOWED."""
    caller.require_below("admin", f"{tenant}/{namespace}/")


async def administering_cluster(caller: Caller) -> None:
    """Requires that the caller administers every topic; raises NOT_ALLOWED."""
    caller.require_below("admin", "")


async def seeing_topic(topic: TopicPath, caller: Caller) -> None:
    """Requires that the caller has any right on the topic of the path; raises NOT_ALLOWED."""
    if not caller.may_see(topic):
        raise caller.lacks(f"any right on topic {topic}", topic=topic)


async def check_transaction(broker: Broker, txn_id: TxnId | None, caller: Principal) -> None:
    """Raises NOT_ALLOWED if another principal began `txn_id` (scenario B14), and TXN_NOT_FOUND if it is unknown.

    The owner of a header never changes, so the mirror is as good as the store for this, and it usually has the header.
    An unknown transaction is not left to the guard of its intent, because ids are predictable: another principal could
    begin it in between.
    """
    if txn_id is None or caller.superuser:
        return
    header = await broker.header(txn_id)
    if header is None:
        raise refusal(txn_id, None)
    if not caller.owns(header.owner):
        raise errors.NotAllowed(
            f"transaction {txn_id} was begun by a principal other than {caller.name!r}",
            action="Write with the token of the principal that began the transaction.",
            txn_id=str(txn_id),
        )
