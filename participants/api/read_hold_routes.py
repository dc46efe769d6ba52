"""Read holds: while one is in force, a snapshot of its topic stays readable."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from metatxn.service.audited import audited
from metatxn.service.http import Caller, problems
from metatxn.wire.broker import KeepReadHoldRequest, ReadHoldInfo, ReadHoldPage, TakeReadHoldRequest
from participants.api.rights import TopicPath, on_topic, seeing_topic
from participants.api.subscription_requests import NamePath
from participants.broker.broker import Broker
from participants.messages.read_holds import WantedHold

_PATH = "/v1/topics/{topic}/read-holds"


def add_read_hold_routes(api: APIRouter, broker: Broker) -> None:
    @api.get(_PATH, tags=["topics"], responses=problems(422, 503), dependencies=[Depends(seeing_topic)])
    async def list_read_holds(topic: TopicPath) -> ReadHoldPage:
        """List the read holds of a topic: there are at most 100."""
        return ReadHoldPage(items=await broker.read_holds.of_topic(topic))

    @api.post(
        _PATH,
        tags=["topics"],
        responses=problems(404, 409, 410, 422, 429, 503, 504),
        dependencies=[on_topic("consume")],
    )
    @audited("topic.hold", body=("hold_id", "hold_ms", "revision"))
    async def take_read_hold(topic: TopicPath, request: TakeReadHoldRequest, caller: Caller) -> ReadHoldInfo:
        """Hold a revision of a topic: while the hold lasts, no policy drops anything of the topic, it is not compacted,
        and snapshots at this revision are not refused as too old. The same request may be repeated."""
        wanted = WantedHold(request.hold_id, request.hold_ms, request.revision, caller.name)
        return await broker.read_holds.take(topic, wanted)

    @api.post(
        f"{_PATH}/{{hold_id}}/keep-alive",
        tags=["topics"],
        responses=problems(404, 422, 503, 504),
        dependencies=[on_topic("consume")],
    )
    async def keep_read_hold(topic: TopicPath, hold_id: NamePath, request: KeepReadHoldRequest) -> ReadHoldInfo:
        """Prolong a read hold. NOT_FOUND means that it has ended."""
        return await broker.read_holds.keep_alive(topic, hold_id, request.hold_ms)

    @api.delete(
        f"{_PATH}/{{hold_id}}",
        status_code=204,
        response_class=Response,
        tags=["topics"],
        responses=problems(422, 503, 504),
        dependencies=[on_topic("consume")],
    )
    @audited("topic.unhold")
    async def release_read_hold(topic: TopicPath, hold_id: NamePath) -> Response:
        """End a read hold. It is not an error if it has already ended."""
        await broker.read_holds.release(topic, hold_id)
        return Response(status_code=204)
