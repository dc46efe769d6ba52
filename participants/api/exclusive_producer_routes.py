"""The exclusive producer of a topic: claim, keep alive, release; and what a claimer's broker tells the others."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response

from metastore.txn.records.topics import ExclusiveProducerRecord
from metatxn.service.audited import audited
from metatxn.service.http import PathText, problems
from metatxn.wire.broker import ClaimTopicRequest, ExclusiveProducerInfo, KeepTopicRequest
from participants.api.rights import Shown, TopicPath, on_segment, on_topic
from participants.broker.broker import Broker
from participants.messages.exclusive_producers import Claim
from participants.messages.topics import shown_producer
from participants.topic.claims import Claims

_PATH = "/v1/topics/{topic}/exclusive-producer"


def add_exclusive_producer_routes(api: APIRouter, broker: Broker) -> None:
    claims = Claims(broker)

    @api.post(
        _PATH,
        tags=["topics"],
        responses=problems(404, 409, 422, 503, 504),
        dependencies=[on_topic("produce")],
    )
    @audited("topic.claim", body=("producer", "fence", "ttl_ms"))
    async def claim_topic(topic: TopicPath, request: ClaimTopicRequest, shown: Shown) -> ExclusiveProducerInfo:
        """Become the only producer of a topic, from the answer on. It is refused while another session has the topic,
        unless with `fence`. The same session may repeat the request."""
        claim = Claim(request.session, request.producer, request.fence, request.ttl_ms)
        return _info(await claims.claim(topic, claim, shown))

    @api.post(
        f"{_PATH}/keep-alive",
        tags=["topics"],
        responses=problems(422, 503, 504),
        dependencies=[on_topic("produce")],
    )
    async def keep_topic(topic: TopicPath, request: KeepTopicRequest) -> ExclusiveProducerInfo:
        """Prolong the hold of an exclusive producer. NOT_ALLOWED means that it has ended."""
        return _info(await broker.exclusive_producers.keep_alive(topic, request.epoch, request.ttl_ms))

    @api.delete(
        _PATH,
        status_code=204,
        response_class=Response,
        tags=["topics"],
        responses=problems(422, 503, 504),
        dependencies=[on_topic("produce")],
    )
    @audited("topic.release")
    async def release_topic(topic: TopicPath, epoch: Annotated[int, Query(ge=1, le=2**53 - 1)]) -> Response:
        """End the hold of an exclusive producer, so that everyone may publish again."""
        await broker.exclusive_producers.release(topic, epoch)
        return Response(status_code=204)

    @api.post(
        "/v1/segments/{segment}/learn-producer",
        status_code=204,
        response_class=Response,
        tags=["between brokers"],
        responses=problems(307, 404, 422, 503),
        dependencies=[on_segment("produce")],
    )
    async def learn_producer(segment: PathText) -> Response:
        """Have the owner of a segment read again which producer alone may publish to its topic. It answers when nothing
        is under way that was begun before."""
        await (await broker.segment(segment)).learn_producer()
        return Response(status_code=204)


def _info(hold: ExclusiveProducerRecord) -> ExclusiveProducerInfo:
    info = shown_producer(hold)
    assert info is not None, "it was just claimed or prolonged"
    return info
